"""Fast greedy and beam search: the loops, and the choice between them."""

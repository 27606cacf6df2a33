"""Models with other assignments than those that they compute, and with other numbers of routing iterations."""

"""How work is laid out for the Triton kernels. These functions run without Triton."""

import pytest
import torch

from hf_capsule_mt.ops.triton_operators import block_sizes, with_contiguous_rows


# The shape of the votes, and the number of blocks of positions. `VECTOR`: outputs that a thread reads at once.
@pytest.mark.parametrize(
    ("shape", "blocks", "expected"),
    [
        ((63, 3, 7, 1), 2, {"NB": 32, "IB": 4, "OB": 8, "DB": 1, "VECTOR": 1, "num_warps": 1}),
        ((64, 3, 7, 1), 2, {"NB": 32, "IB": 4, "OB": 8, "DB": 1, "VECTOR": 1, "num_warps": 1}),
        ((65, 3, 7, 1), 3, {"NB": 32, "IB": 4, "OB": 8, "DB": 1, "VECTOR": 1, "num_warps": 1}),
        ((10, 6, 512, 1), 10, {"NB": 1, "IB": 8, "OB": 512, "DB": 1, "VECTOR": 4, "num_warps": 4}),
        ((2, 4, 512, 1), 2, {"NB": 1, "IB": 4, "OB": 512, "DB": 1, "VECTOR": 8, "num_warps": 2}),
        ((2, 1, 1024, 1), 2, {"NB": 1, "IB": 1, "OB": 1024, "DB": 1, "VECTOR": 8, "num_warps": 1}),
        ((1, 64, 512, 2), 1, {"NB": 1, "IB": 64, "OB": 512, "DB": 2, "VECTOR": 1, "num_warps": 16}),
    ],
)
def test_the_votes_of_a_program_fill_its_warps(shape: tuple[int, ...], blocks: int, expected: dict[str, int]) -> None:
    sizes = {"INPUTS": shape[1], "OUTPUTS": shape[2], "SIZE": shape[3]} | expected
    assert block_sizes(torch.empty(shape, device="meta")) == (blocks, sizes)


READ_IN_PLACE = {
    "positions first": lambda votes: votes,
    "inputs first": lambda votes: votes.transpose(0, 1).contiguous().transpose(0, 1),
    "every other input": lambda votes: votes.repeat_interleave(2, dim=1)[:, ::2],
    "one output of many": lambda votes: votes[:, :, 1:2],
    "one number of many": lambda votes: votes.transpose(2, 3).contiguous().transpose(2, 3)[..., :1],
}
COPIED = {
    "sizes first": lambda votes: votes.transpose(2, 3).contiguous().transpose(2, 3),
    "every other output": lambda votes: votes.repeat_interleave(2, dim=2)[:, :, ::2],
    "every other number": lambda votes: votes.repeat_interleave(2, dim=3)[..., ::2],
    "one output, sizes first": lambda votes: votes.transpose(2, 3).contiguous().transpose(2, 3)[:, :, :1],
    "one number of each output": lambda votes: votes[..., :1],
}


@pytest.mark.parametrize("layout", [*READ_IN_PLACE, *COPIED])
def test_only_rows_with_gaps_are_copied(layout: str) -> None:
    """A kernel finds a row by the strides of positions and inputs, and reads it from its first number to its last."""
    votes = (READ_IN_PLACE | COPIED)[layout](torch.randn(5, 4, 3, 2))
    rows = with_contiguous_rows(votes)
    assert torch.equal(rows, votes)
    assert (rows is votes) == (layout in READ_IN_PLACE)

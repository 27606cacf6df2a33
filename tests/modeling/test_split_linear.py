import gc

import pytest
import torch
from torch import nn

from hf_capsule_mt.inference.search.transposed import _COPIES, transposed_copy
from hf_capsule_mt.modeling.capsules.linear_in_parts import split_count
from hf_capsule_mt.modeling.capsules.split_linear import SplitLinear


@pytest.mark.parametrize(("rows", "threads", "parts"), [(32000, 2, 2), (33, 2, 3), (7, 2, 7), (11, 2, 1), (64, 1, 1)])
def test_split_count(rows, threads, parts):
    assert split_count(rows, threads) == parts


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("outputs", [64, 33, 11])
@pytest.mark.parametrize("shape", [(1, 1, 16), (1, 16), (16,), (3, 2, 16), (0, 16)])
def test_equals_linear(shape, outputs, bias, monkeypatch):
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    torch.manual_seed(5)
    split = SplitLinear(16, outputs, bias=bias)
    plain = nn.Linear(16, outputs, bias=bias)
    plain.load_state_dict(split.state_dict())
    features = torch.randn(shape)
    with torch.no_grad():
        assert torch.allclose(split(features), plain(features), atol=1e-6)
        assert split(features).shape == plain(features).shape


def test_one_row_is_split_only_where_it_helps(monkeypatch):
    """On the CPU, in float32, without a graph: everything else is the plain linear map."""
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    split, calls = SplitLinear(16, 64), []
    original = torch.bmm
    monkeypatch.setattr(torch, "bmm", lambda *tensors: calls.append(1) or original(*tensors))
    row = torch.randn(1, 16)
    assert split(row).requires_grad and not calls
    with torch.no_grad():
        split(row.expand(2, 16))
        split.to(torch.bfloat16)(row.bfloat16())
        assert not calls
        split.float()(row)
        assert calls == [1]


CHANGES = {
    "in place": lambda linear: linear.weight.mul_(2.0),
    "behind PyTorch's back": lambda linear: linear.weight.data[3].add_(1.0),
    "another tensor": lambda linear: setattr(linear.weight, "data", torch.randn(64, 16)),
    "another size": lambda linear: setattr(linear.weight, "data", torch.randn(70, 16)),
    "loaded": lambda linear: linear.load_state_dict(SplitLinear(16, 64).state_dict()),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_turned_weight_follows_the_weight(change):
    linear = SplitLinear(16, 64)
    first = transposed_copy(linear.weight)
    assert transposed_copy(linear.weight) is first and torch.equal(first.t(), linear.weight)
    with torch.no_grad():
        change(linear)
    assert torch.equal(transposed_copy(linear.weight).t(), linear.weight)
    assert not transposed_copy(linear.weight).requires_grad


def test_turned_weight_is_gone_with_the_weight_and_not_made_of_others():
    before = len(_COPIES)
    linear = SplitLinear(16, 64)
    transposed_copy(linear.weight)
    assert len(_COPIES) == before + 1
    del linear
    gc.collect()
    assert len(_COPIES) == before
    for weight in (
        torch.randn(4, 6).bfloat16(),
        torch.randn(6, 4).t(),
        torch.empty(4, 6, device="meta"),
    ):
        assert transposed_copy(weight) is None

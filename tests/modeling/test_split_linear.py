import pytest
import torch
from torch import nn

from hf_capsule_mt.modeling.split_linear import SplitLinear, split_count


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

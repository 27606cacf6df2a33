"""`generate()` with a static cache compiles one step, for every family and in beam search too, and nothing changes."""

from typing import Any

import pytest
import torch
from family_cases import FAMILIES, Case, make_pairs, without_target
from torch import Tensor
from transformers import CompileConfig

from hf_capsule_mt.modeling.recurrent_cache import RecurrentCache

BEAMS = {"num_beams": 3, "num_return_sequences": 2}
# The first has the most parts.
one_case_a_family = pytest.mark.parametrize("case", [Case(family, family.chosen[0]) for family in FAMILIES], ids=str)


class Compiler:
    """A backend for `torch.compile` that counts graphs and runs them as they are; like a CUDA graph, it allows no
    tensor that outlives a step to move."""

    def __init__(self) -> None:
        self.graphs = 0
        self.addresses: list[frozenset[int]] = []

    def __deepcopy__(self, memo: Any) -> "Compiler":
        return self  # `generate` copies its settings

    def __call__(self, graph: Any, examples: Any) -> Any:
        self.graphs += 1

        def run(*inputs: Tensor) -> Any:
            versions = [(tensor, tensor._version) for tensor in inputs if isinstance(tensor, Tensor)]
            found = graph.forward(*inputs)
            changed = {tensor.data_ptr() for tensor, version in versions if tensor._version != version}
            self.addresses.append(frozenset(changed))
            return found

        return run

    def settings(self) -> dict[str, Any]:
        config = CompileConfig(fullgraph=True, backend=self, mode="default")
        config._compile_all_devices = True
        return {"cache_implementation": "static", "compile_config": config}


def inputs_of(case: Case, seed: int = 0) -> dict[str, Tensor]:
    return without_target(make_pairs(case.config(), seed=seed).batch())


@one_case_a_family
@pytest.mark.parametrize("search", [{}, BEAMS], ids=["greedy", "beams"])
def test_one_graph_serves_every_step(case: Case, search: dict[str, Any]) -> None:
    torch._dynamo.reset()
    model = case.build(**case.family.shallow)
    inputs = inputs_of(case)
    expected = model.generate(**inputs, **search)
    compiler = Compiler()
    found = model.generate(**inputs, **search, **compiler.settings())
    assert torch.equal(found, expected)
    assert compiler.graphs == 1
    # All steps but the first, which is not compiled.
    assert len(compiler.addresses) >= found.shape[1] - 2 > 2
    assert len(set(compiler.addresses)) == 1 and compiler.addresses[0], "the states of a step lie where they lay"
    # Another sentence of the same length: the same graph.
    ids = inputs["input_ids"].flip(0)
    other = {**inputs, "input_ids": ids, "attention_mask": inputs["attention_mask"].flip(0)}
    assert torch.equal(model.generate(**other, **search, **compiler.settings()), model.generate(**other, **search))
    assert compiler.graphs == 1


@one_case_a_family
def test_nothing_is_left_of_a_compiled_search(case: Case) -> None:
    torch._dynamo.reset()
    model = case.build(**case.family.shallow)
    inputs, compiler = inputs_of(case), Compiler()
    before = model.generate(**inputs, **BEAMS)
    model.generate(**inputs, **BEAMS, **compiler.settings())
    steps = len(compiler.addresses)
    assert torch.equal(model.generate(**inputs, **BEAMS), before)
    model(**make_pairs(case.config()).batch())
    assert len(compiler.addresses) == steps > 0
    assert model._compiled_call_impl is None and "_prefill" not in vars(model)


def test_a_static_cache_of_states() -> None:
    """The states after every step, in the same tensors, and as many as there are sentences."""
    cache = RecurrentCache(static=True)
    assert cache.is_compileable and cache.get_seq_length() == 0
    first = (torch.tensor([[1.0], [2.0]]),) * 2
    cache.append([first])
    states = cache.states
    assert states is not None and states[0].data_ptr() != states[1].data_ptr() != first[0].data_ptr()
    cache.append([(torch.tensor([[3.0], [4.0]]), torch.tensor([[5.0], [6.0]]))], count=2)
    assert cache.get_seq_length() == 3
    cache.reorder_cache(torch.tensor([1, 1]))
    assert all(now is before for now, before in zip(cache.states or (), states, strict=True))
    assert states[0].tolist() == [[4.0], [4.0]] and states[1].tolist() == [[6.0], [6.0]]
    assert first[0].tolist() == [[1.0], [2.0]], "a caller's tensor was written to"
    cache.batch_repeat_interleave(2)
    assert cache.layer.batch_size == 4 and cache.get_seq_length() == 3
    cache.reset()
    assert cache.states is None and cache.get_seq_length() == 0


def test_steps_that_are_recorded_are_not_written_over() -> None:
    cache = RecurrentCache(static=True)
    cache.append([(torch.tensor([[1.0]]),)])
    cache.activate_past_recording()
    assert not cache.is_compileable
    cache.append([(torch.tensor([[2.0]]),), (torch.tensor([[3.0]]),)])
    cache.crop(-2)
    assert cache.states is not None and cache.states[0].tolist() == [[1.0]] and cache.get_seq_length() == 1

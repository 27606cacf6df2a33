"""The bag-of-words and the agreement loss of section 3.3, GDR, against loops over sentences, steps and words."""

import math
from typing import Any

import pytest
import torch
from family_cases import assert_close
from torch import Tensor

from hf_capsule_mt import GDRMarianConfig
from hf_capsule_mt.modeling import auxiliary_losses
from hf_capsule_mt.modeling.auxiliary_losses import AuxiliaryLosses, log_partition
from hf_capsule_mt.modeling.past_future import HolisticContext

WIDTH, WORDS, STEPS = 7, 13, 6
# Padding on the right, on the left, on both sides, nowhere; the end token, 0, is a word like any other.
LABELS = torch.tensor(
    [
        [4, 9, 4, 0, -100, -100],
        [-100, -100, -100, 12, 3, 0],
        [-100, 0, -100, -100, -100, -100],
        [5, 1, 7, 7, 2, 0],
    ]
)


def make_losses(dtype: torch.dtype = torch.float64, **options: Any) -> AuxiliaryLosses:
    config = GDRMarianConfig(**{"past_capsules": 2, "future_capsules": 3, "capsule_dim": 2, **options})
    module = AuxiliaryLosses(config, WIDTH)
    generator = torch.Generator().manual_seed(1)
    for parameter in module.parameters():
        parameter.data = torch.randn(parameter.shape, generator=generator, dtype=torch.float64).to(dtype)
    return module


def make_inputs(dtype: torch.dtype = torch.float64) -> tuple[Tensor, HolisticContext, Tensor]:
    """States `[4, T, d]`, contents and the output embedding `[V, d]`, all of which learn."""
    generator = torch.Generator().manual_seed(2)

    def random(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype).requires_grad_()

    rows = len(LABELS)
    states, past, future = random(rows, STEPS, WIDTH), random(rows, STEPS, 4), random(rows, STEPS, 6)
    return states, HolisticContext(states, past, future), random(WORDS, WIDTH)


def bag_of_words_by_hand(module, context: HolisticContext, embedding: Tensor, labels: Tensor, sums: bool) -> Tensor:
    """L_BoW, summed over the steps of all sentences: `-log p_PRE(y_<=t) - log p_SUB(y_>=t)` at each."""
    total = torch.zeros((), dtype=torch.float64)
    for b, row in enumerate(labels.tolist()):
        places = [p for p, word in enumerate(row) if word != -100]
        for step, place in enumerate(places):
            for contents, weight, bag in (
                (context.past, module.past_words.weight, places[: step + 1]),
                (context.future, module.future_words.weight, places[step:]),
            ):
                scores = [embedding[word] @ (weight @ contents[b, place]) for word in range(WORDS)]
                norm = torch.stack(scores).exp().sum().log()
                losses = [norm - scores[row[p]] for p in bag]
                total = total + sum(losses) / (1 if sums else len(bag))
    return total


def agreement_by_hand(module, states: Tensor, context: HolisticContext, labels: Tensor) -> Tensor:
    """L_BCA, summed over the steps of all sentences."""
    total = torch.zeros((), dtype=torch.float64)
    for b, row in enumerate(labels.tolist()):
        places = [p for p, word in enumerate(row) if word != -100]
        for step, place in enumerate(places):
            before = sum(states[b, p] for p in places[: step + 1]) / (step + 1)
            after = sum(states[b, p] for p in places[step:]) / (len(places) - step)
            total = total + (context.past[b, place] - module.past_states.weight @ before).square().sum()
            total = total + (context.future[b, place] - module.future_states.weight @ after).square().sum()
    return total


def leaves(module: AuxiliaryLosses, states: Tensor, context: HolisticContext, embedding: Tensor) -> dict[str, Tensor]:
    return {
        **dict(module.named_parameters()),
        **{"states": states, "past": context.past, "future": context.future, "embedding": embedding},
    }


@pytest.mark.parametrize("items", [None, 40, torch.tensor(3)], ids=["own", "40", "tensor"])
@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_equal_the_loops(reduction: str, items: Any):
    """Both terms in value and in every gradient."""
    module = make_losses(bow_reduction=reduction)
    states, context, embedding = make_inputs()
    terms = module(states, context, LABELS, embedding, items)
    count = int((LABELS != -100).sum()) if items is None else int(items)
    expected = (
        bag_of_words_by_hand(module, context, embedding, LABELS, reduction == "sum") / count,
        agreement_by_hand(module, states, context, LABELS) / count,
    )
    inputs = leaves(module, states, context, embedding)
    for found, wanted in zip(terms, expected, strict=True):
        assert_close(found, wanted, 1e-10)
        grads = torch.autograd.grad(found, list(inputs.values()), allow_unused=True)
        for name, grad, right in zip(
            inputs, grads, torch.autograd.grad(wanted, list(inputs.values()), allow_unused=True), strict=True
        ):
            assert (grad is None) == (right is None), name
            if grad is not None:
                assert right.abs().max() > 0
                assert_close(grad, right, 1e-9)


def test_a_word_that_is_all_there_is():
    """One word: it is past and future at its only step, and both means are its state."""
    module = make_losses()
    states, context, embedding = make_inputs()
    labels = torch.full((4, STEPS), -100)
    labels[1, 2] = 6
    terms = module(states, context, labels, embedding)
    past = (embedding @ module.past_words.weight @ context.past[1, 2]).log_softmax(dim=0)
    future = (embedding @ module.future_words.weight @ context.future[1, 2]).log_softmax(dim=0)
    assert_close(terms.bow, -past[6] - future[6], 1e-10)
    gaps = context.past[1, 2] - module.past_states.weight @ states[1, 2]
    other = context.future[1, 2] - module.future_states.weight @ states[1, 2]
    assert_close(terms.bca, gaps.square().sum() + other.square().sum(), 1e-10)


def test_uniform_predictions_cost_the_logarithm_of_the_vocabulary():
    module = make_losses()
    states, context, embedding = make_inputs()
    nothing = HolisticContext(states, context.past * 0, context.future * 0)
    assert_close(module(states, nothing, LABELS, embedding).bow.float(), torch.tensor(2 * math.log(WORDS)), 1e-6)


@pytest.mark.parametrize("items", [None, 0, torch.tensor(0), 5])
@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_labels_that_are_all_padding_give_zero(reduction: str, items: Any):
    module = make_losses(bow_reduction=reduction)
    states, context, embedding = make_inputs()
    terms = module(states, context, torch.full((4, STEPS), -100), embedding, items)
    for term in terms:
        assert term.item() == 0.0
        inputs = leaves(module, states, context, embedding).values()
        for grad in torch.autograd.grad(term, list(inputs), allow_unused=True):
            assert grad is None or (grad == 0).all()


def test_padding_in_the_batch_changes_nothing():
    module = make_losses()
    states, context, embedding = make_inputs()
    expected = module(states, context, LABELS, embedding)

    def padded(tensor: Tensor, value: float, left: bool) -> Tensor:
        filling = tensor.new_full((len(tensor), 3, *tensor.shape[2:]), value)
        return torch.cat([filling, tensor] if left else [tensor, filling], dim=1)

    for left in (False, True):
        wider = HolisticContext(*(padded(part, 50.0, left) for part in context))
        found = module(wider.states, wider, padded(LABELS, -100, left), embedding)
        for term, wanted in zip(found, expected, strict=True):
            assert_close(term, wanted, 1e-9)


@pytest.mark.parametrize(("bow", "bca"), [(1.0, 0), (0, 0.5)])
def test_a_weight_of_zero_leaves_the_loss_and_its_parameters_out(bow: float, bca: float):
    module = make_losses(bow_loss_weight=bow, bca_loss_weight=bca)
    states, context, embedding = make_inputs()
    terms = module(states, context, LABELS, embedding)
    assert (terms.bow is None, terms.bca is None) == (bow == 0, bca == 0)
    kind = "words" if bow else "states"
    assert {name for name, _ in module.named_parameters()} == {f"past_{kind}.weight", f"future_{kind}.weight"}
    if not bow:
        with pytest.raises(ValueError, match="bow_loss_weight is 0"):
            module.word_states(context)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_low_precision_is_close_to_float64(dtype: torch.dtype):
    terms = make_losses(dtype)(*make_inputs(dtype)[:2], LABELS, make_inputs(dtype)[2])
    exact = make_losses()(*make_inputs()[:2], LABELS, make_inputs()[2])
    for term, wanted in zip(terms, exact, strict=True):
        assert term.dtype == torch.float32
        assert_close(term.double(), wanted, 8 * torch.finfo(dtype).eps)


def plain_log_partition(hidden: Tensor, embedding: Tensor, weights: Tensor) -> Tensor:
    return weights @ (hidden @ embedding.mT.to(hidden.dtype)).to(weights.dtype).logsumexp(dim=-1)


def partition_inputs(dtype: torch.dtype, embedding_dtype: torch.dtype | None = None) -> tuple[Tensor, Tensor, Tensor]:
    """Nine rows, three of which count for nothing."""
    generator = torch.Generator().manual_seed(8)
    hidden = torch.randn(9, 5, generator=generator, dtype=torch.float64)
    embedding = torch.randn(11, 5, generator=generator, dtype=torch.float64)
    weights = torch.rand(9, generator=generator, dtype=torch.float64) * 3
    weights[[0, 4, 8]] = 0
    exact = torch.float64 if dtype == torch.float64 else torch.float32
    return (
        hidden.to(dtype).requires_grad_(),
        embedding.to(embedding_dtype or dtype).requires_grad_(),
        weights.to(exact),
    )


@pytest.mark.parametrize("block", [1, 11, 35, 2**20])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_log_partition_is_the_plain_one(dtype: torch.dtype, block: int, monkeypatch):
    monkeypatch.setattr(auxiliary_losses, "CPU_BLOCK_ELEMENTS", block)
    hidden, embedding, weights = partition_inputs(dtype)
    found = 1.7 * log_partition(hidden, embedding, weights)
    wanted = 1.7 * plain_log_partition(hidden, embedding, weights)
    tolerance = 1e-12 if dtype == torch.float64 else 1e-5
    assert_close(found, wanted, tolerance)
    grads = torch.autograd.grad(found, (hidden, embedding))
    for grad, right in zip(grads, torch.autograd.grad(wanted, (hidden, embedding)), strict=True):
        assert right.abs().max() > 0.1 and grad.dtype == dtype
        assert_close(grad, right, tolerance)
    assert (grads[0][[0, 4, 8]] == 0).all()
    if dtype == torch.float64:
        assert torch.autograd.gradcheck(lambda h, e: log_partition(h, e, weights), (hidden, embedding))


@pytest.mark.parametrize("learns", ["hidden", "embedding", "neither"])
def test_log_partition_with_one_side_frozen(learns: str):
    hidden, embedding, weights = partition_inputs(torch.float64)
    both = torch.autograd.grad(log_partition(hidden, embedding, weights), (hidden, embedding))
    inputs = {"hidden": hidden, "embedding": embedding}
    given = {name: tensor if name == learns else tensor.detach() for name, tensor in inputs.items()}
    total = log_partition(given["hidden"], given["embedding"], weights)
    assert_close(total, log_partition(hidden, embedding, weights), 1e-12)
    assert total.requires_grad == (learns != "neither")
    if learns != "neither":
        (grad,) = torch.autograd.grad(total, inputs[learns])
        assert_close(grad, both[list(inputs).index(learns)], 1e-12)


@pytest.mark.parametrize("block", [1, 35, 2**20])
@pytest.mark.parametrize(
    ("dtype", "embedding_dtype"),
    [(torch.bfloat16, torch.bfloat16), (torch.bfloat16, torch.float32), (torch.float16, torch.float32)],
    ids=str,
)
def test_log_partition_is_as_exact_as_torch(dtype, embedding_dtype, block: int, monkeypatch):
    """At most twice the error that plain torch makes with the same types; the second and third are autocast's."""
    monkeypatch.setattr(auxiliary_losses, "CPU_BLOCK_ELEMENTS", block)
    inputs = partition_inputs(dtype, embedding_dtype)
    exact = [tensor.detach().double().requires_grad_() for tensor in inputs]
    results = []
    for function, (hidden, embedding, weights) in (
        (log_partition, inputs),
        (plain_log_partition, inputs),
        (plain_log_partition, exact),
    ):
        total = function(hidden, embedding, weights)
        results.append((total, *torch.autograd.grad(total, (hidden, embedding))))
    for name, found, torchs, wanted in zip(("total", "hidden", "embedding"), *results, strict=True):
        assert found.dtype == torchs.dtype and torch.isfinite(found).all()
        error = (found.double() - wanted).abs().max().item()
        allowed = (torchs.double() - wanted).abs().max().item()
        assert error <= 2 * allowed + 1e-6, f"{name}: {error}, torch's own {allowed}"


def test_log_partition_of_huge_scores_is_finite():
    hidden = torch.tensor([[1e19, 0.0], [0.0, 0.0], [-1e19, 1e19]], requires_grad=True)
    embedding = torch.tensor([[1e19, 1.0], [-1e19, 0.0], [0.0, 2.0]], requires_grad=True)
    total = log_partition(hidden, embedding, torch.ones(3))
    total.backward()
    assert torch.isfinite(total)
    assert torch.isfinite(hidden.grad).all() and torch.isfinite(embedding.grad).all()


@pytest.mark.parametrize("block", [1, 1000, 2**20])
def test_log_partition_keeps_no_scores(block: int, monkeypatch):
    monkeypatch.setattr(auxiliary_losses, "CPU_BLOCK_ELEMENTS", block)
    hidden, embedding = torch.randn(50, 4, requires_grad=True), torch.randn(101, 4, requires_grad=True)

    def kept(function) -> int:
        saved: list[Tensor] = []
        with torch.autograd.graph.saved_tensors_hooks(lambda t: saved.append(t) or t, lambda t: t):
            function(hidden, embedding, torch.ones(50))
        return max(tensor.numel() for tensor in saved)

    assert kept(log_partition) <= embedding.numel()
    assert kept(plain_log_partition) == 50 * 101

"""The presence A of Eq. (14), DLA says something after training with the default settings."""

from inspect import signature

import pytest
import torch
from family_cases import AGGREGATED_MARIAN
from markers import exhaustive
from torch import Tensor

from hf_capsule_mt import CapsuleAggregatedMarianConfig, CapsuleAggregatedMarianForConditionalGeneration
from hf_capsule_mt.modeling.capsules.router import CapsuleRouter
from hf_capsule_mt.ops import em_routing
from hf_capsule_mt.studies.routing_report import em_iterations

STEPS, WARMUP_STEPS, LEARNING_RATE = 200, 50, 5e-3
WORDS, FIRST_WORD = 24, 4
SITE_OPTIONS = {
    "decoder.layer_aggregation": {"layer_aggregation_side": "decoder"},
    "encoder.layers.0.self_attn": {"layer_aggregation": "none", "head_aggregation": "em_routing"},
}


def sentences(count: int, generator: torch.Generator) -> dict[str, Tensor]:
    """Sources of ten random words, to be translated word by word: `w` to `w + 1`."""
    source = torch.randint(FIRST_WORD, WORDS, (count, 10), generator=generator)
    return {"input_ids": source, "labels": (source + 1 - FIRST_WORD) % (WORDS - FIRST_WORD) + FIRST_WORD}


@torch.no_grad()
def change_by_betas(router: CapsuleRouter, votes: Tensor, activations: Tensor | None) -> Tensor:
    """`[O]`: how far the betas move A in the last iteration from where betas of 0 have it, mean over positions."""
    votes = votes.unflatten(-1, (router.num_capsules, -1)).flatten(0, -4)
    activations = None if activations is None else activations.flatten(0, -2)
    with_betas = em_iterations(router, votes, activations)[1][-1]
    router.beta_a.zero_(), router.beta_u.zero_()
    return (with_betas - em_iterations(router, votes, activations)[1][-1]).mean(dim=0).abs()


def test_the_function_has_the_defaults_of_the_configuration() -> None:
    defaults, config = signature(em_routing).parameters, CapsuleAggregatedMarianConfig()
    assert defaults["inverse_temperature"].default == config.em_inverse_temperature
    assert defaults["variance_floor"].default == config.em_variance_floor


@pytest.mark.parametrize("site", ["decoder.layer_aggregation", exhaustive("encoder.layers.0.self_attn")])
def test_the_betas_learn_to_move_the_presence(site: str) -> None:
    """By more than 0.05 in 200 steps, with the default temperature and variance floor."""
    sizes = {**AGGREGATED_MARIAN.sizes, "vocab_size": WORDS, "d_model": 32, "init_std": 0.1}
    config = CapsuleAggregatedMarianConfig(**sizes, **SITE_OPTIONS[site])
    defaults = CapsuleAggregatedMarianConfig()
    for field in ("em_inverse_temperature", "em_variance_floor"):
        assert getattr(config, field) == getattr(defaults, field)
    torch.manual_seed(5)
    model = CapsuleAggregatedMarianForConditionalGeneration(config)
    (router,) = (part for part in model.modules() if isinstance(part, CapsuleRouter) and part.site == site)
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, betas=(0.9, 0.98))
    warmup = torch.optim.lr_scheduler.LinearLR(optimizer, 1 / WARMUP_STEPS, total_iters=WARMUP_STEPS)
    generator = torch.Generator().manual_seed(7)
    for _ in range(STEPS):
        optimizer.zero_grad()
        model(**sentences(16, generator)).loss.backward()
        optimizer.step()
        warmup.step()
    seen: list[tuple[Tensor, ...]] = []
    router.register_forward_pre_hook(lambda _, inputs: seen.append(inputs))
    with torch.no_grad():
        model.eval()(**sentences(16, generator))
    votes, activations = (*seen[0], None)[:2]
    change = change_by_betas(router, votes, activations)
    assert change.max() > 0.05, f"A moved by at most {change.max():.4f}"

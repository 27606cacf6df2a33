"""The maps of every routing site of a model's output, for one sentence of the batch.

Legend: `N` iterations, `B` sentences, `P` positions, `I` input capsules, `O` output capsules.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from hf_capsule_mt.analysis.maps.map_data import routing_map

WORD_SITES = ("past_future", "encoder.capsules")  # their inputs are the words of the source


def site_maps(
    routings: Mapping[str, Tensor],
    sentence: int = 0,
    source: Sequence[str] | None = None,
    target: Sequence[str] | None = None,
) -> list[dict[str, Any]]:
    """One map for each site of `routings`, `{site: [N, B, P, I, O]}`.

    Args:
        routings: `routings` of a model's output. sentence: which sentence of the batch.
        source, target: names of its tokens, without padding; None numbers them. Positions after them are left out.
    """
    if not routings:
        raise ValueError(
            "routings is empty: the model has no routing site, or was called without output_routings=True"
        )
    maps = []
    for site, batch in routings.items():
        if batch.dim() != 5:
            raise ValueError(
                f"routings[{site!r}] has shape {list(batch.shape)}: must be [iterations, batch, positions, inputs, "
                "capsules], as a model returns it"
            )
        if not 0 <= sentence < batch.shape[1]:
            raise ValueError(f"sentence={sentence}: must be 0 to {batch.shape[1] - 1}, the batch has no other")
        maps.append(_site_map(site, batch[:, sentence].detach().float().cpu(), source, target))
    return maps


def _site_map(site: str, values: Tensor, source: Sequence[str] | None, target: Sequence[str] | None) -> dict[str, Any]:
    """`values` is `[N, P, I, O]`."""
    names = source if site.startswith("encoder") and site not in WORD_SITES else target
    if names is not None and values.shape[1] > 1:
        values = values[:, : len(names)]
    positions = list(names or map(str, range(1, values.shape[1] + 1)))[: values.shape[1]]
    if site not in WORD_SITES:
        unit = "layer" if site.endswith("layer_aggregation") else "head"
        inputs = [f"{unit} {number + 1}" for number in range(values.shape[2])]
        return routing_map(values, inputs, positions, title=site)
    real = values[-1].sum(dim=(0, 2)) > 0  # [I]; padding has probability 0
    if source is not None:
        real &= torch.arange(len(real)) < len(source)
    values = values[:, :, real]
    words = list(source or map(str, range(1, values.shape[2] + 1)))[: values.shape[2]]
    if site == "past_future" and values.shape[-1] == 2:  # attention: each sums to 1 over the words
        totals = values.sum(dim=2, keepdim=True).clamp_min(1e-12)
        return routing_map((values / totals).transpose(2, 3), ["past", "future"], positions, words, site)
    return routing_map(values, words, positions, title=site)

"""Ablations of routing: the same model with assignments that cannot depend on what it reads.

They answer whether routing matters, or only the parameters around it. `ablation_scores` reports them side by side.
"""

from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from inspect import signature
from types import FunctionType, MethodType
from typing import Any

from torch import Tensor, nn

from hf_capsule_mt.analysis.ablation.given_assignments import Call, GivenAssignments
from hf_capsule_mt.analysis.ablation.replacements import (
    Batch,
    RandomFixed,
    Replacement,
    Shuffled,
    model_assignments,
    uniform,
)
from hf_capsule_mt.analysis.routing_sites import RoutingSite, routing_sites

ABLATIONS = ("uniform", "random", "shuffled")
COMPUTED = "computed"


@contextmanager
def routing_ablation(
    model: nn.Module, name: str, seed: int = 0, alone: str = "error", sites: Collection[str] | None = None
) -> Iterator[None]:
    """Within this context, routing sites of `model` use other assignments; in `forward`, `generate` and training.

    At every site the capsules of the last iteration are computed from the replaced assignments. Nothing else changes:
    votes, activations, the learned costs and the temperature of EM routing, and the weights of the last iteration of
    CapsNMT are those of the model. No gradient goes through the assignments. `output_routings` returns the replaced
    assignments for every iteration.

    Args:
        model: a model of this package that routes over layers, heads, past and future or source words.
        name: what the assignments are.

            - `"uniform"`: equal shares. All layers or heads, or all source words, send equally much to every capsule.
              With dynamic, simple and guided routing this is the model with one iteration. EM routing with one
              iteration also has another temperature, and CapsNMT the weights of its first iteration.
            - `"random"`: drawn once for each site from `seed`, uniformly over the assignments that sum to 1. They are
              the same for all sentences and positions. Where source words are routed, they depend on the place of the
              word in the sentence.
            - `"shuffled"`: those that the model computes for another sentence of the batch, at the same position.
              `seed` draws which one. They are as sharp as the real ones, but belong to other words. They depend on
              the batch: compare models on the same batches. See [`Shuffled`] for sentences of different lengths.
            - `"computed"`: the model's own. The outputs are those without an ablation, which checks the method.
        seed: for `"random"` and `"shuffled"`.
        alone: for `"shuffled"` and a batch of one sentence: `"error"`, or `"keep"` its own assignments and warn.
        sites: names of routing sites, as in `output_routings`; None for all.

    Example:

    ```python
    >>> from hf_capsule_mt import routing_ablation, translate

    >>> with routing_ablation(model, "shuffled", seed=1):
    ...     translations = translate(model, tokenizer, sentences)
    ```

    One thread at a time may use the model within the context.
    """
    replacement = _replacement(name, seed, alone)
    chosen, batch = _chosen_sites(model, sites), Batch()
    with ExitStack() as stack:
        if isinstance(replacement, Shuffled):
            _watch_batches(model, batch, stack)
        for site in chosen:
            choose = partial(_choose, replacement, site.name, batch)
            stack.enter_context(replaced_functions(site, GivenAssignments(choose).functions()))
        yield


def _chosen_sites(model: nn.Module, names: Collection[str] | None) -> list[RoutingSite]:
    sites = routing_sites(model)
    if names is None:
        return sites
    site_names = [site.name for site in sites]
    if isinstance(names, str) or not names or not set(names) <= set(site_names):
        raise ValueError(f"sites={names!r}: must be a list of one or more of {', '.join(site_names)}")
    return [site for site in sites if site.name in names]


def _choose(replacement: Replacement, site: str, batch: Batch, call: Call) -> Tensor:
    return replacement(site, call, batch)


def _replacement(name: str, seed: int, alone: str) -> Replacement:
    if name not in (*ABLATIONS, COMPUTED):
        raise ValueError(f"routing_ablation {name!r}: must be one of {', '.join((*ABLATIONS, COMPUTED))}")
    if isinstance(seed, bool) or not isinstance(seed, int):
        raise ValueError(f"seed={seed!r}: must be an integer")
    if alone not in ("error", "keep"):
        raise ValueError(f"alone={alone!r}: must be 'error' or 'keep'")
    if name == "random":
        return RandomFixed(seed)
    if name == "shuffled":
        return Shuffled(seed, alone)
    return uniform if name == "uniform" else model_assignments


@contextmanager
def replaced_functions(site: RoutingSite, functions: dict[str, Callable[..., Any]]) -> Iterator[None]:
    """Let the method of a routing site call other functions of these names than its module has imported.

    The method becomes a copy that looks the names up in another table. So the method stays the model's own.
    """
    module = site.module
    if site.method in vars(module):
        raise ValueError(f"{site.name}: routing is already replaced at this site; leave that context first")
    plain = getattr(type(module), site.method)
    names = {**plain.__globals__, **functions}
    changed = FunctionType(plain.__code__, names, plain.__name__, plain.__defaults__, plain.__closure__)
    changed.__kwdefaults__ = plain.__kwdefaults__
    setattr(module, site.method, MethodType(changed, module))
    # The fast paths of inference leave a module with a hook to itself.
    hook = module.register_forward_pre_hook(_no_change)
    try:
        yield
    finally:
        hook.remove()
        delattr(module, site.method)


def _no_change(module: nn.Module, arguments: Any) -> None:
    return None


def _watch_batches(model: Any, batch: Batch, stack: ExitStack) -> None:
    """Keep `batch` up to date, from the arguments of the model, of its two stacks and of `generate`."""

    def argument(module: Any, args: Any, kwargs: Any, name: str) -> Any:
        return signature(module.forward).bind_partial(*args, **kwargs).arguments.get(name)

    def before_model(module: Any, args: Any, kwargs: Any) -> None:
        labels = argument(module, args, kwargs, "labels")
        batch.masks = {"encoder": None, "decoder": None if labels is None else labels != -100}

    def before_encoder(module: Any, args: Any, kwargs: Any) -> None:
        batch.masks["encoder"] = argument(module, args, kwargs, "attention_mask")

    def before_decoder(module: Any, args: Any, kwargs: Any) -> None:
        mask = argument(module, args, kwargs, "attention_mask")
        if mask is not None:
            batch.masks["decoder"] = mask

    for module, hook in (
        (model, before_model),
        (model.get_encoder(), before_encoder),
        (model.get_decoder(), before_decoder),
    ):
        stack.callback(module.register_forward_pre_hook(hook, with_kwargs=True).remove)
    if not hasattr(model, "generate"):
        return
    generate = model.generate

    def counted(inputs: Any = None, *args: Any, **kwargs: Any) -> Any:
        batch.sentences = _sentences(inputs, kwargs)
        try:
            return generate(inputs, *args, **kwargs)
        finally:
            batch.sentences = None

    if "generate" in vars(model):  # somebody else's wrapper, which comes back
        stack.callback(setattr, model, "generate", generate)
    else:
        stack.callback(delattr, model, "generate")
    model.generate = counted


def _sentences(inputs: Any, call: dict[str, Any]) -> int | None:
    """The number of sources in a call of `generate`."""
    for given in (inputs, *(call.get(name) for name in ("input_ids", "inputs_embeds"))):
        if given is not None:
            return len(given)
    encoded = call.get("encoder_outputs")
    return None if encoded is None else len(encoded[0])

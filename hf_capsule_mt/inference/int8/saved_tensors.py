"""The tensors of an int8 model by name, read from a model or put into one.

An int8 weight `[out, in]` is saved with the scale of each output, `[out]`, in no processor's order.
"""

from collections.abc import Callable, Iterable, Iterator

from torch import Tensor, nn

from hf_capsule_mt.inference.int8.layers import Int8Module
from hf_capsule_mt.inference.int8.native import RoundedWeights
from hf_capsule_mt.modeling.saving.finite_weights import not_finite

WEIGHT, SCALES = "weight", "scales"  # the two tensors of a packed weight


def tensors_of(model: nn.Module) -> dict[str, Tensor]:
    """The tensors of an int8 model by name; a tensor that modules share has the name in the first of them."""
    tensors: dict[str, Tensor] = {}
    for prefix, module in _int8_modules(model):
        weights = module.rounded_weights()
        tensors |= {f"{prefix}{WEIGHT}": weights.weight, f"{prefix}{SCALES}": weights.scales}
    seen: set[int] = set()
    for _, _, name, tensor in _float_tensors(model):
        if id(tensor) not in seen:
            tensors[name] = tensor
            seen.add(id(tensor))
    return tensors


def compare_names(names: Iterable[str], expected: Iterable[str]) -> str:
    """What is missing or surplus among the names of tensors, in words; empty if nothing is."""
    missing, surplus = sorted({*expected} - {*names}), sorted({*names} - {*expected})
    words = [f"lacks {_some(missing)}"] if missing else []
    return " and ".join(words + ([f"has {_some(surplus)}"] if surplus else []))


def _some(names: list[str]) -> str:
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return f"{', '.join(names[:3])}{more}"


def _int8_modules(model: nn.Module) -> Iterator[tuple[str, Int8Module]]:
    """The modules with packed weights, and the prefix of the names of their tensors."""
    for path, module in model.named_modules():
        if isinstance(module, Int8Module):
            yield f"{path}.", module


def _float_tensors(model: nn.Module) -> Iterator[tuple[nn.Module, str, str, Tensor]]:
    """Each parameter and buffer: its module, its name there, its name in the model, and the tensor."""
    for path, module in model.named_modules():
        prefix = f"{path}." if path else ""
        for name, tensor in [*module.named_parameters(recurse=False), *module.named_buffers(recurse=False)]:
            yield module, name, prefix + name, tensor


def fill(model: nn.Module, read: Callable[[str, Tensor], Tensor]) -> None:
    """Replace the tensors on the meta device by those that `read` gives for a name and the tensor on the meta device.

    Modules that shared a tensor share the new one.
    """
    for prefix, int8_module in _int8_modules(model):
        names = f"{prefix}{WEIGHT}", f"{prefix}{SCALES}"
        int8_module.pack_weights(RoundedWeights(*map(read, names, int8_module.rounded_weights())))
    filled: dict[int, tuple[Tensor, Tensor]] = {}  # by the id of the tensor before, which must stay alive
    for module, attribute, name, before in list(_float_tensors(model)):
        if id(before) not in filled:
            after = read(name, before)
            filled[id(before)] = before, nn.Parameter(after, False) if isinstance(before, nn.Parameter) else after
        setattr(module, attribute, filled[id(before)][1])


def checked_copy(tensor: Tensor, expected: Tensor, name: str) -> Tensor:
    """A copy of a tensor of the file. Memory of its own is aligned, so sums are the same to the last bit."""
    if tensor.shape != expected.shape or tensor.dtype != expected.dtype:
        raise ValueError(
            f"{name} is {tensor.dtype} {list(tensor.shape)}: must be {expected.dtype} {list(expected.shape)}; the "
            "file and config.json belong to different models"
        )
    if not_finite([(name, tensor)]):
        raise ValueError(f"{name} has values that are not finite: copy or download the file again")
    if name.endswith(f".{SCALES}") and bool((tensor <= 0).any()):
        raise ValueError(f"{name} has values that are not above 0: copy or download the file again")
    return tensor.clone()

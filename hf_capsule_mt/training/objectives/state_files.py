"""A nested state as two files, without pickling: tensors in safetensors, everything else in JSON."""

import json
from pathlib import Path
from typing import Any

from safetensors.torch import load_file, save_file
from torch import Tensor

STRUCTURE, TENSORS = "reward_{}.json", "reward_{}.safetensors"  # one of each for each process
TENSOR = "tensor"  # {"tensor": name} stands for a tensor, {"mapping": {…}} for a mapping


def save_state(state: dict[str, Any], folder: Path, process: int) -> None:
    """Write mappings, lists, tensors, numbers, texts, truth values and None. A tuple comes back as a list."""
    tensors: dict[str, Tensor] = {}

    def to_entry(value: Any, name: str) -> Any:
        if isinstance(value, Tensor):
            tensors[name] = value.detach().contiguous().clone()
            return {TENSOR: name}
        if isinstance(value, dict):
            if not all(isinstance(key, str) for key in value):
                raise ValueError(f"the reward's state has a mapping {name!r} with keys that are not texts: use texts")
            return {"mapping": {key: to_entry(entry, f"{name}.{key}") for key, entry in value.items()}}
        if isinstance(value, list | tuple):
            return [to_entry(entry, f"{name}.{place}") for place, entry in enumerate(value)]
        if value is None or isinstance(value, bool | int | float | str):
            return value
        raise ValueError(
            f"the reward's state has {name!r} of type {type(value).__name__}: must be made of tensors, numbers, "
            "texts, lists and mappings"
        )

    structure = to_entry(state, "state")
    save_file(tensors, folder / TENSORS.format(process))
    (folder / STRUCTURE.format(process)).write_text(json.dumps(structure), encoding="utf-8")


def load_state(folder: Path, process: int) -> dict[str, Any] | None:
    """What `save_state` wrote for this process; None if it wrote nothing."""
    file = folder / STRUCTURE.format(process)
    if not file.is_file():
        return None
    tensors = load_file(folder / TENSORS.format(process))

    def from_entry(value: Any) -> Any:
        if isinstance(value, dict):
            if TENSOR in value:
                return tensors[value[TENSOR]]
            return {key: from_entry(entry) for key, entry in value["mapping"].items()}
        return [from_entry(entry) for entry in value] if isinstance(value, list) else value

    return from_entry(json.loads(file.read_text(encoding="utf-8")))

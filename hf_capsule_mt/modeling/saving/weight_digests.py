"""A digest in every file of weights, by which damage is noticed when they are loaded, wherever it came from.

The metadata of a safetensors file holds the SHA-256 of all of the file, with zeros in the place of the digest.
Files without it, of other programs or older versions, are loaded as they are.
"""

import hashlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

KEY = "hf_capsule_mt_sha256"
ZEROS = "0" * 64
PART = 1 << 20
INDEX = "model.safetensors.index.json"


def weight_files(folder: Path) -> list[Path]:
    """The files that hold the weights of the model in a folder."""
    index = folder / INDEX
    if index.is_file() and not (folder / "model.safetensors").is_file():
        names = json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()
        return [folder / name for name in sorted(set(names))]
    return [path for path in [folder / "model.safetensors"] if path.is_file()]


def write_digest(path: Path) -> None:
    """Add the digest to a file of weights, in a copy that then takes its place."""
    with open(path, "rb") as source:
        header = _header(source)
        if KEY in header.get("__metadata__", {}):
            return
        header["__metadata__"] = {**header.get("__metadata__", {}), KEY: ZEROS}
        text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
        text += b" " * (-len(text) % 8)  # the tensors begin at a multiple of 8
        begin = len(text).to_bytes(8, "little") + text
        digest = hashlib.sha256(begin)
        part = path.with_name(f".{path.name}.part")
        try:
            with open(part, "wb") as target:
                target.write(begin)
                for data in _parts(source):
                    digest.update(data)
                    target.write(data)
                target.seek(begin.index(ZEROS.encode()))
                target.write(digest.hexdigest().encode())
            os.replace(part, path)
        finally:
            part.unlink(missing_ok=True)


def is_damaged(path: Path) -> bool:
    """Whether a file of weights has a digest that is not its own; a link is followed."""
    with open(path, "rb") as source:
        try:
            header = _header(source)
            written = header.get("__metadata__", {}).get(KEY)
        except (ValueError, AttributeError):
            return False  # who loads it says what is wrong
        if not isinstance(written, str) or len(written) != len(ZEROS):
            return False
        length = source.tell()
        source.seek(0)
        digest = hashlib.sha256(source.read(length).replace(written.encode(), ZEROS.encode(), 1))
        for data in _parts(source):
            digest.update(data)
    return digest.hexdigest() != written


def _header(source: BinaryIO) -> dict[str, Any]:
    """What a safetensors file says of its tensors; the file is then where they begin."""
    length = int.from_bytes(source.read(8), "little")
    if length > os.fstat(source.fileno()).st_size:
        raise ValueError("no safetensors file: it is shorter than its header says")
    return json.loads(source.read(length))


def _parts(source: BinaryIO) -> Iterator[bytes]:
    while data := source.read(PART):
        yield data

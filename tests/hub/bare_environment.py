"""A virtual environment that holds nothing but torch, transformers and tokenizers, made in a moment and offline."""

import venv
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

from packaging.requirements import Requirement

INSTALLED = ("torch", "transformers", "tokenizers")


def with_requirements(names: tuple[str, ...]) -> set[str]:
    """Names of installed distributions and of all that they require; extras are not followed."""
    seen: set[str] = set()
    wanted = list(names)
    while wanted:
        name = wanted.pop()
        if name in seen:
            continue
        try:
            lines = distribution(name).requires or []
        except PackageNotFoundError:
            continue  # a requirement of another platform
        seen.add(name)
        required = map(Requirement, lines)
        wanted += [one.name for one in required if one.marker is None or one.marker.evaluate({"extra": ""})]
    return seen


def make_bare_environment(folder: Path, names: tuple[str, ...] = INSTALLED) -> Path:
    """Its Python. What is installed here is linked, not copied; nothing else is there, not even pip."""
    venv.create(folder, symlinks=True, with_pip=False)
    (site,) = folder.glob("lib/python*/site-packages")
    for name in with_requirements(names):
        files = distribution(name).files or []
        for top in {file.parts[0] for file in files} - {"..", "__pycache__"}:
            target = Path(str(distribution(name).locate_file(top)))
            if target.exists() and not (site / top).exists():
                (site / top).symlink_to(target)
    return folder / "bin" / "python"

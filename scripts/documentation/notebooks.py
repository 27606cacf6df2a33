"""Runs the cells of a notebook without Jupyter.

What a cell shows is what it prints and the value of its last line: as text, and as a picture if it has one. A running
notebook shows interactive maps instead of these pictures.
"""

import ast
import base64
import json
import tempfile
import warnings
from contextlib import chdir
from pathlib import Path
from typing import Any

from documentation.pages import DOCS
from documentation.run import captured
from documentation.workspace import link_checkpoints

NOTEBOOKS = DOCS / "notebooks"
Cell = dict[str, Any]


def make_notebook_folder(folder: Path) -> Path:
    """A folder to run a notebook in, which reaches the shipped model by the same path as `docs/notebooks`."""
    link_checkpoints(folder)
    work = folder / "docs" / "notebooks"
    work.mkdir(parents=True)
    return work


def run_cells(cells: list[Cell], folder: Path) -> list[Cell]:
    """The cells with new outputs, run in one namespace and in `folder`."""
    names: dict[str, Any] = {"__name__": "__main__"}
    done, count = [], 0
    for cell in cells:
        if cell["cell_type"] == "code":
            count += 1
            with chdir(folder), captured() as printed, warnings.catch_warnings():
                value = run_code(cell["source"], names)
                outputs = [{"output_type": "stream", "name": "stdout", "text": text}] if (text := printed()) else []
                if value is not None:
                    data = shown_data(value)
                    outputs.append(
                        {"output_type": "execute_result", "execution_count": count, "metadata": {}, "data": data}
                    )
            cell = {**cell, "execution_count": count, "outputs": outputs}
        done.append(cell)
    return done


def run_code(code: str, names: dict[str, Any]) -> Any:
    """Runs `code`; returns the value of its last line if that is an expression."""
    tree = ast.parse(code)
    last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, "<cell>", "exec"), names)
    return None if last is None else eval(compile(ast.Expression(last.value), "<cell>", "eval"), names)


def shown_data(value: Any) -> dict[str, str]:
    """A value as text; what has a map also as a picture."""
    if not hasattr(value, "plot"):
        return {"text/plain": repr(value)}
    with tempfile.TemporaryDirectory() as folder:
        picture = value.plot(Path(folder, "map.png")).read_bytes()
    return {"text/plain": str(value), "image/png": base64.b64encode(picture).decode()}


def texts_of(cells: list[Cell]) -> list[str]:
    """What each code cell shows as text."""
    return [
        "".join(output.get("text") or output["data"]["text/plain"] for output in cell["outputs"])
        for cell in cells
        if cell["cell_type"] == "code"
    ]


def read_notebook(path: Path) -> list[Cell]:
    return json.loads(path.read_text(encoding="utf-8"))["cells"]


def write_notebook(path: Path, cells: list[Cell]) -> None:
    kernel = {"kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"}}
    notebook = {"cells": cells, "metadata": kernel, "nbformat": 4, "nbformat_minor": 5}
    path.write_text(json.dumps(notebook, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")

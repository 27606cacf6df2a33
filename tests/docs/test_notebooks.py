"""The notebooks run without Jupyter, and show what is saved in them."""

import re
from pathlib import Path

import pytest
from documentation.notebooks import (
    NOTEBOOKS,
    make_notebook_folder,
    read_notebook,
    run_cells,
    run_code,
    shown_data,
    texts_of,
)
from documentation.pages import NUMBER, same_output

ROOT = Path(__file__).resolve().parents[2]


def run_again(name: str, tmp_path: Path) -> tuple[list[str], list[str]]:
    """What the notebook shows in the repository, and what it shows now."""
    cells = read_notebook(NOTEBOOKS / name)
    return texts_of(cells), texts_of(run_cells(cells, make_notebook_folder(tmp_path)))


@pytest.mark.exhaustive
def test_a_checkpoint_is_opened(tmp_path: Path) -> None:
    saved, now = run_again("open-a-checkpoint.ipynb", tmp_path)
    assert len(saved) == len(now) >= 6
    for before, after in zip(saved, now, strict=True):
        assert same_output(before, after), after


@pytest.mark.exhaustive
@pytest.mark.system
def test_two_models_are_trained_and_compared(tmp_path: Path) -> None:
    """Training differs between processors, so only the form of the last table is compared."""
    saved, now = run_again("train-look-compare.ipynb", tmp_path)
    assert len(saved) == len(now)
    for before, after in ((saved[1], now[1]), (saved[-1], now[-1])):
        first, other = (NUMBER.sub("#", text.partition("\n")[0]).split() for text in (before, after))
        assert first[:1] == other[:1]
    assert "marian" in now[-1] and "gdr_marian" in now[-1]


@pytest.mark.parametrize("path", sorted(NOTEBOOKS.glob("*.ipynb")), ids=lambda path: path.stem)
def test_notebooks_have_outputs_and_no_traces_of_a_machine(path: Path) -> None:
    cells = read_notebook(path)
    code = [cell for cell in cells if cell["cell_type"] == "code"]
    assert [cell["execution_count"] for cell in code] == list(range(1, len(code) + 1))
    assert any("image/png" in output.get("data", {}) for cell in code for output in cell["outputs"])
    assert path.stat().st_size < 300_000
    for text in texts_of(cells):
        assert not any(place in text for place in ("/home/", "/tmp/", str(ROOT), str(ROOT.parent)))
        assert not re.search(r"(?<![\w.:/])/[a-z]+/\w", text), "an absolute path"


def test_the_value_of_the_last_line_is_shown() -> None:
    names: dict = {}
    assert run_code("a = 2\na + 1", names) == 3 and names["a"] == 2
    assert run_code("b = 2", names) is None
    assert shown_data([1]) == {"text/plain": "[1]"}

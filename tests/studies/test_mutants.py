"""The mutation study: which faults it makes, which tests it runs for them, and a study of a small repository."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from commands import ROOT

SCRIPT = ROOT / "scripts" / "studies" / "mutants.py"
sys.path.insert(0, str(SCRIPT.parent))

from mutants import Run, Study, parser, report  # noqa: E402
from mutation.edits import changes_the_program, edits, function_around  # noqa: E402
from mutation.reach import Imports, sort_by_cost  # noqa: E402
from mutation.server import TEXT_TESTS  # noqa: E402

SOURCE = '''"""A file of 3 lines."""
from torch import Tensor

LIMIT = -1


def first(values: "Tensor[3]", mask=None) -> "Tensor[3]":
    """Not one of 3 edits."""
    if not values or len(values) < 2:
        raise ValueError(f"needs {2 + 1} values, " + "not 4")
    logger.info("5 values", stacklevel=6)
    values += 7
    return values.detach()[:8] @ attend(values, mask, scale=0.5, "é", keep=True)
'''.replace(', "é"', ', name="é"')

EXPECTED = {
    "-1 -> -2",
    "None -> None",
    "not values or len(values) < 2 -> (not values and len(values) < 2)",
    "not values -> (values)",
    "len(values) < 2 -> (len(values) <= 2)",
    "2 -> 3",
    "values += 7 -> values -= 7",
    "7 -> 8",
    "values.detach() -> values",
    "8 -> 9",
    "mask -> None",
    "0.5 -> 1.0",
    "True -> False",
}


def test_the_faults_of_a_file() -> None:
    source = SOURCE.encode()
    made = [edit for edit in edits("file.py", source) if changes_the_program(edit, source)]
    swapped = [edit for edit in made if edit.kind == "swapped operands"]
    assert [edit.after for edit in swapped] == [
        "(attend(values, mask, scale=0.5, name='é', keep=True) @ values.detach()[:8])"
    ]
    assert {f"{edit.before} -> {edit.after}" for edit in made if edit not in swapped} == EXPECTED - {"None -> None"}
    for edit in made:
        changed = edit.applied_to(source).decode()
        assert edit.after in changed and changed.count("\n") == SOURCE.count("\n")
    assert str(made[0]) == "file.py:4  -1 -> -2"


def test_the_function_around_a_line() -> None:
    source = b"x = 1\n@cached\ndef f():\n    def g():\n        return 1\n\n"
    source += b"class C:\n    y = 2\n    def h(self):\n        pass\n"
    assert [function_around(source, line) for line in range(1, 11)] == [None, 2, 2, 2, 2, None, None, None, 9, 9]
    kernel = b"@triton.jit(do_not_specialize=['size'])\ndef kernel(size):\n    pass\n"
    assert [function_around(kernel, line) for line in range(1, 5)] == [2, 2, 2, None]  # as Triton numbers its lines


# A package with a name that loads on first use, and tests that import its files in different ways.
REPOSITORY = {
    "pyproject.toml": '[tool.pytest.ini_options]\nmarkers = ["exhaustive: more of it"]\n',
    "hf_capsule_mt/__init__.py": "from typing import TYPE_CHECKING\n"
    "if TYPE_CHECKING:\n    from hf_capsule_mt.training.late import late\n"
    "def __getattr__(name):\n    from importlib import import_module\n"
    "    return getattr(import_module('hf_capsule_mt.training.late'), name)\n",
    "hf_capsule_mt/ops/adding.py": "def plus(one, other):\n    return one + other\n\n"
    "def unseen(one):\n    return one - 1\n",
    "hf_capsule_mt/training/late.py": "from hf_capsule_mt.ops.adding import plus\n\n"
    "def late(count):\n    while count != 0:\n        count = plus(count, -1)\n    return True\n",
    "tests/ops/test_adding.py": "import pytest\nfrom hf_capsule_mt.ops.adding import plus, unseen\n\n"
    "def test_plus():\n    assert plus(2, 3) == 5\n\n"
    "@pytest.mark.exhaustive\ndef test_unseen():\n    assert unseen(3) == 2\n",
    "tests/ops/adding_cases.py": "from hf_capsule_mt.ops.adding import plus\n",
    "tests/ops/test_cases.py": "from adding_cases import plus\n\ndef test_cases():\n    assert plus(0, 1) == 1\n",
    "tests/test_late.py": "import hf_capsule_mt\n\ndef test_late():\n    assert hf_capsule_mt.late(3)\n",
    "tests/test_nothing.py": "def test_nothing():\n    assert True\n",
    TEXT_TESTS[0].split("::")[0]: "import hf_capsule_mt.ops.adding as copied\n\n"
    f"def {TEXT_TESTS[0].split('::')[1]}():\n    assert 'one - 1' in open(copied.__file__).read()\n",
    "tests/ops/test_broken.py": "import hf_capsule_mt.ops.adding\n\ndef test_broken():\n    assert False\n",
}


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    for name, text in REPOSITORY.items():
        path = tmp_path / "repository" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path / "repository"


def test_which_tests_import_a_file(repository: Path) -> None:
    imports = Imports(repository)
    actual = {test: imports.reached_by(test) for test in imports.tests()}
    late, adding = "hf_capsule_mt/training/late.py", "hf_capsule_mt/ops/adding.py"
    assert [test for test in actual if late in actual[test]] == ["tests/test_late.py"]
    assert [test for test in actual if adding in actual[test]] == [
        TEXT_TESTS[0].split("::")[0],
        "tests/ops/test_adding.py",
        "tests/ops/test_broken.py",
        "tests/ops/test_cases.py",
        "tests/test_late.py",
    ]
    assert (
        sort_by_cost({"tests/test_late.py": 1.0, "tests/ops/test_adding.py": 5.0}, adding)[0]
        == "tests/ops/test_adding.py"
    )


def study(repository: Path, output: Path, *options: str) -> list[Run]:
    given = ["--repository", str(repository), "--output", str(output), "--workers", "1", *options]
    return Study(parser().parse_args(given), preloaded=("pytest",)).run()


@pytest.mark.exhaustive
def test_a_study_of_a_small_repository(
    repository: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mutants.limit_of", lambda seconds: 5.0)
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")  # which takes longer than these tests
    output = tmp_path / "results.jsonl"
    runs = study(repository, output)
    outcomes = {f"{run['before']} -> {run['after']}": (run["outcome"], run["by"]) for run in runs}
    killed_by_plus = ("killed", "tests/ops/test_adding.py::test_plus")
    assert outcomes["one + other -> (one - other)"] == killed_by_plus
    assert outcomes["one - 1 -> (one + 1)"] == ("survived", None)
    assert outcomes["True -> False"] == ("killed", "tests/test_late.py::test_late")
    assert outcomes["-1 -> -2"] == ("timeout", "tests/test_late.py"), "it never ends"
    assert outcomes["count != 0 -> (count == 0)"] == ("survived", None)
    assert "left out, since it fails without a mutant: tests/ops/test_broken.py" in capsys.readouterr().out
    assert "| ops | 3 | 1 | 33.3 % | 0 |" in report(runs)
    assert (repository / "hf_capsule_mt/ops/adding.py").read_text() == REPOSITORY["hf_capsule_mt/ops/adding.py"]

    # Interrupted while it wrote its second line, the study makes the same lines again, and those alone.
    lines = output.read_text().splitlines()
    output.write_text(lines[0] + "\n" + lines[1][:20])
    again = study(repository, output)
    assert [drop_seconds(run) for run in again] == [drop_seconds(json.loads(line)) for line in lines]
    assert output.read_text().splitlines()[0] == lines[0]

    # Everything is run on what is left; a test that this study left out kills one of them.
    everything = study(repository, tmp_path / "all.jsonl", "--all", "--only-survivors-of", str(output))
    assert len(everything) == sum(run["outcome"] == "survived" for run in runs)
    assert {run["by"] for run in everything if run["before"] == "one - 1"} == {"tests/ops/test_adding.py::test_unseen"}

    # The lines of other mutants in the same output are not counted, and survivors need the same sources.
    (first,) = study(repository, output, "--mutants", "1", "--seed", "1")
    assert len(output.read_text().splitlines()) == len(runs) and drop_seconds(first) in map(drop_seconds, runs)
    (repository / "tests/test_nothing.py").write_text("")
    with pytest.raises(ValueError, match="give another --output"):
        study(repository, output)
    (repository / "hf_capsule_mt/ops/adding.py").write_text("\n" + REPOSITORY["hf_capsule_mt/ops/adding.py"])
    with pytest.raises(ValueError, match="of other sources"):
        study(repository, tmp_path / "other.jsonl", "--only-survivors-of", str(output))


def test_tests_of_copied_text_are_left_out() -> None:
    for name in TEXT_TESTS:
        file, test = name.split("::")
        assert f"def {test}(" in (ROOT / file).read_text(encoding="utf-8"), "else nothing is left out"


def drop_seconds(run: Run) -> Run:
    return {key: value for key, value in run.items() if key != "seconds"}


def test_the_command_explains_itself() -> None:
    done = subprocess.run([sys.executable, str(SCRIPT), "--help"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0 and "--only-survivors-of" in done.stdout

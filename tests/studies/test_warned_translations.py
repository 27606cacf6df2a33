"""The study of translations with a coverage warning, on lines whose shares are known."""

import json
from pathlib import Path
from typing import Any

import pytest
from studies.warned_translations import Line, compare, count_line, main

WHOLE = "eins zwei drei vier"


def row(source: str, translation: str, untranslated: list[float], score: float = -1.0, **coverage: Any) -> str:
    """A line of `capsule-mt score --coverage`."""
    scores = {"untranslated": untranslated, "omission_score": max(untranslated), "is_reliable": True, **coverage}
    return json.dumps({"source": source, "translation": translation, "score": score, "coverage": scores})


def line(source: str, translation: str, reference: str, untranslated: float, score: float = -1.0) -> Line:
    return count_line(json.loads(row(source, translation, [untranslated], score)), reference, 0.5)


def test_words_are_counted_without_case_and_punctuation() -> None:
    assert line("one two, three.", "Eins, zwei zwei!", WHOLE, 0.5) == (3, 3, 4, 2, -1.0, 0.5, False)


def test_the_others_count_by_the_lengths_of_the_warned() -> None:
    """Warned lines have 2, 2 and 4 source words; of the others those with 2 count twice, those with 9 never."""
    lines = [line("a b", "x", "x y", 0.9), line("a b", "x", "x y", 0.8), line("a b c d", "x", WHOLE, 0.6)]
    lines += [line("a b", "x y", "x y", 0.1), line("a b c d", "q", WHOLE, 0.2), line("a " * 9, "", WHOLE, 0.3, -2.0)]
    groups = compare(lines, seed=0)
    found = {
        name: group and (group.lines, group.words, group.recall, group.precision) for name, group in groups.items()
    }
    assert found["warned"] == found["highest omission score"] == pytest.approx((3, 3 / 8, 2 / 8, 2 / 3))
    assert found["lowest score"] == pytest.approx((3, 2 / 8, 2 / 8, 1.0)), "the last line, and the first two"
    assert found["others"] == pytest.approx((3, 3 / 10, 2 / 10, 2 / 3))
    assert found["others of the same lengths"] == pytest.approx((2, 5 / 8, 4 / 8, 4 / 5))
    assert compare(lines[3:], seed=0)["warned"] is None


def test_the_table_and_its_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = [row("a b", "eins", [0.6, 0.1]), row("a b", WHOLE, [0.5, 0.1])] * 20
    (tmp_path / "small.jsonl").write_text(
        "\n".join([*lines, json.dumps({**json.loads(lines[0]), "coverage": None}), ""])
    )
    (tmp_path / "text.de").write_text(f"{WHOLE}\n" * 41)
    command = [str(tmp_path / "small.jsonl"), "--references", str(tmp_path / "text.de")]
    assert main([*command, "--output", str(tmp_path / "out.json")]) == 0
    assert "| small | warned | 20 | 0.250 (0.250 to 0.250) |" in capsys.readouterr().out
    written = json.loads((tmp_path / "out.json").read_text())
    assert written["systems"]["small"]["others of the same lengths"]["words"] == 1.0 and written["seed"] == 0
    assert main([*command, "--threshold", "0.05"]) == 0
    assert "| small | warned | 40 | 0.625 (" in capsys.readouterr().out
    with (tmp_path / "text.de").open("a") as more:
        more.write("zu viel\n")
    assert main(command) == 1 and "has 41 lines and" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ('{"source": "a", "translation": "b", "score": 1}', "line 1: must be a line of `capsule-mt score --coverage`"),
        (row("a", "b", [0.9], is_reliable=False), "line 1: its model gives no warnings"),
    ],
)
def test_scores_without_warnings_are_refused(
    line: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "scores.jsonl").write_text(line + "\n")
    (tmp_path / "text.de").write_text("b\n")
    assert main([str(tmp_path / "scores.jsonl"), "--references", str(tmp_path / "text.de")]) == 1
    assert said in capsys.readouterr().err

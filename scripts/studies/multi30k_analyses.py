"""The tables of what `analyze` found of the runs on Multi30k: by length, adequacy, routing, other assignments.

Each takes the runs of each system, and has the means over those that have an analysis.
"""

from collections.abc import Callable, Sequence
from typing import Any

Analyses = dict[int, dict[str, Any]]  # the analysis of each run of a system, by seed
NONE = "–"
VARIANTS = ("real", "uniform", "random", "shuffled")
ITERATIONS = ("1", "2", "3", "4", "5")


def mean(values: Sequence[float | None], digits: int = 2) -> str:
    """The mean; a dash if a value is missing or there are none."""
    known = [value for value in values if value is not None]
    if not known or len(known) < len(values):
        return NONE
    return f"{sum(known) / len(known):.{digits}f}"


def markdown(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table whose first column is text, and whose others are numbers."""
    lines = [header, ["---", *["---:"] * (len(header) - 1)], *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def seeds_of(analyses: Analyses) -> str:
    return ", ".join(map(str, analyses))


def length_groups(analyses: Analyses) -> list[list[dict[str, Any]]]:
    """The groups of source lengths, each with its entry of every run."""
    return [list(entries) for entries in zip(*(one["length"]["groups"] for one in analyses.values()), strict=True)]


def length_and_adequacy(systems: dict[str, Analyses]) -> str:
    groups = length_groups(next(iter(systems.values())))
    names = [f"{group[0]['name']} words ({group[0]['sentences']})" for group in groups]
    rows = []
    for system, analyses in systems.items():
        of_lengths = [
            mean([value["value"] for entry in entries for value in entry["bleu"].values()], 1)
            for entries in length_groups(analyses)
        ]
        measured = [one["adequacy"]["systems"][0] for one in analyses.values()]

        def column(name: str, factor: float = 1.0, digits: int = 2, measured: list[dict[str, Any]] = measured) -> str:
            return mean([None if one[name] is None else factor * one[name] for one in measured], digits)

        adequacy = [column("repetition", 100), column("omission", 100, 1), column("length_ratio", digits=3)]
        overlaps = [column("past_overlap"), column("future_overlap")]
        rows.append([f"`{system}`", seeds_of(analyses), *of_lengths, *adequacy, *overlaps])
    header = ["system", "seeds", *names, "repetition %", "omission %", "length ratio", "r_OL past", "r_OL future"]
    return markdown(header, rows)


def curve(curves: Sequence[Sequence[float]], digits: int = 2) -> str:
    """The means over several curves, one number for each iteration; 0 has no sign."""
    points = [sum(values) / len(values) for values in zip(*curves, strict=True)]
    return ", ".join(f"{round(point, digits) + 0.0:.{digits}f}" for point in points) or NONE


def routing(systems: dict[str, Analyses]) -> str:
    rows = []
    for system, analyses in systems.items():
        sites: dict[str, list[dict[str, Any]]] = {}
        for one in analyses.values():
            for site in one["routing"]["sites"]:
                name = ".".join("*" if piece.isdigit() else piece for piece in site["site"].split("."))
                sites.setdefault(name, []).append(site)
        for name, entries in sites.items():
            cells = [curve([one["entropy"] for one in entries]), mean([one["uniform_entropy"] for one in entries])]
            activations = [one["activations"] for one in entries]
            low, high = (mean([one["quantiles"][end] for one in activations]) for end in (0, -1))
            cells += [curve([one["diversity"] for one in entries]), f"{low} to {high}"]
            rows.append([f"`{system}`", seeds_of(analyses), f"`{name}`", *cells])
    curves = ["entropy by iteration", "uniform", "diversity by iteration", "activations, 1 % to 99 %"]
    return markdown(["system", "seeds", "site", *curves], rows)


def variants(systems: dict[str, Analyses]) -> str:
    rows = []
    for system, analyses in systems.items():

        def scores(table: str, names: Sequence[str], analyses: Analyses = analyses) -> list[str]:
            tables = [one.get(table, {}).get("rows", []) for one in analyses.values()]
            found = [{row["name"]: row["bleu"] for row in rows_of_one} for rows_of_one in tables]
            return [mean([one.get(name) for one in found], 1) for name in names]

        rows.append(
            [f"`{system}`", seeds_of(analyses), *scores("ablations", VARIANTS), *scores("iterations", ITERATIONS)]
        )
    iterations = [f"{number} it." for number in ITERATIONS]
    return markdown(["system", "seeds", "as trained", *VARIANTS[1:], *iterations], rows)


TITLES: dict[str, tuple[str, Callable[[dict[str, Analyses]], str]]] = {
    "length": ("BLEU by words of the source (and sentences), and adequacy", length_and_adequacy),
    "routing": ("Routing", routing),
    "ablations": ("BLEU with other assignments, and with other numbers of iterations", variants),
}


def analysis_tables(systems: dict[str, dict[int, dict[str, Any]]]) -> str:
    """All tables as Markdown, each with a title. Takes the results of each system by seed, with key `analysis`."""
    pieces = []
    for key, (title, table) in TITLES.items():
        analyzed = {
            system: {seed: run["analysis"] for seed, run in runs.items() if key in run["analysis"]}
            for system, runs in systems.items()
        }
        found = {system: analyses for system, analyses in analyzed.items() if analyses}
        if found:
            pieces += [f"**{title}**", table(found)]
    return "\n\n".join(pieces)

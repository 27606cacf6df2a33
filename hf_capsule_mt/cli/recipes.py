"""List the recipes of the package, or print one as a file to change.

    capsule-mt recipes
    capsule-mt recipes show synthetic/dla_em > mine.yaml
    capsule-mt recipes show RUN/results.json > again.yaml
    capsule-mt recipes wmt14

A word after `recipes` limits the list to the names and descriptions that contain it. `capsule-mt train NAME` trains a
recipe of the list. `show` prints a recipe with the settings of the files that it extends, so that the file works in
any folder. Of a `results.json` it prints the recipe that made the run. Paths in a recipe, such as
`data/multi30k/train`, start from the folder in which you run it.
"""

import argparse
import json
import sys
from pathlib import Path

from hf_capsule_mt.cli.command_line import CommandParser, run_command
from hf_capsule_mt.cli.command_parser import WIDTH


def make_parser() -> CommandParser:
    parser = CommandParser("recipes", __doc__, "[WORD | show NAME] [options]")
    parser.add_argument("words", nargs="*", metavar="WORD", help="list recipes with this word, or: show NAME")
    parser.add_argument("--json", action="store_true", help="print the list as JSON")
    return parser


def recipes(arguments: argparse.Namespace) -> int:
    from hf_capsule_mt.recipes.catalogue import catalogue, recorded_recipe, whole_recipe

    words = arguments.words
    if words[:1] == ["show"]:
        if len(words) != 2:
            raise ValueError("recipes show needs the name of one recipe, such as synthetic/dla_em")
        is_record = words[1].endswith(".json")
        print(recorded_recipe(Path(words[1])) if is_record else whole_recipe(words[1]), end="")
        return 0
    search = " ".join(words)
    entries = catalogue(search)
    if not entries:
        raise ValueError(f"no recipe has {search!r} in its name or description: capsule-mt recipes lists all")
    if arguments.json:
        rows = [{"name": one.name, "summary": one.summary, "comment": one.comment, "path": str(one.path)}
                for one in entries]  # fmt: skip
        print(json.dumps(rows, indent=1, ensure_ascii=False))
        return 0
    width = max(len(one.name) for one in entries) + 2
    group = None
    for one in entries:
        if group not in (None, one.group):
            print()
        group = one.group
        line = f"{one.name:{width}}{one.summary}"
        print(f"{line[: WIDTH - 1]}…" if len(line) > WIDTH and sys.stdout.isatty() else line)
    return 0


def main(argv: list[str] | None = None) -> int:
    arguments = make_parser().parse_args(argv)
    return run_command(lambda: recipes(arguments), debug=arguments.debug, needs_package=False)

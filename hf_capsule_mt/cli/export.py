"""Prepare a checkpoint for users without this package, and push it to the Hub.

    capsule-mt export runs/model --output exported
    capsule-mt export runs/model --push me/my-model --private
    capsule-mt export runs/model --push me/my-model --dry-run

The new folder contains the model, its code, the tokenizer and the card. A separate process loads it without this
package. The folder is kept, or pushed in one commit, only if logits, beams and translations are the same.
"""

import argparse
import sys
import tempfile
from pathlib import Path

from hf_capsule_mt.cli.command_line import CommandParser, run_command


def make_parser() -> CommandParser:
    parser = CommandParser("export", __doc__, "FOLDER [--output FOLDER] [--push REPO] [options]")
    parser.add_argument("folder", type=Path, help="a checkpoint of a training run")
    parser.add_argument("--output", type=Path, help="the new folder; default: a temporary one")
    parser.add_argument("--overwrite", action="store_true", help="replace a checkpoint in the output folder")
    parser.add_argument("--push", metavar="REPO", help="repository on the Hub, as name/model")
    parser.add_argument("--private", action="store_true", help="make the repository private if it is new")
    parser.add_argument("--dry-run", action="store_true", help="export and verify, but push nothing")
    parser.rare.add_argument("--revision", help="the branch; default: main")
    parser.rare.add_argument("--max-shard-size", default="5GB", help="largest file of weights")
    return parser


def export(arguments: argparse.Namespace) -> int:
    from huggingface_hub import HfApi

    from hf_capsule_mt.hub import export_checkpoint

    with tempfile.TemporaryDirectory() as temporary:
        output = arguments.output or Path(temporary, "exported")
        options = {"overwrite": arguments.overwrite, "name": arguments.push}
        try:
            files = export_checkpoint(arguments.folder, output, arguments.max_shard_size, **options)
        except (OSError, ValueError) as error:
            if arguments.debug:
                raise
            print(f"error: {error}\nnothing was pushed", file=sys.stderr)
            return 1
        for path in files:
            print(f"{path.stat().st_size:>12,} {path.name}")
        print(f"verified: {arguments.folder} gives the same outputs without this package")
        if arguments.push is None or arguments.dry_run:
            print("nothing was pushed")
            return 0
        api = HfApi()
        repository = api.create_repo(arguments.push, private=arguments.private or None, exist_ok=True).repo_id
        if arguments.revision is not None:
            api.create_branch(repository, branch=arguments.revision, exist_ok=True)
        commit = api.upload_folder(
            repo_id=repository,
            folder_path=output,
            revision=arguments.revision,
            commit_message="Model with its code",
        )
        print(f"pushed: {commit.oid} of {repository}")
    return 0


def main(argv: list[str] | None = None) -> int:
    parser = make_parser()
    arguments = parser.parse_args(argv)
    if arguments.output is None and arguments.push is None:
        parser.error("use --output, --push or both")
    return run_command(lambda: export(arguments), "nothing was pushed", arguments.debug)

"""Make a checkpoint ready for those who do not have this package, and push it to the Hub.

python scripts/export_to_hub.py runs/model --output exported
python scripts/export_to_hub.py runs/model --push me/my-model --private
python scripts/export_to_hub.py runs/model --push me/my-model --dry-run

The folder gets the code, the tokenizer and the card. It is loaded without this package in a process of its own,
and only if that gives the same logits, beams and translations, it is kept or pushed, in one commit.
"""

import argparse
import sys
import tempfile
from pathlib import Path

from command_line import run_command
from huggingface_hub import HfApi

from hf_capsule_mt.hub import export_checkpoint


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="a checkpoint, as training wrote it")
    parser.add_argument("--output", type=Path, help="the new folder; a temporary one without it")
    parser.add_argument("--overwrite", action="store_true", help="replace a checkpoint that is the output already")
    parser.add_argument("--push", metavar="REPO", help="where on the Hub the folder goes, as name/model")
    parser.add_argument("--private", action="store_true", help="if the repository is made now, make it private")
    parser.add_argument("--revision", help="the branch; main without it")
    parser.add_argument("--max-shard-size", default="5GB")
    parser.add_argument("--dry-run", action="store_true", help="export and verify, but push nothing")
    arguments = parser.parse_args()
    if arguments.output is None and arguments.push is None:
        parser.error("give --output, --push or both")
    with tempfile.TemporaryDirectory() as temporary:
        output = arguments.output or Path(temporary, "exported")
        options = {"overwrite": arguments.overwrite, "name": arguments.push}
        try:
            files = export_checkpoint(arguments.folder, output, arguments.max_shard_size, **options)
        except (OSError, ValueError) as error:
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


if __name__ == "__main__":
    sys.exit(run_command(main, "nothing was pushed"))

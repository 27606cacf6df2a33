"""Build the wheels and the source distribution of a tagged commit, and check them.

    git tag v0.1.0 && git push --tags
    make dist REPOSITORY=https://github.com/OWNER/hf_capsule_mt

The links of the README are relative, so that they work in every clone. A package index needs absolute ones: the copy
that goes into the files gets links to the tag on GitHub, and the package its addresses.

One wheel has the compiled part, for this system: on Linux for every glibc from 2.28 on, and for older processors too,
on which it says that it cannot run. The other wheel has none, and is for all other systems. From the source
distribution the compiled part is built if there is a compiler.
"""

import argparse
import os
import platform
import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
CODE_OR_LINK = re.compile(r"```.*?```|`[^`\n]*`|(!?)(\[[^\]]*\])\((?![a-z]+:|#)([^)\s]+)\)", re.DOTALL)
URLS = "[project.urls]\n"
OLDEST_GLIBC = "2_28"  # that of PyTorch's wheels


def with_absolute_links(text: str, repository: str, revision: str) -> str:
    """Markdown whose relative links and pictures are those of the repository at a revision; code stays as it is."""

    def absolute(part: re.Match[str]) -> str:
        picture, label, path = part.groups()
        if path is None:
            return part[0]
        return f"{picture}{label}({repository}/{'raw' if picture else 'blob'}/{revision}/{path})"

    return CODE_OR_LINK.sub(absolute, text)


def with_addresses(pyproject: str, repository: str, revision: str) -> str:
    """`pyproject.toml` with the addresses of the repository."""
    pages = f"{repository}/blob/{revision}"
    addresses = {
        "Repository": repository,
        "Documentation": f"{pages}/docs/quickstart.md",
        "Changelog": f"{pages}/CHANGELOG.md",
        "Issues": f"{repository}/issues",
    }
    lines = "".join(f'{name} = "{address}"\n' for name, address in addresses.items())
    before, table, after = pyproject.partition(URLS)
    if not table:
        raise ValueError("pyproject.toml has no table [project.urls]")
    return before + table + lines + after


def repository_address(text: str) -> str:
    if not (match := re.fullmatch(r"(https://github\.com/[\w.-]+/[\w.-]+?)(\.git)?/?", text)):
        raise argparse.ArgumentTypeError(
            f"{text!r} must be https://github.com/OWNER/NAME: the links have the form that GitHub understands"
        )
    return match[1]


def git(*arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True).stdout.strip()


def check_commit(tag: str) -> None:
    """Raise unless the tag is of the last commit and nothing else has changed since."""
    if git("status", "--porcelain"):
        raise ValueError("there are changes without a commit, which a release would not have: commit or remove them")
    if git("rev-parse", "HEAD") != git("rev-parse", "--verify", f"{tag}^{{commit}}"):
        raise ValueError(f"the last commit has no tag {tag}, which all links name: git tag {tag}")


def build(repository: str, output: Path) -> list[Path]:
    """The built files."""
    if output.is_dir() and any(output.iterdir()):
        raise ValueError(f"{output} must be empty: all its files would be checked, and uploaded, as this release")
    version = re.search(r'^__version__ = "(.+)"$', git("show", "HEAD:hf_capsule_mt/__init__.py"), re.MULTILINE)
    if version is None:
        raise ValueError("hf_capsule_mt/__init__.py has no __version__")
    tag = f"v{version[1]}"
    check_commit(tag)
    with tempfile.TemporaryDirectory() as folder:
        archive = subprocess.run(["git", "archive", tag], cwd=ROOT, check=True, capture_output=True).stdout
        subprocess.run(["tar", "-x", "-C", folder], input=archive, check=True)
        for file, change in {"README.md": with_absolute_links, "pyproject.toml": with_addresses}.items():
            path = Path(folder, file)
            path.write_text(change(path.read_text(encoding="utf-8"), repository, tag), encoding="utf-8")
        build_files(Path(folder), output)
    files = sorted(output.iterdir())
    subprocess.run([sys.executable, "-m", "twine", "check", "--strict", *map(str, files)], check=True)
    return files


def build_files(source: Path, output: Path, *options: str) -> None:
    """Builds the source distribution and both wheels of the files in `source`; `options` are those of `build`."""
    command = [sys.executable, "-m", "build", *options]
    pure = os.environ | {"HF_CAPSULE_MT_PURE": "1"}
    subprocess.run([*command, "--sdist", "--wheel", "--outdir", str(output), str(source)], check=True, env=pure)
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([*command, "--wheel", "--outdir", folder, str(source)], check=True)
        (wheel,) = Path(folder).iterdir()
        if wheel.name.endswith("-any.whl"):
            raise ValueError("the compiled part was not built: install a C compiler and Python's headers")
        if sys.platform == "linux":
            for_older_systems(wheel, output)
        else:
            wheel.rename(output / wheel.name)


def for_older_systems(wheel: Path, output: Path) -> None:
    """Writes the wheel with the name that says which C libraries it works with; an error if it needs a newer one."""
    system = f"manylinux_{OLDEST_GLIBC}_{platform.machine()}"
    command = [sys.executable, "-m", "auditwheel", "repair", "--plat", system, "--only-plat"]
    subprocess.run([*command, "--wheel-dir", str(output), str(wheel)], check=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "repository", type=repository_address, help="address of the repository, https://github.com/OWNER/NAME"
    )
    parser.add_argument("--output", type=Path, default=ROOT / "dist", help="a new or empty folder; default: dist")
    arguments = parser.parse_args()
    try:
        files = build(arguments.repository, arguments.output.resolve())
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print("for a package index:", *files)
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Build the wheel and the source distribution of the last commit, and check them with twine.

    make dist REPOSITORY=https://github.com/OWNER/hf_capsule_mt

The links of the README are relative, so that they work in every clone. A package index needs absolute ones: the copy
that goes into both files gets links to the repository, and the package its addresses. Package indexes refuse a wheel
with the platform `linux_x86_64`: upload the source distribution, or wheels from cibuildwheel.
"""

import argparse
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from hf_capsule_mt import __version__

ROOT = Path(__file__).resolve().parents[1]
RELATIVE_LINK = re.compile(r"(!?)(\[[^\]]*\])\((?![a-z]+:|#)([^)\s]+)\)")
URLS = "[project.urls]\n"


def with_absolute_links(text: str, repository: str, revision: str) -> str:
    """Markdown whose relative links and pictures are those of the repository at a revision."""

    def absolute(link: re.Match[str]) -> str:
        picture, label, path = link.groups()
        return f"{picture}{label}({repository}/{'raw' if picture else 'blob'}/{revision}/{path})"

    return RELATIVE_LINK.sub(absolute, text)


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
    if not re.fullmatch(r"https://[\w.-]+(/[\w.-]+)+/?", text):
        raise argparse.ArgumentTypeError(f"{text!r} is not the address of a repository, https://HOST/OWNER/NAME")
    return text.rstrip("/")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("repository", type=repository_address, help="its address, https://HOST/OWNER/NAME")
    parser.add_argument("--revision", help="the tag that the links name; default: v and the version")
    parser.add_argument("--output", type=Path, default=ROOT / "dist")
    arguments = parser.parse_args()
    revision = arguments.revision or f"v{__version__}"
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        archive = subprocess.run(["git", "archive", "HEAD"], cwd=ROOT, check=True, capture_output=True).stdout
        subprocess.run(["tar", "-x", "-C", name], input=archive, check=True)
        for file, change in {"README.md": with_absolute_links, "pyproject.toml": with_addresses}.items():
            text = (folder / file).read_text(encoding="utf-8")
            (folder / file).write_text(change(text, arguments.repository, revision), encoding="utf-8")
        python, output = sys.executable, str(arguments.output.resolve())
        subprocess.run([python, "-m", "build", "--outdir", output, name], check=True)
    files = [str(path) for path in sorted(arguments.output.glob("hf_capsule_mt-*"))]
    subprocess.run([python, "-m", "twine", "check", "--strict", *files], check=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())

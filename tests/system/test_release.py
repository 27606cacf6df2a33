"""A release for a package index: the links of the README and the addresses of the package."""

import importlib.util
import re
import tomllib
from types import ModuleType

import pytest
from commands import ROOT

REPOSITORY = "https://example.org/owner/name"


@pytest.fixture(scope="module")
def build_release() -> ModuleType:
    specification = importlib.util.spec_from_file_location("build_release", ROOT / "scripts" / "build_release.py")
    assert specification is not None and specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


def test_every_link_of_the_readme_is_absolute_and_leads_to_a_file(build_release: ModuleType) -> None:
    text = build_release.with_absolute_links((ROOT / "README.md").read_text(encoding="utf-8"), REPOSITORY, "v1")
    links = re.findall(r"(!?)\[[^\]]*\]\(([^)\s]*)\)", text)
    assert len(links) > 20
    own = 0
    for picture, link in links:
        assert link.startswith("https://"), link
        if link.startswith(REPOSITORY):
            own += 1
            kind, revision, path = link.removeprefix(f"{REPOSITORY}/").split("/", 2)
            assert kind == ("raw" if picture else "blob") and revision == "v1"
            assert (ROOT / path.partition("#")[0]).is_file(), link
    assert own > 15


def test_other_text_stays(build_release: ModuleType) -> None:
    text = "`f(x)` [a](https://a.org) [b](#part) <b> ![c](pictures/c.png)"
    changed = build_release.with_absolute_links(text, REPOSITORY, "v1")
    assert changed == text.replace("pictures/c.png", f"{REPOSITORY}/raw/v1/pictures/c.png")


def test_the_package_gets_addresses_beside_those_of_the_papers(build_release: ModuleType) -> None:
    before = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    after = tomllib.loads(build_release.with_addresses(before, REPOSITORY, "v1"))
    urls, papers = after["project"].pop("urls"), tomllib.loads(before)["project"]["urls"]
    assert urls["Repository"] == REPOSITORY and urls["Issues"] == f"{REPOSITORY}/issues"
    assert (ROOT / urls["Changelog"].removeprefix(f"{REPOSITORY}/blob/v1/")).is_file()
    assert (ROOT / urls["Documentation"].removeprefix(f"{REPOSITORY}/blob/v1/")).is_file()
    assert papers.items() <= urls.items() and len(papers) == 4 and max(map(len, urls)) <= 32


@pytest.mark.parametrize(
    "address", ["", "github.com/owner/name", "https://github.com", "https://a.org/b c", "/folder"]
)
def test_an_address_that_is_none_is_refused(build_release: ModuleType, address: str, capsys) -> None:
    with pytest.raises(SystemExit) as stopped, pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.argv", ["build_release.py", address])
        build_release.main()
    assert stopped.value.code == 2 and "is not the address of a repository" in capsys.readouterr().err

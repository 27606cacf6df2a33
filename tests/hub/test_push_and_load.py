"""The real Hub client against a Hub on loopback: what is pushed is what is loaded, whatever goes wrong between."""

import json
import os
import subprocess
import sys
from pathlib import Path

import hub_client
import pytest
from hub_client import WITH_PACKAGE, WITHOUT_PACKAGE
from hub_server import TOKEN, running_hub


@pytest.fixture(scope="module")
def results(tmp_path_factory) -> dict[str, str]:
    """Of all checks: one process with this package, then one in which it cannot be imported."""
    found = {}
    with running_hub() as hub:
        for which in ("with", "without"):
            work = tmp_path_factory.mktemp(which)
            settings = {
                "HF_ENDPOINT": hub.endpoint,
                "HF_HUB_DISABLE_XET": "1",
                "HF_HUB_OFFLINE": "0",
                "HF_HOME": str(work / "home"),
                "HF_TOKEN": TOKEN,
            }
            command = [sys.executable, hub_client.__file__, which, str(work)]
            done = subprocess.run(command, env={**os.environ, **settings}, capture_output=True, text=True)
            assert done.returncode == 0, done.stderr
            found.update(json.loads(Path(work, "results.json").read_text(encoding="utf-8")))
    return found


@pytest.mark.parametrize("name", [check.__name__ for check in (*WITH_PACKAGE, *WITHOUT_PACKAGE)])
def test_hub(name: str, results):
    assert results[name] == "ok", results[name]

"""The real Hub client against a Hub on loopback: what is pushed is what is loaded, whatever goes wrong between.

One test, since the checks of `hub_client.py` build on each other, and share two processes.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import hub_client
import pytest
from hub_client import WITH_PACKAGE, WITHOUT_PACKAGE
from hub_server import TOKEN, running_hub


@pytest.mark.exhaustive
def test_pushing_and_loading_with_the_package_and_then_without(tmp_path):
    results = {}
    with running_hub() as hub:
        for which in ("with", "without"):
            work = tmp_path / which
            work.mkdir()
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
            results.update(json.loads(Path(work, "results.json").read_text(encoding="utf-8")))
    assert results.keys() == {check.__name__ for check in (*WITH_PACKAGE, *WITHOUT_PACKAGE)}
    assert "\n".join(f"{name}\n{text}" for name, text in results.items() if text != "ok") == ""

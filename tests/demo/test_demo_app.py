"""The Gradio app: it starts, is closed to others, and talks to nobody. Skipped without Gradio."""

import json
import os
import re
import socket
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest
from demo_models import SOURCE, make_page

from hf_capsule_mt.demo.app import ABOUT_UNIFORM, QUEUE, SHARED, build_app, import_gradio, start
from hf_capsule_mt.demo.page import Shown
from hf_capsule_mt.demo.streams import EndIdleStreams

pytest.importorskip("gradio", reason="Gradio is not installed: `make test-browser` installs it and runs these tests")
PAGE = make_page()


@pytest.fixture(scope="module")
def contacted() -> Iterator[list[str]]:
    """The hosts that this process has asked for, other than itself."""
    hosts: list[str] = []
    real = socket.getaddrinfo

    def watched(host: Any, *arguments: Any, **options: Any) -> Any:
        name = host.decode() if isinstance(host, bytes) else str(host)
        if name not in ("127.0.0.1", "localhost", "::1", "None"):
            hosts.append(name)
            raise OSError("a test opened a connection")
        return real(host, *arguments, **options)

    socket.getaddrinfo = watched
    yield hosts
    socket.getaddrinfo = real


@pytest.fixture(scope="module")
def app(contacted: list[str]) -> Any:
    return build_app(PAGE)


@pytest.fixture(scope="module")
def address(app: Any) -> Iterator[str]:
    _, url, _ = start(app, prevent_thread_lock=True, quiet=True)
    yield url
    app.close(verbose=False)


def test_analytics_are_off(app: Any):
    assert os.environ["GRADIO_ANALYTICS_ENABLED"] == "False" == str(app.analytics_enabled)
    assert import_gradio().analytics.analytics_enabled() is False


def test_each_event_is_private_and_in_one_queue(app: Any):
    work = [one for one in app.fns.values() if one.fn is not None]
    assert len(work) >= 10
    for one in work:
        assert (one.api_visibility, one.concurrency_id, one.concurrency_limit) == ("private", "model", 1)
        assert one.queue is not False and one.preprocess is False
    assert SHARED["preprocess"] is False


def test_the_first_sentence_is_in_the_box_and_no_answer_writes_there_later(app: Any):
    blocks = app.blocks.values()
    (box,) = [one for one in blocks if one.elem_id == "demo-source"]
    assert box.value == SOURCE
    writers = {one.name for one in app.fns.values() if one.fn is not None and box in one.outputs}
    assert writers == {"on_example"}


def test_the_tab_begins_with_the_first_pair_and_explains_uniform_routing(app: Any):
    boxes = {one.elem_id: one.value for one in app.blocks.values() if hasattr(one, "value")}
    assert (boxes["demo-first"], boxes["demo-second"]) == PAGE.first_pair == ("guided", "plain")
    assert any(ABOUT_UNIFORM in str(getattr(one, "value", "")) for one in app.blocks.values())


def test_the_server_listens_only_here_and_its_queue_is_bounded(app: Any, address: str):
    assert address.startswith("http://127.0.0.1:") and app.share is False
    assert app._queue.max_size == 20 and app.api_open is False


def test_requests_beyond_the_queue_are_refused(app: Any, address: str, monkeypatch: pytest.MonkeyPatch):
    free = threading.Event()
    monkeypatch.setattr(PAGE, "translate", lambda *_: Shown(None) if free.wait(60) else None)
    (number,) = [number for number, one in app.fns.items() if one.name == "on_translate"][:1]

    def join(session: int) -> int:
        asked = {"data": ["guided", "A letter.", 0.5, None], "fn_index": number, "session_hash": str(session)}
        request = urllib.request.Request(
            f"{address}gradio_api/queue/join", json.dumps(asked).encode(), {"Content-Type": "application/json"}
        )
        try:
            return urllib.request.urlopen(request, timeout=60).status
        except urllib.error.HTTPError as refused:
            said = refused.read().decode()
            assert "queue is full" in said.lower() and "/" not in said, "it names no file"
            return refused.code

    codes = [join(session) for session in range(QUEUE + 3)]
    free.set()
    end = time.monotonic() + 60
    while len(app._queue) or any(app._queue.active_jobs):
        assert time.monotonic() < end, f"{len(app._queue)} requests still wait"
        time.sleep(0.05)
    assert {*codes} == {200, 503} and QUEUE <= codes.count(200) <= QUEUE + 1, "one more is at work"


def test_a_request_without_all_values_logs_nothing_typed(
    app: Any, address: str, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
):
    """Such a request comes from a page that was open while its server was replaced by another version."""
    (number,) = [number for number, one in app.fns.items() if one.name == "on_translate"][:1]
    asked = {"data": ["guided", "My secret sentence."], "fn_index": number, "session_hash": "short"}
    body, kind = json.dumps(asked).encode(), {"Content-Type": "application/json"}
    urllib.request.urlopen(urllib.request.Request(f"{address}gradio_api/queue/join", body, kind), timeout=60)
    told = urllib.request.urlopen(f"{address}gradio_api/queue/data?session_hash=short", timeout=60)
    answer = next(line for line in map(bytes.decode, told) if "process_completed" in line)
    told.close()
    assert "load it again" in answer and "secret" not in answer
    said = capfd.readouterr()
    assert "secret" not in said.out + said.err + caplog.text


def test_a_stream_without_a_waiting_request_ends(app: Any, address: str):
    (number,) = [number for number, one in app.fns.items() if one.name == "on_warn"][:1]
    asked = {"data": ["guided", "A letter.", "", 0.5], "fn_index": number, "session_hash": "idle"}

    def stream() -> str:
        return urllib.request.urlopen(f"{address}gradio_api/queue/data?session_hash=idle", timeout=60).read().decode()

    request = urllib.request.Request(
        f"{address}gradio_api/queue/join", json.dumps(asked).encode(), {"Content-Type": "application/json"}
    )
    urllib.request.urlopen(request, timeout=60).close()
    answered = stream()
    assert "process_completed" in answered and answered.count("close_stream") == 1
    late = stream()  # as Gradio's page asks when the answer came before the word that the request has joined
    assert json.loads(late.removeprefix("data: ")) == {"msg": "close_stream"}
    layer = EndIdleStreams(None, app)
    assert layer.is_idle({"query_string": b"session_hash=idle"})
    assert not layer.is_idle({"query_string": b"session_hash=unknown"}), "Gradio refuses who has not asked before"
    assert not layer.is_idle({"query_string": b""})


def test_the_page_loads_nothing_from_other_hosts(address: str, contacted: list[str]):
    page = urllib.request.urlopen(address, timeout=60).read().decode()
    # Fonts, styles and scripts. Addresses in `meta` are names of pictures that no browser loads.
    loaded = re.findall(r"<(?:link|script|img)\b[^>]*?(?:href|src)=[\"'](https?:)?//([^\"'/]+)", page)
    assert loaded == []
    settings = json.loads(re.search(r"window\.gradio_config = (\{.*?\});</script>", page, re.DOTALL)[1])
    assert not [sheet for sheet in settings.get("stylesheets") or [] if sheet and "//" in sheet]
    theme = urllib.request.urlopen(f"{address}theme.css", timeout=60).read().decode()
    assert not re.search(r"(?:url\(|@import )[\"']?(?:https?:)?//", theme)
    assert contacted == []


@pytest.mark.parametrize("path", ["gradio_api/file=/etc/passwd", "gradio_api/file=pyproject.toml", "monitoring"])
def test_the_server_gives_no_files(address: str, path: str):
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(f"{address}{path}", timeout=60)
    assert refused.value.code in (403, 404)


def test_the_server_takes_no_files(address: str):
    body = b'--x\r\nContent-Disposition: form-data; name="files"; filename="a.txt"\r\n\r\nmany bytes\r\n--x--\r\n'
    request = urllib.request.Request(
        f"{address}gradio_api/upload", body, {"Content-Type": "multipart/form-data; boundary=x"}
    )
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(request, timeout=60)
    assert refused.value.code == 413


def test_no_event_can_be_called_by_programs(address: str):
    info = json.loads(urllib.request.urlopen(f"{address}gradio_api/info", timeout=60).read())
    assert info["named_endpoints"] == {} == info["unnamed_endpoints"]

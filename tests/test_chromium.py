"""The browser that tests drive: each wait ends, and nothing that the browser reports is lost."""

import threading
from collections.abc import Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from chromium import Tab
from markers import needs_chromium

pytestmark = needs_chromium
NEVER = "new Promise(() => {})"


class Server(ThreadingHTTPServer):
    """Pages by their path. `/slow` is answered when `answer` is set."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.answer = threading.Event()
        self.pages: dict[str, str] = {}

    def show(self, tab: Tab, body: str) -> None:
        self.pages["/page"] = f"<!doctype html><link rel=icon href=data:,><title>page</title>{body}"
        tab.call("Page.navigate", url=f"http://127.0.0.1:{self.server_port}/page")
        tab.until("document.title === 'page' && document.readyState === 'complete'")


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        if self.path == "/slow":
            self.server.answer.wait(timeout=60)
        self.send_response(200)
        self.send_header("Content-Type", "text/html; charset=utf-8")
        self.end_headers()
        with suppress(BrokenPipeError):  # the page has gone
            self.wfile.write(self.server.pages.get(self.path, "").encode())

    def log_message(self, format: str, *values: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as server:
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        yield server
        server.answer.set()
        server.shutdown()


@pytest.fixture
def tab(browser: Tab) -> Iterator[Tab]:
    browser.problems.clear()
    limit = browser.timeout
    yield browser
    browser.timeout = limit


def with_frame(page: str) -> str:
    return f'<iframe sandbox="allow-scripts" srcdoc="{page}"></iframe>'


def test_a_wait_ends_while_the_browser_reports_all_the_time(tab: Tab, server: Server):
    server.show(tab, "<script>setInterval(() => console.log('here'), 20)</script>")
    tab.timeout = 1.0
    with pytest.raises(TimeoutError, match=r"waited 1.0 s for an answer to Runtime.evaluate .*new Promise"):
        tab.run(NEVER)
    with pytest.raises(TimeoutError, match="waited 1.0 s for 1 === 2; problems"):
        tab.until("1 === 2")


def test_a_frame_that_goes_leaves_no_wait_behind(tab: Tab, server: Server):
    server.show(tab, with_frame("<title>framed</title>"))
    tab.until("document.title === 'framed'", in_frame=True)
    tab.run("void setTimeout(() => document.querySelector('iframe').remove(), 300)")
    assert tab.run_in_frame(NEVER) is None
    assert tab.frames == []


def test_a_frame_that_shows_another_page_leaves_no_wait_behind(tab: Tab, server: Server):
    server.show(tab, with_frame("<title>framed</title>"))
    tab.until("document.title === 'framed'", in_frame=True)
    tab.run("void setTimeout(() => { document.querySelector('iframe').srcdoc = '<title>other</title>'; }, 300)")
    assert tab.run_in_frame(NEVER) is None
    tab.until("document.title === 'other'", in_frame=True)


@pytest.mark.parametrize(
    "reason", ["Inspected target navigated or closed", "Session with given id not found", "other"]
)
def test_only_the_end_of_a_frame_is_no_error(tab: Tab, reason: str, monkeypatch: pytest.MonkeyPatch):
    def run(expression: str) -> None:
        raise RuntimeError(reason)

    monkeypatch.setattr(tab, "frames", ["one"])
    monkeypatch.setattr(tab, "run", run)
    if reason == "other":
        with pytest.raises(RuntimeError, match="other"):
            tab.run_in_frame("1")
    else:
        assert tab.run_in_frame("1") is None


def test_quiet_is_when_no_request_is_open(tab: Tab, server: Server):
    server.show(tab, "")
    tab.run("void fetch('/slow').then(() => fetch('/then')).then(() => { document.title = 'done'; })")
    limit, tab.timeout = tab.timeout, 1.0
    with pytest.raises(TimeoutError, match=r"waited 1.0 s for the end of its requests \['http.*/slow'\]"):
        tab.until_quiet()
    tab.timeout = limit
    server.answer.set()
    tab.until_quiet()
    assert tab.run("document.title") == "done", "the request that followed has ended too"


def test_requests_end_with_their_page(tab: Tab, server: Server):
    server.show(tab, "")
    tab.run("void fetch('/slow').catch(() => 0)")
    server.show(tab, "")
    tab.until_quiet()


def test_problems_and_fetches_of_a_frame_are_kept(tab: Tab, server: Server):
    server.show(tab, with_frame("<title>framed</title><script>console.error('at once')</script>"))
    tab.until("document.title === 'framed'", in_frame=True)
    place = f"http://127.0.0.1:{server.server_port}/from-the-frame"
    assert tab.run_in_frame(f"fetch('{place}').catch(() => 'refused')") == "refused"
    tab.until_quiet()
    assert place in tab.fetched
    assert "at once" in tab.problems[0] and place in "".join(tab.problems[1:])

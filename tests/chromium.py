"""Chromium without a window, driven through its DevTools protocol over two pipes: no other package is needed."""

import base64
import json
import os
import select
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
OPTIONS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-dev-shm-usage"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync", "--mute-audio"),
    *("--disable-extensions", "--hide-scrollbars", "--force-device-scale-factor=1", "--remote-debugging-pipe"),
)
LAPTOP, PHONE = (1280, 800), (390, 844)


def chromium_program() -> str | None:
    """The path of an installed Chromium or Chrome; `CHROMIUM` in the environment names another one."""
    return os.environ.get("CHROMIUM") or next((path for name in NAMES if (path := shutil.which(name))), None)


class Tab:
    """One page. `problems` has all errors, warnings and failed or attempted fetches that the browser reported."""

    def __init__(self, read: int, write: int, timeout: float = 20.0) -> None:
        self.read, self.write, self.timeout = read, write, timeout
        self.buffer, self.number, self.session = b"", 0, None
        self.problems: list[str] = []
        self.fetched: list[str] = []
        self.frames: list[str] = []  # sessions of frames in processes of their own
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Runtime", "Log", "Page", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters: Any) -> Any:
        """Send a command and return its result. Events that arrive before it are kept."""
        self.number += 1
        message = {"id": self.number, "method": method, "params": parameters}
        if self.session is not None:
            message["sessionId"] = self.session
        os.write(self.write, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next_message()
            if answer.get("id") == self.number:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']}")
                return answer["result"]

    def run_in_frame(self, expression: str) -> Any:
        """Like `run`, in the newest frame that is closed off from its page; None while there is none.

        Chromium runs a frame with `sandbox` in a process of its own. `watch_frames` must have been called before.
        """
        if not self.frames:
            self.run("0")  # which also takes the news of a new frame
            return None
        page, self.session = self.session, self.frames[-1]
        try:
            return self.run(expression)
        except RuntimeError as error:
            if "Session with given id not found" not in str(error):
                raise
            return None  # the page has just removed it
        finally:
            self.session = page

    def watch_frames(self) -> None:
        """Follow frames in processes of their own; their problems and fetches are kept too."""
        self.call("Target.setAutoAttach", autoAttach=True, waitForDebuggerOnStart=False, flatten=True)

    def open(self, page: Path) -> None:
        """Load a file and wait until its scripts have run."""
        self.call("Page.navigate", url=page.resolve().as_uri())
        self.until("document.readyState === 'complete' && location.protocol === 'file:'")

    def until(self, condition: str, in_frame: bool = False) -> None:
        end = time.monotonic() + self.timeout
        while not (self.run_in_frame if in_frame else self.run)(condition):
            if time.monotonic() > end:
                raise TimeoutError(f"not true in {self.timeout} s: {condition}; {self.problems}")
            time.sleep(0.05)

    def run(self, expression: str) -> Any:
        """The value of a JavaScript expression. The page's policy does not apply to it."""
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in answer:
            raise RuntimeError(f"{expression}: {answer['exceptionDetails']}")
        return answer["result"].get("value")

    def hover(self, selector: str, number: int = 0) -> None:
        """Move the mouse to the middle of an element."""
        element = f"document.querySelectorAll({json.dumps(selector)})[{number}]"
        self.run(f"{element}.scrollIntoView({{block: 'center', inline: 'center', behavior: 'instant'}})")
        x, y = self.run(f"(() => {{ const b = {element}.getBoundingClientRect(); "
                        "return [b.x + b.width / 2, b.y + b.height / 2]; })()")  # fmt: skip
        self.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)

    def press(self, key: str) -> None:
        codes = {"Tab": 9, "ArrowRight": 39, "ArrowLeft": 37, "Enter": 13}
        text = {"text": "\r"} if key == "Enter" else {}  # without it the page gets no `keypress`
        for event in ("keyDown", "keyUp"):
            self.call(
                "Input.dispatchKeyEvent", type=event, key=key, code=key, windowsVirtualKeyCode=codes[key], **text
            )

    def type(self, selector: str, text: str) -> None:
        """Replace the text of a box, as if it were pasted."""
        self.run(
            f"(() => {{ const box = document.querySelector({json.dumps(selector)}); box.focus(); box.select(); }})()"
        )
        self.call("Input.insertText", text=text)

    def screen(self, size: tuple[int, int], scheme: str = "light") -> None:
        """The size of the window, and a light or dark colour scheme."""
        width, height = size
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1,
                  mobile=width < 600)  # fmt: skip
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])

    def screenshot(self, path: Path, whole_page: bool = False) -> Path:
        shot = self.call("Page.captureScreenshot", format=path.suffix[1:], captureBeyondViewport=whole_page)
        path.write_bytes(base64.b64decode(shot["data"]))
        return path

    def _next_message(self) -> dict[str, Any]:
        while b"\0" not in self.buffer:
            if not select.select([self.read], [], [], self.timeout)[0]:
                raise TimeoutError(f"Chromium did not answer in {self.timeout} s")
            received = os.read(self.read, 1 << 16)
            if not received:
                raise RuntimeError("Chromium has ended")
            self.buffer += received
        text, self.buffer = self.buffer.split(b"\0", 1)
        message = json.loads(text)
        self._keep_problem(message.get("method", ""), message.get("params", {}))
        return message

    def _keep_problem(self, event: str, facts: dict[str, Any]) -> None:
        if event == "Runtime.exceptionThrown":
            self.problems.append(str(facts["exceptionDetails"]))
        elif event == "Runtime.consoleAPICalled" and facts["type"] in ("error", "warning", "assert"):
            self.problems.append(str(facts["args"]))
        elif event == "Log.entryAdded" and facts["entry"]["level"] in ("error", "warning"):
            self.problems.append(str(facts["entry"]))
        elif event == "Target.attachedToTarget" and facts["targetInfo"]["type"] == "iframe":
            self.frames.append(facts["sessionId"])
        elif event == "Target.detachedFromTarget" and facts["sessionId"] in self.frames:
            self.frames.remove(facts["sessionId"])
        elif event == "Network.requestWillBeSent":
            self.fetched.append(facts["request"]["url"])


@contextmanager
def chromium_tab() -> Iterator[Tab]:
    """A tab of a new Chromium with an empty profile, which ends with the context."""
    program = chromium_program()
    assert program is not None, "no Chromium is installed"
    to_read, to_write = os.pipe(), os.pipe()

    def fixed_numbers() -> None:  # Chromium reads commands from file 3 and writes answers to file 4
        read, write = os.dup(to_read[0]), os.dup(to_write[1])
        os.dup2(read, 3)
        os.dup2(write, 4)

    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        command = [program, *OPTIONS, f"--user-data-dir={profile}/profile", "about:blank"]
        process = subprocess.Popen(
            command,
            preexec_fn=fixed_numbers,
            close_fds=False,
            start_new_session=True,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(to_read[0])
        os.close(to_write[1])
        try:
            yield Tab(to_write[0], to_read[1])
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # with its helpers; its profile is empty and is removed
            process.wait()
            os.close(to_write[0])
            os.close(to_read[1])

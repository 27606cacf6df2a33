"""The server of `docs/serve.md`, with models that have coverage and that have none."""

import http.client
import http.server
import json
from collections.abc import Callable
from threading import Thread
from typing import Any

import pytest
from documentation.pages import DOCS, ROOT, blocks_of
from transformers import pipeline

import hf_capsule_mt  # noqa: F401  (registers the pipeline)

PAST_FUTURE, MARIAN = (ROOT / "model_cards" / f"tatoeba-en-de-{name}" for name in ("past-future", "marian"))
QUESTION = b'{"text": "Where is the station?"}'


def handler_for(translator: Any) -> Callable[..., Any]:
    """The handler that the page defines for this translator. The page's own port stays unused."""
    (code,) = [block.text for block in blocks_of(DOCS / "serve.md") if "BaseHTTPRequestHandler" in block.text]
    names: dict[str, Any] = {"__name__": "__main__", "translator": translator}
    exec(code.replace('"127.0.0.1", 8080', '"127.0.0.1", 0'), names)
    names["server"].server_close()
    return names["Translate"]


def answers(translator: Any, *bodies: bytes, length: str | None = None) -> list[tuple[int, dict[str, Any]]]:
    """Status and content of the answer to each body. `length` is what its header says, if it is not true."""
    results, headers = [], {} if length is None else {"Content-Length": length}
    with http.server.HTTPServer(("127.0.0.1", 0), handler_for(translator)) as server:
        thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            for body in bodies:
                connection = http.client.HTTPConnection(*server.server_address, timeout=60)
                connection.request("POST", "/", body, headers)
                answer = connection.getresponse()
                results.append((answer.status, json.loads(answer.read())))
                connection.close()
        finally:
            server.shutdown()
            thread.join()
    return results


def test_a_model_with_coverage_answers_with_warnings() -> None:
    ((status, content),) = answers(pipeline("translation", model=str(PAST_FUTURE)), QUESTION)
    assert status == 200 and content["text"].endswith("?") and isinstance(content["warnings"], list)


def test_a_model_without_coverage_answers_without_warnings() -> None:
    ((status, content),) = answers(pipeline("translation", model=str(MARIAN)), QUESTION)
    assert status == 200 and content.keys() == {"text"} and content["text"].endswith("?")


def test_a_sentence_that_the_model_cannot_read_whole_is_refused() -> None:
    translator = pipeline("translation", model=str(PAST_FUTURE))
    ((status, content),) = answers(translator, json.dumps({"text": "It rains. " + "tea and " * 300}).encode())
    assert status == 413 and content["error"].startswith("a sentence is too long for the model: ")
    assert "is cut off after 256" in content["error"]


def test_a_translation_that_is_cut_off_is_refused() -> None:
    translator = pipeline("translation", model=str(PAST_FUTURE), max_new_tokens=3)
    ((status, content),) = answers(translator, QUESTION)
    assert status == 413 and "the translation of 'Where is the station?' is cut off after 3" in content["error"]


class Repeating:
    """A translator that answers with the text."""

    class model:
        config = object()

    def __call__(self, text: str, return_coverage: bool, long_input: str) -> list[dict[str, str]]:
        return [{"translation_text": text}]


def test_the_model_gets_a_single_line() -> None:
    ((_, content),) = answers(Repeating(), b'{"text": "One.\\n\\n Two\\tthree\\r\\n"}')
    assert content["text"] == "One. Two three"


class Failing:
    """A translator whose model is broken, with the error that a request must not be blamed for."""

    class model:
        config = object()

    def __call__(self, text: str, return_coverage: bool, long_input: str) -> Any:
        raise ValueError("the model is broken")


def test_a_request_is_not_blamed_for_the_model(capsys: pytest.CaptureFixture[str]) -> None:
    ((status, content),) = answers(Failing(), QUESTION)
    assert status == 500 and "log" in content["error"]
    assert "ValueError('the model is broken')" in capsys.readouterr().err


def test_requests_that_cannot_be_read() -> None:
    bodies = (b"", b"{", b"[]", b'{"words": "a"}', b'{"text": ["a"]}', b'{"text": "\\ud800"}')
    for body, (status, content) in zip(bodies, answers(Failing(), *bodies), strict=True):
        assert status == 400 and "20,000 bytes" in content["error"], body
    for length in ("20001", "-1", "many"):
        ((status, _),) = answers(Failing(), b"", length=length)
        assert status == 400, length

"""Ends a stream of answers if no request waits for it.

Gradio's page opens a stream after the server has said that a request has joined the queue. While a stream is open for
an earlier request, the answer can come through that stream before the page knows that the request has joined. Gradio's
page then opens a stream for a request that is already answered, and Gradio's server would keep it open without end.
"""

from typing import Any
from urllib.parse import parse_qs

CLOSE = b'data: {"msg":"close_stream"}\n\n'  # after it the page ends its stream


class EndIdleStreams:
    """An ASGI layer around a Gradio app. It ends a visitor's stream at once if no request of the visitor waits."""

    def __init__(self, app: Any, blocks: Any) -> None:
        self.app, self.blocks = app, blocks

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http" or not scope["path"].endswith("/queue/data") or not self.is_idle(scope):
            await self.app(scope, receive, send)
            return
        headers = [(b"content-type", b"text/event-stream"), (b"cache-control", b"no-store")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": CLOSE})

    def is_idle(self, scope: Any) -> bool:
        """Whether the visitor has asked before, and has got each answer. Gradio itself refuses an unknown visitor."""
        (session,) = parse_qs(scope["query_string"].decode("latin-1")).get("session_hash", [""])[:1]
        # Private to Gradio, as 6.31.0 has them. Without them its own stream is opened.
        queue = getattr(self.blocks, "_queue", None)
        visitors = getattr(queue, "pending_messages_per_session", {})
        waiting = getattr(queue, "pending_event_ids_session", None)
        return waiting is not None and session in visitors and not waiting.get(session)

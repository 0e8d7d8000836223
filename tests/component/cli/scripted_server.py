"""A server on a real socket that speaks just enough of our API to test the terminal client."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class ScriptedServer(ThreadingHTTPServer):
    """Answers `/v1/models` and streams `script` for every chat.

    Attributes:
        script: raw bytes of the event stream, sent one by one; `None` in it waits until the client has gone.
        status: of the chat answer.
        head_delay_s: how long a chat waits in the queue.
        bodies: what the client sent.
        is_client_gone: set once a client left in the middle of a stream.
    """

    daemon_threads = True
    block_on_close = False

    def __init__(self, script: list[bytes | None], status: int = 200) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.script = script
        self.status = status
        self.head_delay_s = 0.0
        self.bodies: list[dict[str, Any]] = []
        self.headers_seen: list[dict[str, str]] = []
        self.is_client_gone = threading.Event()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class _Handler(BaseHTTPRequestHandler):
    server: ScriptedServer
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self._send_json({"object": "list", "data": [{"id": "scripted", "object": "model"}]})

    def do_POST(self) -> None:
        self.server.bodies.append(json.loads(self.rfile.read(int(self.headers["content-length"]))))
        self.server.headers_seen.append({name.lower(): value for name, value in self.headers.items()})
        time.sleep(self.server.head_delay_s)
        if self.server.status != 200:
            self._send_json({"error": {"message": "no", "type": "t", "param": None, "code": "some_code"}}, self.server.status)
            return
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("transfer-encoding", "chunked")
        self.end_headers()
        for piece in self.server.script:
            if piece is None:
                self.connection.settimeout(30)
                assert self.rfile.read(1) == b"", "the client said something"
                self.server.is_client_gone.set()
                self.close_connection = True
                return
            self.wfile.write(b"%x\r\n%s\r\n" % (len(piece), piece))
        self.wfile.write(b"0\r\n\r\n")

    def log_message(self, *_: Any) -> None:
        return

    def _send_json(self, value: Any, status: int = 200) -> None:
        body = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


def event(text: str) -> bytes:
    """One chat chunk."""
    chunk = {"choices": [{"index": 0, "delta": {"content": text}, "finish_reason": None}], "service_tier": "default"}
    return b"data: " + json.dumps(chunk).encode() + b"\n\n"


def ending(num_tokens: int) -> list[bytes]:
    """Finish reason, usage and `[DONE]`."""
    finish = {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}
    usage = {"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": num_tokens}}
    return [b"data: " + json.dumps(part).encode() + b"\n\n" for part in (finish, usage)] + [b"data: [DONE]\n\n"]


@contextmanager
def scripted(script: list[bytes | None], status: int = 200) -> Iterator[ScriptedServer]:
    """A running server."""
    server = ScriptedServer(script, status)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join()
        server.server_close()

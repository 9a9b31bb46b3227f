"""A server on a free port that answers what a function returns: a stand-in for the APIs of others."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass(frozen=True)
class HttpRequest:
    """A request; ``path`` has its query."""

    method: str
    path: str
    headers: Mapping[str, str]
    content: bytes

    def json(self) -> Any:
        return json.loads(self.content) if self.content else None


@contextmanager
def answering(answer: Callable[[HttpRequest], tuple[Any, ...] | None]) -> Iterator[str]:
    """Yields the server's address.

    ``answer`` returns a status, bytes or what becomes JSON, and perhaps headers; None closes the connection.
    """

    class Handler(BaseHTTPRequestHandler):
        def respond(self) -> None:
            content = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            answered = answer(HttpRequest(self.command, self.path, self.headers, content))
            if answered is None:
                return
            status, value, *more = answered
            body = value if isinstance(value, bytes) else json.dumps(value).encode()
            usual = {"Content-Type": "application/json", "Content-Length": str(len(body))}
            self.send_response(status)
            for name, text in {**usual, **(more[0] if more else {})}.items():
                self.send_header(name, text)
            self.end_headers()
            self.wfile.write(body)

        do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = respond

        def log_message(self, *_: object) -> None:
            """Logs nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()

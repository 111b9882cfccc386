"""A small HTTP server for services: where the node says, with the standard library alone.

A program of a service listens on the unix socket `FORMATION_SOCKET`, or on `PORT` of 127.0.0.1.

    serve({("GET", "/hello"): lambda request: {"hello": request.query.get("name", "")}})

A handler returns what is answered as JSON, bytes, or an iterator of bytes that are sent as they
come. `Refused` is answered with its status.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

MAX_BODY_BYTES = 64 * 1024 * 1024


@dataclass(frozen=True)
class Request:
    """`rest` is what comes after the path of the handler."""

    method: str
    rest: str
    query: Mapping[str, str]
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        try:
            return json.loads(self.body or b"{}")
        except ValueError:
            raise Refused(400, "the body is not JSON") from None

    def text(self, field: str) -> str:
        """A field of a JSON object. Refuses others."""
        given = self.json
        if not isinstance(given, dict) or not isinstance(given.get(field), str):
            raise Refused(422, f"the body needs a text {field!r}")
        return str(given[field])


class Refused(Exception):
    def __init__(self, status: int, why: str) -> None:
        super().__init__(why)
        self.status = status


@dataclass(frozen=True)
class Answer:
    """One with headers of its own."""

    content: bytes
    kind: str = "application/octet-stream"
    status: int = 200


Handler = Callable[[Request], Any]


def serve(handlers: Mapping[tuple[str, str], Handler]) -> None:
    """Until SIGTERM. A path that ends in `/` is that of all below it. `GET /health` is answered
    with the name of the service, unless a handler is given."""
    routes = {("GET", "/health"): _health, **handlers}
    made = type("Handler", (_Handler,), {"routes": routes})
    server = _listening(made)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    print("serving", *sorted({path for _, path in routes}), flush=True)
    server.serve_forever()


def _health(_: Request) -> Any:
    return {"status": "healthy", "service": os.environ.get("FORMATION_SERVICE", "")}


class _UnixServer(ThreadingHTTPServer):
    address_family = socket.AF_UNIX
    request_queue_size = 128

    def server_bind(self) -> None:
        self.socket.bind(self.server_address)
        self.server_name, self.server_port = "service", 0


class _PortServer(ThreadingHTTPServer):
    request_queue_size = 128


def _listening(handler: type[BaseHTTPRequestHandler]) -> ThreadingHTTPServer:
    path = os.environ.get("FORMATION_SOCKET")
    if path:
        return _UnixServer(path, handler)  # type: ignore[arg-type]  # a path is its address
    return _PortServer(("127.0.0.1", int(os.environ.get("PORT", "8000"))), handler)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    routes: Mapping[tuple[str, str], Handler] = {}

    def address_string(self) -> str:
        return "-"

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def _do(self) -> None:
        parts = urlsplit(self.path)
        path = unquote(parts.path)
        size = int(self.headers.get("Content-Length") or 0)
        if size > MAX_BODY_BYTES:
            self.close_connection = True
            self._send(Answer(b'{"detail": "too large"}', "application/json", 413))
            return
        body = self.rfile.read(size)
        headers = {name.lower(): value for name, value in self.headers.items()}
        found = self._found(path)
        try:
            if found is None:
                raise Refused(404, f"{self.command} {path} is not served here")
            handler, rest = found
            query = dict(parse_qsl(parts.query, keep_blank_values=True))
            answer = handler(Request(self.command, rest, query, headers, body))
        except Refused as refused:
            detail = json.dumps({"detail": str(refused)}).encode()
            answer = Answer(detail, "application/json", refused.status)
        if isinstance(answer, Iterator):
            self._stream(answer)
        elif isinstance(answer, Answer):
            self._send(answer)
        elif isinstance(answer, bytes):
            self._send(Answer(answer))
        else:
            self._send(Answer(json.dumps(answer).encode(), "application/json"))

    do_GET = do_POST = do_PUT = do_DELETE = do_HEAD = _do

    def _found(self, path: str) -> tuple[Handler, str] | None:
        method = "GET" if self.command == "HEAD" else self.command
        best = ""
        for known, at in self.routes:
            below = at.endswith("/") and path.startswith(at)
            if known == method and (path == at or below) and len(at) > len(best):
                best = at
        return (self.routes[method, best], path[len(best) :]) if best else None

    def _send(self, answer: Answer) -> None:
        self.send_response(answer.status)
        self.send_header("Content-Type", answer.kind)
        self.send_header("Content-Length", str(len(answer.content)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(answer.content)

    def _stream(self, pieces: Iterator[bytes]) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Cache-Control", "no-store")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for piece in pieces:
            self.wfile.write(b"%x\r\n%s\r\n" % (len(piece), piece))
            self.wfile.flush()
        self.wfile.write(b"0\r\n\r\n")

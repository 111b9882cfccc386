"""coordinator, edge-proxy and load-balancer: what leads to the services that they use.

A replica reaches each service that its spec `uses` by a unix socket, `FORMATION_USES/<name>`; its
node chooses the replica. So these need no network:

    GET  /services                  what is used here, and whether it answers
    ANY  /service/<name>/<path>     there (coordinator and proxy)
    ANY  /<path>                    to the services in turn (balancer)
"""

from __future__ import annotations

import http.client
import itertools
import os
import socket
import sys
from pathlib import Path
from typing import Any

from serving import Answer, Refused, Request, serve

TIMEOUT_S = 30.0
USES = Path(os.environ.get("FORMATION_USES", "uses"))
_turns = itertools.count()


class _Connection(http.client.HTTPConnection):
    def __init__(self, path: Path) -> None:
        super().__init__("service", timeout=TIMEOUT_S)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(str(self._path))


def used() -> list[str]:
    return sorted(each.name for each in USES.iterdir()) if USES.is_dir() else []


def ask(name: str, request: Request, path: str) -> Answer:
    if name not in used():
        raise Refused(404, f"this service does not use {name!r}; it uses {', '.join(used())}")
    connection = _Connection(USES / name)
    kind = request.headers.get("content-type", "application/octet-stream")
    try:
        connection.request(request.method, path, request.body or None, {"Content-Type": kind})
        answer = connection.getresponse()
        content = answer.read()
        return Answer(content, answer.getheader("Content-Type") or kind, answer.status)
    except (OSError, http.client.HTTPException) as problem:
        raise Refused(502, f"{name} does not answer: {problem}") from None
    finally:
        connection.close()


def pipe(request: Request) -> Any:
    name, _, path = request.rest.partition("/")
    return ask(name, request, f"/{path}")


def listed(request: Request) -> Any:
    found = {}
    for name in used():
        try:
            found[name] = ask(name, Request("GET", "", {}, {}, b""), "/health").status
        except Refused as refused:
            found[name] = str(refused)
    return {"services": found}


def balance(request: Request) -> Any:
    names = used()
    if not names:
        raise Refused(503, "this service uses no other one")
    return ask(names[next(_turns) % len(names)], request, f"/{request.rest}")


if __name__ == "__main__":
    role = sys.argv[1] if len(sys.argv) > 1 else "proxy"
    lead = balance if role == "balancer" else pipe
    at = "/" if role == "balancer" else "/service/"
    methods = ("GET", "POST", "PUT", "DELETE")
    serve({("GET", "/services"): listed, **{(method, at): lead for method in methods}})

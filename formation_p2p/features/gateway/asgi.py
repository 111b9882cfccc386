"""An ASGI application, called in this process: one request of a client."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, Final, NoReturn

from formation_p2p.core.units import MIB
from formation_p2p.features.gateway.access import THE_MACHINE, Caller
from formation_p2p.features.gateway.client import Client, Head

# What a body of the interface may be: JSON that can be told to others again.
#
# Python's own reader also takes NaN, half a surrogate pair, and lists in lists until it fails, and
# one such value in what a worker says of itself would break each page that shows it.

# A job has four levels: the job, its tasks, a task, its environment.
MAX_LEVELS: Final = 16


def why_not_json(body: bytes) -> str | None:
    """Why it is refused, for people."""
    try:
        value = json.loads(body, parse_constant=_refuse)
        json.dumps(value, ensure_ascii=False, allow_nan=False).encode()  # 1e999 is read as infinite
    except (ValueError, RecursionError) as error:
        return f"the body is not JSON: {error}"
    if _levels(value) > MAX_LEVELS:
        return f"the body has more than {MAX_LEVELS} levels"
    return None


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is no number")


def _levels(value: Any) -> int:
    levels, inner = 0, [value]
    while inner:
        levels += 1
        held = [each for each in inner if isinstance(each, list | dict)]
        inner = [x for each in held for x in (each.values() if isinstance(each, dict) else each)]
    return levels


Message = MutableMapping[str, Any]
Application = Callable[
    [Message, Callable[[], Awaitable[Message]], Callable[[Message], Awaitable[None]]],
    Awaitable[None],
]

# A job of a thousand commands has 100 KiB.
MAX_BODY_BYTES: Final = MIB
HOLDER: Final = "formation.holder"
ON_BEHALF: Final = "formation.on_behalf"


async def call(app: Application, client: Client, head: Head, caller: Caller = THE_MACHINE) -> int:
    """Returns the response's status. The application is cancelled when the client leaves; it finds
    the `caller` under `HOLDER` and `ON_BEHALF`."""
    body = await client.body(MAX_BODY_BYTES)
    if body is None:
        message = f"the body has more than {MAX_BODY_BYTES} bytes; split it"
        await client.answer(413, {"error": "too large", "message": message})
        return 413
    if body and not _is_json(head):
        message = "say that the body is JSON: Content-Type: application/json, or curl --json"
        await client.answer(415, {"detail": message})
        return 415
    if body and (why := why_not_json(body)) is not None:
        await client.answer(422, {"detail": why})
        return 422
    status = 500
    given = False

    async def receive() -> Message:
        nonlocal given
        if not given:
            given = True
            return {"type": "http.request", "body": body, "more_body": False}
        await asyncio.Event().wait()  # a client that leaves has this cancelled
        return {"type": "http.disconnect"}

    async def send(message: Message) -> None:
        nonlocal status
        if message["type"] == "http.response.start":
            status = message["status"]
            await client.begin(status, [(bytes(k), bytes(v)) for k, v in message["headers"]])
        elif message["type"] == "http.response.body":
            await client.send(message.get("body", b""))
            if message.get("more_body"):
                await client.flush()
            else:
                await client.end()

    with client.unless_left():
        whose = {HOLDER: caller.holder, ON_BEHALF: caller.on_behalf}
        await app({**_scope(head, client), **whose}, receive, send)
    return status


def _is_json(head: Head) -> bool:
    """What it says of its body. Forms and plain text are what a page of another site may send
    without being asked about: they are refused, beside all else that refuses such a page."""
    kind = head.header(b"content-type").partition(";")[0].strip().lower()
    return kind == "application/json"


def _scope(head: Head, client: Client) -> Message:
    return {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.4"},
        "http_version": head.http_version.decode("ascii"),
        "method": head.method,
        "scheme": "http",
        "path": head.plain_path,
        "raw_path": head.path.encode("latin-1"),
        "query_string": head.query.encode("latin-1"),
        "root_path": "",
        "headers": list(head.headers),
        "client": (client.address, 0),
        "server": None,
    }

"""Asking a replica whether it is well: over HTTP, or whether it takes a connection."""

from __future__ import annotations

import re
import socket
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack, suppress
from typing import Final

import trio

from formation_p2p.core.units import KIB
from formation_p2p.features.services.core.spec import Check, CheckKind

# The first line of an answer, with some room; what follows is not looked at.
_MAX_ANSWER_BYTES: Final = 4096
REST_S: Final = 0.2
MAX_REST_BYTES: Final = 64 * KIB
_STATUS: Final = re.compile(rb"HTTP/1\.[01] ([1-5]\d\d)\b")

Connect = Callable[[], Awaitable[socket.socket]]


async def why_not(check: Check, service: str, connect: Connect) -> str:
    """Empty where the check, which is no exec check, holds."""
    timeout_s = check.timeout_ms / 1000
    try:
        async with AsyncExitStack() as held:
            with trio.fail_after(timeout_s):
                end = trio.socket.from_stdlib_socket(await connect())
                stream = await held.enter_async_context(trio.SocketStream(end))
                if not _is_http(check):
                    return ""
                why = await _status(stream, check, service)
            await _heard_out(stream)
            return why
    except trio.TooSlowError:
        return f"no answer within {timeout_s:g} s"
    except (OSError, trio.BrokenResourceError) as problem:
        return str(problem) or type(problem).__name__


def _is_http(check: Check) -> bool:
    return check.kind is CheckKind.HTTP


async def _heard_out(stream: trio.SocketStream) -> None:
    """The rest of an answer: a program whose asker hangs up amid it fills its log with that."""
    size = 0
    with trio.move_on_after(REST_S), suppress(trio.BrokenResourceError):
        while size < MAX_REST_BYTES and (data := await stream.receive_some(_MAX_ANSWER_BYTES)):
            size += len(data)


async def _status(stream: trio.SocketStream, check: Check, service: str) -> str:
    head = f"GET {check.path} HTTP/1.1\r\nHost: {service}\r\nUser-Agent: formation\r\n"
    await stream.send_all(f"{head}Accept: */*\r\nConnection: close\r\n\r\n".encode())
    answer = b""
    while b"\n" not in answer and len(answer) < _MAX_ANSWER_BYTES:
        data = await stream.receive_some(_MAX_ANSWER_BYTES)
        if not data:
            break
        answer += data
    status = _STATUS.match(answer)
    if status is None:
        return f"GET {check.path} is not answered in HTTP"
    number = int(status[1])
    return "" if 200 <= number < 400 else f"GET {check.path} is answered with {number}"

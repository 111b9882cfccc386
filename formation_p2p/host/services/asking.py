"""Asking a replica whether it is well: over HTTP, or whether it takes a connection."""

from __future__ import annotations

import re
import socket
from collections.abc import Awaitable, Callable
from typing import Final

import trio

from formation_p2p.core.services.spec import Check, CheckKind

# The first line of an answer, with some room; what follows is not read.
_MAX_ANSWER_BYTES: Final = 4096
_STATUS: Final = re.compile(rb"HTTP/1\.[01] ([1-5]\d\d)\b")

Connect = Callable[[], Awaitable[socket.socket]]


async def why_not(check: Check, service: str, connect: Connect) -> str:
    """Empty where the check, which is no exec check, holds."""
    timeout_s = check.timeout_ms / 1000
    try:
        with trio.fail_after(timeout_s):
            stream = trio.SocketStream(trio.socket.from_stdlib_socket(await connect()))
            async with stream:
                return await _status(stream, check, service) if _is_http(check) else ""
    except trio.TooSlowError:
        return f"no answer within {timeout_s:g} s"
    except (OSError, trio.BrokenResourceError) as problem:
        return str(problem) or type(problem).__name__


def _is_http(check: Check) -> bool:
    return check.kind is CheckKind.HTTP


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

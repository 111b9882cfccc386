"""Server-sent events: one response that goes on, for EventSource and `curl -N`."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any, Final

from fastapi.responses import StreamingResponse

from formation_p2p.features.gateway.ending import cancelled

# So that a reader can tell a quiet network from a lost one, and proxies keep the connection.
PING_S: Final = 10.0

Event = tuple[str, int | None, Any]


class EventStream(StreamingResponse):
    """Of events, each with a name, a number or None, and what is sent as JSON."""

    def __init__(self, events: AsyncIterator[Event]) -> None:
        headers = {"cache-control": "no-store", "x-accel-buffering": "no"}
        super().__init__(_written(events), headers=headers, media_type="text/event-stream")


async def _written(events: AsyncIterator[Event]) -> AsyncIterator[bytes]:
    coming = asyncio.ensure_future(anext(events))
    try:
        while True:
            done, _ = await asyncio.wait((coming,), timeout=PING_S)
            if not done:
                yield b"event: ping\ndata: {}\n\n"
                continue
            try:
                name, number, data = coming.result()
            except StopAsyncIteration:
                return
            numbered = "" if number is None else f"id: {number}\n"
            yield f"event: {name}\n{numbered}data: {json.dumps(data)}\n\n".encode()
            coming = asyncio.ensure_future(anext(events))
    finally:
        await cancelled(coming)
        if (close := getattr(events, "aclose", None)) is not None:
            await close()

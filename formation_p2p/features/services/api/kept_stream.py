"""Whether a stream to a replica serves another request: for the client, and for the gateway."""

from __future__ import annotations

import asyncio
from typing import Final

import h11

# A replica that is free takes a stream within this, on most ways.
PATIENCE_S: Final = 0.1
# Answers without a body. A careless program says one all the same, which would be the answer to
# whoever asks next on that stream.
_BODILESS: Final = (204, 304)


def is_for_one_request(method: str, status: int) -> bool:
    """Whether no other request is to follow one with this answer on its stream."""
    return method == "HEAD" or status in _BODILESS


def has_more(http: h11.Connection, reader: asyncio.StreamReader) -> bool:
    """Whether more than its answer has come on a stream, or its end. It answers nobody."""
    if http.trailing_data[0] or reader.exception() is not None:
        return True
    reading = reader.read(1)
    try:
        reading.send(None)  # it ends at once where there is something
    except StopIteration:
        return True
    reading.close()
    return False

"""Streams to a service are not kept for the next request while another one waits for a stream.

Where all replicas are full, those that use their streams again and again would have them for as
long as they like, and who came later none.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

# A replica that is free takes a stream within this, on most ways.
PATIENCE_S: Final = 0.1


class Awaited:
    """Of one service, in one pool. True while a request waits for a stream for longer than it takes
    to open one; `free` is called as one begins to, and ends streams that nothing uses."""

    def __init__(self, free: Callable[[], None]) -> None:
        self._free = free
        self._waiting = 0

    def __bool__(self) -> bool:
        return self._waiting > 0

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """While a stream is being opened. On the pool's loop."""
        is_long = False

        def long() -> None:
            nonlocal is_long
            is_long = True
            self._waiting += 1
            self._free()

        timer = asyncio.get_running_loop().call_later(PATIENCE_S, long)
        try:
            yield
        finally:
            timer.cancel()
            self._waiting -= is_long

"""Which sockets have been closed entirely at their other end.

A program that closes one and a program that has merely finished writing look the same to a reader:
only a hang-up tells them apart. An event loop cannot wait for that alone, so that all sockets of a
node are looked at together, by one call.
"""

from __future__ import annotations

import select
import socket
from typing import Final

import trio

# Who leaves a request is to be noticed within a second.
LOOK_S: Final = 0.2


class HangUps:
    """Of one node. `run` it for as long as the node runs."""

    def __init__(self) -> None:
        self._poll = select.poll()
        self._gone: dict[int, trio.Event] = {}
        self._any = trio.Event()

    async def run(self) -> None:
        while True:
            await self._any.wait()
            while self._gone:
                for descriptor, _ in self._poll.poll(0):
                    self._forget(descriptor).set()
                await trio.sleep(LOOK_S)
            self._any = trio.Event()

    async def wait(self, end: socket.socket) -> None:
        """Until its other end is closed. It stays open here for so long."""
        descriptor, gone = end.fileno(), trio.Event()
        self._gone[descriptor] = gone
        self._poll.register(descriptor, 0)
        self._any.set()
        try:
            await gone.wait()
        finally:
            if self._gone.get(descriptor) is gone:
                self._forget(descriptor)

    def _forget(self, descriptor: int) -> trio.Event:
        self._poll.unregister(descriptor)
        return self._gone.pop(descriptor)

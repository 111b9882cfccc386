"""The doors beside the peer stay open, whatever happens to one who comes."""

import errno
import socket

import pytest
import trio

from formation_p2p.net.transport.tcp import next_client
from tests.support.waiting import in_trio


class Door:
    """A listener whose `accept` first fails so."""

    def __init__(self, *failures: OSError) -> None:
        self._failures = list(failures)
        self.client = trio.socket.socket()

    async def accept(self) -> tuple[trio.socket.SocketType, object]:
        await trio.lowlevel.checkpoint()
        if self._failures:
            raise self._failures.pop(0)
        return self.client, ""


@in_trio
async def test_a_door_waits_for_descriptors_and_passes_over_who_has_left() -> None:
    used_up = [OSError(number, "used up") for number in (errno.EMFILE, errno.ENOBUFS)]
    door = Door(*used_up, ConnectionAbortedError(), OSError(errno.ENFILE, "used up"))
    with door.client:
        assert await next_client(door) is door.client  # type: ignore[arg-type]


@in_trio
async def test_a_door_that_is_broken_says_so() -> None:
    deaf = trio.socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    with deaf, pytest.raises(OSError, match="Invalid argument"):
        await next_client(deaf)

"""Streams to replicas, with the state of HTTP on each, and those that wait for the next request."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

import h11

from formation_p2p.api.awaited import Awaited
from formation_p2p.core.errors import FormationError
from formation_p2p.core.units import KIB
from formation_p2p.gateway.client import READ_BYTES, in_words
from formation_p2p.gateway.sources import Upstream

# A stream that no request uses: a replica that drains, or has more to do than others, is left soon.
REUSE_S: Final = 10.0
# Streams of one service that are kept for the next request.
MAX_KEPT: Final = 64
# Of a response. A service's own head has a few KiB.
MAX_RESPONSE_HEAD_BYTES: Final = 64 * KIB


_HUNG_UP: Final = "the replica closed the connection before it answered"


class Broken(Exception):
    """The replica's stream ended before an answer had begun. Its text quotes nothing that was
    sent."""


@dataclass
class Stream:
    """One to a replica, with the state of HTTP on it."""

    to: Upstream
    http: Any = field(
        default_factory=lambda: h11.Connection(
            h11.CLIENT, max_incomplete_event_size=MAX_RESPONSE_HEAD_BYTES
        )
    )
    is_used: bool = False
    opened_s: float = field(default_factory=time.monotonic)

    async def send(self, event: Any) -> None:
        """Raises Broken."""
        try:
            if data := self.http.send(event):
                self.to.writer.write(data)
                await self.to.writer.drain()
        except h11.LocalProtocolError as error:
            raise Broken(f"the request cannot be passed on: {in_words(error)}") from error
        except (OSError, FormationError) as error:
            raise _broken(error) from error

    def at_hand(self) -> Any:
        """The next event, or NEED_DATA. Raises Broken."""
        try:
            return self.http.next_event()
        except h11.RemoteProtocolError as error:
            raise _broken(error) from error

    async def event(self) -> Any:
        """Raises Broken."""
        try:
            while (event := self.http.next_event()) is h11.NEED_DATA:
                data = await self.to.reader.read(READ_BYTES)
                if not data and self.http.their_state is h11.SEND_RESPONSE:
                    raise Broken(_HUNG_UP)
                self.http.receive_data(data)
        except (OSError, FormationError, h11.RemoteProtocolError) as error:
            raise _broken(error) from error
        return event

    def close(self) -> None:
        self.to.writer.transport.abort()


def _broken(error: Exception) -> Broken:
    if isinstance(error, h11.RemoteProtocolError):
        return Broken(f"the replica's answer is no HTTP: {in_words(error)}")
    return Broken(_HUNG_UP if isinstance(error, OSError) else str(error))


class Kept:
    """Streams between two requests, by service, and by the grant of whom they were opened for."""

    def __init__(self) -> None:
        self._idle: defaultdict[tuple[str, bytes], list[Stream]] = defaultdict(list)
        self._awaited: dict[str, Awaited] = {}

    @contextmanager
    def opening(self, service: str) -> Iterator[None]:
        """While a stream is being opened."""
        awaited = self._awaited.setdefault(service, Awaited(partial(self._drop, service)))
        with awaited.waiting():
            yield

    def take(self, of: tuple[str, bytes], sticky: str | None) -> Stream | None:
        waiting = self._idle[of]
        oldest_s = time.monotonic() - REUSE_S
        for stream in [each for each in waiting if each.opened_s < oldest_s or _has_ended(each)]:
            waiting.remove(stream)
            stream.close()
        for stream in reversed(waiting):
            if sticky in (None, stream.to.replica):
                waiting.remove(stream)
                return stream
        return None

    def give_back(self, of: tuple[str, bytes], stream: Stream) -> None:
        service, waiting = of[0], self._idle[of]
        is_old = time.monotonic() - stream.opened_s > REUSE_S
        many = sum(len(idle) for (name, _), idle in self._idle.items() if name == service)
        if many >= MAX_KEPT or is_old or self._awaited.get(service):
            stream.close()
            return
        stream.is_used = True
        waiting.append(stream)

    def sweep(self) -> None:
        """Closes those past their time."""
        for of, waiting in list(self._idle.items()):
            oldest_s = time.monotonic() - REUSE_S
            for stream in [each for each in waiting if each.opened_s < oldest_s]:
                waiting.remove(stream)
                stream.close()
            if not waiting:
                del self._idle[of]

    def close(self) -> None:
        for service, _ in list(self._idle):
            self._drop(service)

    def _drop(self, service: str) -> None:
        for of in [each for each in self._idle if each[0] == service]:
            for stream in self._idle.pop(of):
                stream.close()


def _has_ended(stream: Stream) -> bool:
    return stream.to.reader.at_eof() or stream.to.writer.is_closing()

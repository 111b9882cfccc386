"""Streams to replicas, with the state of HTTP on each, and those that wait for the next request."""

from __future__ import annotations

import asyncio
import logging
import time
import traceback
from collections import defaultdict
from collections.abc import Coroutine
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

import h11

from formation_p2p.core.errors import FormationError
from formation_p2p.core.units import KIB
from formation_p2p.features.gateway.client import READ_BYTES, ClientLeft, in_words
from formation_p2p.features.gateway.sources import Upstream
from formation_p2p.features.services.api.kept_stream import PATIENCE_S, has_more
from formation_p2p.features.services.core.turns import Turns

# Ending tasks from a task that may itself be cancelled meanwhile.

log = logging.getLogger(__name__)

# How what serves a connection ends where the connection does.
_EXPECTED = (FormationError, OSError, ClientLeft, StopAsyncIteration)


async def cancelled(*tasks: asyncio.Future[Any]) -> None:
    """Returns once they have ended. To await one of them would take our own cancelling for its."""
    for task in tasks:
        task.cancel()
    if tasks:
        await asyncio.wait(tasks)
    for task in tasks:
        if task.cancelled() or (error := task.exception()) is None:
            continue
        if not isinstance(error, _EXPECTED):
            log.debug("a task that was cancelled ended by a fault: %s", fault(error))


def fault(error: BaseException | None) -> str:
    """Where it happened. Its text may quote a header, a cookie or a token, and is left out."""
    told = ""
    while error is not None:
        frames = traceback.format_list(traceback.extract_tb(error.__traceback__))
        told += f"{type(error).__qualname__}\n{''.join(frames)}"
        error = error.__cause__ or error.__context__
    return told


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
        return Broken(f"the replica's answer is not HTTP: {in_words(error)}")
    return Broken(_HUNG_UP if isinstance(error, OSError) else str(error))


@dataclass(eq=False)
class _Waiting:
    """A request that waits for a stream. `takes_used` is one that can be sent again: a stream that
    was used may be at its end without our knowing. It had `sticky` last, and takes another replica
    where that one is full."""

    of: tuple[str, bytes]
    sticky: str | None
    takes_used: bool
    handed: asyncio.Future[Stream]
    is_long: bool = False
    """It has waited for longer than a replica with room takes to answer."""
    has_room: bool = False
    """A stream was closed for it."""

    def fits(self, of: tuple[str, bytes], stream: Stream) -> bool:
        near = self.is_long or self.sticky in (None, stream.to.replica)
        return self.takes_used and self.of == of and near and not self.handed.done()


class Kept:
    """Streams between two requests, by service, and by the grant of whom they were opened for.

    A stream that a request gives back goes at once to another that waits, callers by turns: where
    all replicas are full, to close it and open the next costs their slots several round trips.
    """

    def __init__(self) -> None:
        self._idle: defaultdict[tuple[str, bytes], list[Stream]] = defaultdict(list)
        self._waiting: dict[str, Turns[_Waiting]] = {}

    async def opened(
        self,
        of: tuple[str, bytes],
        caller: str,
        sticky: str | None,
        opening: Coroutine[Any, Any, Upstream],
        *,
        takes_used: bool,
    ) -> Stream:
        """What `opening` brings, or a stream that is given back before. Raises what `opening`
        does."""
        loop = asyncio.get_running_loop()
        waiting = _Waiting(of, sticky, takes_used, loop.create_future())
        line = self._waiting.setdefault(of[0], Turns())
        line.join(caller, waiting)
        timer = loop.call_later(PATIENCE_S, self._long, waiting)
        new = asyncio.ensure_future(_opened(opening))
        stream: Stream | None = None
        try:
            await asyncio.wait((new, waiting.handed), return_when=asyncio.FIRST_COMPLETED)
            stream = (waiting.handed if waiting.handed.done() else new).result()
            return stream
        finally:
            timer.cancel()
            line.leave(waiting)
            if not line and self._waiting.get(of[0]) is line:
                del self._waiting[of[0]]
            waiting.handed.cancel()  # which changes nothing where it has come
            for each in (waiting.handed, new):
                # By a callback: a client that leaves may have this cancelled a second time.
                each.add_done_callback(partial(self._give_back_other, of, stream))
            await cancelled(new)

    def _give_back_other(
        self, of: tuple[str, bytes], than: Stream | None, came: asyncio.Future[Stream]
    ) -> None:
        """One that came with the stream that is used, or as its client left."""
        if came.cancelled() or came.exception() is not None:
            return
        if came.result() is not than:
            self.give_back(of, came.result())

    def _long(self, waiting: _Waiting) -> None:
        """Streams that nothing uses make room for it."""
        waiting.is_long = True
        for of, idle in self._idle.items():
            if of[0] == waiting.of[0] and idle:
                stream = idle.pop()
                if waiting.fits(of, stream) and not _has_ended(stream):
                    waiting.handed.set_result(stream)
                else:
                    waiting.has_room = True
                    stream.close()
                return

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
        """To the next request that takes it. It is closed for one that waits long for another."""
        if time.monotonic() - stream.opened_s > REUSE_S or _has_ended(stream):
            stream.close()
            return
        stream.is_used = True
        line = self._waiting.get(of[0])
        for waiting in line or ():
            if waiting.fits(of, stream):
                assert line is not None, "it has a request"
                line.take(waiting)
                waiting.handed.set_result(stream)
                return
            if waiting.is_long and not waiting.has_room:
                waiting.has_room = True
                stream.close()
                return
        if sum(len(idle) for (name, _), idle in self._idle.items() if name == of[0]) >= MAX_KEPT:
            stream.close()
        else:
            self._idle[of].append(stream)

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
        for waiting in self._idle.values():
            for stream in waiting:
                stream.close()
        self._idle.clear()


async def _opened(opening: Coroutine[Any, Any, Upstream]) -> Stream:
    return Stream(await opening)


def _has_ended(stream: Stream) -> bool:
    return stream.to.writer.is_closing() or has_more(stream.http, stream.to.reader)

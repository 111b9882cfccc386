"""Streams to services between two requests, and the requests that wait for one.

A stream that a request gives back goes at once to another request that waits, callers by turns:
where all replicas are full, to close it and open the next would leave its place unused for several
round trips. For the same reason a stream that is being opened belongs to no request for good. A
request that was handed another stream leaves its opening to the next one that waits, so that a
service that is full does not cost each request an opening that is given up.

Each new stream is balanced anew, a replica that drains is to lose its callers, and a stream that
nothing uses takes the place of another caller's. So streams are kept for a short while.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections import defaultdict, deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Final, Generic, NamedTuple, Protocol, TypeVar

from formation_p2p.features.services.core.turns import Turns

if TYPE_CHECKING:
    import h11

# A stream that nothing uses is closed after so long. It takes the place of another caller's.
KEEP_S: Final = 2.0
# One that is in use is not used again after so long: a replica that drains loses its callers within
# this, and what a new replica takes off the others comes to it.
REUSE_S: Final = 10.0
# Of one service. More at once are opened for their request alone.
MAX_KEPT: Final = 64
# An opening that no request needs is taken by another within so long: a request whose opening ends
# without a stream is to have waited about as long as that.
LEFT_OVER_S: Final = 1.0


# What does no harm twice. Source: RFC 9110, section 9.2.2.
IDEMPOTENT: Final = frozenset({"GET", "HEAD", "OPTIONS", "TRACE", "PUT", "DELETE"})
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


class KeptStream(Protocol):
    """With the state of HTTP on it."""

    opened_s: float
    is_used: bool
    """A request was answered on it: it may be at its end without our knowing."""
    kept_s: float
    """Since when nothing uses it."""

    @property
    def replica(self) -> str: ...
    def has_ended(self) -> bool:
        """Or more than its answer has come on it."""
        ...

    def give_up(self) -> None:
        """Nothing is under way on it: its place at the replica is free at once."""
        ...


class Wanted(NamedTuple):
    """What a request asks for: no stream serves another grant than the one that it was opened for.
    The caller had the replica `sticky` last. The node waits `within_s` for a place."""

    service: str
    on_behalf: bytes = b""
    sticky: str | None = None
    within_s: float | None = None


S = TypeVar("S", bound=KeptStream)
# Opens a stream; calls what it is given each time that no replica has a place for it.
Opens = Callable[[Callable[[], None]], Awaitable[S]]


@dataclass(eq=False)
class _Waiting(Generic[S]):
    wanted: Wanted
    takes_used: bool
    handed: asyncio.Future[S]
    opening: _Opening[S]

    def fits(self, stream: S, on_behalf: bytes) -> bool:
        """It takes another replica than the one that it had where that has no place for it."""
        is_near = self.opening.is_full or self.wanted.sticky in (None, stream.replica)
        is_its = self.wanted.on_behalf == on_behalf and (self.takes_used or not stream.is_used)
        return is_near and is_its and not self.handed.done()


@dataclass(eq=False)
class _Opening(Generic[S]):
    """`by` is the request that has its outcome, None where it was left over."""

    wanted: Wanted
    began_s: float
    by: _Waiting[S] | None = None
    is_full: bool = False
    """No replica has a place for it."""
    has_room: bool = False
    """A stream was closed for it since."""
    task: asyncio.Future[S] = field(init=False)


@dataclass
class _Alike(Generic[S]):
    """Requests that want the same: how many wait, and openings that none of them needs, the oldest
    first. These are as many as the requests at most."""

    waiting: int = 0
    left_over: deque[_Opening[S]] = field(default_factory=deque)


class Kept(Generic[S]):
    """Of one loop."""

    def __init__(self) -> None:
        self._idle: defaultdict[str, list[tuple[bytes, S]]] = defaultdict(list)  # by service
        self._lines: dict[str, Turns[_Waiting[S]]] = {}
        self._alike: dict[Wanted, _Alike[S]] = {}
        self._opening: set[_Opening[S]] = set()
        self._sweeping: asyncio.TimerHandle | None = None
        self._is_closed = False

    async def stream(
        self, wanted: Wanted, caller: str, opens: Opens[S], *, takes_used: bool = True
    ) -> S:
        """One that is kept, or is given back meanwhile, or the one that `opens` brings. A request
        that cannot be sent again takes none that was used. Raises what `opens` does."""
        if takes_used and (stream := self.at_hand(wanted)) is not None:
            return stream
        waiting = self._join(wanted, caller, opens, takes_used=takes_used)
        try:
            return await waiting.handed
        except asyncio.CancelledError:
            handed = waiting.handed
            if handed.done() and not handed.cancelled() and handed.exception() is None:
                self._offer(wanted.service, wanted.on_behalf, handed.result())
            raise
        finally:
            self._leave(waiting)

    def give_back(self, service: str, on_behalf: bytes, stream: S) -> None:
        """A request was answered on it. It goes to the next one that takes it, or is closed for one
        that needs another stream, and for which there is no place."""
        stream.is_used = True
        self._offer(service, on_behalf, stream)

    def _offer(self, service: str, on_behalf: bytes, stream: S) -> None:
        now_s = time.monotonic()
        if self._is_closed or now_s - stream.opened_s > REUSE_S or stream.has_ended():
            stream.give_up()
            return
        for waiting in self._lines.get(service, ()):
            if waiting.fits(stream, on_behalf):
                self._hand(waiting, stream)
                return
            opening = waiting.opening
            if opening.is_full and not opening.has_room and not waiting.handed.done():
                opening.has_room = True
                stream.give_up()
                return
        idle = self._idle[service]
        if len(idle) >= MAX_KEPT:
            stream.give_up()
            return
        stream.kept_s = now_s
        idle.append((on_behalf, stream))
        if self._sweeping is None:
            self._sweeping = asyncio.get_running_loop().call_later(KEEP_S, self._sweep)

    def failed(self, service: str, replica: str) -> None:
        """A stream to the replica has broken: the others that are kept are no better."""
        idle = self._idle.get(service, [])
        for kept in [each for each in idle if each[1].replica == replica]:
            idle.remove(kept)
            kept[1].give_up()

    def close(self) -> None:
        """Streams that are given back from now on are closed."""
        self._is_closed = True
        if self._sweeping is not None:
            self._sweeping.cancel()
        for opening in self._opening:
            if opening.by is None:
                opening.task.cancel()
        for idle in self._idle.values():
            for _, stream in idle:
                stream.give_up()
        self._idle.clear()

    # -- those that are kept ----------------------------------------------------------------------

    def at_hand(self, wanted: Wanted) -> S | None:
        """The one that was used last, for a request that can be sent again."""
        idle, now_s = self._idle.get(wanted.service, []), time.monotonic()
        for number in range(len(idle) - 1, -1, -1):
            on_behalf, stream = idle[number]
            if not _may_be_used(stream, now_s):
                del idle[number]
                stream.give_up()
            elif on_behalf == wanted.on_behalf and wanted.sticky in (None, stream.replica):
                del idle[number]
                return stream
        return None

    def _sweep(self) -> None:
        now_s, self._sweeping = time.monotonic(), None
        for service, idle in list(self._idle.items()):
            for kept in [each for each in idle if not _may_be_used(each[1], now_s)]:
                idle.remove(kept)
                kept[1].give_up()
            if not idle:
                del self._idle[service]
        if self._idle:
            self._sweeping = asyncio.get_running_loop().call_later(KEEP_S / 2, self._sweep)

    # -- those that wait --------------------------------------------------------------------------

    def _join(
        self, wanted: Wanted, caller: str, opens: Opens[S], *, takes_used: bool
    ) -> _Waiting[S]:
        alike = self._alike.setdefault(wanted, _Alike())
        loop = asyncio.get_running_loop()
        while alike.left_over and loop.time() - alike.left_over[0].began_s > LEFT_OVER_S:
            alike.left_over.popleft().task.cancel()
        opening = alike.left_over.pop() if alike.left_over else self._begin(wanted, opens)
        waiting = opening.by = _Waiting(wanted, takes_used, loop.create_future(), opening)
        alike.waiting += 1
        self._lines.setdefault(wanted.service, Turns(sys.maxsize)).join(caller, waiting)
        if opening.is_full and not opening.has_room:
            self._make_room(waiting)
        return waiting

    def _first(self, wanted: Wanted) -> _Waiting[S] | None:
        """In line of those that want this."""
        line = self._lines.get(wanted.service, ())
        return next((x for x in line if x.wanted == wanted and not x.handed.done()), None)

    def _hand(self, waiting: _Waiting[S], stream: S) -> None:
        self._lines[waiting.wanted.service].take(waiting)
        self._left(waiting)
        waiting.handed.set_result(stream)

    def _leave(self, waiting: _Waiting[S]) -> None:
        """Its client has left, or there is no stream for it."""
        if waiting in self._lines.get(waiting.wanted.service, ()):
            self._lines[waiting.wanted.service].leave(waiting)
            self._left(waiting)

    def _left(self, waiting: _Waiting[S]) -> None:
        """It is not in line any more."""
        wanted, opening = waiting.wanted, waiting.opening
        if not self._lines[wanted.service]:
            del self._lines[wanted.service]
        alike = self._alike[wanted]
        alike.waiting -= 1
        opening.by = None
        if opening in self._opening:
            alike.left_over.append(opening)
        while len(alike.left_over) > min(alike.waiting, MAX_KEPT):
            alike.left_over.popleft().task.cancel()
        if not alike.waiting:
            del self._alike[wanted]

    # -- those that are opened --------------------------------------------------------------------

    def _begin(self, wanted: Wanted, opens: Opens[S]) -> _Opening[S]:
        opening: _Opening[S] = _Opening(wanted, asyncio.get_running_loop().time())
        opening.task = asyncio.ensure_future(opens(partial(self._full, opening)))
        self._opening.add(opening)
        opening.task.add_done_callback(partial(self._opened, opening))
        return opening

    def _full(self, opening: _Opening[S]) -> None:
        """No replica has a place. Where no request needs this opening it is said for another: what
        was closed for that has become the place of somebody else."""
        opening.is_full, opening.has_room = True, False
        waiting = opening.by or self._first(opening.wanted)
        if waiting is not None:
            waiting.opening.is_full, waiting.opening.has_room = True, False
            self._make_room(waiting)

    def _make_room(self, waiting: _Waiting[S]) -> None:
        """What nothing uses is for it, or makes a place for it."""
        idle = self._idle.get(waiting.wanted.service, [])
        for kept in reversed(idle):
            on_behalf, stream = kept
            if waiting.fits(stream, on_behalf) and _may_be_used(stream, time.monotonic()):
                idle.remove(kept)
                self._hand(waiting, stream)
                return
        if idle:
            waiting.opening.has_room = True
            idle.pop(0)[1].give_up()

    def _opened(self, opening: _Opening[S], task: asyncio.Future[S]) -> None:
        """Its stream is for the first in line that wants the same. That leaves its own opening to
        the request whose opening this was."""
        self._opening.discard(opening)
        wanted, by = opening.wanted, opening.by
        alike = self._alike.get(wanted)
        if alike is not None and opening in alike.left_over:
            alike.left_over.remove(opening)
        if task.cancelled() or task.exception() is not None:
            if by is not None:
                self._leave(by)
                _settle(by.handed, task)
            return
        if (first := self._first(wanted)) is None:
            self._offer(wanted.service, wanted.on_behalf, task.result())
            return
        if by is not None and by is not first:
            by.opening, first.opening = first.opening, opening
            by.opening.by = by
        self._hand(first, task.result())


def _may_be_used(stream: KeptStream, now_s: float) -> bool:
    is_young = now_s - stream.kept_s < KEEP_S and now_s - stream.opened_s < REUSE_S
    return is_young and not stream.has_ended()


def _settle(handed: asyncio.Future[S], task: asyncio.Future[S]) -> None:
    """With the error of an opening that brought no stream."""
    if handed.done():
        return
    error = None if task.cancelled() else task.exception()
    if error is None:
        handed.cancel()
    else:
        handed.set_exception(error)

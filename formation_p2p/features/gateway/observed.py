"""What a gateway has seen of its network: one read for all who look, and how services changed
meanwhile. Kept in memory alone; a gateway that starts again begins with what is."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass
from typing import Final

from formation_p2p.core.errors import FormationError
from formation_p2p.features.gateway.coverage import Need, Standing, needs_of, standings_of
from formation_p2p.features.gateway.ending import cancelled
from formation_p2p.features.gateway.sources import GangView, ServicesView, Source, WorkerView

log = logging.getLogger(__name__)

# As old as what is shown may be. The node itself reads its network less often.
FRESH_S: Final = 2.0
# While a page is open.
REFRESH_S: Final = 3.0
# Changes of one service that are kept: a day of a quiet one, the last hour of one that flaps.
MAX_CHANGES: Final = 48
MAX_SERVICES: Final = 256
# Pages that are open, each with a task.
MAX_WATCHING: Final = 64


@dataclass(frozen=True, slots=True)
class Change:
    unix_s: float
    status: str
    ready: int
    why: str


@dataclass(frozen=True, slots=True)
class Seen:
    """`problem` says why it is not of now."""

    number: int
    unix_s: float
    view: ServicesView
    workers: tuple[WorkerView, ...]
    gangs: tuple[GangView, ...]
    gaps: tuple[Standing, ...]
    needs: tuple[Need, ...]
    problem: str = ""


class Observed:
    def __init__(self, source: Source, refresh_s: float = REFRESH_S) -> None:
        self._source = source
        self._refresh_s = refresh_s
        self._seen: Seen | None = None
        self._read_s = 0.0
        self._reading: asyncio.Task[Seen] | None = None
        self._changes: dict[str, deque[Change]] = {}
        self._news = asyncio.Condition()
        self.watching = 0
        self._refreshing: asyncio.Task[None] | None = None

    def history(self, service: str) -> Sequence[Change]:
        return tuple(self._changes.get(service, ()))

    async def seen(self) -> Seen:
        """Raises FormationError where nothing was ever read."""
        fresh_s = min(FRESH_S, self._refresh_s / 2)
        if self._seen is not None and time.monotonic() - self._read_s < fresh_s:
            return self._seen
        if self._reading is None:
            self._reading = asyncio.ensure_future(self._read())
            self._reading.add_done_callback(self._was_read)
        return await asyncio.shield(self._reading)

    def _was_read(self, reading: asyncio.Task[Seen]) -> None:
        self._reading = None
        if not reading.cancelled():
            reading.exception()  # its readers have it

    async def _read(self) -> Seen:
        last = self._seen
        number = 1 if last is None else last.number + 1
        problem = ""
        try:
            view = await self._source.services()
            workers = tuple(await self._source.workers())
            gangs = tuple(await self._source.gangs())
        except FormationError as error:
            if last is None:
                raise
            view, workers, gangs = last.view, last.workers, last.gangs
            problem = str(error)
        gaps = standings_of(view)
        needs = needs_of(gaps)
        seen = Seen(number, time.time(), view, workers, gangs, gaps, needs, problem)
        self._note(gaps, seen.unix_s)
        self._seen, self._read_s = seen, time.monotonic()
        async with self._news:
            self._news.notify_all()
        return seen

    def _note(self, gaps: Sequence[Standing], unix_s: float) -> None:
        for gap in gaps[:MAX_SERVICES]:
            changes = self._changes.setdefault(gap.service.name, deque(maxlen=MAX_CHANGES))
            last = changes[-1] if changes else None
            if last is None or (last.status, last.why) != (gap.status, gap.why):
                changes.append(Change(unix_s, gap.status, gap.gap.current_workers, gap.why))
        known = {gap.service.name for gap in gaps}
        for name in [name for name in self._changes if name not in known]:
            del self._changes[name]

    async def each(self) -> AsyncGenerator[Seen, None]:
        """What is seen now, and each time anew, while the reader goes on."""
        self.watching += 1
        if self._refreshing is None or self._refreshing.done():
            self._refreshing = asyncio.create_task(self._refresh())
        try:
            seen = await self.seen()
            while True:
                yield seen
                number = seen.number
                async with self._news:
                    while self._seen is None or self._seen.number <= number:
                        await self._news.wait()
                    seen = self._seen
        finally:
            self.watching -= 1

    async def _refresh(self) -> None:
        while self.watching:
            await asyncio.sleep(self._refresh_s)
            try:
                await self.seen()
            except FormationError as error:
                log.warning("the network could not be read: %s", error)

    async def end(self) -> None:
        running = (self._refreshing, self._reading)
        await cancelled(*(each for each in running if each is not None))

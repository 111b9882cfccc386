"""Gateways in other regions: who says where it is, or whose proxy does, is sent to the one there.
The page of anyone else measures which is nearest (`page/nearest.js`).

Only those are known that the gateway's owner has named. A worker that announced one could lead
people to a page that asks for their tokens.
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import re
import time
from collections import deque
from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import parse_qs, urlsplit

from formation_p2p.core.errors import FormationError, InvalidInput
from formation_p2p.features.gateway.client import Head
from formation_p2p.features.gateway.coverage import Need, Standing, needs_of, standings_of
from formation_p2p.features.gateway.members import Members
from formation_p2p.features.gateway.sources import GangView, ServicesView, Source, WorkerView
from formation_p2p.features.gateway.streams import cancelled
from formation_p2p.machine.core.bounds import LABEL, shown

# What a gateway has seen of its network: one read for all who look, and how services changed
# meanwhile. Kept in memory alone; a gateway that starts again begins with what is.

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
    def __init__(self, source: Source, members: Members, refresh_s: float) -> None:
        self._source = source
        self._members = members
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
            view = await self._members.services()
            workers = tuple(await self._members.workers())
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


# As a header of a proxy that knows where its clients are, or in the page's address.
HEADER: Final = b"formation-region"
QUERY: Final = "region"
# In the page's address, of people who want this gateway, and of those whom another has sent here:
# they are not sent on, so that no two gateways can send a person to and fro.
STAY: Final = "stay"
FROM: Final = "from"
# A region is a country at the finest; a page of them.
MAX_REGIONS: Final = 64
MAX_URL_CHARS: Final = 256
# Between two measurements, each a connection; and how long one may take.
EVERY_S: Final = 60.0
REACH_S: Final = 5.0
_PORTS: Final = {"http": 80, "https": 443}
# A URL of a gateway stands in the page's policy, where `;` and `*` would allow more than itself.
_NAME: Final = re.compile(r"[a-z0-9_-]+(\.[a-z0-9_-]+)*\.?")


@dataclass(slots=True)
class Elsewhere:
    """The gateway of a region. To connect to it from here took `rtt_ms`; None where it is not
    reached, or was not tried yet."""

    region: str
    url: str
    host: str
    port: int
    rtt_ms: float | None = None


class Nearest:
    """Of one gateway, which is in `region`; `near` has the URLs of others by their regions. Raises
    InvalidInput."""

    def __init__(self, region: str = "", near: Mapping[str, str] = {}) -> None:
        if region:
            _check_region("region", region)
        if len(near) > MAX_REGIONS:
            raise InvalidInput("near", f"names more than {MAX_REGIONS} regions; leave some out")
        self.region = region
        self._near = {each: _elsewhere(each, url) for each, url in near.items()}
        self._due_s = float("-inf")

    def redirect(self, head: Head) -> str | None:
        """Where the page of this client's region is, if it is not this one."""
        if head.method not in ("GET", "HEAD") or head.path != "/":
            return None
        query = parse_qs(head.query, keep_blank_values=True)
        if STAY in query or FROM in query:
            return None
        asked = query.get(QUERY, [""])[0] or head.header(HEADER)
        there = self._near.get(asked)
        return None if there is None or asked == self.region else f"{there.url}/?{STAY}"

    @property
    def origins(self) -> list[str]:
        """Of the others, as a policy of browsers names them; it has no way to name one by an
        address of IPv6."""
        return sorted({each.url for each in self._near.values() if ":" not in each.host})

    def in_json(self) -> list[dict[str, Any]]:
        """This one first, then the nearest."""
        far = sorted(
            self._near.values(), key=lambda each: (each.rtt_ms is None, each.rtt_ms, each.region)
        )
        own = {"region": self.region, "url": "/", "rtt_ms": 0.0, "is_this": True}
        return [
            own,
            *(
                {"region": x.region, "url": x.url, "rtt_ms": x.rtt_ms, "is_this": False}
                for x in far
            ),
        ]

    async def measure(self) -> None:
        """How far the others are, where that is due."""
        if time.monotonic() < self._due_s:
            return
        self._due_s = time.monotonic() + EVERY_S
        await asyncio.gather(*map(_measure, self._near.values()))


async def _measure(there: Elsewhere) -> None:
    began_s = time.monotonic()
    try:
        async with asyncio.timeout(REACH_S):
            _, writer = await asyncio.open_connection(there.host, there.port)
    except (OSError, TimeoutError):
        there.rtt_ms = None
        return
    there.rtt_ms = round((time.monotonic() - began_s) * 1000, 1)
    writer.close()


def _check_region(field: str, region: str) -> None:
    if LABEL.fullmatch(region) is None:
        problem = "is not a region; use letters, digits and . _ -, such as eu-west"
        raise InvalidInput(field, f"{shown(region)} {problem}")


def _elsewhere(region: str, url: str) -> Elsewhere:
    _check_region("near", region)
    problem = f"{shown(url)} is not the URL of a gateway; write it like https://eu.example.org"
    if len(url) > MAX_URL_CHARS or not url.isascii() or not url.isprintable():
        raise InvalidInput("near", problem)
    try:
        parts = urlsplit(url)
        usual = _PORTS[parts.scheme]
        port = parts.port or usual
    except (ValueError, KeyError):
        raise InvalidInput("near", problem) from None
    extra = parts.path.strip("/") or parts.query or parts.fragment or "@" in parts.netloc
    host = parts.hostname or ""
    if extra or not (_NAME.fullmatch(host) or _is_ipv6(host)):
        raise InvalidInput("near", problem)
    written = (f"[{host}]" if ":" in host else host) + (f":{port}" if port != usual else "")
    return Elsewhere(region, f"{parts.scheme}://{written}", host, port)


def _is_ipv6(host: str) -> bool:
    try:
        return ipaddress.IPv6Address(host).scope_id is None
    except ValueError:
        return False

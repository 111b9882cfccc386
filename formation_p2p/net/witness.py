"""What peers' identify shows to be wrong with a machine: a clock that is off, and one identity in
two places. Each node looks at its peers, and tells a peer that another node has its identity.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable, Iterable
from statistics import median
from typing import Final, Protocol
from weakref import WeakKeyDictionary, WeakSet

import trio

from formation_p2p.core.errors import RemoteError
from formation_p2p.core.identity import PeerId
from formation_p2p.core.units import format_span
from formation_p2p.machine.clock import moment
from formation_p2p.machine.names import named
from formation_p2p.net.identify import Identified
from formation_p2p.net.transport.errors import IOException
from formation_p2p.records.core.signed_fields import MAX_CLOCK_SKEW_S

log = logging.getLogger("formation_p2p.trouble")

# Peers whose clocks are compared, those that told last; and those named that are off.
MAX_CLOCKS: Final = 64
MAX_NAMED: Final = 3
LOOK_EVERY_S: Final = 15.0
# Of a connection that is still there. One of a node that was killed ends when it is asked.
ALIVE_S: Final = 10.0
# A clock that was set by as much: peers are told.
STEP_S: Final = 5.0

_SET: Final = "set it, as by `timedatectl set-ntp true`"
_TWIN: Final = (
    "another node runs with the identity of this one ({who} sees both): a home folder was copied; "
    "give one of the two machines an identity of its own: stop its nodes, run `formation network "
    "leave --purge` there, and join it again with an invite"
)


class Link(Protocol):
    """What is needed of a connection."""

    @property
    def peer(self) -> PeerId: ...

    @property
    def is_closed(self) -> bool: ...

    async def round_trip(self) -> float: ...


class Witness:
    """Of one node, on its trio thread. `run_id` tells this run of the node from others of its
    identity; `push` tells a peer anew what we are, and of itself."""

    def __init__(self, *, look_every_s: float = LOOK_EVERY_S) -> None:
        self._look_every_s = look_every_s
        self.run_id = secrets.randbits(62) + 1
        self._ahead_s: dict[PeerId, float] = {}  # their clocks, of our monotonic one
        self._runs: WeakKeyDictionary[Link, int] = WeakKeyDictionary()
        self._twins: set[PeerId] = set()
        self._saw_us_twice: WeakSet[Link] = WeakSet()
        self._logged: tuple[str, ...] = ()
        self._offset_s = _offset_s()
        self.clock_sets = 0
        self._changed = trio.Event()

    def identified(self, link: Link, said: Identified) -> None:
        peer = link.peer
        if said.unix_s:
            self._ahead_s.pop(peer, None)
            self._ahead_s[peer] = said.unix_s - moment().mono_s
            if len(self._ahead_s) > MAX_CLOCKS:
                del self._ahead_s[next(iter(self._ahead_s))]
        if said.run_id:
            self._runs[link] = said.run_id
            if peer not in self._twins and len(self._runs_of(peer)) > 1:
                self._changed.set()
        (self._saw_us_twice.add if said.is_twin else self._saw_us_twice.discard)(link)

    def is_twin(self, peer: PeerId) -> bool:
        """Whether two nodes with this identity are connected now."""
        return peer in self._twins and len(self._runs_of(peer)) > 1

    @property
    def troubles(self) -> tuple[str, ...]:
        """For people, with what to do; empty where all is well."""
        saw = sorted(link.peer for link in self._saw_us_twice if not link.is_closed)
        twin = [_TWIN.format(who=named(saw[0]))] if saw else []
        others = [
            f"two nodes run with the identity {named(peer)}: a home folder was copied"
            for peer in sorted(self._twins)
            if self.is_twin(peer)
        ]
        return (*self._clocks(), *twin, *others[:MAX_NAMED])

    def _clocks(self) -> list[str]:
        ours_s = _offset_s()
        off = {peer: ours_s - theirs_s for peer, theirs_s in self._ahead_s.items()}
        sides = (
            [peer for peer, off_s in off.items() if off_s > MAX_CLOCK_SKEW_S],
            [peer for peer, off_s in off.items() if off_s < -MAX_CLOCK_SKEW_S],
        )
        side = max(sides, key=len)
        if not side:
            return []
        if 2 * len(side) > len(off):
            of = f"{len(side)} of {len(off)} peer{'s' * (len(off) > 1)}"
            way = _way(median(off[peer] for peer in side)).replace("ahead", "ahead of")
            return [f"this machine's clock is {way} {of}; {_SET}"]
        return [
            f"the clock of {named(peer)} is {_way(-off[peer])}: no node finds it as a worker"
            for peer in (*sides[0], *sides[1])[:MAX_NAMED]
        ]

    async def run(self, links: Callable[[], Iterable[Link]], push: Callable[[], None]) -> None:
        """Until cancelled: look, tell the peers what has changed, and write it to the log."""
        while True:
            with trio.move_on_after(self._look_every_s):
                await self._changed.wait()
            self._changed = trio.Event()
            await self._look(list(links()))
            offset_s, now_s = self._offset_s, _offset_s()
            if abs(now_s - offset_s) > STEP_S:
                self._offset_s = now_s
                self.clock_sets += 1
            push()  # to those that have not been told of all this
            troubles = self.troubles
            for each in troubles:
                if each not in self._logged:
                    log.warning("%s", each)
            self._logged = troubles

    async def _look(self, links: list[Link]) -> None:
        """Which peers have two nodes: connections of two runs, both of which answer."""
        several: dict[PeerId, list[Link]] = {}
        for link in links:
            if link in self._runs and not link.is_closed:
                several.setdefault(link.peer, []).append(link)
        self._twins &= several.keys()
        for peer, theirs in several.items():
            newest = {self._runs[each]: each for each in theirs}
            if len(newest) < 2:
                self._twins.discard(peer)
            elif peer not in self._twins and all([await _answers(x) for x in newest.values()]):
                self._twins.add(peer)

    def _runs_of(self, peer: PeerId) -> set[int]:
        links = [link for link in self._runs if link.peer == peer and not link.is_closed]
        return {self._runs[link] for link in links}


async def _answers(link: Link) -> bool:
    try:
        with trio.fail_after(ALIVE_S):
            await link.round_trip()
    except (RemoteError, IOException, trio.TooSlowError):
        return False
    return not link.is_closed


def _offset_s() -> float:
    now = moment()
    return now.unix_s - now.mono_s


def _way(off_s: float) -> str:
    return f"{format_span(abs(off_s))} {'ahead' if off_s > 0 else 'behind'}"

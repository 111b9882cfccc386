"""What the tasks of this machine's gang members use, measured now and then, and told their owners.

A member is measured every EVERY_S while it is one. What is for the same owner goes in one message,
where it comes within a moment (features/gangs/core/usage.py).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Final

import psutil
import trio

from formation_p2p.core.identity import PeerId
from formation_p2p.drivers.supervised import supervisors_of
from formation_p2p.features.gangs.core.events import JoinGang
from formation_p2p.features.gangs.core.usage import LeaseUsage, LinkBytes, Window
from formation_p2p.features.gangs.host.seat import Seat
from formation_p2p.machine.core.bounds import MAX_CPU_MILLI

# A look takes some milliseconds of a thread; a person and an autoscaler look less often.
EVERY_S: Final = 2.0


@dataclass(slots=True)
class TaskUsage:
    """Of the processes of one lease. Those that came and went between two looks are not seen."""

    _cpu_s: dict[tuple[int, float], float] = field(default_factory=dict)
    _at_s: float | None = None

    def look(self, supervisors: Iterable[int], now_s: float) -> tuple[int, int]:
        """Thousandths of a core since the last look, and bytes of memory. In a thread: it reads
        /proc."""
        seen: dict[tuple[int, float], float] = {}
        memory_bytes = 0
        for process in _processes(supervisors):
            try:
                with process.oneshot():
                    times = process.cpu_times()
                    seen[process.pid, process.create_time()] = times.user + times.system
                    memory_bytes += process.memory_info().rss
            except psutil.Error:
                continue  # it has ended
        used_s = sum(spent_s - self._cpu_s.get(key, 0.0) for key, spent_s in seen.items())
        since_s = EVERY_S if self._at_s is None else max(now_s - self._at_s, 0.001)
        self._cpu_s, self._at_s = seen, now_s
        return min(max(round(used_s * 1000 / since_s), 0), MAX_CPU_MILLI), memory_bytes


def _processes(supervisors: Iterable[int]) -> Iterable[psutil.Process]:
    for pid in supervisors:
        try:
            yield from psutil.Process(pid).children(recursive=True)
        except psutil.Error:
            continue


class UsageReports:
    """`members` are those of now, `seat` finds their tunnels. `report` gets what is for one
    owner."""

    def __init__(
        self,
        members: Callable[[], Iterable[JoinGang]],
        seat: Callable[[str, int], Seat | None],
        report: Callable[[tuple[LeaseUsage, ...]], None],
    ) -> None:
        self._is_running = False
        self._members = members
        self._seat = seat
        self._report = report
        self._tasks: dict[str, TaskUsage] = {}
        self.last: dict[str, LeaseUsage] = {}
        """By the lease of each member."""

    def begin(self, do: Callable[..., None]) -> None:
        """A member has joined. `do` runs a task of the node's own, which ends with the last."""
        if not self._is_running:
            self._is_running = True
            do(self._run)

    async def _run(self) -> None:
        try:
            while members := list(self._members()):
                due_s = trio.current_time() + EVERY_S
                known = self._tasks
                self._tasks = {x.lease_id: known.get(x.lease_id, TaskUsage()) for x in members}
                self.last = {x: used for x, used in self.last.items() if x in self._tasks}
                windows: defaultdict[PeerId, Window[LeaseUsage]] = defaultdict(Window)
                for each in members:
                    usage = self.last[each.lease_id] = await self._measured(each)
                    owner = each.roster.owner.peer_id
                    if full := windows[owner].add(usage, trio.current_time()):
                        self._report(tuple(full))
                for window in windows.values():
                    if left := window.due(float("inf")):
                        self._report(tuple(left))
                await trio.sleep_until(due_s)
        finally:
            self._is_running = False

    async def _measured(self, member: JoinGang) -> LeaseUsage:
        look, roster = self._tasks[member.lease_id].look, member.roster
        supervisors = supervisors_of(member.lease_id)
        now_s = trio.current_time()
        cpu_milli, memory_bytes = await trio.to_thread.run_sync(look, supervisors, now_s)
        known, seat = roster.member(member.rank), self._seat(roster.gang_id, member.rank)
        traffic = {} if seat is None else seat.traffic
        return LeaseUsage(
            member.lease_id,
            0 if known is None else known.fence,
            cpu_milli,
            memory_bytes,
            tuple(
                LinkBytes(rank, each.sent_bytes, each.received_bytes)
                for rank, each in sorted(traffic.items())
            ),
        )

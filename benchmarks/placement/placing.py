"""Many tasks, one after the other, on workers of which each decision sees what is free now.

For each task the table is asked, the task is reserved in the ledger of the worker that was chosen,
and what is left there is put into the table; the same when it ends. Tasks last as long, on average,
as keeps the workers nearly full.
"""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from heapq import heappop, heappush
from typing import Any, Final

from benchmarks.placement.machines import NOW_UNIX_S, workers
from benchmarks.placement.table import Table
from formation_p2p.core.identity import PeerId
from formation_p2p.core.keyspace import key_of
from formation_p2p.machine.core.capability import idle
from formation_p2p.machine.core.fits import Ledger, Reservation
from formation_p2p.machine.core.gpu import WHOLE_GPU_MILLI
from formation_p2p.machine.core.requirements import Requirements, parse_requirements
from formation_p2p.records.core.profile import Profile

# Of all cores, once as many tasks end as begin.
FULL: Final = 0.9
# And how many of a hundred tasks ask for each.
TASKS: Final = {
    "cpu=1,memory=2GiB": 30,
    "cpu=4,memory=8GiB": 35,
    "cpu=8,memory=16GiB": 20,
    "cpu=16,memory=32GiB,driver=container": 6,
    "cpu=4,memory=8GiB,label.region=eu": 5,
    "cpu=4,memory=16GiB,gpu.share=0.5,gpu.memory=8GB": 2,
    "cpu=8,memory=16GiB,gpu=1,gpu.memory=24GB,gpu.cc=8.0": 1,
    "cpu=32,memory=64GiB,gpu=2,gpu.model=a100|h100": 1,
}


def first(found: Sequence[Profile]) -> Profile:
    return found[0]


def fullest(found: Sequence[Profile]) -> Profile:
    """Of these the one with the least of its cores free; the nearest of several."""
    return min(found, key=lambda each: each.capacity.cpu_milli / each.capability.cpu_milli)


# By name: how many of the nearest with room are looked at, and which of them is taken.
RULES: Final[dict[str, tuple[int, Callable[[Sequence[Profile]], Profile]]]] = {
    "xor": (1, first),
    "fullest of 16": (16, fullest),
}


def measure(count: int, tasks: int, seed: int, say: Callable[[str], None]) -> dict[str, Any]:
    """Each rule in a town of its own."""
    rules = {}
    for name in RULES:
        rules[name] = Town(count, seed).run(tasks, seed, *RULES[name])
        say(f"{name:30} {rules[name]}")
    return {"placements_per_s": rules["xor"]["placements_per_s"], "placing": rules}


class Town:
    """Workers, and what runs on them. The ledger of each is the judge of its capacity."""

    def __init__(self, count: int, seed: int) -> None:
        self._table = Table()
        self._profiles = {each.peer_id: each for each in workers(count, seed, all_idle=True)}
        self._ledgers = {each.peer_id: Ledger(each.capability) for each in self._profiles.values()}
        for profile in self._profiles.values():
            self._table.put(profile)
        self._cpu_milli = sum(each.capability.cpu_milli for each in self._profiles.values())
        self._used_milli = 0
        # When it ends, its name, its worker and what it takes.
        self._running: list[tuple[float, str, PeerId, Reservation]] = []

    def run(
        self, tasks: int, seed: int, count: int, choose: Callable[[Sequence[Profile]], Profile]
    ) -> dict[str, Any]:
        rng = random.Random(seed)
        needs = [parse_requirements(text) for text in TASKS]
        drawn = rng.choices(needs, list(TASKS.values()), k=tasks)
        # In tasks that begin meanwhile.
        lasts = FULL * self._cpu_milli / statistics.mean(each.cpu_milli for each in drawn)
        unplaced, fullness = 0, []
        began, cpu_began = time.perf_counter(), time.process_time()
        for number, asked in enumerate(drawn):
            while self._running and self._running[0][0] <= number:
                self._end_one()
            fullness.append(self._used_milli / self._cpu_milli)
            name = f"task-{number}"
            found = self._table.nearest(
                asked, key_of(name.encode()), count, NOW_UNIX_S, free_now=True
            )
            if found:
                ends = number + rng.expovariate(1 / lasts)
                self._begin(name, asked, choose(found).peer_id, ends)
            else:
                unplaced += 1
        took_s, cpu_s = time.perf_counter() - began, time.process_time() - cpu_began
        running = len(self._running)
        self._audit()
        later = fullness[tasks // 2 :]
        return {
            "placements_per_s": round((tasks - unplaced) / took_s),
            "cpu_us_each": round(cpu_s / tasks * 1e6, 1),
            "unplaced": unplaced,
            "running_at_the_end": running,
            "full_pct": round(100 * sum(later) / len(later), 1),
        }

    def _begin(self, name: str, needs: Requirements, peer_id: PeerId, ends: float) -> None:
        reservation = self._ledgers[peer_id].reserve(name, needs)
        if not isinstance(reservation, Reservation):
            raise AssertionError(f"{name} was placed where there is no room: {reservation}")
        self._used_milli += needs.cpu_milli
        heappush(self._running, (ends, name, peer_id, reservation))
        self._tell(peer_id)

    def _end_one(self) -> None:
        _, name, peer_id, reservation = heappop(self._running)
        self._ledgers[peer_id].release(name)
        self._used_milli -= reservation.needs.cpu_milli
        self._tell(peer_id)

    def _tell(self, peer_id: PeerId) -> None:
        profile = self._profiles[peer_id]
        self._table.put(replace(profile, capacity=self._ledgers[peer_id].free))

    def _audit(self) -> None:
        """Adds up what runs on each worker, by hand; and when all of it has ended, each is idle."""
        taken = dict.fromkeys(self._profiles, (0, 0))
        shares: dict[tuple[PeerId, str], int] = {}
        for _, _, peer_id, reservation in self._running:
            cpu, memory = taken[peer_id]
            needs = reservation.needs
            taken[peer_id] = cpu + needs.cpu_milli, memory + needs.memory_bytes
            for claim in reservation.gpus:
                device = peer_id, claim.device_id
                shares[device] = shares.get(device, 0) + claim.share_milli
        for peer_id, (cpu, memory) in taken.items():
            has, left = self._profiles[peer_id].capability, self._ledgers[peer_id].free
            assert (left.cpu_milli, left.memory_bytes) == (
                has.cpu_milli - cpu,
                has.memory_bytes - memory,
            )
            assert min(left.cpu_milli, left.memory_bytes) >= 0
        assert max(shares.values(), default=0) <= WHOLE_GPU_MILLI
        while self._running:
            self._end_one()
        assert all(
            self._ledgers[peer_id].free == idle(profile.capability)
            for peer_id, profile in self._profiles.items()
        )

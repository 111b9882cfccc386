"""The presets of `scored`, and what is learnt of them, on the traces: turnarounds compared.

    python -m simulations.scoring --json --seeds 1..3

Pods of the "openb" trace arrive at machines of it, whose round trips are those of PlanetLab. A task
is of one of three kinds: most of them short calls, where the way there counts; some work on data
that a few machines have, and some are batches, where the load counts. A machine takes its tasks one
after the other for each of its cores that they need; what it has announced is some seconds old.
`turnaround_s` is the geometric mean, from submission to result, of each preset for all kinds, and
of what chooses among them for each. `over_worst` is by how much that is faster than the worst
preset, `under_best` by how much it is slower than the best, both in per cent.

Where FORMATION_DATA names no traces, they are made up, of the same shape.
"""

from __future__ import annotations

import argparse
import gzip
import heapq
import json
import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from formation_p2p.core.identity import Identity
from formation_p2p.core.keyspace import key_of
from formation_p2p.core.units import MIB
from formation_p2p.machine.core.capability import Capability, Capacity
from formation_p2p.machine.core.requirements import Requirements
from formation_p2p.placement.core.candidate import Candidate, TaskView
from formation_p2p.placement.core.learnt import Learner
from formation_p2p.placement.core.scored import PRESETS
from formation_p2p.records.core.profile import Profile
from simulations.latency import Latencies
from simulations.openb.trace import DATA, Pod, Trace, read, synthetic

MACHINES: Final = 60
# Of fewer, the turns that all presets take first are a good part.
TASKS: Final = 12_000
# Candidates of one decision, as discovery brings them.
SEEN: Final = 16
# What was announced is this old at most.
ANNOUNCED_EVERY_S: Final = 5.0
# 100 Mbit/s.
RATE_BYTES_S: Final = 12_500_000


@dataclass(frozen=True, slots=True)
class Kind:
    """`share` of the tasks, which run for `run_s` as a mean on `data_bytes`, which one machine in
    `holders` has. A task goes there and back so many times."""

    name: str
    share: float
    run_s: float
    data_bytes: int
    trips: int


KINDS: Final = (
    Kind("call", 0.6, 0.05, 0, 6),
    Kind("data", 0.2, 1.0, 200 * MIB, 2),
    Kind("batch", 0.2, 20.0, 0, 2),
)
HOLDERS: Final = 5
# Of the cores, in use as a mean.
LOAD: Final = 0.6


@dataclass(slots=True)
class Machine:
    """`free_s` is when each of its slots is free again; `announced` how many were, at
    `announced_s`. `queue` holds the ends of our tasks there."""

    profile: Profile
    rtt_s: float
    trust_milli: int
    holds_data: bool
    free_s: list[float]
    queue: list[float]
    announced: float = 1.0
    announced_s: float = -ANNOUNCED_EVERY_S

    def look(self, now_s: float, needs: Requirements, data_bytes: int) -> Candidate:
        if now_s >= self.announced_s + ANNOUNCED_EVERY_S:
            self.announced_s = now_s
            self.announced = sum(each <= now_s for each in self.free_s) / len(self.free_s)
        while self.queue and self.queue[0] <= now_s:
            heapq.heappop(self.queue)
        can = self.profile.capability
        free = Capacity(round(can.cpu_milli * self.announced), can.memory_bytes)
        profile = Profile(
            peer_id=self.profile.peer_id,
            sequence=0,
            issued_unix_s=0,
            expires_unix_s=1,
            capability=can,
            capacity=free,
        )
        return Candidate(
            profile=profile,
            trust_milli=self.trust_milli,
            rtt_us=round(self.rtt_s * 1e6),
            queue=len(self.queue),
            local_bytes=data_bytes if self.holds_data else 0,
            data_bytes=data_bytes,
        )

    def run(self, now_s: float, kind: Kind, run_s: float) -> float:
        """How long until its result is here."""
        fetch_s = 0.0 if self.holds_data else kind.data_bytes / RATE_BYTES_S
        arrives_s = now_s + self.rtt_s * kind.trips / 2
        free_s = heapq.heappop(self.free_s)
        ends_s = max(arrives_s, free_s) + fetch_s + run_s
        heapq.heappush(self.free_s, ends_s)
        back_s = ends_s + self.rtt_s * kind.trips / 2
        heapq.heappush(self.queue, back_s)
        return back_s - now_s


def traces() -> tuple[Trace, Latencies]:
    """Those of the data folder, or made-up ones."""
    try:
        text = gzip.decompress((DATA / "latency" / "PlanetLabData_1.txt.gz").read_bytes()).decode()
        return read("default"), Latencies.read(text)
    except OSError:
        return synthetic(), Latencies.made_up(1)


def machines(trace: Trace, latencies: Latencies, rng: random.Random) -> list[Machine]:
    home, made = rng.randrange(latencies.sites), []
    for number, machine in enumerate(rng.sample(trace.machines, MACHINES)):
        identity = Identity.from_seed(rng.randbytes(32))
        # As many at once as of the trace's median pod.
        slots = max(1, machine.cpu_milli // 16_000)
        able = Capability(machine.cpu_milli, machine.memory_mib * MIB)
        profile = Profile(
            peer_id=identity.peer_id,
            sequence=0,
            issued_unix_s=0,
            expires_unix_s=1,
            capability=able,
            capacity=Capacity(able.cpu_milli, able.memory_bytes),
        )
        rtt_s = latencies.rtt_us[home][rng.randrange(latencies.sites)] / 1e6
        trust = rng.choice((500, 700, 900))
        made.append(Machine(profile, rtt_s, trust, number % HOLDERS == 0, [0.0] * slots, []))
    return made


def turnarounds(seed: int, preset: str | None, tasks: int) -> float:
    """The geometric mean, by one preset, or with None by what is learnt."""
    trace, latencies = traces()
    rng = random.Random(seed)
    there = machines(trace, latencies, rng)
    learner, waiting = Learner(), list[tuple[float, str, str, float]]()
    mean_s = sum(each.share * each.run_s for each in KINDS)
    rate = LOAD * sum(len(each.free_s) for each in there) / mean_s
    now_s = total = 0.0
    for number in range(tasks):
        now_s += rng.expovariate(rate)
        while waiting and waiting[0][0] <= now_s:
            _, name, chosen, took_s = heapq.heappop(waiting)
            learner.took(name, chosen, took_s)
        kind = rng.choices(KINDS, [each.share for each in KINDS])[0]
        pod: Pod = rng.choice(trace.pods)
        run_s = kind.run_s * rng.lognormvariate(0, 0.5)
        needs = Requirements(cpu_milli=max(1, min(pod.cpu_milli, 16_000)))
        seen = rng.sample(there, SEEN)
        used = preset or learner.choose(kind.name).preset
        view = TaskView(name=str(number), key=key_of(b"%d" % number), needs=needs)
        known = [each.look(now_s, needs, kind.data_bytes) for each in seen]
        scores = PRESETS[used].scores(view, known)
        best = max(range(SEEN), key=lambda place: scores[place].value)
        took_s = seen[best].run(now_s, kind, run_s)
        heapq.heappush(waiting, (now_s + took_s, kind.name, used, took_s))
        total += math.log(took_s)
    return math.exp(total / tasks)


def measure(seed: int, tasks: int = TASKS) -> dict[str, object]:
    found = {name: turnarounds(seed, name, tasks) for name in PRESETS}
    learnt = turnarounds(seed, None, tasks)
    return {
        "seed": seed,
        "turnaround_s": {**found, "learnt": learnt},
        "over_worst": 100 * (1 - learnt / max(found.values())),
        "under_best": 100 * (learnt / min(found.values()) - 1),
    }


def main(words: Sequence[str] | None = None) -> None:
    arguments = argparse.ArgumentParser(
        prog="python -m simulations.scoring",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    arguments.add_argument("--seeds", default="1..3", metavar="FIRST..LAST")
    arguments.add_argument("--tasks", type=int, default=TASKS)
    arguments.add_argument("--json", action="store_true", help="one JSON object on a line")
    given = arguments.parse_args(words)
    first, _, last = given.seeds.partition("..")
    for seed in range(int(first), int(last or first) + 1):
        found = measure(seed, given.tasks)
        print(json.dumps(found, indent=None if given.json else 2), flush=True)


if __name__ == "__main__":
    main()

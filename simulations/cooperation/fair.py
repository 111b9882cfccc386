"""Owners who contend for the same cores: starvation, shares over an hour, and a free rider.

second_first_result_s  four cores, 400 tasks of bob's; then dave submits 4: until his first
share_error            two hungry owners at 1:1 and at 2:1, over an hour: how far one is from
                       his part of what both had, as a part of it
withheld               of the cores' time in that hour, the part in which one was free for more
                       than 2 s while a task waited; and with one hungry owner alone
free_rider_share       of machines, what an organisation gets that gives none, while others want
                       them; `free_rider_alone` when none does
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping
from typing import Final

from formation_p2p.jobs.core.job import Job
from formation_p2p.jobs.core.job_events import TaskSucceeded
from formation_p2p.machine.core.requirements import Requirements
from formation_p2p.peer.core.events import OfferCharter
from formation_p2p.trust.core.charter import Charter, Member
from formation_p2p.trust.core.grants import Rights
from formation_p2p.trust.core.membership import Membership
from formation_p2p.trust.core.root_keys import KeySet
from formation_p2p.trust.core.signed_charter import draft, sign
from formation_p2p.workload.core.outcome import Succeeded
from formation_p2p.workload.core.scope import Place
from formation_p2p.workload.core.work import Task, task_id
from simulations.simulator.executor import Running
from simulations.simulator.node import SimNode
from simulations.simulator.world import EPOCH_UNIX_S, World

NEEDS: Final = Requirements(driver="process")
CORES: Final = 4
TASK_S: Final = 5.0
HOUR_S: Final = 3600.0
# Until a free core is taken by a task that waits: a few round trips, and half a second in which
# what ran under a lease ends.
HAND_OVER_S: Final = 2.0
LOOK_S: Final = 0.25


class Street:
    """A gate, workers of four cores and people, each of an organisation. Tasks take from 3 to 7 s,
    5 on average, as long as their payloads say."""

    def __init__(
        self, seed: int, workers: Mapping[str, str], people: Mapping[str, str], *, lean: bool = True
    ) -> None:
        self.rng = random.Random(f"cooperation/{seed}")
        self.world = World(seed, self._run, lean=lean)
        self.world.add("gate")
        self.ran_s: Counter[str] = Counter()
        self.workers = [self._add(name, org, True) for name, org in workers.items()]
        self.people = {name: self._add(name, org, name in workers) for name, org in people.items()}
        self.world.elapse(5)

    def _add(self, name: str, org: str, serves: bool) -> SimNode:
        if name in self.world.nodes:
            return self.world.nodes[name]
        rights = Rights(int(EPOCH_UNIX_S) + 10**7, place=Place(org=org))
        serve = self.world.machine(cpu=CORES) if serves else None
        return self.world.add(name, serve=serve, rights=rights)

    def _run(self, running: Running) -> tuple[float, Succeeded]:
        return float(running.work.payload), Succeeded(running.work.payload)

    def submit(self, name: str, count: int, job_id: str, took_s: float | None = None) -> None:
        tasks = tuple(
            Task(task_id(job_id, n), NEEDS, b"%f" % (took_s or self.rng.uniform(3, 7)))
            for n in range(count)
        )
        self.people[name].submit(Job(job_id, tasks))

    def done(self, name: str) -> list[TaskSucceeded]:
        return [x for x in self.people[name].reported if isinstance(x, TaskSucceeded)]

    def used_s(self, name: str) -> float:
        """Core-seconds of a person's tasks that brought results."""
        return sum(float(each.result) for each in self.done(name))

    def twice(self, name: str) -> int:
        """Results that were counted more than once."""
        done = [each.task_id for each in self.done(name)]
        return len(done) - len(set(done))

    def charter(self, **shares: int) -> None:
        """One in which the organisations have these shares."""
        root = KeySet(1, (self.world.root.public_key,))
        issued = int(EPOCH_UNIX_S + self.world.now_s)
        rules = Charter(
            version=1,
            network=Membership(self.world.root.public_key).network_id,
            keys=root,
            issued_unix_s=issued,
            expires_unix_s=issued + 10**7,
            members=tuple(Member(org, share) for org, share in shares.items()),
        )
        signed = sign(draft(rules, root, None), self.world.root)
        for node in self.world.nodes.values():
            self.world.deliver(node, OfferCharter(signed.raw))
        self.world.elapse(5)

    def withheld(self, for_s: float) -> float:
        """Let so much time pass. Returns the part of the cores' time in which some were free for
        longer than it takes to hand them over, while tasks waited: here they always do."""
        idle_s = [0.0] * (CORES * len(self.workers))
        withheld_s = 0.0
        for _ in range(round(for_s / LOOK_S)):
            self.world.elapse(LOOK_S)
            for at, worker in enumerate(self.workers):
                for core in range(CORES):
                    place = at * CORES + core
                    idle_s[place] = 0.0 if core < len(worker.running) else idle_s[place] + LOOK_S
                    withheld_s += LOOK_S if idle_s[place] > HAND_OVER_S else 0.0
        return withheld_s / (for_s * len(idle_s))


def starvation(seed: int) -> Mapping[str, float]:
    """The case of the second submitter."""
    street = Street(seed, {"alice": ""}, {"bob": "", "dave": ""}, lean=False)
    street.submit("bob", 400, "bob's", TASK_S)
    street.world.elapse(street.rng.uniform(1, 20))
    began_s = street.world.now_s
    street.submit("dave", 4, "dave's", TASK_S)
    while not street.done("dave") and street.world.now_s < began_s + HOUR_S:
        street.world.elapse(0.1)
    first_s = street.world.now_s - began_s
    street.world.elapse(700)
    lost = 400 - len(street.done("bob")) + 4 - len(street.done("dave"))
    twice = street.twice("bob") + street.twice("dave")
    return {"second_first_result_s": round(first_s, 1), "lost": lost, "counted_twice": twice}


def shares(seed: int) -> Mapping[str, float]:
    """Two hungry owners at 1:1 and at 2:1, then one alone."""
    error = withheld = 0.0
    for share in (1, 2):
        street = Street(seed, {"alice": "zoo"}, {"bob": "acme", "dave": "farm"})
        street.charter(acme=share, farm=1)
        street.submit("bob", 4000, "bob's")
        street.world.elapse(street.rng.uniform(0, 5))
        street.submit("dave", 4000, "dave's")
        withheld = max(withheld, street.withheld(HOUR_S))
        bob_s, dave_s = street.used_s("bob"), street.used_s("dave")
        part = share / (share + 1)
        error = max(error, abs(bob_s / (bob_s + dave_s) - part) / part)
    street = Street(seed, {"alice": "zoo"}, {"bob": "acme"})
    street.submit("bob", 4000, "bob's")
    street.world.elapse(5)
    withheld = max(withheld, street.withheld(600))
    return {"share_error": round(error, 4), "withheld": round(withheld, 4)}


def free_rider(seed: int) -> Mapping[str, float]:
    """acme and farm have a machine each and work for one another; zoo has none. All are hungry for
    an hour; then zoo is alone."""
    machines = {"bob": "acme", "dave": "farm"}
    street = Street(seed, machines, {**machines, "zed": "zoo"})
    for name in machines:
        street.submit(name, 200, f"{name} begins")  # each has used both machines
    street.world.elapse(400)
    for name in ("bob", "dave", "zed"):
        street.submit(name, 3500, f"{name}'s")
    before = {name: street.used_s(name) for name in street.people}
    street.world.elapse(HOUR_S)
    used = {name: street.used_s(name) - before[name] for name in street.people}
    rider = used["zed"] / sum(used.values())

    street = Street(seed, machines, {**machines, "zed": "zoo"})
    street.submit("bob", 100, "bob begins")
    street.world.elapse(200)
    street.submit("zed", 4000, "zed's")
    street.world.elapse(5)
    withheld = street.withheld(600)
    return {"free_rider_share": round(rider, 4), "free_rider_alone": round(1 - withheld, 4)}

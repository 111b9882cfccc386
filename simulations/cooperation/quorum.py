"""Workers that lie, together, about the results of tasks that several of them are to agree on.

A hundred workers, twenty of which tell the same lies, and an honest one errs once in a thousand
tasks. `wrong` is the share of the results that were accepted and are wrong, `runs` how many copies
there were for each task, both in each way of lying. `lies` counts the lies among the results, and
`quorum_alone` those that twenty identities of one operator have agreed on among themselves.
"""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

from formation_p2p.assembly import Peer
from formation_p2p.core.identity import Identity
from formation_p2p.jobs.core.job import Job
from formation_p2p.jobs.core.job_events import TaskDisagreed, TaskPlaced, TaskSucceeded
from formation_p2p.machine.core.requirements import Requirements
from formation_p2p.placement.core.task_options import TaskOptions
from formation_p2p.trust.core.grants import Rights, bind, issue
from formation_p2p.trust.core.network import Network
from formation_p2p.workload.core.outcome import Outcome, Succeeded
from formation_p2p.workload.core.quorum import Quorum
from formation_p2p.workload.core.scope import Place
from formation_p2p.workload.core.work import Task, task_id
from simulations.simulator.executor import Running
from simulations.simulator.world import EPOCH_UNIX_S, World

WORKERS: Final = 100
LIARS: Final = 20
ERRORS: Final = 0.001
# Sleepers are honest for so many tasks first.
ASLEEP: Final = 50
TASK_S: Final = 1.0
TASKS: Final = 10_000
# Where nothing ends any more, something is wrong with the case.
MOST_S: Final = 3_600

TWO_OF_THREE: Final = Quorum(2, of=3)
ADAPTIVE: Final = Quorum.adaptive(2, of=5, check=0.02)
RIGHTS: Final = Rights(int(EPOCH_UNIX_S) + 10**7)


@dataclass(slots=True)
class Crowd:
    """How the workers of one world answer. Those that lie do so from their task `asleep` on."""

    seed: int
    asleep: int
    rng: random.Random = field(init=False)
    ran: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self.rng = random.Random(f"{self.seed}/answers")

    def answer(self, name: str, payload: bytes) -> bytes:
        self.ran[name] += 1
        if name.startswith("liar") and self.ran[name] > self.asleep:
            return b"a lie about " + payload
        if self.rng.random() < ERRORS:
            return b"an error of " + name.encode()
        return payload


def world_of(seed: int, crowd: Crowd, one_operator: str = "") -> World:
    """With `one_operator` all liars have one `org`, or one `grant`."""

    def answered(running: Running) -> tuple[float, Outcome]:
        for node in world.numbered:
            if running.key in node.running:
                return TASK_S, Succeeded(crowd.answer(node.name, running.work.payload))
        raise AssertionError("it runs nowhere")

    world = World(seed, answered, lean=True)
    if one_operator == "grant":
        world.peer = partial(_invited, issue(world.root, RIGHTS), dict[bytes, str]())
    world.add("gate")
    for number in range(WORKERS):
        name = f"{'liar' if number < LIARS else 'worker'}-{number}"
        place = Place(org="sybil") if one_operator == "org" and number < LIARS else Place()
        rights = Rights(RIGHTS.expires_unix_s, place=place)
        world.add(name, serve=world.machine(cpu=1), rights=rights)
    world.add("bob")
    world.elapse(5)
    return world


def _invited(
    invite: bytes,
    numbers: dict[bytes, str],
    identity: Identity,
    network: Network,
    *rest: Any,
    **more: Any,
) -> Peer:
    """The first that join after the gate are bound from one invitation."""
    if 0 < len(numbers) <= LIARS:
        grant = bind(invite, network.root_public_key, identity.peer_id)
        network = Network(network.root_public_key, network.gates, grant)
    numbers[identity.public_key] = identity.peer_id
    return Peer(identity, network, *rest, **more)


def measure(
    seed: int, quorum: Quorum, asleep: int, tasks: int, one_operator: str = ""
) -> dict[str, float]:
    crowd = Crowd(seed, asleep)
    world = world_of(seed, crowd, one_operator)
    bob = world.nodes["bob"]
    needs = Requirements(driver="process")
    options = TaskOptions(needs=needs, quorum=quorum)
    work = tuple(Task(task_id("job", n), needs, b"%d" % n) for n in range(tasks))
    bob.submit(Job("job", work, options=options))
    began_s, ended = world.now_s, 0
    while ended < tasks and world.now_s < began_s + MOST_S:
        world.elapse(10)
        ended = sum(isinstance(x, TaskSucceeded | TaskDisagreed) for x in bob.reported)
    truth = {each.task_id: each.payload for each in work}
    results = [x for x in bob.reported if isinstance(x, TaskSucceeded)]
    wrong = [x for x in results if x.result != truth[x.task_id]]
    placed = sum(isinstance(each, TaskPlaced) for each in bob.reported)
    return {
        "wrong": len(wrong) / tasks,
        "runs": placed / tasks,
        "ended": ended,
        "disagreed": ended - len(results),
        "lies": sum(x.result.startswith(b"a lie") for x in wrong),
        "took_s": world.now_s - began_s,
    }


def run(seed: int, tasks: int = TASKS) -> dict[str, object]:
    """The case: 2 of 3, and adaptive, against liars of each kind."""
    alone = [
        measure(seed, TWO_OF_THREE, 0, min(tasks, 1_000), kind)["lies"] for kind in ("org", "grant")
    ]
    return {
        "two_of_three": {
            "always": measure(seed, TWO_OF_THREE, 0, tasks),
            "sleepers": measure(seed, TWO_OF_THREE, ASLEEP, tasks),
        },
        "adaptive": {
            "always": measure(seed, ADAPTIVE, 0, tasks),
            "sleepers": measure(seed, ADAPTIVE, ASLEEP, tasks),
        },
        "quorum_alone": sum(alone),
    }

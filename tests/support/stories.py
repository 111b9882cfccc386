"""People and small worlds for the tests of negotiation, execution, dispatch and the peer.

bob has tasks; alice, carol and dave work; mallory is a stranger, and up to no good.
"""

import hashlib
from collections.abc import Iterable, Sequence
from typing import TypeVar, Unpack

from formation_p2p.assembly import DEFAULT_PARAMETERS, Peer, PeerParameters
from formation_p2p.core.effects import Contact, Effect, Moment
from formation_p2p.core.identity import Identity, PeerId
from formation_p2p.core.refusals import Denied
from formation_p2p.jobs.core.job import Job
from formation_p2p.jobs.core.job_events import (
    JobEvent,
    TaskCancelled,
    TaskDisagreed,
    TaskGaveUp,
    TaskPlaced,
    TaskSucceeded,
    TaskUnplaceable,
)
from formation_p2p.leases.core.budget import Budget
from formation_p2p.leases.core.messages import WorkMessage
from formation_p2p.leases.core.session import Send, Undelivered
from formation_p2p.machine.core.capability import Capability, Capacity, idle
from formation_p2p.machine.core.requirements import Requirements
from formation_p2p.peer.core.worker import Worker
from formation_p2p.placement.core.candidate import Candidate
from formation_p2p.placement.core.task_options import (
    PlacementKwargs,
    SchedulingKey,
    TaskOptions,
    options_of,
)
from formation_p2p.records.core.profile import Profile
from formation_p2p.trust.core.admission import AdmissionController
from formation_p2p.trust.core.membership import Membership
from formation_p2p.workload.core.quorum import Quorum
from formation_p2p.workload.core.scope import EVERYTHING, Find, Scope
from formation_p2p.workload.core.work import Task, task_id
from simulations.simulator.executor import Run, Running
from simulations.simulator.node import SimNode
from simulations.simulator.world import EPOCH_UNIX_S, World

T = TypeVar("T")

NEEDS = Requirements(driver="process")

END = (TaskSucceeded, TaskGaveUp, TaskDisagreed, TaskUnplaceable, TaskCancelled)


def known(profiles: Iterable[Profile], terms: SchedulingKey, now: Moment) -> list[Candidate]:
    """What a node knows that has seen nothing of these workers yet."""
    return [Candidate(profile=each) for each in profiles]


def at(seconds: float) -> Moment:
    return Moment(seconds, EPOCH_UNIX_S + seconds)


# -- people, where there is no world --------------------------------------------------------


def identity(name: str) -> Identity:
    return Identity.from_seed(hashlib.sha256(name.encode()).digest())


def contact(name: str) -> Contact:
    return Contact(identity(name).peer_id, (f"/dns4/{name}.example/tcp/4001",))


ALICE, BOB, CAROL, DAVE, MALLORY = map(contact, ("alice", "bob", "carol", "dave", "mallory"))


def sent(effects: Iterable[Effect]) -> list[tuple[PeerId, WorkMessage]]:
    """What goes out, and to whom. Refuses effects of any other kind."""
    messages = []
    for effect in effects:
        assert isinstance(effect, Send), effect
        messages.append((effect.to.peer_id, effect.message))
    return messages


class Lenient(AdmissionController):
    """Denies nobody anything, and counts nothing."""

    def __init__(self) -> None:
        super().__init__(Membership(bytes(32)), {})

    def denied(
        self,
        grant: bytes,
        peer_id: PeerId,
        needs: Requirements,
        priority: int,
        now: Moment,
        *,
        another: bool,
    ) -> Denied | None:
        return None

    def weighed(self, grant: bytes, priority: int) -> int:
        return priority

    def invitation(self, grant: bytes) -> str:
        return grant.decode()

    def opened(self, lease_id: str, grant: bytes, cpu_milli: int, gpu_milli: int) -> None:
        pass


def unshared(machine: Capability) -> Budget:
    """Any scope may have all of the machine."""
    return Budget(EVERYTHING, machine.cpu_milli, lambda *who: Scope.COMMONS)


# -- worlds ---------------------------------------------------------------------------------


def town(seed: int = 7, run: Run | None = None, **cores: int) -> World:
    """A gate, a worker of so many cores under each name, and bob. All have met."""
    return town_with(DEFAULT_PARAMETERS, seed, run, **cores)


def town_with(
    parameters: PeerParameters, /, seed: int = 7, run: Run | None = None, **cores: int
) -> World:
    world = World(seed, run, parameters=parameters)
    world.add("gate")
    for name, count in cores.items():
        world.add(name, serve=world.machine(cpu=count))
    world.add("bob")
    world.elapse(3)
    return world


def at_work(world: World, *jobs: Job, for_s: float = 0.0) -> tuple[World, SimNode]:
    """The world and bob, once he has submitted these jobs and so much time has passed."""
    bob = world.nodes["bob"]
    for each in jobs:
        bob.submit(each)
    if for_s:
        world.elapse(for_s)
    return world, bob


def job(
    count: int = 1,
    *,
    job_id: str = "job",
    needs: Requirements = NEEDS,
    payload: bytes = b"",
    shared: bytes = b"",
    attempts: int = 3,
    deadline_s: float | None = None,
    speculate: bool = False,
    priority: int = 0,
    linger_s: float | None = None,
    find: Find = Find.DHT,
    quorum: Quorum | None = None,
    **options: Unpack[PlacementKwargs],
) -> Job:
    """Tasks whose payloads are their numbers, unless one is given."""
    tasks = tuple(
        Task(task_id(job_id, n), needs, payload or b"%d" % n, shared=shared) for n in range(count)
    )
    base = TaskOptions(
        needs=needs,
        attempts=attempts,
        deadline_s=deadline_s,
        speculate=speculate,
        priority=priority,
        linger_s=linger_s,
        find=find,
        quorum=quorum,
    )
    return Job(job_id, tasks, options=options_of(options, base))


def only(events: Iterable[object], kind: type[T]) -> list[T]:
    return [event for event in events if isinstance(event, kind)]


def ends(node: SimNode) -> dict[str, JobEvent]:
    """How each task of a node's jobs ended. Fails where one ended twice."""
    ended: dict[str, JobEvent] = {}
    for event in node.reported:
        if isinstance(event, END):
            assert event.task_id not in ended, f"{event.task_id} ended twice"
            ended[event.task_id] = event
    return ended


def workers_of(node: SimNode) -> list[str]:
    """By name, the worker of each placement, in order."""
    return [name_of(node.world, placed.worker) for placed in only(node.reported, TaskPlaced)]


def name_of(world: World, peer_id: PeerId) -> str:
    return next(n.name for n in world.nodes.values() if n.identity.peer_id == peer_id)


def named(world: World, pairs: Sequence[tuple[PeerId, T]]) -> dict[str, T]:
    return {name_of(world, peer_id): value for peer_id, value in pairs}


def where(world: World, running: Running) -> SimNode:
    """The node that runs it."""
    return next(node for node in world.nodes.values() if running.key in node.running)


def passed(world: World, sender: str, receiver: str) -> list[WorkMessage]:
    """The work messages from one to another, in order."""
    return [
        each.message
        for each in world.sent
        if (each.sender, each.receiver) == (sender, receiver)
        and isinstance(each.message, WorkMessage)
    ]


def peer_of(node: SimNode) -> Peer:
    assert isinstance(node.peer, Peer)
    return node.peer


def worker_of(node: SimNode) -> Worker:
    worker = peer_of(node).worker
    assert worker is not None
    return worker


def free(node: SimNode) -> Capacity:
    return worker_of(node).lessor.ledger.free


def is_idle(node: SimNode) -> bool:
    """Whether nothing is reserved on a worker, and nothing is left of what was."""
    worker = worker_of(node)
    nothing_runs = not node.running and not worker.executions.runs
    return free(node) == idle(worker.lessor.capability) and not worker.has_leases and nothing_runs


def mend(world: World, a: SimNode, b: SimNode) -> None:
    """Heal a cut as TCP does: the streams that packets were lost on are reset at both ends."""
    world.heal(a, b)
    world.deliver(a, Undelivered(b.identity.peer_id, "connection reset"))
    world.deliver(b, Undelivered(a.identity.peer_id, "connection reset"))

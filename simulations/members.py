"""Members of gangs that die and are replaced, with what their tasks had saved.

    python -m simulations.members --seeds 1..500 --json

Each seed draws a world: 4 to 9 workers of one or two cores, one to three owners with a gang of two
to four ranks each, and for every rank a task of some steps, which saves a checkpoint after each.
Workers crash and come back, lose power for good, sleep, lose their connections and are cut off; 2 %
of all messages are lost. A task's result is a hash over all of its steps, so that a step that is
left out or done twice in one chain is seen. What must hold:

    ends once       each task ends once, with the result of its whole chain, or with its gang
    newest          an attempt goes on from what is held, or from what is newer
    forward         what is held of a task only grows, by its number and by its steps
    fenced          what is saved and what ends is taken from the member of that rank alone
    given back      in the end no worker has a lease
"""

from __future__ import annotations

import argparse
import hashlib
import json
import random
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from formation_p2p.assembly import Peer, PeerEffect, PeerEvent
from formation_p2p.core.identity import PeerId
from formation_p2p.drivers.core.effects import ExecutionSaved
from formation_p2p.features.gangs.core.events import (
    EmitGangEvent,
    GangEnded,
    GangFormed,
    GangMember,
    GangUnplaceable,
    MemberJoined,
    MemberLost,
    MemberReplaced,
)
from formation_p2p.features.gangs.core.spec import GangSpec
from formation_p2p.jobs.core.fetch import CheckpointKept, KeepCheckpoint
from formation_p2p.jobs.core.job import Job
from formation_p2p.jobs.core.job_events import (
    EmitJobEvent,
    JobEnded,
    TaskCancelled,
    TaskGaveUp,
    TaskSucceeded,
    TaskUnplaceable,
)
from formation_p2p.leases.core.messages import Dispatch, TaskCheckpoint, TasksEnded
from formation_p2p.leases.core.session import Received, Send
from formation_p2p.machine.core.requirements import Requirements
from formation_p2p.peer.core.events import Serve
from formation_p2p.placement.core.task_options import TaskOptions
from formation_p2p.workload.core.blob import RAW, Blob, Cid, digest_of
from formation_p2p.workload.core.outcome import Failed, FailureKind, Outcome, Succeeded
from formation_p2p.workload.core.work import Task
from simulations.gangs import Lossy
from simulations.simulator.executor import Running
from simulations.simulator.node import SimNode
from simulations.simulator.world import World

NEEDS: Final = Requirements(cpu_milli=1000, driver="process")
LOSS: Final = 0.02
# Faults begin in so much virtual time; then the work must be done within the second figure.
FAULTS_S: Final = 60.0
DONE_S: Final = 900.0
# How long one goes on: from a moment to past the life of a lease.
LASTS_S: Final = (0.2, 3.0, 12.0, 25.0)
# Leases are given back, or run out, and what ran under them is ended.
SETTLE_S: Final = 20.0
STEPS: Final = (3, 12)
STEP_S: Final = (0.3, 3.0)
FAIL_SHARE: Final = 0.05
# A task that fails is begun again on its member, with what it has saved.
OPTIONS: Final = TaskOptions(attempts=5)
_ENDS: Final = (TaskSucceeded, TaskGaveUp, TaskUnplaceable, TaskCancelled)


class Violation(AssertionError):
    """One of the above does not hold."""


def state_of(task_id: str, step: int) -> bytes:
    """What a task has computed after so many steps."""
    state = task_id.encode()
    for number in range(step):
        state = hashlib.sha256(state + number.to_bytes(4)).digest()
    return state


@dataclass(slots=True)
class Owner:
    """`newest` is the number and the step of what is held of each task; `ends` how each ended."""

    node: SimNode
    gang_id: str
    spec: GangSpec
    members: dict[int, GangMember] = field(default_factory=dict)
    newest: dict[str, tuple[int, int]] = field(default_factory=dict)
    keeping: dict[tuple[str, int], int] = field(default_factory=dict)
    ends: dict[str, object] = field(default_factory=dict)
    over: bool = False


class Members:
    """One world, judged as it goes."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.seen: Counter[str] = Counter()
        self._chance = chance = random.Random(f"{seed}/members")
        self.world = world = World(seed, self._run, lean=True, loss=LOSS)
        world.streams = Lossy(world, random.Random(f"{seed}/streams"), LOSS)
        wires: dict[frozenset[str], float] = {}

        def latency(a: SimNode, b: SimNode) -> float:
            pair = frozenset((a.name, b.name))
            drawn = random.Random(f"{seed}/{sorted(pair)}").uniform(0.001, 0.04)
            return wires.setdefault(pair, drawn)

        world.latency = latency
        fences = random.Random(f"{seed}/fences")
        world.fence_s = lambda: fences.choice((0.001, 0.05, 1.0))
        self._steps: dict[Cid, tuple[str, int]] = {}
        self._down: set[str] = set()
        world.add("gate")
        self._serves: dict[str, Serve] = {}
        self.workers: list[SimNode] = []
        for number in range(chance.randint(4, 9)):
            serve = self._serves[f"worker {number}"] = world.machine(cpu=chance.choice((1, 1, 2)))
            self.workers.append(world.add(f"worker {number}", serve=serve))
        self.owners: dict[str, Owner] = {}
        for number in range(chance.randint(1, 3)):
            size = chance.randint(2, min(4, len(self.workers) - 1))
            node = world.add(f"owner {number}")
            spec = GangSpec((NEEDS,) * size, OPTIONS)
            self.owners[node.name] = Owner(node, f"{seed:016x}{number:016x}", spec)
        world.witness = self._saw
        world.elapse(15)

    def play(self) -> None:
        """Raises Violation."""
        world, chance = self.world, self._chance
        for owner in self.owners.values():
            world.after(chance.uniform(0.0, 5.0), owner.node.form, owner.gang_id, owner.spec)
        at_s = 0.0
        every_s = chance.uniform(2.0, 8.0)
        while (at_s := at_s + chance.expovariate(1 / every_s)) < FAULTS_S:
            world.after(at_s, self._fault)
        world.elapse(FAULTS_S + max(LASTS_S))
        until_s = world.now_s + DONE_S
        while world.now_s < until_s and not all(each.over for each in self.owners.values()):
            world.elapse(1.0)
        world.elapse(SETTLE_S)
        self._at_the_end()

    # -- what tasks do --------------------------------------------------------------------------

    def _run(self, running: Running) -> tuple[float, Outcome]:
        task_id = running.work.attempt_id.rpartition("#")[0]
        task = random.Random(f"{self.seed}/{task_id}")
        steps, step_s = task.randint(*STEPS), task.uniform(*STEP_S)
        begun, restored = 0, running.work.restored
        if restored is not None:
            whose, begun = self._steps[restored.cid]
            self._check(whose == task_id, f"{task_id} goes on from what {whose} has saved")
            self.seen["restored"] += 1
        attempt = random.Random(f"{self.seed}/{running.work.attempt_id}/{running.under.lease_id}")
        fails = attempt.random() < FAIL_SHARE
        to = attempt.randint(begun, steps) if fails else steps
        for step in range(begun + 1, to + 1):
            self.world.after((step - begun) * step_s - 0.01, self._save, running, task_id, step)
        outcome: Outcome = Succeeded(state_of(task_id, steps))
        if fails:
            outcome = Failed(FailureKind.EXIT, "no luck")
        return max(0.02, (to - begun) * step_s), outcome

    def _save(self, running: Running, task_id: str, step: int) -> None:
        for worker in self.workers:
            if worker.alive and worker.running.get(running.key) is running:
                state = state_of(task_id, step)
                cid = Cid(RAW, digest_of(state))
                self._steps[cid] = (task_id, step)
                saved = ExecutionSaved(*running.key, Blob(cid, len(state), (worker.contact,)))
                self.world.deliver(worker, saved)

    # -- what befalls them ----------------------------------------------------------------------

    def _fault(self) -> None:
        chance, world = self._chance, self.world
        up = [each for each in self.workers if each.alive and each.name not in self._down]
        if not up:
            return
        worker = chance.choice(up)
        other = chance.choice([each.node for each in self.owners.values()])
        kind = chance.choice(("crash", "crash", "crash", "power", "sleep", "reset", "break", "cut"))
        self.seen[kind] += 1
        streams, for_s = world.streams, chance.choice(LASTS_S)
        assert streams is not None
        match kind:
            case "crash" | "power":
                self._down.add(worker.name)
                (world.kill if kind == "crash" else world.vanish)(worker)
                # All of them come back in the end: a gang cannot be replaced by none.
                world.after(chance.uniform(0.5, 6.0), self._back, worker)
            case "sleep":
                self._down.add(worker.name)
                world.suspend(worker)
                world.after(for_s, self._wake, worker)
            case "reset":
                streams.lose(worker, other)
            case "break":
                streams.disconnect(worker, other)
            case _:
                world.cut(worker, other)
                world.after(for_s, world.heal, worker, other)

    def _back(self, worker: SimNode) -> None:
        self._down.discard(worker.name)
        self.world.restart(worker, self._serves[worker.name])

    def _wake(self, worker: SimNode) -> None:
        self._down.discard(worker.name)
        self.world.resume(worker)

    # -- what must hold -------------------------------------------------------------------------

    def _check(self, holds: bool, what: str) -> None:
        if not holds:
            raise Violation(f"seed {self.seed}, {self.world.now_s:.3f} s: {what}")

    def _saw(self, node: SimNode, event: PeerEvent, effects: list[PeerEffect]) -> None:
        owner = self.owners.get(node.name)
        if owner is None:
            return
        if isinstance(event, CheckpointKept) and event.holder is not None:
            self._held(owner, event)
        for effect in effects:
            match effect:
                case EmitGangEvent(event=GangFormed(members)):
                    owner.members = {member.rank: member for member in members}
                    self.world.after(0.0, self._work, owner)
                case EmitGangEvent(event=MemberReplaced(member) | MemberJoined(member)):
                    owner.members[member.rank] = member
                    self.seen["replaced"] += 1
                case EmitGangEvent(event=MemberLost(rank)):
                    del owner.members[rank]
                    self.seen["lost"] += 1
                case EmitGangEvent(event=GangEnded() | GangUnplaceable()):
                    self.seen["ended early"] += not owner.over
                    owner.over = True
                case KeepCheckpoint(task_id, _, checkpoint):
                    step = self._steps[checkpoint.blob.cid][1]
                    owner.keeping[task_id, checkpoint.sequence] = step
                    if isinstance(event, Received) and isinstance(event.message, TaskCheckpoint):
                        self._fenced(owner, task_id, event.sender.peer_id, event.message)
                case Send(message=Dispatch() as dispatch):
                    self._dispatched(owner, dispatch)
                case EmitJobEvent(event=each) if isinstance(each, _ENDS):
                    self._ended(owner, each, event)
                case EmitJobEvent(event=JobEnded()):
                    if not owner.over:
                        self.world.after(0.0, node.close, owner.gang_id)
                    owner.over = True

    def _work(self, owner: Owner) -> None:
        tasks = tuple(
            Task(f"{owner.gang_id}/{rank}", needs, b"", member=(owner.gang_id, rank))
            for rank, needs in enumerate(owner.spec.needs)
        )
        owner.node.submit(Job(owner.gang_id, tasks, options=owner.spec.options))

    def _held(self, owner: Owner, event: CheckpointKept) -> None:
        task_id = event.task_id
        if task_id in owner.ends:
            return
        held = (event.sequence, owner.keeping[task_id, event.sequence])
        before = owner.newest.get(task_id, (0, 0))
        forward = held[0] > before[0] and held[1] > before[1]
        self._check(forward, f"of {task_id} {held} is held after {before}")
        owner.newest[task_id] = held
        self.seen["held"] += 1

    def _dispatched(self, owner: Owner, dispatch: Dispatch) -> None:
        for each in dispatch.assignments:
            task_id = each.attempt_id.rpartition("#")[0]
            begun = (0, 0)
            if each.checkpoint is not None:
                begun = (each.checkpoint.sequence, self._steps[each.checkpoint.blob.cid][1])
            newest = owner.newest.get(task_id, (0, 0))
            ahead = begun[0] >= newest[0] and begun[1] >= newest[1]
            self._check(ahead, f"{each.attempt_id} goes on from {begun}, and {newest} is held")

    def _fenced(
        self, owner: Owner, task_id: str, sender: PeerId, message: TaskCheckpoint | TasksEnded
    ) -> None:
        member = owner.members.get(int(task_id.rpartition("/")[2]))
        told = sender, message.lease_id, message.fence
        is_its = member is not None and (member.peer_id, member.lease_id, member.fence) == told
        self._check(is_its, f"{task_id} is heard of under {told}")

    def _ended(
        self,
        owner: Owner,
        end: TaskSucceeded | TaskGaveUp | TaskUnplaceable | TaskCancelled,
        event: PeerEvent,
    ) -> None:
        task_id = end.task_id
        self._check(task_id not in owner.ends, f"{task_id} ends twice")
        owner.ends[task_id] = end
        self.seen[type(end).__name__] += 1
        if not isinstance(end, TaskSucceeded):
            return
        steps = random.Random(f"{self.seed}/{task_id}").randint(*STEPS)
        self._check(end.result == state_of(task_id, steps), f"{task_id} has another result")
        assert isinstance(event, Received)
        assert isinstance(event.message, TasksEnded)
        self._fenced(owner, task_id, event.sender.peer_id, event.message)

    def _at_the_end(self) -> None:
        for owner in self.owners.values():
            self._check(owner.over, f"the gang of {owner.node.name} does not end")
            if owner.ends:
                self._check(len(owner.ends) == owner.spec.size, f"{len(owner.ends)} tasks ended")
        for node in self.workers:
            assert isinstance(node.peer, Peer)
            worker = node.peer.worker
            self._check(worker is not None and not worker.has_leases, f"{node.name} has leases")
            self._check(not node.running, f"{node.name} runs on")


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m simulations.members",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--seeds", type=_seeds, default=range(1, 101), help="FIRST..LAST")
    parser.add_argument("--json", action="store_true", help="print one line of JSON")
    arguments = parser.parse_args(argv)
    seen: Counter[str] = Counter()
    failing: list[int] = []
    for seed in arguments.seeds:
        try:
            members = Members(seed)
            members.play()
            seen.update(members.seen)
        except Exception as error:  # noqa: BLE001 - what a peer raises is a violation too
            failing.append(seed)
            print(f"seed {seed}: {error!r}", file=sys.stderr)
    figures = {
        "seeds": len(arguments.seeds),
        "violations": len(failing),
        "failing_seeds": failing,
        "seen": dict(sorted(seen.items())),
    }
    print(json.dumps(figures) if arguments.json else figures)
    return 1 if failing else 0


def _seeds(text: str) -> range:
    first, _, last = text.partition("..")
    return range(int(first), int(last or first) + 1)


if __name__ == "__main__":
    sys.exit(main())

"""Restricted data in a network where workers lie, leave, and are moved out of the region.

`bob` is in the EU and has tasks whose inputs may not leave it, beside others that go anywhere; each
saves checkpoints, and has made outputs that two workers are to hold. Of the workers some are there,
some elsewhere, and some only say that they are. Amid the work the charter takes one of those inside
out of the region; workers crash and come back. `leaked` counts what was sent outside: a task's
payload, or a checkpoint or outputs that others were to hold, by the charter that the sender went by
when it sent it.
"""

from __future__ import annotations

import hashlib
import random
from typing import Any, Final

from formation_p2p.assembly import Peer, PeerEffect, PeerEvent
from formation_p2p.core.identity import PeerId
from formation_p2p.drivers.core.effects import ExecutionSaved
from formation_p2p.jobs.core.fetch import CopyOutputs, SpreadCheckpoint
from formation_p2p.jobs.core.job import Job
from formation_p2p.jobs.core.job_events import TaskSucceeded
from formation_p2p.leases.core.messages import Dispatch
from formation_p2p.leases.core.session import Send
from formation_p2p.machine.core.requirements import Requirements
from formation_p2p.peer.core.events import OfferCharter
from formation_p2p.placement.core.task_options import TaskOptions
from formation_p2p.trust.core.charter import Region
from formation_p2p.trust.core.grants import Rights
from formation_p2p.workload.core.blob import RAW, Blob, Cid, digest_of
from formation_p2p.workload.core.hints import Hints, Kind
from formation_p2p.workload.core.outcome import Succeeded
from formation_p2p.workload.core.process import ProcessResult
from formation_p2p.workload.core.scope import Place
from formation_p2p.workload.core.work import Task
from simulations.cooperation.charter import Board
from simulations.simulator.executor import Running
from simulations.simulator.node import SimNode
from simulations.simulator.world import EPOCH_UNIX_S, World

NEEDS: Final = Requirements(cpu_milli=1000, driver="process")
INSIDE: Final = Hints(region="eu", required=frozenset({Kind.REGION}))
TASKS: Final = 40
RUN_S: Final = (2.0, 12.0)
SAVES: Final = 2
FOR_S: Final = 240.0


class Leaks:
    """One world, judged as it goes."""

    def __init__(self, seed: int) -> None:
        self.leaked = 0
        self.sent = 0
        self._chance = chance = random.Random(f"{seed}/leaks")
        self.world = world = World(seed, self._run, lean=True)
        world.witness = self._witness
        self.gate = world.add("gate")
        self.bob = world.add("bob", rights=self._rights("acme"))
        self.workers: list[SimNode] = []
        self.grants: dict[PeerId, bytes] = {}
        for number in range(chance.randint(4, 9)):
            org = chance.choice(("acme", "acme", "beta", ""))
            says = (("region", "eu"),) if chance.random() < 0.5 else ()
            serve = world.machine(cpu=2, labels=says)
            worker = world.add(f"w{number}", serve=serve, rights=self._rights(org))
            self.grants[worker.identity.peer_id] = worker.network().grant
            self.workers.append(worker)
        world.elapse(5.0)
        self.board = Board(world)

    def play(self) -> dict[str, Any]:
        world, chance = self.world, self._chance
        eu = Region("eu", frozenset({"acme"}))
        us = Region("us", frozenset({"beta"}))
        root = world.root, *self.board.signers[:2]
        rules = self.board.rules(1, regions=(eu, us))
        first = self.board.signed(rules, None, *root)
        world.deliver(self.bob, OfferCharter(first.raw))
        world.elapse(1.0)
        tasks = tuple(Task(f"bobs/{n}", NEEDS, b"%d" % n) for n in range(TASKS))
        self.bob.submit(
            Job("bobs", tasks, options=TaskOptions(needs=NEEDS, hints=INSIDE, copies=2))
        )
        anywhere = tuple(Task(f"open/{n}", NEEDS, b"") for n in range(TASKS))
        self.bob.submit(Job("open", anywhere, options=TaskOptions(needs=NEEDS)))
        inside = [x for x in self.workers if x.network().rights.place.org == "acme"]
        if inside:
            moved = chance.choice(inside)
            world.after(chance.uniform(2.0, 30.0), self._move, moved, first)
        for worker in self.workers:
            if chance.random() < 0.4:
                world.after(chance.uniform(1.0, 60.0), self._crash, worker)
        world.elapse(FOR_S)
        ended = {x.task_id for x in self.bob.reported if isinstance(x, TaskSucceeded)}
        return {"leaked": self.leaked, "sent": self.sent, "ended": len(ended)}

    def _rights(self, org: str) -> Rights:
        return Rights(int(EPOCH_UNIX_S) + 10**7, place=Place(org=org))

    def _run(self, running: Running) -> tuple[float, Succeeded]:
        seconds = self._chance.uniform(*RUN_S)
        for step in range(1, SAVES + 1):
            self.world.after(seconds * step / (SAVES + 1), self._save, running, step)
        made = str(running.key).encode()
        outputs = {"out": Blob(Cid(RAW, digest_of(made)), len(made))}
        return seconds, Succeeded(ProcessResult(0, outputs=outputs).encode())

    def _save(self, running: Running, step: int) -> None:
        for worker in self.workers:
            if worker.alive and worker.running.get(running.key) is running:
                state = f"{running.key} {step}".encode()
                blob = Blob(Cid(RAW, digest_of(state)), len(state), (worker.contact,))
                self.world.deliver(worker, ExecutionSaved(*running.key, blob))

    def _move(self, worker: SimNode, first: Any) -> None:
        """The charter has a worker elsewhere from now on."""
        peer = frozenset({worker.identity.peer_id})
        regions = (Region("eu", frozenset({"acme"})), Region("us", peer))
        second = self.board.signed(self.board.rules(2, regions=regions), first, *self.board.signers)
        self.world.deliver(self.bob, OfferCharter(second.raw))

    def _crash(self, worker: SimNode) -> None:
        self.world.kill(worker)
        serve = self.world.machine(cpu=2, labels=(("region", "eu"),))
        self.world.after(self._chance.uniform(1.0, 20.0), self.world.restart, worker, serve)

    def _witness(self, node: SimNode, event: PeerEvent, effects: list[PeerEffect]) -> None:
        if node is not getattr(self, "bob", None) or not isinstance(node.peer, Peer):
            return
        trust, now = node.peer.membership, self.world.moment(node)
        for effect in effects:
            receivers: tuple[PeerId, ...] = ()
            if isinstance(effect, Send) and isinstance(effect.message, Dispatch):
                if any(x.attempt_id.startswith("bobs/") for x in effect.message.assignments):
                    receivers = (effect.to.peer_id,)
            elif isinstance(effect, SpreadCheckpoint | CopyOutputs) and effect.task_id.startswith(
                "bobs/"
            ):
                receivers = tuple(each.peer_id for each in effect.others)
            for peer_id in receivers:
                self.sent += 1
                grant = self.grants.get(peer_id, b"")
                self.leaked += trust.region_of(grant, peer_id, now) != "eu"


def run(seed: int) -> dict[str, object]:
    played = Leaks(seed)
    found = played.play()
    story = f"{found} {played.world.now_s}".encode()
    return {**found, "story": hashlib.sha256(story).hexdigest()[:8]}

"""What befalls a cluster: a schedule of faults drawn from its seed, and the end of them all."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from typing import Final

from formation_p2p.peer.core.events import Leave
from simulations.cluster import MAX_TASKS, Cluster
from simulations.invariants import Invariants
from simulations.simulator.node import SimNode

# Faults begin in so much virtual time, and one goes on for so long: from a moment to past every
# limit that the peers and the network have (a lease 10 s, a silent connection 30 s).
SHORTEST_S: Final = 10.0
LONGEST_S: Final = 60.0
LASTS_S: Final = (0.05, 0.5, 3.0, 9.0, 12.0, 25.0, 40.0)


class Faults:
    """Of one cluster. `schedule` them; when their time is over, `stop` them."""

    def __init__(self, cluster: Cluster, invariants: Invariants) -> None:
        self.happened: Counter[str] = Counter()
        self.reported: Callable[[str], None] = lambda what: None
        self._cluster = cluster
        self._world = cluster.world
        self._invariants = invariants
        self._chance = random.Random(f"{cluster.seed}/faults")
        self._cuts: set[tuple[str, str]] = set()
        self._down: set[str] = set()
        self._tasks_left = MAX_TASKS

    def schedule(self) -> float:
        """Returns for how long they come."""
        chance = self._chance
        for_s = chance.uniform(SHORTEST_S, LONGEST_S)
        kinds: list[Callable[[], None]] = [
            self._crash_worker,
            self._crash_worker,
            self._power_off,
            self._crash_scheduler,
            self._crash_scheduler,
            self._cut,
            self._isolate,
            self._split,
            self._reset,
            self._reset,
            self._disconnect,
            self._suspend,
            self._fill_disk,
            self._leave,
            self._join,
            self._cancel,
        ]
        if self._cluster.homes is not None:
            kinds += [self._crash_gate, self._crash_gate, self._flush, self._flush]
        # Not every seed has every kind: what hides a fault is often another one.
        some = chance.sample(kinds, chance.randint(1, len(kinds)))
        self._world.loss = chance.choice((0.0, 0.0, 0.01, 0.05))
        self._world.after(0, self._submit)
        for _ in range(chance.randint(0, 6)):
            self._world.after(chance.uniform(0, for_s * 0.8), self._submit)
        for _ in range(chance.randint(0, 25)):
            self._world.after(chance.uniform(0, for_s), chance.choice(some))
        return for_s

    def stop(self) -> None:
        """Everything is mended: the dead live again, but those that left."""
        world = self._world
        world.loss = 0.0
        for a, b in sorted(self._cuts):
            world.heal(world.nodes[a], world.nodes[b])
        self._cuts.clear()
        for node in [*self._cluster.gates, *self._cluster.members]:
            if node.disk is not None:
                node.disk.is_full = False
            self._resume(node)
            self._restart(node)
        self._tell("faults have stopped")

    # -- who and for how long -------------------------------------------------------------------

    def _some(self, nodes: list[SimNode]) -> SimNode | None:
        alive = [node for node in nodes if node.alive]
        return self._chance.choice(alive) if alive else None

    def _lasts_s(self) -> float:
        return self._chance.choice(LASTS_S) * self._chance.uniform(0.5, 1.5)

    def _tell(self, what: str) -> None:
        self.happened[what.split(":")[0]] += 1
        self.reported(what)

    # -- what happens ---------------------------------------------------------------------------

    def _submit(self) -> None:
        chance = self._chance
        tasks = chance.choice((1, 3, 10, 20, 40, 150))
        tasks = min(tasks, self._tasks_left)
        scheduler = self._some(self._cluster.schedulers)
        if scheduler is not None and tasks and self._cluster.submit(scheduler, tasks):
            self._tasks_left -= tasks
            self._tell(f"submit: {tasks} tasks to {scheduler.name}")

    def _cancel(self) -> None:
        self._cluster.cancel()
        self._tell("cancel")

    def _crash_worker(self) -> None:
        self._crash(self._some(self._cluster.workers))

    def _crash_scheduler(self) -> None:
        self._crash(self._some(self._cluster.schedulers))

    def _crash(self, node: SimNode | None) -> None:
        if node is not None:
            self._tell(f"crash: {node.name}")
            self._world.kill(node)
            self._went_down(node)

    def _crash_gate(self) -> None:
        self._crash(self._some(self._cluster.gates))

    def _flush(self) -> None:
        """A router restarts, or gets another address."""
        assert self._cluster.homes is not None
        assert self._world.routers is not None
        if routers := self._cluster.homes.routers:
            router = self._chance.choice(routers)
            self._tell(f"flush: {router.kind} {router.host}")
            self._world.routers.flush(router)

    def _power_off(self) -> None:
        node = self._some(self._cluster.members)
        if node is not None:
            self._tell(f"power off: {node.name}")
            self._world.vanish(node)
            self._went_down(node)

    def _went_down(self, node: SimNode) -> None:
        if node.disk is not None:
            node.disk.crash(written=self._chance.random() < 0.5)
        self._world.after(self._lasts_s(), self._restart, node)

    def _restart(self, node: SimNode) -> None:
        if not node.alive and node.name not in self._down:
            self._tell(f"restart: {node.name}")
            self._cluster.restart(node)

    def _cut(self) -> None:
        members = [*self._cluster.members, *self._cluster.gates]
        self._part([self._chance.sample(members, 2)[:2]], "cut")

    def _isolate(self) -> None:
        node = self._chance.choice(self._cluster.members)
        others = [*self._cluster.members, *self._cluster.gates]
        self._part([[node, other] for other in others if other is not node], "isolate")

    def _split(self) -> None:
        members = [*self._cluster.members, *self._cluster.gates]
        self._chance.shuffle(members)
        half = self._chance.randint(1, len(members) - 1)
        self._part([[a, b] for a in members[:half] for b in members[half:]], "split")

    def _part(self, pairs: list[list[SimNode]], how: str) -> None:
        cut = []
        for a, b in pairs:
            pair = (min(a.name, b.name), max(a.name, b.name))
            if pair not in self._cuts:
                self._cuts.add(pair)
                self._world.cut(a, b)
                cut.append(pair)
        self._tell(f"{how}: {cut}")
        self._world.after(self._lasts_s(), self._heal, cut)

    def _heal(self, pairs: list[tuple[str, str]]) -> None:
        for a, b in pairs:
            if (a, b) in self._cuts:
                self._cuts.discard((a, b))
                self._world.heal(self._world.nodes[a], self._world.nodes[b])
        self._tell(f"heal: {pairs}")

    def _reset(self) -> None:
        """Frames are lost, between one scheduler and one worker or many."""
        streams = self._world.streams
        assert streams is not None
        scheduler = self._chance.choice(self._cluster.schedulers)
        workers = self._cluster.workers
        some = self._chance.sample(workers, self._chance.randint(1, len(workers)))
        self._tell(f"reset: {scheduler.name} and {[node.name for node in some]}")
        for worker in some:
            if worker is not scheduler:
                streams.lose(scheduler, worker)

    def _disconnect(self) -> None:
        streams = self._world.streams
        assert streams is not None
        a = self._chance.choice(self._cluster.schedulers)
        b = self._chance.choice(self._cluster.members)
        if a is not b and a.alive and b.alive:
            self._tell(f"disconnect: {a.name} and {b.name}")
            streams.disconnect(a, b)

    def _suspend(self) -> None:
        node = self._some(self._cluster.members)
        if node is not None and not node.suspended:
            self._tell(f"suspend: {node.name}")
            self._world.suspend(node)
            self._world.after(self._lasts_s(), self._resume, node)

    def _resume(self, node: SimNode) -> None:
        if node.suspended:
            self._tell(f"wake: {node.name}")
            self._invariants.woke(node)
            self._world.resume(node)

    def _fill_disk(self) -> None:
        disk = self._chance.choice(self._cluster.schedulers).disk
        assert disk is not None
        disk.is_full = True
        self._tell("disk full")

        def make_room() -> None:
            disk.is_full = False

        self._world.after(self._lasts_s(), make_room)

    def _leave(self) -> None:
        """For good, in good order; one is left in any case, so that the work can be done."""
        staying = [n for n in self._cluster.workers if n.name not in self._down]
        node = self._some([n for n in staying if n.disk is None and not n.suspended])
        if node is not None and len(staying) > 1:
            self._tell(f"leave: {node.name}")
            self._down.add(node.name)
            self._world.deliver(node, Leave())

    def _join(self) -> None:
        if len(self._cluster.workers) < 10:
            self._tell(f"join: {self._cluster.add_worker().name}")

"""The replicas of services on a simulated node: each is ready after a while."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, assert_never

from formation_p2p.core.services.events import (
    ReplicaEffect,
    ReplicaReported,
    ReplicaState,
    StartReplica,
    StopReplica,
)

if TYPE_CHECKING:
    from formation_p2p.sim.node import SimNode

# Until a replica that is to stop has served what it was asked.
DRAIN_S: Final = 2.0


class Replicas:
    """Of one incarnation of a node. `running` has the epoch and the slot of each that was started
    and has not stopped."""

    def __init__(self, node: SimNode) -> None:
        self._node = node
        self._incarnation = node.incarnation
        self.running: dict[str, tuple[int, int]] = {}

    def perform(self, effect: ReplicaEffect) -> None:
        world = self._node.world
        match effect:
            case StartReplica(signed, slot, epoch):
                name = signed.spec.name
                self.running[name] = (epoch, slot)
                start_s = world.performer.start_s(name)
                if start_s is None:
                    self._later(0.0, name, slot, epoch, ReplicaState.FAILED)
                else:
                    self._later(start_s, name, slot, epoch, ReplicaState.READY)
            case StopReplica(service, slot, epoch, drain_s):
                self._later(min(DRAIN_S, drain_s), service, slot, epoch, ReplicaState.STOPPED)
            case _:
                assert_never(effect)

    def _later(self, delay_s: float, name: str, slot: int, epoch: int, state: ReplicaState) -> None:
        self._node.world.after(delay_s, self._report, name, slot, epoch, state)

    def _report(self, name: str, slot: int, epoch: int, state: ReplicaState) -> None:
        if self.running.get(name) != (epoch, slot):
            return  # it was stopped meanwhile
        if state in (ReplicaState.STOPPED, ReplicaState.FAILED):
            del self.running[name]
        why = "it does not start" if state is ReplicaState.FAILED else ""
        reported = ReplicaReported(name, slot, epoch, state, why=why)
        self._node.world.deliver_to(self._incarnation, self._node, reported)

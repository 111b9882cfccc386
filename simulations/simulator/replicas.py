"""The replicas of services on a simulated node: each is ready after a while."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, assert_never

from formation_p2p.features.services.core.events import (
    ReplicaEffect,
    ReplicaReported,
    ReplicaState,
    StartReplica,
    StopReplica,
)

if TYPE_CHECKING:
    from simulations.simulator.node import SimNode

# Until a replica that is to stop has served what it was asked.
DRAIN_S: Final = 2.0

At = tuple[int, int]
"""Of a replica: its epoch and its slot."""


class Replicas:
    """Of one incarnation of a node. `running` are those that were started, serve and have not
    stopped; `beside` are those that are to replace them, `ending` those that were replaced."""

    def __init__(self, node: SimNode) -> None:
        self._node = node
        self._incarnation = node.incarnation
        self.running: dict[str, At] = {}
        self.beside: dict[str, At] = {}
        self.ending: set[tuple[str, At]] = set()

    def perform(self, effect: ReplicaEffect) -> None:
        world = self._node.world
        match effect:
            case StartReplica(signed, slot, epoch, beside=beside):
                name = signed.spec.name
                (self.beside if beside else self.running)[name] = epoch, slot
                start_s = world.performer.start_s(name)
                if start_s is None:
                    self._later(0.0, name, slot, epoch, ReplicaState.FAILED)
                else:
                    self._later(start_s, name, slot, epoch, ReplicaState.READY)
            case StopReplica(service, slot, epoch, drain_s):
                at = epoch, slot
                if self.running.get(service) == at and service in self.beside:
                    self.running[service] = self.beside.pop(service)
                    self.ending.add((service, at))
                elif self.running.get(service) != at:
                    if self.beside.get(service) == at:
                        del self.beside[service]
                    self.ending.add((service, at))
                self._later(min(DRAIN_S, drain_s), service, slot, epoch, ReplicaState.STOPPED)
            case _:
                assert_never(effect)

    def _later(self, delay_s: float, name: str, slot: int, epoch: int, state: ReplicaState) -> None:
        self._node.world.after(delay_s, self._report, name, slot, epoch, state)

    def _over(self, name: str, at: At) -> None:
        self.ending.discard((name, at))
        if self.beside.get(name) == at:
            del self.beside[name]
        if self.running.get(name) == at:
            self.running.pop(name)
            self.running.update({name: self.beside.pop(name)} if name in self.beside else {})

    def _report(self, name: str, slot: int, epoch: int, state: ReplicaState) -> None:
        at, is_over = (epoch, slot), state in (ReplicaState.STOPPED, ReplicaState.FAILED)
        is_known = at in (self.running.get(name), self.beside.get(name))
        if not is_known and (name, at) not in self.ending:
            return  # it was stopped meanwhile
        if is_over:
            self._over(name, at)
        why = "it does not start" if state is ReplicaState.FAILED else ""
        reported = ReplicaReported(name, slot, epoch, state, why=why)
        self._node.world.deliver_to(self._incarnation, self._node, reported)

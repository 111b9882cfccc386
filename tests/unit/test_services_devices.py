"""A replica that needs GPUs has some to itself, by name, also beside an older one."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from formation_p2p.core.effects import Effect
from formation_p2p.features.services.core.events import ServeServices, StartReplica
from formation_p2p.features.services.core.spec import WorkerType
from formation_p2p.machine.core.requirements import parse_requirements
from simulations.simulator.node import SimNode
from tests.support.resources_world import a100
from tests.support.services_world import Hamlet, wanting


def with_gpus(count: int) -> tuple[Hamlet, dict[tuple[str, int], tuple[str, ...]]]:
    """A worker with so many GPUs, and which of them each replica gets, by service and version."""
    hamlet = Hamlet(0)
    given: dict[tuple[str, int], tuple[str, ...]] = {}

    def witness(node: SimNode, event: object, effects: Iterable[Effect]) -> None:
        for each in effects:
            if isinstance(each, StartReplica):
                given[each.signed.spec.name, each.signed.spec.version] = each.device_ids

    machine = hamlet.world.machine(cpu=8)
    gpus = tuple(a100(f"GPU-{number}") for number in range(count))
    serve = replace(machine, capability=replace(machine.capability, gpus=gpus))
    node = hamlet.world.add("gpus", serve=serve)
    hamlet.world.deliver(node, ServeServices(frozenset({WorkerType.GPU})))
    hamlet.workers.append(node)
    hamlet.world.elapse(5)
    hamlet.world.witness = witness
    return hamlet, given


def test_each_replica_has_its_own_gpus_and_the_newer_version_others() -> None:
    hamlet, given = with_gpus(3)
    needs = parse_requirements("gpu=1")
    for name in ("one", "two"):
        hamlet.publish(wanting(1, name=name, tier=1, needs=needs))
    hamlet.world.elapse(60)
    assert sorted((given["one", 1], given["two", 1])) == [("GPU-0",), ("GPU-1",)]
    hamlet.publish(wanting(1, name="one", version=2, tier=1, needs=needs))
    hamlet.world.elapse(60)
    assert given["one", 2] == ("GPU-2",)
    hamlet.publish(wanting(1, name="two", version=2, tier=1, needs=needs))
    hamlet.world.elapse(60)
    assert given["two", 2] == given["one", 1]  # which that has given back


def test_what_needs_more_gpus_than_are_left_is_not_started() -> None:
    hamlet, given = with_gpus(2)
    hamlet.publish(wanting(1, name="one", tier=1, needs=parse_requirements("gpu=1")))
    hamlet.world.elapse(60)
    hamlet.publish(wanting(1, name="two", tier=1, needs=parse_requirements("gpu=2")))
    hamlet.publish(wanting(1, name="none", tier=1))
    hamlet.world.elapse(90)
    assert given == {("one", 1): ("GPU-0",), ("none", 1): ()}

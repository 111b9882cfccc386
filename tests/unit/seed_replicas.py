"""CMACatalyst: workers that a service is found at, and a node that goes on listening."""

from __future__ import annotations

import asyncio
import tempfile
import time
from pathlib import Path

from formation_p2p import Home, Rights
from formation_p2p.features.services.core.events import ReadServices, ServicesRead
from tests.support.loopback import LISTEN
from tests.support.nodes import OpenNode
from tests.support.services_world import Hamlet, wanting
from tests.support.waiting import until
from tests.unit.seed_cases import Vector, covers

WITHIN_S = 30.0


def read(hamlet: Hamlet, *named: str) -> ServicesRead:
    hamlet.gate.services_read.clear()
    hamlet.world.deliver(hamlet.gate, ReadServices(1, named))
    hamlet.world.elapse(5)
    [told] = hamlet.gate.services_read
    assert isinstance(told, ServicesRead)
    return told


@covers("cmacatalyst/dht_multi_workers_same_service")
def each_worker_of_a_service_is_found(vector: Vector) -> None:
    workers, service = vector.given["workers"], vector.given["service"]
    hamlet = Hamlet(workers)
    hamlet.world.elapse(5)
    hamlet.publish(wanting(workers, name=service))
    hamlet.world.elapse(90)
    assert len(read(hamlet, service).claims) == vector.expect["found"]
    assert list(read(hamlet, "unheard-of").claims) == vector.expect["unknown_service"]
    hamlet.publish(wanting(workers, name=service, version=2, withdrawn=True))
    hamlet.world.elapse(60)
    assert len(read(hamlet, service).claims) == vector.expect["after_unpublish_single"]


@covers("cmacatalyst/dht_single_node_set_get")
def a_node_alone_reads_what_it_wrote(vector: Vector) -> None:
    assert vector.expect["correct"] == "local record readable"
    hamlet = Hamlet(vector.given["nodes"] - 1)
    signed = hamlet.publish(wanting(1))
    hamlet.world.elapse(5)
    told = read(hamlet)
    assert [each.digest for each in told.catalog] == [signed.digest]
    assert told.heard


@covers("cmacatalyst/BUG:dht_loop_closed_after_start")
def a_node_answers_without_the_loop_that_began_it(vector: Vector) -> None:
    assert vector.expect["correct"] == "peer answers"
    with tempfile.TemporaryDirectory() as folder:
        home = Home(Path(folder) / "gate")
        home.create_network()
        loop = asyncio.new_event_loop()
        gate = loop.run_until_complete(OpenNode.join(home=home.path, listen=LISTEN).__aenter__())
        loop.close()
        try:
            contact = gate.inside.contact
            home.add_gate(f"{contact.addresses[0]}/p2p/{contact.peer_id}")
            invite = home.invite(Rights(int(time.time()) + 3600))
            asyncio.run(_answered(invite, Path(folder) / "other"))
        finally:
            gate.inside.close()


async def _answered(invite: str, home: Path) -> None:
    async with OpenNode.join(invite, home=home, listen=()) as node:
        await until(node.neighbours, WITHIN_S)

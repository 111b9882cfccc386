"""CMACatalyst: a catalog of services, what workers take on, and how requests reach them."""

import asyncio
import random
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from formation_p2p import Home, Rights
from formation_p2p.core.units import GIB
from formation_p2p.features.gateway.server import GatewayServer
from formation_p2p.features.services.core.balancer import TTL_S, Balancer, Replica, Route
from formation_p2p.features.services.core.catalog import (
    Detected,
    GapStatus,
    Sharing,
    Summary,
    assign,
    gaps,
    summary,
    tier_of,
    wanted,
    worker_type_of,
)
from formation_p2p.features.services.core.events import ReadServices, ServicesRead
from formation_p2p.features.services.core.spec import TIER_OF_TYPE, Program, ServiceSpec, WorkerType
from formation_p2p.features.services.core.toml_spec import services_of
from formation_p2p.machine.core.capability import Capability, Capacity
from formation_p2p.machine.core.gpu import Gpu
from formation_p2p.placement.core.policies import Spread
from formation_p2p.placement.core.xor import Xor
from tests.support.gateways import MemorySource, Reply, fetch
from tests.support.loopback import LISTEN
from tests.support.nodes import OpenNode
from tests.support.placement_world import order, peer, placed, profile, task, worker
from tests.support.services_world import Hamlet, wanting
from tests.support.waiting import until
from tests.unit.seed_cases import ROOT, covers


def catalog() -> tuple[ServiceSpec, ...]:
    return services_of((ROOT / "examples" / "catalog.toml").read_text()).specs


@covers("cmacatalyst/catalog")
def fourteen_services_in_four_tiers(given: Any, expect: Any) -> None:
    assert {
        spec.name: {
            "tier": spec.tier,
            "requires": spec.worker_type.value,
            "priority": spec.priority,
            "port": spec.port,
        }
        for spec in catalog()
    } == expect
    assert [spec.name for spec in catalog()] == list(expect)


@covers(
    "cmacatalyst/seed_scenario_1_first_gpu",
    "cmacatalyst/seed_scenario_2_second_gpu",
    "cmacatalyst/seed_scenario_3_third_gpu",
    "cmacatalyst/seed_scenario_4_first_cpu",
    "cmacatalyst/seed_scenario_5_first_storage",
    "cmacatalyst/seed_scenario_6_first_edge",
    "cmacatalyst/seed_scenario_7_second_edge",
)
def what_one_more_worker_takes_on(given: Any, expect: Any) -> None:
    taken = assign(
        WorkerType(given["worker_type"]),
        given["coverage_before"],
        given["healthy_workers_of_type_before"],
        catalog(),
    )
    assert list(taken) == expect["assigned"]


def registered(kinds: list[str], sharing: Sharing) -> list[list[str]]:
    coverage, healthy = Counter[str](), Counter[str]()
    found = []
    for kind in kinds:
        taken = assign(WorkerType(kind), coverage, healthy[kind], catalog(), sharing)
        coverage.update(taken)
        healthy[kind] += 1
        found.append(list(taken))
    return found


@covers("cmacatalyst/code_sequence_original")
def with_three_at_once(given: Any, expect: Any) -> None:
    taken = registered(given["register_in_order"], Sharing.WIDE)
    assert taken == expect["assigned"]


@covers("cmacatalyst/code_sequence_newest")
def with_all_for_the_first_gpu(given: Any, expect: Any) -> None:
    taken = registered(given["register_in_order"], Sharing.ALL)
    assert taken == expect["assigned"]


@covers("cmacatalyst/gap_status")
def too_few(given: Any, expect: Any) -> None:
    named = [spec for spec in catalog() if spec.name in given["healthy"]]
    found = gaps(reversed(named), given["healthy"])
    assert [gap.status.value for gap in found] == expect["status"]
    assert [gap.current_workers for gap in found] == sorted(given["healthy"].values())
    assert list(type(found[0]).__dataclass_fields__) == expect["fields"]
    assert summary(found) == Summary(3, 1)
    assert summary(found).needs_attention == 2
    every = gaps(catalog(), given["healthy"])
    order = [(list(GapStatus).index(gap.status), gap.priority) for gap in every]
    assert order == sorted(order)


@covers("cmacatalyst/gaps_seed_summary")
def in_short(given: Any, expect: Any) -> None:
    short = Summary(given["total_services"], given["covered"])
    assert short.needs_attention == expect["needs_attention"]


def said(capabilities: dict[str, Any]) -> Detected:
    kind = capabilities.get("worker_type")
    flags = {name: x for name, x in capabilities.items() if name != "worker_type"}
    return Detected(**flags, declared=WorkerType(kind) if kind else None)


@covers("cmacatalyst/worker_type_and_tier")
def what_a_worker_is(given: Any, expect: Any) -> None:
    types = [worker_type_of(said(each)) for each in given["caps"]]
    assert [kind.value for kind in types] == expect["type"]
    tiers = [TIER_OF_TYPE[kind] for kind in types]
    # There a tier was that of another type; here it is the type as a number.
    assert tiers == [1, 4, 2, 2]
    wrong = [
        place for place, tier in enumerate(expect["tier_upstream"], 1) if tier != tiers[place - 1]
    ]
    assert expect["BUG"].startswith(f"type/tier disagree for rows {wrong[0]},{wrong[1]}")


@covers("cmacatalyst/tier_threshold_service")
def by_its_amounts(given: Any, expect: Any) -> None:
    tiers = []
    for gpu_memory, model, cores, memory in given["caps"]:
        size = int(gpu_memory.removesuffix("GB")) * GIB if gpu_memory else 0
        gpus = (Gpu("GPU-0", "nvidia", model, size),) if gpu_memory else ()
        memory_bytes = int(memory.removesuffix("GB")) * GIB
        tiers.append(tier_of(Capability(cores * 1000, memory_bytes, gpus=gpus)))
    assert tiers == expect["tier"]


@covers("cmacatalyst/self_healing")
def the_next_one_takes_what_is_missing(given: Any, expect: Any) -> None:
    lone = ServiceSpec(name="s", tier=2, priority=9, port=1, program=Program(argv=("s",)))
    # `s` has the last priority of all, and its only worker has crashed.
    services = (*catalog(), lone)
    ready = {spec.name: 1 for spec in services if spec is not lone}
    (worst, *_) = gaps(services, ready)
    assert expect["after_stale_timeout"] == f"gap({worst.service})={worst.status}"
    taken = assign(WorkerType.CPU, ready, 3, services)
    assert expect["next_eligible_register_assigned"] == f"contains {taken[0]}"
    assert wanted(gaps(services, ready)) == {WorkerType.CPU: 1}


@covers("cmacatalyst/BUG:discover_ignores_load")
def the_one_with_less_to_do(given: Any, expect: Any) -> None:
    machine = Capability(10_000, 16 * GIB)
    candidates = [
        worker(profile(name, machine, Capacity(round(10_000 * (1 - load)), 16 * GIB)))
        for name, load in given["heartbeat_current_load"].items()
    ]
    for n in range(9):  # whichever of the two is nearer
        assert order(task(f"job/{n}"), candidates, Spread())[0] == peer(expect["correct"])


@covers("cmacatalyst/BUG:monotonic_last_seen")
def fresh_by_one_clock(given: Any, expect: Any) -> None:
    """A profile expires by the clock that it was signed by."""
    assert expect["correct"] == "fresh"
    assert len(placed(task(), [worker(profile("alice", lives_s=1))], Xor()).ranked) == 1


@covers("cmacatalyst/BUG:proxy_always_first_worker")
def the_one_that_lives(given: Any, expect: Any) -> None:
    """The first one is dead; a request is brought to the other, at once and from then on."""
    dead, alive = map(peer, given["service_workers"])
    assert alive == peer(expect["correct"])
    for seed in range(9):
        balancer = Balancer(random.Random(seed))
        balancer.listed([Replica(dead, 16), Replica(alive, 16)])
        balancer.rest(dead, 0.0)
        assert balancer.choose(0.0, tried={dead}) == balancer.choose(0.0) == alive


@covers("cmacatalyst/route_cache_ttl")
def what_was_read_lasts_as_long_as_a_claim(given: Any, expect: Any) -> None:
    ttl_s = given["ttl_s"]
    assert ttl_s == TTL_S
    route: Route[str] = Route()
    route.read("here", 0.0)
    assert route.found(expect["hit_until_s"] - 0.001) == "here"
    assert route.found(ttl_s) is None
    route.read("here", 100.0)
    before = route.freshness(101.0)
    route.failed()
    assert (route.freshness(101.0) is not before) == expect["failure_invalidates"]


WITHIN_S = 30.0


def read(hamlet: Hamlet, *named: str) -> ServicesRead:
    hamlet.gate.services_read.clear()
    hamlet.world.deliver(hamlet.gate, ReadServices(1, named))
    hamlet.world.elapse(5)
    [told] = hamlet.gate.services_read
    assert isinstance(told, ServicesRead)
    return told


@covers("cmacatalyst/dht_multi_workers_same_service")
def each_worker_of_a_service_is_found(given: Any, expect: Any) -> None:
    workers, service = given["workers"], given["service"]
    hamlet = Hamlet(workers)
    hamlet.world.elapse(5)
    hamlet.publish(wanting(workers, name=service))
    hamlet.world.elapse(90)
    assert len(read(hamlet, service).claims) == expect["found"]
    assert list(read(hamlet, "unheard-of").claims) == expect["unknown_service"]
    hamlet.publish(wanting(workers, name=service, version=2, withdrawn=True))
    hamlet.world.elapse(60)
    assert len(read(hamlet, service).claims) == expect["after_unpublish_single"]


@covers("cmacatalyst/dht_single_node_set_get")
def a_node_alone_reads_what_it_wrote(given: Any, expect: Any) -> None:
    assert expect["correct"] == "local record readable"
    hamlet = Hamlet(given["nodes"] - 1)
    signed = hamlet.publish(wanting(1))
    hamlet.world.elapse(5)
    told = read(hamlet)
    assert [each.digest for each in told.catalog] == [signed.digest]
    assert told.heard


@covers("cmacatalyst/BUG:dht_loop_closed_after_start")
def a_node_answers_without_the_loop_that_began_it(given: Any, expect: Any) -> None:
    assert expect["correct"] == "peer answers"
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


Address = tuple[str, int]


def answered(ask: Callable[[Address], Awaitable[Reply]]) -> Reply:
    async def serve() -> Reply:
        async with GatewayServer(MemorySource(), None, "127.0.0.1:0") as gateway:
            return await ask(gateway.address)

    return asyncio.run(serve())


@covers("cmacatalyst/register_response")
def a_worker_is_told_what_to_launch(given: Any, expect: Any) -> None:
    path, body = given["POST"], given["body"]
    # Its tunnel is not opened: it may not even have a name yet, on a gateway of loopback.
    told = answered(lambda to: fetch(to, "POST", path, body))
    assert told.status == 200
    for field in expect["fields"]:
        name, _, value = field.partition("[")[0].partition("=")
        assert name in told.json
        assert value in ("", str(told.json[name]))
    assert told.json["service_configs"][0].keys() == {"name", "port", "priority"}
    del body["worker_id"]
    without = answered(lambda to: fetch(to, "POST", path, body))
    assert without.status == expect["missing worker_id"]


@covers("cmacatalyst/heartbeat_unknown_worker")
def an_unknown_worker_is_to_register(given: Any, expect: Any) -> None:
    body = {"worker_id": given["worker_id"]}
    told = answered(lambda to: fetch(to, "POST", given["POST"], body))
    assert told.status == expect["status"]
    assert "register" in told.json["detail"]

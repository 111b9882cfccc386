"""CMACatalyst: the catalog of services, what a worker takes on, and what is missing."""

from __future__ import annotations

from collections import Counter
from typing import Any

from formation_p2p.core.units import GIB
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
from formation_p2p.features.services.core.spec import TIER_OF_TYPE, Program, ServiceSpec, WorkerType
from formation_p2p.features.services.core.toml_spec import services_of
from formation_p2p.machine.core.capability import Capability
from formation_p2p.machine.core.gpu import Gpu
from tests.unit.seed_cases import ROOT, Vector, covers


def catalog() -> tuple[ServiceSpec, ...]:
    return services_of((ROOT / "examples" / "catalog.toml").read_text()).specs


@covers("cmacatalyst/catalog")
def fourteen_services_in_four_tiers(vector: Vector) -> None:
    assert {
        spec.name: {
            "tier": spec.tier,
            "requires": spec.worker_type.value,
            "priority": spec.priority,
            "port": spec.port,
        }
        for spec in catalog()
    } == vector.expect
    assert [spec.name for spec in catalog()] == list(vector.expect)


@covers(
    "cmacatalyst/seed_scenario_1_first_gpu",
    "cmacatalyst/seed_scenario_2_second_gpu",
    "cmacatalyst/seed_scenario_3_third_gpu",
    "cmacatalyst/seed_scenario_4_first_cpu",
    "cmacatalyst/seed_scenario_5_first_storage",
    "cmacatalyst/seed_scenario_6_first_edge",
    "cmacatalyst/seed_scenario_7_second_edge",
)
def what_one_more_worker_takes_on(vector: Vector) -> None:
    given = vector.given
    taken = assign(
        WorkerType(given["worker_type"]),
        given["coverage_before"],
        given["healthy_workers_of_type_before"],
        catalog(),
    )
    assert list(taken) == vector.expect["assigned"]


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
def with_three_at_once(vector: Vector) -> None:
    taken = registered(vector.given["register_in_order"], Sharing.WIDE)
    assert taken == vector.expect["assigned"]


@covers("cmacatalyst/code_sequence_newest")
def with_all_for_the_first_gpu(vector: Vector) -> None:
    taken = registered(vector.given["register_in_order"], Sharing.ALL)
    assert taken == vector.expect["assigned"]


@covers("cmacatalyst/gap_status")
def too_few(vector: Vector) -> None:
    given, expect = vector.given, vector.expect
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
def in_short(vector: Vector) -> None:
    short = Summary(vector.given["total_services"], vector.given["covered"])
    assert short.needs_attention == vector.expect["needs_attention"]


def said(capabilities: dict[str, Any]) -> Detected:
    kind = capabilities.get("worker_type")
    flags = {name: x for name, x in capabilities.items() if name != "worker_type"}
    return Detected(**flags, declared=WorkerType(kind) if kind else None)


@covers("cmacatalyst/worker_type_and_tier")
def what_a_worker_is(vector: Vector) -> None:
    types = [worker_type_of(said(each)) for each in vector.given["caps"]]
    assert [kind.value for kind in types] == vector.expect["type"]
    tiers = [TIER_OF_TYPE[kind] for kind in types]
    # There a tier was that of another type; here it is the type as a number.
    assert tiers == [1, 4, 2, 2]
    wrong = [
        place
        for place, tier in enumerate(vector.expect["tier_upstream"], 1)
        if tier != tiers[place - 1]
    ]
    assert vector.expect["BUG"].startswith(f"type/tier disagree for rows {wrong[0]},{wrong[1]}")


@covers("cmacatalyst/tier_threshold_service")
def by_its_amounts(vector: Vector) -> None:
    tiers = []
    for gpu_memory, model, cores, memory in vector.given["caps"]:
        size = int(gpu_memory.removesuffix("GB")) * GIB if gpu_memory else 0
        gpus = (Gpu("GPU-0", "nvidia", model, size),) if gpu_memory else ()
        memory_bytes = int(memory.removesuffix("GB")) * GIB
        tiers.append(tier_of(Capability(cores * 1000, memory_bytes, gpus=gpus)))
    assert tiers == vector.expect["tier"]


@covers("cmacatalyst/self_healing")
def the_next_one_takes_what_is_missing(vector: Vector) -> None:
    expect = vector.expect
    lone = ServiceSpec(name="s", tier=2, priority=9, port=1, program=Program(argv=("s",)))
    # `s` has the last priority of all, and its only worker has crashed.
    services = (*catalog(), lone)
    ready = {spec.name: 1 for spec in services if spec is not lone}
    (worst, *_) = gaps(services, ready)
    assert expect["after_stale_timeout"] == f"gap({worst.service})={worst.status}"
    taken = assign(WorkerType.CPU, ready, 3, services)
    assert expect["next_eligible_register_assigned"] == f"contains {taken[0]}"
    assert wanted(gaps(services, ready)) == {WorkerType.CPU: 1}

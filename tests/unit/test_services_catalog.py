"""What a worker is, which services it takes on, and of which there are too few."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from formation_p2p.core.units import GIB
from formation_p2p.features.services.core.catalog import (
    Detected,
    GapStatus,
    Sharing,
    assign,
    at_once,
    detected_on,
    gaps,
    summary,
    wanted,
    worker_type_of,
)
from formation_p2p.features.services.core.spec import ONE, Program, ServiceSpec, WorkerType
from formation_p2p.machine.core.capability import Capability
from formation_p2p.machine.core.gpu import Gpu


def spec(name: str, tier: int = 2, priority: int = 1) -> ServiceSpec:
    program = Program(argv=(name,))
    return ServiceSpec(name=name, tier=tier, priority=priority, port=1, program=program)


GPU, CPU, STORAGE, EDGE = WorkerType
LARGE = Capability(
    8000, 16 * GIB, 900 * GIB, gpus=(Gpu("GPU-0", "nvidia", "rtx-4090", 24 * 10**9),)
)


@pytest.mark.parametrize(
    ("machine", "is_public", "expected"),
    [
        (LARGE, True, GPU),
        (replace(LARGE, gpus=()), True, EDGE),
        (replace(LARGE, gpus=()), False, STORAGE),
        (replace(LARGE, gpus=(), storage_bytes=50 * GIB), False, CPU),
        (Capability(1000, 2 * GIB), False, STORAGE),
        (replace(LARGE, gpus=(Gpu("GPU-0", "nvidia", "gt-1030", 2 * GIB),)), False, STORAGE),
    ],
)
def test_a_machine_is_what_is_rare_of_it(
    machine: Capability, is_public: bool, expected: WorkerType
) -> None:
    assert worker_type_of(detected_on(machine, is_public=is_public)) is expected


def test_a_worker_is_what_it_says_unless_it_has_a_gpu() -> None:
    assert worker_type_of(Detected(has_public_ip=True, declared=STORAGE)) is STORAGE
    assert worker_type_of(Detected(has_gpu=True, declared=STORAGE)) is GPU


def test_the_more_workers_there_are_the_fewer_services_each_takes_on() -> None:
    assert [at_once(CPU, n, 4, Sharing.WIDE) for n in range(6)] == [3, 3, 2, 2, 1, 1]
    assert [at_once(CPU, n, 4, Sharing.FEW) for n in range(3)] == [2, 1, 1]
    assert [at_once(EDGE, n, 4, Sharing.FEW) for n in range(3)] == [2, 2, 2]
    assert [at_once(GPU, n, 7, Sharing.ALL) for n in range(3)] == [7, 1, 1]
    assert [at_once(EDGE, n, 1, Sharing.FEW) for n in range(3)] == [1, 1, 1]


catalogs = st.lists(st.tuples(st.integers(1, 4), st.integers(1, 5)), min_size=1, max_size=12).map(
    lambda rows: [spec(f"s{n}", *row) for n, row in enumerate(rows)]
)


@given(
    catalogs,
    st.sampled_from(WorkerType),
    st.integers(0, 5),
    st.sampled_from(Sharing),
    st.dictionaries(st.sampled_from([f"s{n}" for n in range(12)]), st.integers(0, 3)),
)
def test_no_service_that_is_left_has_fewer_replicas_than_one_that_is_taken(
    catalog: list[ServiceSpec],
    kind: WorkerType,
    healthy: int,
    sharing: Sharing,
    coverage: dict[str, int],
) -> None:
    taken = assign(kind, coverage, healthy, catalog, sharing)
    named = {each.name: each for each in catalog}
    priorities = [named[name].priority for name in taken]
    assert priorities == sorted(priorities)
    left = [x for x in catalog if x.worker_type is kind and x.name not in taken]
    for name in taken:
        mine = coverage.get(name, 0), named[name].priority
        assert all(mine <= (coverage.get(x.name, 0), x.priority) for x in left)


def test_a_service_that_is_withdrawn_is_no_gap_and_is_not_taken_on() -> None:
    catalog = [spec("a"), replace(spec("b"), withdrawn=True)]
    assert assign(CPU, {}, 0, catalog) == ("a",)
    assert [gap.service for gap in gaps(catalog, {})] == ["a"]


def test_one_replica_covers_a_service_that_is_to_have_one() -> None:
    catalog = [spec("a"), replace(spec("b"), replicas=ONE), spec("c", 1)]
    found = gaps(catalog, {"a": 1, "b": 1})
    assert [(gap.service, gap.status) for gap in found] == [
        ("c", GapStatus.CRITICAL),
        ("a", GapStatus.WARNING),
        ("b", GapStatus.OK),
    ]
    assert summary(found).needs_attention == 2
    assert wanted(found) == {GPU: 1}
    assert wanted(gaps([*catalog, spec("d", 1)], {})) == {GPU: 2, CPU: 2}

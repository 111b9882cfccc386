"""What a service may be asked to be, and what is refused, each with the field named."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from formation_p2p.core.errors import InvalidInput
from formation_p2p.core.identity import Identity
from formation_p2p.features.services.core.spec import (
    MAX_FILES,
    MAX_PACKAGES,
    ONE,
    TIER_OF_TYPE,
    TYPE_OF_TIER,
    Check,
    CheckKind,
    Pinned,
    Program,
    Replicas,
    ServiceSpec,
    WorkerType,
    check_uses,
)
from formation_p2p.machine.core.requirements import Requirements
from formation_p2p.workload.core.blob import RAW, Blob, Cid, digest_of

ALICE = Identity.from_seed(b"a" * 32).peer_id
SCRIPT = Blob(Cid(RAW, digest_of(b"print()")), 7)
SERVER = Program(argv=("python3", "serve.py"))


def spec(name: str = "notes", **others: Any) -> ServiceSpec:
    return ServiceSpec(**{"name": name, "tier": 2, "port": 8100, "program": SERVER, **others})


def test_a_tier_is_a_type_of_worker() -> None:
    types = [spec(tier=tier).worker_type for tier in (1, 2, 3, 4)]
    assert types == [WorkerType.GPU, WorkerType.CPU, WorkerType.STORAGE, WorkerType.EDGE]
    assert {TYPE_OF_TIER[tier]: tier for tier in TYPE_OF_TIER} == TIER_OF_TYPE


def test_the_needs_are_of_the_programs_driver() -> None:
    assert spec().needs.driver == "process"
    assert spec(needs=Requirements(driver="process")).needs.driver == "process"
    with pytest.raises(InvalidInput, match=r"needs\.driver: wasm is needed"):
        spec(needs=Requirements(driver="wasm"))


def test_names_of_a_program_have_one_order() -> None:
    program = Program(argv=("x",), variables=(("B", "2"), ("A", "1")))
    assert program.variables == (("A", "1"), ("B", "2"))
    files = (("b", SCRIPT), ("a", SCRIPT))
    assert [name for name, _ in Program(argv=("x",), files=files).files] == ["a", "b"]


def test_packages_are_lines_of_a_requirements_file() -> None:
    assert Program(argv=("x",), environment=(" numpy>=2 ",)).environment == ("numpy>=2",)


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"name": "Notes"}, "service: 'Notes' is not a name"),
        ({"name": ""}, "service: '' is not a name"),
        ({"version": 0}, "version: 0 is less than 1"),
        ({"tier": 5}, "tier: 5 is more than allowed; write at most 4"),
        ({"priority": 0}, "priority: 0 is less"),
        ({"port": 70_000}, "port: 70000 is more"),
        ({"start_grace_s": -1}, "start_grace: -1 is less"),
        ({"drain_s": 4000}, "drain: 4000 is more"),
        ({"max_requests": 0}, "max_requests: 0 is less"),
        ({"scope": 3}, "scope: 3 is no scope"),
        ({"uses": ("notes",)}, "uses: notes uses itself"),
        ({"uses": ("a", "a")}, "uses: names a service twice"),
        ({"uses": ("A",)}, "uses: 'A' is not a name"),
        ({"uses": tuple("abcdefghi")}, "uses: names more than 8 services"),
    ],
)
def test_what_is_out_of_range_is_refused_by_name(fields: dict[str, Any], problem: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        spec(**fields)
    assert str(refused.value).startswith(problem)


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"driver": "wasm", "argv": ("x",)}, "driver: 'wasm' cannot listen"),
        ({}, "argv: is what process and container run"),
        ({"driver": "python"}, "call: is what the driver python runs"),
        ({"argv": ("x",), "call": SCRIPT}, "call: is what"),
        ({"argv": ("x",), "image": "alpine:3"}, "image: is what the driver container runs"),
        ({"driver": "container", "argv": ("x",)}, "image: is what"),
        ({"driver": "container", "argv": ("x",), "image": "-v"}, "image: is not a name"),
        ({"driver": "python", "call": SCRIPT, "argv": ("x",)}, "argv: is what"),
        ({"argv": ("\x1b[2J",)}, "argv: '\\x1b[2J' is no text that prints"),
        ({"argv": ("x",) * 65}, "argv: there are more than 64"),
        ({"argv": ("x",), "variables": (("A",),)}, "variables: a tuple is not a tuple of"),
        ({"argv": ("x",), "variables": (("A", "1"), ("A", "2"))}, "variables: one is given twice"),
        ({"argv": ("x",), "variables": (("A=", "1"),)}, "env: 'A=' is not a name"),
        ({"argv": ("x",), "files": (("../x", SCRIPT),)}, "inputs: '../x' is not a plain"),
        (
            {"argv": ("x",), "files": tuple((str(n), SCRIPT) for n in range(MAX_FILES + 1))},
            "files: there are more than 16",
        ),
        ({"argv": ("x",), "environment": ("--pre",)}, "env: '--pre' is not a requirement"),
        ({"argv": ("x",), "environment": ("a",) * (MAX_PACKAGES + 1)}, "environment: names more"),
    ],
)
def test_a_program_names_what_its_driver_runs(fields: dict[str, Any], problem: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        Program(**fields)
    assert str(refused.value).startswith(problem)


def test_an_image_and_a_call_are_programs_too() -> None:
    assert Program(driver="container", argv=("serve",), image="alpine:3.22").image == "alpine:3.22"
    assert Program(driver="python", call=SCRIPT).call == SCRIPT


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"kind": "ping"}, "check: 'ping' is none of http, tcp, exec"),
        ({"path": "health"}, "check.path: 'health' is not a path"),
        ({"path": "/a b"}, "check.path: '/a b' is not a path"),
        ({"kind": CheckKind.EXEC}, "check.argv: is what an exec check runs"),
        ({"argv": ("true",)}, "check.argv: is what an exec check runs"),
        ({"interval_ms": 99}, "check.interval: 99 is less"),
        ({"timeout_ms": 0}, "check.timeout: 0 is less"),
        ({"failures": 0}, "check.failures: 0 is less"),
        ({"successes": 101}, "check.successes: 101 is more"),
    ],
)
def test_a_check_is_one_that_can_be_made(fields: dict[str, Any], problem: str) -> None:
    assert Check(CheckKind.EXEC, argv=("true",)).failures == 3
    with pytest.raises(InvalidInput) as refused:
        Check(**fields)
    assert str(refused.value).startswith(problem)


def test_replicas_are_in_order() -> None:
    with pytest.raises(InvalidInput, match=r"replicas\.max: 1 is less than 2"):
        Replicas(2, 2, 1)
    with pytest.raises(InvalidInput, match=r"replicas\.target: 4 is more"):
        Replicas(1, 4, 3)


def test_a_pinned_service_has_one_home_and_one_replica() -> None:
    pinned = Pinned("data", ALICE)
    assert spec(pinned=pinned, replicas=ONE).pinned == pinned
    with pytest.raises(InvalidInput, match="replicas: of a pinned service are one"):
        spec(pinned=pinned)
    with pytest.raises(InvalidInput, match=r"pinned\.home: 'alice' is not a peer id"):
        replace(pinned, home="alice")  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match=r"pinned\.volume: '\.\.' is not a name"):
        replace(pinned, volume="..")


def test_services_that_use_each_other_in_a_circle_are_refused() -> None:
    proxy, model = spec("proxy", uses=("model", "notes")), spec("model", uses=("store",))
    check_uses([proxy, model, spec("store"), spec("notes", uses=("store",))])
    with pytest.raises(InvalidInput, match="model -> store -> model is a circle; take one"):
        check_uses([proxy, model, spec("store", uses=("model",))])

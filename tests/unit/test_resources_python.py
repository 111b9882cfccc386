"""The Python that a call needs, and those that a machine offers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from formation_p2p.core.errors import InvalidInput
from formation_p2p.core.refusals import Infeasible
from formation_p2p.machine.core.capability import Capability
from formation_p2p.machine.core.fits import fits
from formation_p2p.machine.core.python import MAX_PYTHONS, Python
from formation_p2p.machine.core.requirements import Requirements, driven_by, parse_requirements
from formation_p2p.records.core.buckets import buckets_of, widening
from formation_p2p.records.core.codec import Malformed
from formation_p2p.records.core.resources import (
    pack_capability,
    pack_requirements,
    unpack_capability,
    unpack_requirements,
)

LINUX = "linux-x86_64-gnu"
PY311 = Python("cpython-3.11", LINUX, 3)
PY313 = Python("cpython-3.13", LINUX, 3)
MACHINE = Capability(cpu_milli=4000, memory_bytes=8 << 30, pythons=(PY313, PY311))


@pytest.mark.parametrize(
    ("python", "cloudpickle", "refusal"),
    [
        ("", 0, None),
        ("any", 3, None),
        ("cpython-3.11", 3, None),
        ("cpython-3.13", 0, None),
        ("cpython-3.12", 3, Infeasible("python", "cpython-3.12", "cpython-3.11,cpython-3.13")),
        ("pypy-3.11", 3, Infeasible("python", "pypy-3.11", "cpython-3.11,cpython-3.13")),
        ("cpython-3.11", 4, Infeasible("cloudpickle", 4, "3")),
        ("any", 2, Infeasible("cloudpickle", 2, "3")),
    ],
)
def test_a_call_fits_where_its_versions_are_offered(
    python: str, cloudpickle: int, refusal: Infeasible | None
) -> None:
    needs = Requirements(python=python, cloudpickle=cloudpickle)
    assert fits(needs, MACHINE, {}, ()) == refusal


def test_a_machine_without_a_python_runs_no_call() -> None:
    bare = replace(MACHINE, pythons=())
    asked = Requirements(python="cpython-3.11")
    assert fits(asked, bare, {}, ()) == Infeasible("python", "cpython-3.11", "none")
    written = Requirements(python="any", cloudpickle=3)
    assert fits(written, bare, {}, ()) == Infeasible("cloudpickle", 3, "none")


def test_every_version_is_a_bucket() -> None:
    assert {"python/cpython-3.11", "python/cpython-3.13"} <= set(buckets_of(MACHINE, {}, ()))
    asked = widening(Requirements(python="cpython-3.11", driver="python"))
    assert asked == ("python/cpython-3.11", "driver/python", "any")
    assert "python/any" not in widening(Requirements(python="any"))


def test_versions_travel() -> None:
    assert unpack_capability(pack_capability(MACHINE)) == MACHINE
    needs = Requirements(python="cpython-3.11", cloudpickle=3, driver="python")
    assert unpack_requirements(pack_requirements(needs)) == needs


@pytest.mark.parametrize(
    "python", [7, ["cpython-3.11"], ["3.11", LINUX, 3], ["cpython-3.11", "", 3]]
)
def test_what_is_not_a_python_is_malformed(python: Any) -> None:
    packed = pack_capability(MACHINE)
    with pytest.raises(Malformed):
        unpack_capability([*packed[:-1], [python]])


@pytest.mark.parametrize(
    ("text", "python"), [("3.12", "cpython-3.12"), ("pypy-3.11", "pypy-3.11"), ("any", "any")]
)
def test_a_version_is_asked_for_in_requirements(text: str, python: str) -> None:
    assert parse_requirements(f"python={text}").python == python


@pytest.mark.parametrize("text", ["3", "three", "3.11.7", "cpython", ""])
def test_what_is_not_a_version_is_refused_with_what_to_write(text: str) -> None:
    with pytest.raises(InvalidInput, match=r"python: .* write one such as 3\.12 or pypy-3\.11"):
        parse_requirements(f"python={text}")


@pytest.mark.parametrize("python", [7, "3.11", "Any"])
def test_requirements_name_a_python_in_full(python: Any) -> None:
    with pytest.raises(InvalidInput, match="python: "):
        Requirements(python=python)


def test_a_machine_names_a_python_in_full() -> None:
    with pytest.raises(InvalidInput, match=r"python: .* is not a name such as cpython-3\.11"):
        Python("3.11", LINUX, 3)


@pytest.mark.parametrize(
    "pythons",
    [
        [PY311],
        ("3.11",),
        (PY311, replace(PY311, cloudpickle=2)),
        tuple(Python(f"cpython-3.{n}", LINUX, 3) for n in range(MAX_PYTHONS + 1)),
    ],
    ids=["a list", "texts", "one twice", "too many"],
)
def test_a_machine_offers_a_few_pythons_each_once(pythons: Any) -> None:
    with pytest.raises(InvalidInput, match="python: "):
        replace(MACHINE, pythons=pythons)


def test_a_call_asks_for_the_python_that_wrote_it_unless_it_says_otherwise() -> None:
    written = driven_by(Requirements(), "python", "cpython-3.11", 3)
    assert (written.driver, written.python, written.cloudpickle) == ("python", "cpython-3.11", 3)
    any_of_them = driven_by(Requirements(python="any"), "python", "cpython-3.11", 3)
    assert any_of_them.python == "any"
    assert driven_by(Requirements(), "process").python == ""

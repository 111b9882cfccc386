"""The interpreters of a machine, and calls that run with another Python than the node's."""

import stat
import sys
from pathlib import Path

import cloudpickle
import pytest
import trio

from formation_p2p.core.errors import InvalidInput, LocalError
from formation_p2p.drivers.machine import Cores, Machine
from formation_p2p.drivers.process import ProcessDriver
from formation_p2p.drivers.python import PythonDriver
from formation_p2p.machine.pythons import CLOUDPICKLE, interpreters, own_name
from formation_p2p.workload.core.call_context import CallContext
from formation_p2p.workload.core.outcome import Failed, Outcome, Succeeded
from formation_p2p.workload.core.process import ProcessResult, ProcessSpec
from tests.support.calls import pickled_function
from tests.support.drivers_world import ALease
from tests.support.pythons import other_pythons
from tests.support.waiting import in_trio


def test_a_worker_offers_its_own_python_where_none_is_named() -> None:
    (own,) = interpreters().values()
    assert own.python.name == own_name()
    assert own.python.cloudpickle == CLOUDPICKLE
    assert own.python.platform.startswith("linux-")
    assert Path(sys.base_prefix) in own.prefixes


def test_a_python_is_named_by_its_version_or_its_path() -> None:
    own = interpreters()
    assert interpreters([own_name()]) == own
    assert interpreters([sys.executable]) == own


def test_a_version_that_is_not_there_is_said_with_what_to_do() -> None:
    with pytest.raises(LocalError, match=r"3\.99 is not on PATH, .*`uv python install 3\.99`"):
        interpreters(["3.99"])
    with pytest.raises(InvalidInput, match="'three' is not a version"):
        interpreters(["three"])
    with pytest.raises(
        LocalError,
        match=r"python: /no/such/python does not .*: /no/such/python cannot be run: No such",
    ):
        interpreters(["/no/such/python"])


def test_a_program_that_is_not_a_python_is_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shim = tmp_path / "python3.99"
    shim.write_text("#!/bin/sh\necho not installed >&2; exit 127\n")
    shim.chmod(stat.S_IRWXU)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(LocalError, match=r"3\.99 is not on PATH"):
        interpreters(["3.99"])
    with pytest.raises(LocalError, match=f"python: {shim} does not say what it is: not installed"):
        interpreters([str(shim)])


cloudpickle.register_pickle_by_value(sys.modules[__name__])


def version_of() -> tuple[int, ...]:
    import sys

    return tuple(sys.version_info[:2])


@in_trio
async def test_a_call_runs_with_the_python_that_it_is_for(tmp_path: Path) -> None:
    other = other_pythons()[0]
    pythons = interpreters([own_name().partition("-")[2], other])
    driver = PythonDriver(Machine(Cores.of_this_process(), None, pythons=pythons))

    async def ran(python: str, function: bytes, *args: object) -> Outcome:
        lease = ALease(driver, tmp_path, python=python)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(lease.serve)
            try:
                return await lease.outcome(function, cloudpickle.dumps((args, {})))
            finally:
                await lease.end()

    # By reference: each version has a function of its own of that name.
    by_name = CallContext(other, b"cplatform\npython_version\n.").encode()
    outcome = await ran(other, by_name)
    assert isinstance(outcome, Succeeded)
    assert cloudpickle.loads(outcome.result).startswith(other.partition("-")[2] + ".")
    # It finds its own modules alone, and what it raises comes back.
    told = await ran(other, pickled_function(eval), "__import__('sys').path")
    assert isinstance(told, Succeeded)
    found = cloudpickle.loads(told.result)
    assert not any(path.startswith((sys.prefix, str(Path.cwd()))) for path in found)
    raised = await ran(other, pickled_function(eval), "1 / 0")
    assert isinstance(raised, Failed)
    assert "ZeroDivisionError: division by zero" in raised.message
    assert raised.result
    # Arguments may hold code too.
    coded = await ran(other, pickled_function(len), [version_of])
    assert isinstance(coded, Failed)
    assert f"{other} cannot run" in coded.message
    # By value: bytecode of another version would end the process.
    outcome = await ran(other, pickled_function(version_of))
    assert isinstance(outcome, Failed)
    assert f"holds code of {own_name()}, which {other} cannot run" in outcome.message
    outcome = await ran(own_name(), pickled_function(version_of))
    assert isinstance(outcome, Succeeded)
    assert cloudpickle.loads(outcome.result) == tuple(sys.version_info[:2])


@in_trio
async def test_a_process_finds_the_python_that_it_asks_for(tmp_path: Path) -> None:
    other = other_pythons()[0]
    pythons = interpreters([own_name().partition("-")[2], other])
    machine = Machine.found(tmp_path / "home", pythons=pythons)
    driver = ProcessDriver(machine)
    says = "import sys; print(sys.implementation.name + '-%d.%d' % sys.version_info[:2])"
    script = {"says.py": f"#!/usr/bin/env python3\n{says}\n".encode()}
    for python in (other, own_name()):
        lease = ALease(driver, tmp_path, python=python)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(lease.serve)
            for argv in (("python3", "-c", says), ("python", "-c", says), ("./says.py",)):
                outcome = await lease.outcome(b"", ProcessSpec(argv, files_in=script).encode())
                assert isinstance(outcome, Succeeded), outcome
                said = ProcessResult.decode(outcome.result).stdout_tail.decode().strip()
                assert said == python
            await lease.end()

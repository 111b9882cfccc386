"""The drivers that come with a node, by the names that tasks ask for."""

from __future__ import annotations

from collections.abc import Callable

from formation_p2p.host.drivers.driver import Driver
from formation_p2p.host.drivers.process import ProcessDriver
from formation_p2p.host.drivers.python import PythonDriver
from formation_p2p.host.drivers.supervised import Machine


def builtin_drivers() -> dict[str, Callable[[], Driver]]:
    """How to make each. What the call finds of the machine, those it makes share."""
    machine = Machine.found()
    return {
        ProcessDriver.name: lambda: ProcessDriver(machine),
        PythonDriver.name: lambda: PythonDriver(machine),
    }

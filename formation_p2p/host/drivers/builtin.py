"""The drivers that come with a node, by the names that tasks ask for."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final

from formation_p2p.core.errors import InvalidInput
from formation_p2p.host.drivers import wasm
from formation_p2p.host.drivers.container import ContainerDriver
from formation_p2p.host.drivers.driver import Driver, LeaseDriver
from formation_p2p.host.drivers.engine import Engine
from formation_p2p.host.drivers.process import ProcessDriver
from formation_p2p.host.drivers.python import PythonDriver
from formation_p2p.host.drivers.supervised import Machine, Sandboxing
from formation_p2p.host.machine.home import default_path

BUILT_IN: Final = ("process", "python", "wasm", "container")


def builtin_drivers(
    names: Iterable[str], home: Path | None = None, sandbox: Sandboxing = "auto"
) -> dict[str, Callable[[], Driver | LeaseDriver]]:
    """How to make each. What the call finds of the machine, those it makes share. `home` is the
    node's own, the usual one by default.

    Raises InvalidInput for a name that is none of them, and LocalError where this machine lacks
    what a driver needs, or the sandbox that is required. Takes a moment.
    """
    wanted = tuple(names)
    for name in wanted:
        if name not in BUILT_IN:
            known = ", ".join(BUILT_IN)
            raise InvalidInput("driver", f"{name!r} is not built in; there are {known}")
    place = home or default_path()
    machine = Machine.found(place, sandbox)
    made: dict[str, Callable[[], Driver | LeaseDriver]] = {
        ProcessDriver.name: lambda: ProcessDriver(machine),
        PythonDriver.name: lambda: PythonDriver(machine),
    }
    if wasm.WasmDriver.name in wanted:
        wasm.check()
        made[wasm.WasmDriver.name] = lambda: wasm.WasmDriver(machine)
    if ContainerDriver.name in wanted:
        engine = Engine.found(place)
        made[ContainerDriver.name] = lambda: ContainerDriver(machine, engine)
    return {name: made[name] for name in wanted}

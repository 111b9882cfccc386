"""The drivers of a machine by their names: those of this package, and those of installed packages,
which offer them in the entry point group `formation_p2p.drivers` (docs/how-to/extend.md).

Each is a function `set_up(machine)`. It checks what the driver needs of the machine, which may take
a moment, and returns what makes the driver.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Final

from formation_p2p.core.errors import FormationError, InvalidInput, LocalError
from formation_p2p.drivers import process, python
from formation_p2p.drivers.driver import DriverMaker
from formation_p2p.drivers.lent import Lent
from formation_p2p.drivers.machine import Machine, Sandboxing
from formation_p2p.environments.settings import EnvironmentSettings
from formation_p2p.features.containers import container, image
from formation_p2p.features.wasm import wasm
from formation_p2p.machine.entry_points import Offered
from formation_p2p.machine.pythons import interpreters

SetUp = Callable[[Machine], DriverMaker]

DRIVERS: Final[Offered[SetUp]] = Offered(
    "formation_p2p.drivers",
    {
        "process": process.set_up,
        "python": python.set_up,
        "wasm": wasm.set_up,
        "container": container.set_up,
        "image": image.set_up,
    },
)


class SetUpDrivers(dict[str, DriverMaker]):
    """What makes each, by name, and whether their tasks run in a sandbox."""

    def __init__(self, makers: Mapping[str, DriverMaker], *, in_sandbox: bool) -> None:
        super().__init__(makers)
        self.in_sandbox = in_sandbox


def set_up_drivers(
    names: Iterable[str],
    home: Path | None = None,
    sandbox: Sandboxing = "auto",
    pythons: Iterable[str] = (),
    environments: EnvironmentSettings | None = None,
    lent: tuple[Lent, ...] = (),
) -> SetUpDrivers:
    """How to make each. What the call finds of the machine, those it makes share. `home` is the
    node's own, the usual one by default; `pythons` are the versions that calls may use, or paths
    of interpreters: this process's own where none is named. `environments` is for the packages
    that tasks bring, `lent` are folders that they see.

    Raises InvalidInput for a name that is not installed and for a package that is broken, and
    LocalError where this machine lacks what a driver needs, or the sandbox that is required. Takes
    a moment.
    """
    wanted = {name: _offered(name) for name in names}
    machine = Machine.found(home, sandbox, interpreters(pythons), environments, lent)
    makers = {name: _made(name, set_up, machine) for name, set_up in wanted.items()}
    return SetUpDrivers(makers, in_sandbox=machine.sandbox is not None)


def _offered(name: str) -> SetUp:
    if name not in DRIVERS:
        raise InvalidInput("driver", f"{name!r} is not installed; there are {', '.join(DRIVERS)}")
    return DRIVERS[name]


def _made(name: str, set_up: SetUp, machine: Machine) -> DriverMaker:
    try:
        maker = set_up(machine)
    except FormationError:
        raise
    except Exception as error:
        raise _broken(name, repr(error)) from error
    if not callable(maker):
        raise _broken(name, "set_up(machine) has to return what makes the driver")
    return maker


def _broken(name: str, why: str) -> LocalError:
    package = DRIVERS.package(name)
    return LocalError(f"driver: {name!r} of {package} cannot be used: {why}; mend or uninstall it")

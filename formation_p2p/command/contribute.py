"""`formation contribute`: give a machine to a network in one line."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any, Final

from formation_p2p.command import flags
from formation_p2p.command.command import Declared
from formation_p2p.command.flags import argument, option

CONTRIBUTE_EPILOG: Final = """
\b
Examples:
  formation contribute formation1:…
  formation contribute 'https://gateway.example.org/#TOKEN'
  formation contribute --serve gpu

What others run here has a sandbox, or does not run: install bubblewrap. Ctrl-C takes the machine
back: services move elsewhere first.
"""


def contribute(
    invite: str | None = argument(
        "INVITE|FILE|URL|-", "What you were sent; not needed a second time.", default=None
    ),
    serve: str = option(
        "--serve", "TYPE", "As what: auto, gpu, cpu, storage or edge.", default="auto"
    ),
    cpu: str | None = flags.CPU,
    memory: str | None = flags.MEMORY,
    gpus: int | None = flags.GPUS,
    name: str | None = flags.NAME,
    home: Path | None = flags.HOME,
    as_json: bool = flags.JSON,
) -> None:
    """Join a network and run what it lacks: services and tasks, in a sandbox, until Ctrl-C."""
    from formation_p2p.command.serve import worker

    given: dict[str, Any] = {
        "join": invite,
        "serve": serve,
        "sandbox": "required",
        "cpu": cpu,
        "memory": memory,
        "gpus": gpus,
        "name": name,
        "home": home,
        "as_json": as_json,
    }
    worker(**{**_defaults(worker), **given})


def _defaults(command: object) -> dict[str, Any]:
    """What the parameters of a command are where they are not given."""
    assert callable(command)
    parameters = inspect.signature(command).parameters
    declared = {name: each.default for name, each in parameters.items()}
    assert all(isinstance(each, Declared) for each in declared.values())
    return {name: each.default for name, each in declared.items()}

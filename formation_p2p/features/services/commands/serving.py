"""As what a worker runs services: what `--serve` says, or what its machine is; and `formation
contribute`, a worker that is there for services."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from formation_p2p.command import flags
from formation_p2p.command.command import chosen
from formation_p2p.command.flags import LimitOptions, argument, option, switch
from formation_p2p.command.node_options import NodeOptions
from formation_p2p.command.words import say
from formation_p2p.core.errors import InvalidInput
from formation_p2p.features.services.core.spec import WorkerType
from formation_p2p.machine.core.bounds import shown
from formation_p2p.reach.core.own_addresses import Way

if TYPE_CHECKING:
    from formation_p2p.api.node import Node
    from formation_p2p.machine.core.capability import Capability

AUTO: Final = "auto"
# How long a node takes to learn from others whether they can dial it.
_REACHED_S: Final = 5.0
_LOOK_S: Final = 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingOptions:
    """As a person wrote them."""

    serve: str | None = option(
        "--serve",
        "TYPE",
        "Also run services, as a worker of this type: gpu, cpu, storage, edge, several with "
        "commas, or auto for what this machine is.",
        envvar="WORKER_TYPE",
    )
    max_services: int | None = option(
        "--services", "N", "The most services to run at once; 4 by default."
    )
    allow_exec: bool = switch(
        "--allow-exec", "Let the publisher of a service run programs beside its replicas here."
    )

    def check(self) -> None:
        """Raises InvalidInput."""
        types_of(self.serve)
        if self.max_services is not None and not self.serve:
            problem = "goes with --serve, which says as what; add --serve auto"
            raise InvalidInput("services", problem)

    async def begin(self, node: Node, can: Capability) -> str:
        """Begin to run services, and say as what."""
        from formation_p2p.features.services.api.node import MAX_SERVICES
        from formation_p2p.features.services.core.catalog import detected_on, worker_type_of

        if (types := types_of(self.serve)) is None:
            return ""
        if WorkerType.EDGE in types and not await _is_public(node):
            say("formation: others have no way here from outside yet, as an edge worker needs")
        if not types:
            is_public = await _is_public(node)
            types = frozenset((worker_type_of(detected_on(can, is_public=is_public)),))
        most = MAX_SERVICES if self.max_services is None else self.max_services
        await node.serve_services(types, max_services=most, allow_exec=self.allow_exec)
        return ", ".join(kind for kind in WorkerType if kind in types)


def types_of(serve: str | None) -> frozenset[WorkerType] | None:
    """None where no services are to run; empty for `auto`. Raises InvalidInput."""
    if not serve:
        return None
    names = [each.strip().lower() for each in serve.split(",")]
    if names == [AUTO]:
        return frozenset()
    for name in names:
        if name not in list(WorkerType):
            problem = (
                f"{shown(name)} is none of {', '.join(WorkerType)}, and {AUTO}, which is alone"
            )
            raise InvalidInput("serve", problem)
    return frozenset(map(WorkerType, names))


async def _is_public(node: Node) -> bool:
    until_s = time.monotonic() + _REACHED_S
    while True:
        way = node.reached.way
        if way is not Way.UNKNOWN or time.monotonic() >= until_s:
            return way is Way.DIRECT
        await asyncio.sleep(_LOOK_S)


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
        "INVITE|FILE|URL|-",
        "The invite that you were sent; only needed the first time.",
        default=None,
    ),
    serve: str = option(
        "--serve", "TYPE", "The type of worker: auto, gpu, cpu, storage or edge.", default="auto"
    ),
    name: str | None = flags.NAME,
    home: Path | None = flags.HOME,
    as_json: bool = flags.JSON,
    *,
    limited: LimitOptions,
) -> None:
    """Join a network and run what it lacks: services and tasks, in a sandbox, until Ctrl-C."""
    from formation_p2p.command.serve import WorkerOptions, worker

    offered = chosen(WorkerOptions, sandbox="required")
    options = chosen(NodeOptions, join=invite, name=name, home=home, as_json=as_json)
    worker(offered, limited, (chosen(ServingOptions, serve=serve),), options)

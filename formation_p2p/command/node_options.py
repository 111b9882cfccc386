"""The options of commands whose node runs until Ctrl-C: worker, gate, agent and gateway."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypedDict

from formation_p2p.command import flags
from formation_p2p.command.command import takes_together

if TYPE_CHECKING:
    from formation_p2p.machine.home import Home


class JoinKwargs(TypedDict):
    """Of `Node.join`."""

    metrics: str | None
    renew: bool
    mdns: bool | None


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeOptions:
    """As a person wrote them. Each default is how its option is declared."""

    name: str | None = flags.NAME
    no_renew: bool = flags.NO_RENEW
    no_mdns: bool = flags.NO_MDNS
    metrics: str | None = flags.METRICS
    home: Path | None = flags.HOME
    join: str | None = flags.JOIN
    as_json: bool = flags.JSON

    def place(self) -> Home:
        """Raises InvalidInput, LocalError."""
        return flags.home_of(self.home, self.join, self.name)

    def kwargs(self) -> JoinKwargs:
        mdns = False if self.no_mdns else None
        return {"metrics": self.metrics, "renew": not self.no_renew, "mdns": mdns}


def takes_node_options(**fixed: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """A command gets them as `options`. Those that are `fixed` for it are none of its options."""

    def made(**given: object) -> NodeOptions:
        return NodeOptions(**given, **fixed)  # type: ignore[arg-type]

    declared = inspect.signature(NodeOptions, eval_str=True).parameters
    return takes_together(
        "options", [declared[name] for name in declared if name not in fixed], made
    )


# What all but the gateway take.
NODE_OPTIONS: Final = takes_node_options()

"""The options of commands whose node runs until Ctrl-C: worker, gate, agent and gateway."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict

from formation_p2p.command import flags

if TYPE_CHECKING:
    from formation_p2p.machine.home import Home


class JoinKwargs(TypedDict):
    """Of `Node.join`."""

    metrics: str | None
    renew: bool
    mdns: bool | None


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeOptions:
    """As a person wrote them."""

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

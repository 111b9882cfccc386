"""The place of a lease in its gang, as drivers use it for what runs under the lease."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from formation_p2p.core.execution.effects import JoinGang
from formation_p2p.host.gang.device import DeviceUser
from formation_p2p.host.gang.ports import PortUser


@dataclass(frozen=True, slots=True)
class MemberPlace:
    """`joined` has the rank and the newest roster. `folder` is where tasks reach the others, None
    where none could be made; `relay` is that of the gang's network, where it has one; `ports` is
    given those of its tasks."""

    joined: JoinGang
    folder: Path | None = None
    relay: DeviceUser | None = None
    ports: PortUser | None = None

    @property
    def writable(self) -> tuple[Path, ...]:
        """What a sandbox is to show."""
        return () if self.folder is None else (self.folder,)

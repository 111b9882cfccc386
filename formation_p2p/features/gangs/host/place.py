"""The place of a lease in its gang, as drivers use it for what runs under the lease."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from formation_p2p.drivers.ports import PortUser
from formation_p2p.features.gangs.core.events import JoinGang
from formation_p2p.features.gangs.core.network import hostname_of
from formation_p2p.features.gangs.host.device import DeviceUser, MemberDevice

# What torchrun takes where none is given. Nothing else is in the gang's network.
MASTER_PORT: Final = 29500


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
    def variables(self) -> Mapping[str, str]:
        """Torchrun's names, and ours. Ranks have one process, so that all are the first of their
        host. Without a network of the gang's own the master is what the task itself leads to rank
        0, by a stream."""
        roster, rank = self.joined.roster, self.joined.rank
        master = "127.0.0.1" if self.relay is None else hostname_of(0)
        return {
            "FORMATION_GANG_ID": roster.gang_id,
            "FORMATION_RANK": str(rank),
            "FORMATION_SIZE": str(roster.size),
            **({} if self.folder is None else {"FORMATION_GANG": str(self.folder)}),
            "RANK": str(rank),
            "WORLD_SIZE": str(roster.size),
            "LOCAL_RANK": "0",
            "LOCAL_WORLD_SIZE": "1",
            "MASTER_ADDR": master,
            "MASTER_PORT": str(MASTER_PORT),
        }

    @property
    def writable(self) -> tuple[Path, ...]:
        return () if self.folder is None else (self.folder,)

    @property
    def network(self) -> MemberDevice | None:
        return None if self.relay is None else MemberDevice(self.relay)

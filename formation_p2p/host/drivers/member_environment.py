"""What a task of a gang's member finds in its environment: torchrun's names, and ours. And what a
replica of a service does."""

from __future__ import annotations

from typing import Final

from formation_p2p.core.gang.network import hostname_of
from formation_p2p.host.gang.place import MemberPlace
from formation_p2p.host.services.place import ReplicaPlace

# What torchrun takes where none is given. Nothing else is in the gang's network.
MASTER_PORT: Final = 29500


def member_environment(place: MemberPlace | ReplicaPlace | None) -> dict[str, str]:
    """Empty for a lease that is of no gang; of a replica, where it listens. Ranks have one process,
    so that all are the first of their host. Without a network of the gang's own the master is what
    the task itself leads to rank 0, by a stream."""
    if place is None:
        return {}
    if isinstance(place, ReplicaPlace):
        return dict(place.variables)
    roster, rank = place.joined.roster, place.joined.rank
    master = "127.0.0.1" if place.relay is None else hostname_of(0)
    return {
        "FORMATION_GANG_ID": roster.gang_id,
        "FORMATION_RANK": str(rank),
        "FORMATION_SIZE": str(roster.size),
        **({} if place.folder is None else {"FORMATION_GANG": str(place.folder)}),
        "RANK": str(rank),
        "WORLD_SIZE": str(roster.size),
        "LOCAL_RANK": "0",
        "LOCAL_WORLD_SIZE": "1",
        "MASTER_ADDR": master,
        "MASTER_PORT": str(MASTER_PORT),
    }

"""Who the members of a gang are where its owner says no more: a rule that every node can apply.

They are the three workers whose keys are nearest to the key of the gang's id, or all where there
are fewer. The owner asks these first, and others only for those that refuse or do not answer: what
was agreed on is in the roster. Source: Formation, its clusters of responsible nodes.
"""

from __future__ import annotations

from collections.abc import Iterable

from formation_p2p.core.keyspace import Key, key_of
from formation_p2p.core.placement.xor import CLUSTER_SIZE, cluster
from formation_p2p.core.records.profile import Profile
from formation_p2p.core.resources.fits import fits, fits_now
from formation_p2p.core.resources.requirements import Requirements


def key_of_gang(gang_id: str) -> Key:
    """Its place in the key space."""
    return key_of(gang_id.encode())


def members_of(
    gang_id: str,
    workers: Iterable[Profile],
    needs: Requirements,
    size: int = CLUSTER_SIZE,
) -> tuple[Profile, ...]:
    """Of these workers, as a node knows them, the members of the gang, nearest first: those that
    could hold the needs, and announce that they have room before those that do not. Nodes that know
    the same workers name the same members. Raises InvalidInput for a size below 1."""
    able: list[Profile] = []
    full: list[Profile] = []
    for each in workers:
        machine = needs, each.capability, dict(each.labels), each.drivers
        if fits_now(*machine, each.capacity) is None:
            able.append(each)
        elif fits(*machine) is None:
            full.append(each)
    return (*cluster(key_of_gang(gang_id), able, size), *cluster(key_of_gang(gang_id), full, size))[
        :size
    ]

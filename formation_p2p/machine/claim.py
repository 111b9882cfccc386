"""One running node's claim on a home: an identity that no other process uses at the same time.

Two nodes with one identity would be one peer in two places, and the network could reach
neither. So the first process to start takes the home's own identity, and others that start
while it runs take a further one each, with a grant bound to that.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from formation_p2p.core.errors import LocalError
from formation_p2p.core.identity import Identity, PeerId
from formation_p2p.machine.file_lock import lock_file, unlock_file
from formation_p2p.machine.home import MAX_IDENTITIES, Home, joined_network
from formation_p2p.trust.core.network import Network


@dataclass(frozen=True, slots=True)
class Claim:
    """`index` is that of the identity in the home. `scratch` is a folder for this claim's tasks,
    `blobs` one for the data that it holds, `socket` is for other programs of the user, `trust` a
    file of peer histories and `services` a folder for the logs and volumes of services; they may
    not exist yet. Release when done."""

    index: int
    identity: Identity
    network: Network
    scratch: Path
    blobs: Path
    socket: Path
    trust: Path
    services: Path
    _lock: int

    def release(self) -> None:
        unlock_file(self._lock)


def claim(home: Home, network: Network | None = None) -> Claim:
    """Take the first identity of the home that is free; put the home into `network` first.

    Raises LocalError where the home is in no network, or too many nodes run from it.
    """
    if network is not None:
        home.join(network)
    for index in range(MAX_IDENTITIES):
        known = joined_network(home, index)  # first: in no network it makes no keys
        identity = home.identity(index)
        lock = lock_file(home.path / f"identity-{index}.lock")
        if lock is not None:
            return Claim(
                index,
                identity,
                known,
                home.path / f"scratch-{index}",
                home.path / f"blobs-{index}",
                home.path / f"node-{index}.sock",
                home.path / f"trust-{index}.db",
                home.path / f"services-{index}",
                lock,
            )
    raise LocalError(f"{MAX_IDENTITIES} nodes run from {home.path}; end one, or use another --home")


def peers_of(home: Home) -> frozenset[PeerId]:
    """The nodes of a home, as far as they have run."""
    there = (n for n in range(MAX_IDENTITIES) if (home.path / f"identity-{n}.lock").exists())
    return frozenset(home.identity(number).peer_id for number in there)

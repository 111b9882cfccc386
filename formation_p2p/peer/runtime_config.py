"""What a node's thread hosts."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from formation_p2p.assembly import DEFAULT_PARAMETERS, PeerEffect, PeerEvent, PeerParameters
from formation_p2p.content.arrivals import Arrivals
from formation_p2p.content.memory import PrivateBlobs
from formation_p2p.content.store import BlobStore
from formation_p2p.core.effects import Moment
from formation_p2p.core.identity import Identity
from formation_p2p.reach.circuit_settings import RelaySettings
from formation_p2p.reach.remembered import RememberedPeers
from formation_p2p.state.journal import Journal
from formation_p2p.state.members import SeenMembers
from formation_p2p.trust.core.network import Network
from formation_p2p.trust.core.reputation import Reputation
from formation_p2p.trust.core.signed_charter import SignedCharter

# Is told, after the peer has decided, of an event and its effects. It must not change anything,
# nor raise, nor take long: it is called for all that happens.
Observe = Callable[[PeerEvent, Sequence[PeerEffect], Moment], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class RuntimeConfig:
    """What a node's thread hosts."""

    identity: Identity
    network: Network
    listen: tuple[str, ...]
    announce: tuple[str, ...]
    scratch_root: Path
    blobs: BlobStore
    # A folder of this node's own; None for one without secrets.
    secrets: Path | None = None
    private: PrivateBlobs = field(default_factory=PrivateBlobs)
    arrivals: Arrivals = field(default_factory=Arrivals)
    shares_memory: bool = True
    journal: Journal | None = None
    name: str = ""
    # As a gate; and whether to reserve at others', whatever peers say of this node's reach.
    relay: RelaySettings | None = None
    reserves: bool | None = None
    observers: Sequence[Observe] = ()
    reputation: Reputation | None = None
    remembered: RememberedPeers | None = None
    mdns: bool = False
    members: SeenMembers | None = None
    # Puts a renewed grant where it is found after a restart too.
    keep_grant: Callable[[Network], Awaitable[None]] | None = None
    # The charter that the home has, and what keeps a newer one there.
    charter: SignedCharter | None = None
    keep_charter: Callable[[SignedCharter], Awaitable[None]] | None = None
    parameters: PeerParameters = DEFAULT_PARAMETERS
    # Importing takes half a second, more on a loaded machine; then the port is bound.
    start_s: float = 30.0

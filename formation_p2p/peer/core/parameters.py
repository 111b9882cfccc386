"""The parameters of every protocol of the kernel, in one frozen object."""

from __future__ import annotations

from dataclasses import dataclass, field

from formation_p2p.dht.core.parameters import DhtParameters
from formation_p2p.discovery.core.parameters import DiscoveryParameters
from formation_p2p.jobs.core.parameters import DispatchParameters
from formation_p2p.leases.core.parameters import LeaseParameters
from formation_p2p.peer.core.story import StoryParameters
from formation_p2p.trust.core.parameters import TrustParameters
from formation_p2p.wants.core.want import AnnounceParameters


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelParameters:
    """One field for each protocol. The reason of each value stands beside it, in its own class."""

    dht: DhtParameters = field(default_factory=DhtParameters)
    discovery: DiscoveryParameters = field(default_factory=DiscoveryParameters)
    lease: LeaseParameters = field(default_factory=LeaseParameters)
    dispatch: DispatchParameters = field(default_factory=DispatchParameters)
    announce: AnnounceParameters = field(default_factory=AnnounceParameters)
    trust: TrustParameters = field(default_factory=TrustParameters)
    story: StoryParameters = field(default_factory=StoryParameters)
    # Have this node's grant renewed where one with the root's key is online.
    renews: bool = True
    # Check after every event that the parts of the peer agree: for tests and simulations, since it
    # takes as long as the event, and longer where many tasks wait.
    validate: bool = False

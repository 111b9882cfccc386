"""The DHT's effects and events.

Every `SendRequest` ends in exactly one `ResponseReceived` or `RequestFailed`, at most `timeout_s`
after it was taken: the shell arms the timer.
"""

from __future__ import annotations

from dataclasses import dataclass

from formation_p2p.core.effects import Contact, Effect
from formation_p2p.core.identity import PeerId
from formation_p2p.dht.core.messages import Reply, Request
from formation_p2p.dht.core.reachability import Reach


@dataclass(frozen=True, slots=True)
class SendRequest(Effect):
    """Send a request to a peer, dialling it if need be. `request_id` is the DHT's own count,
    `charter` the version that this node goes by.

    A request that the specification leaves without a reply (ADD_PROVIDER) ends as
    ResponseReceived, without a message, once it is written out.
    """

    request_id: int
    to: Contact
    message: Request
    timeout_s: float
    charter: int = 0


@dataclass(frozen=True, slots=True)
class SendResponse(Effect):
    """The reply to `RequestReceived(request_id)`; None where the protocol has none. `charter` is
    the version that this node goes by."""

    request_id: int
    message: Reply | None
    charter: int = 0


@dataclass(frozen=True, slots=True)
class RequestReceived:
    """A peer's request. `request_id` is the shell's count and goes back with the `SendResponse`.
    The sender has addresses only if it says that it is a server. `charter` is the version that it
    goes by, as it says."""

    request_id: int
    sender: Contact
    message: Request
    charter: int = 0


@dataclass(frozen=True, slots=True)
class ResponseReceived:
    """`sender` is who was asked, with the addresses that identify told of since; without any
    where it dialled us, and does not say that it can be dialled. `charter` is the version that it
    goes by, as it says."""

    request_id: int
    sender: Contact
    message: Reply | None
    charter: int = 0


@dataclass(frozen=True, slots=True)
class RequestFailed:
    """No response: out of reach, too late, or malformed. `reason` is for people."""

    request_id: int
    reason: str


@dataclass(frozen=True, slots=True)
class ProbeReachability(Effect):
    """Dial the peer that asks, over a new connection, and close it. Ends in ReachabilityProbed.

    Only at addresses that it advertises, and that have the IP address which it is seen to come
    from: else it could have us dial anyone.
    """

    request_id: int
    to: Contact
    timeout_s: float


@dataclass(frozen=True, slots=True)
class ReachabilityProbed:
    """The outcome of ProbeReachability(request_id). None: it could not be tried."""

    request_id: int
    reached: bool | None


@dataclass(frozen=True, slots=True)
class InboundConnection:
    """A peer opened a connection to us. `host` is the IP address that it comes from, or that of
    loopback for any that is this machine's."""

    peer_id: PeerId
    host: str


@dataclass(frozen=True, slots=True)
class PeerIdentified:
    """A connected peer identified itself anew: one with addresses is a server, one without is a
    client, which no peer names to others."""

    peer: Contact


@dataclass(frozen=True, slots=True)
class Advertise(Effect):
    """Tell all connected peers, also later ones, whether we are a server: only then may they
    name us to others."""

    reach: Reach


DhtEffect = SendRequest | SendResponse | ProbeReachability | Advertise
DhtEvent = (
    RequestReceived
    | ResponseReceived
    | RequestFailed
    | ReachabilityProbed
    | InboundConnection
    | PeerIdentified
)

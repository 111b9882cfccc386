"""What the DHT asks of the shell, and what the shell tells it.

Every `SendRequest` ends in exactly one `ResponseReceived` or `RequestFailed`, at most `timeout_s`
after it was handed over. The shell keeps that promise; the core arms no timer of its own for it.
"""

from __future__ import annotations

from dataclasses import dataclass

from formation_p2p.core.dht.messages import Reply, Request
from formation_p2p.core.dht.reachability import Reach
from formation_p2p.core.effects import Contact, Effect
from formation_p2p.core.identity import PeerId


@dataclass(frozen=True, slots=True)
class SendRequest(Effect):
    """Send a request to a peer, dialling it if need be. `ask_id` is the asker's own count.

    A request that the specification leaves without an answer (ADD_PROVIDER) is Answered, with
    no message, once it is written out.
    """

    ask_id: int
    to: Contact
    message: Request
    timeout_s: float


@dataclass(frozen=True, slots=True)
class SendResponse(Effect):
    """Reply to what arrived as `RequestReceived(ask_id)`; None where the protocol has no answer."""

    ask_id: int
    message: Reply | None


@dataclass(frozen=True, slots=True)
class RequestReceived:
    """A peer's request. `ask_id` is the shell's count and goes back with the `SendResponse`. The
    sender has addresses only if it says that it is a server."""

    ask_id: int
    sender: Contact
    message: Request


@dataclass(frozen=True, slots=True)
class ResponseReceived:
    """`sender` is who was asked, with the addresses that identify told of since; without any
    where it dialled us, and does not say that it can be dialled."""

    ask_id: int
    sender: Contact
    message: Reply | None


@dataclass(frozen=True, slots=True)
class RequestFailed:
    """No answer: out of reach, too late, or not to be parsed. `reason` is for people."""

    ask_id: int
    reason: str


@dataclass(frozen=True, slots=True)
class ProbeReachability(Effect):
    """Dial the peer that asks, over a new connection, and close it. Ends in ReachabilityProbed.

    Only at addresses that it tells of, and that have the IP address which it is seen to come
    from: all else would have us dial whomever it likes.
    """

    ask_id: int
    to: Contact
    timeout_s: float


@dataclass(frozen=True, slots=True)
class ReachabilityProbed:
    """What came of ProbeReachability(ask_id). None: it could not be tried."""

    ask_id: int
    reached: bool | None


@dataclass(frozen=True, slots=True)
class InboundConnection:
    """A peer opened a connection to us. `host` is the IP address that it comes from, or that of
    loopback for any that is this machine's."""

    peer_id: PeerId
    host: str


@dataclass(frozen=True, slots=True)
class PeerIdentified:
    """A connected peer said anew what it is: one with addresses is a server, one without is a
    client, and nobody may be sent to it."""

    peer: Contact


@dataclass(frozen=True, slots=True)
class Advertise(Effect):
    """Tell connected peers, and who connects, whether we are a server: only then may they send
    others to us."""

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

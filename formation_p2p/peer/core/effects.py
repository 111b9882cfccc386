"""Everything that the kernel of a peer asks for: the closed union of its effects.

`formation_p2p/assembly.py` joins the effects of features: what drives a peer performs all of
`PeerEffect`. What is for the person who uses the node it hands on as it is: that is `UserEffect`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from formation_p2p.core.effects import Effect
from formation_p2p.core.identity import PeerId
from formation_p2p.dht.core.rpc import DhtEffect
from formation_p2p.discovery.core.trace import Trace
from formation_p2p.drivers.core.effects import ExecutionEffect
from formation_p2p.jobs.core.fetch import DropCheckpoints, SchedulerEffect
from formation_p2p.jobs.core.job_events import EmitJobEvent, ForgetLease, PersistLease
from formation_p2p.leases.core.lessor import LessorEffect
from formation_p2p.leases.core.messages import ResultAck
from formation_p2p.leases.core.session import Send
from formation_p2p.peer.core.charter_news import CharterEffect
from formation_p2p.peer.core.edge_link import MeasureRate
from formation_p2p.placement.core.decision import Decision
from formation_p2p.trust.core.admission import AdmissionEffect
from formation_p2p.trust.core.hours import HoursReceived
from formation_p2p.trust.core.renewal import GrantEffect, RenewalEffect
from formation_p2p.trust.core.shares import ShareUsed


@dataclass(frozen=True, slots=True)
class Explained(Effect):
    """`trace` says where the candidates were looked for, and what that took."""

    query: int
    decision: Decision
    trace: Trace


@dataclass(frozen=True, slots=True)
class Left(Effect):
    """Nothing is under way any more; the shell may close the network once all is sent."""


@dataclass(frozen=True, slots=True)
class Vacated(Effect):
    """Nothing runs here for other nodes any more, and no more work is taken."""


@dataclass(frozen=True, slots=True)
class RejectRequest(Effect):
    """What the person asked for cannot be done. `what` is the job's id or the gang's, the number
    of the query as text, or `serve`."""

    what: str
    why: str


@dataclass(frozen=True, slots=True)
class MemberMet(Effect):
    """A peer has shown a grant of this network that is good now: in a profile that was not seen
    before, or with a request for a lease. `name` is what it goes by, empty where it does not say.
    One that `has_left` has said so."""

    peer_id: PeerId
    name: str
    grant: bytes = field(repr=False)
    has_left: bool = False


WorkerEffect = (
    LessorEffect | ExecutionEffect | AdmissionEffect | ShareUsed | HoursReceived | MeasureRate
)
KernelUserEffect = EmitJobEvent | Explained | RejectRequest
KernelEffect = (
    DhtEffect
    | SchedulerEffect
    | WorkerEffect
    | GrantEffect
    | RenewalEffect
    | CharterEffect
    | KernelUserEffect
    | MemberMet
    | Vacated
    | Left
)

_OF_RECORD: Final = (EmitJobEvent, PersistLease, ForgetLease, DropCheckpoints)


def is_of_record(effect: Effect) -> bool:
    """Whether it tells or acknowledges something: where a scheduler keeps its state, such an effect
    is performed once it is on the disk."""
    return isinstance(effect, _OF_RECORD) or (
        isinstance(effect, Send) and isinstance(effect.message, ResultAck)
    )

"""The tunnel protocol, `/formation/tunnel/1.0.0`: byte streams between the members of a gang.

A stream of the connection is for one tunnel. The peer that opens it says `OpenTunnel`, and is
answered `TunnelOpened` or `TunnelRefused`; then the bytes of two programs follow, both ways, and
each way ends by itself. A frame is a CBOR array: the message's number, then its fields in order.

Who may open one is said by the newest roster that the lease of the member here came with. The
connection proves the other's peer id, the roster has the fencing token of its lease: one that is
not in it, was in it once, or is in another gang's is refused, whatever it says.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Final

from formation_p2p.core.errors import RemoteError
from formation_p2p.core.identity import PeerId
from formation_p2p.features.gangs.core.roster import (
    GANG_ID_CHARS,
    MAX_MEMBERS,
    OWNER,
    Member,
    Roster,
)
from formation_p2p.records.core import schema
from formation_p2p.records.core.codec import MAX_INT, Malformed, take_text
from formation_p2p.records.core.schema import Schema

# The largest is an OpenTunnel, of some 130 bytes: what a stranger can make us hold.
MAX_MESSAGE_BYTES: Final = 1024
# To wait for a program that listens, which may have to be started first.
MAX_WAIT_MS: Final = 600_000
MAX_WHY_CHARS: Final = 256
# The name of a file in the folder of a lease, which no option or hidden file has, or the number of
# a port.
MAX_SERVICE_CHARS: Final = 64
_SERVICE: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*", re.ASCII)
_PORT: Final = re.compile(r":[1-9][0-9]{0,4}", re.ASCII)
MAX_PORT: Final = 65_535
# Of the names that belong to this library: a task cannot listen there.
RESERVED: Final = "_"


class TunnelRefusal(StrEnum):
    """Why a tunnel is refused. All but the first may pass: a roster may be under way."""

    NOT_A_MEMBER = "outsider"
    """The one that opens it is not that member of that gang."""
    NOT_HERE = "gone"
    """The member that it is for is not here, or not with that fencing token."""
    NO_SERVICE = "service"
    """No program listens there."""
    BUSY = "busy"
    """There are as many as there may be."""


class TunnelError(RemoteError):
    """A stream between two members of a gang is refused, or has broken."""

    def __init__(self, message: str, refusal: TunnelRefusal | None = None) -> None:
        super().__init__(message)
        self.refusal = refusal


def is_service(name: str) -> bool:
    """Whether a service can have this name; `:8080` is a port of the member's."""
    if _PORT.fullmatch(name):
        return int(name[1:]) <= MAX_PORT
    return len(name) <= MAX_SERVICE_CHARS and _SERVICE.fullmatch(name) is not None


def _read_service(value: object) -> str:
    name = take_text(value, "service", MAX_SERVICE_CHARS)
    if not is_service(name):
        raise Malformed("service", "is not the name of one")
    return name


Rank = Annotated[int, schema.integer(OWNER, MAX_MEMBERS - 1)]
Fence = Annotated[int, schema.integer(0, MAX_INT)]
_WHY: Final = schema.custom(
    schema.text(MAX_WHY_CHARS).reader("why"), lambda why: why[:MAX_WHY_CHARS]
)
_REFUSAL: Final = schema.custom(lambda value: _read_refusal(value), str)
_PROTOCOL: Final[Schema[TunnelMessage]] = Schema("tunnel protocol", MAX_MESSAGE_BYTES)


def _read_refusal(value: object) -> TunnelRefusal:
    try:
        return TunnelRefusal(take_text(value, "refusal", MAX_SERVICE_CHARS))
    except ValueError as error:
        raise Malformed("refusal", "is not one of this protocol") from error


@_PROTOCOL.message(1)
@dataclass(frozen=True, slots=True)
class OpenTunnel:
    """I am member `rank` of the gang, under the lease with this `fence`; lead me to `service` of
    member `to_rank`, under that with `to_fence`. Wait so long for it to be there."""

    gang_id: Annotated[str, schema.text(GANG_ID_CHARS)]
    rank: Rank
    fence: Fence
    to_rank: Rank
    to_fence: Fence
    service: Annotated[str, schema.custom(_read_service)]
    wait_ms: Annotated[int, schema.integer(0, MAX_WAIT_MS)]


@_PROTOCOL.message(2)
@dataclass(frozen=True, slots=True)
class TunnelOpened:
    """What follows is the service's."""


@_PROTOCOL.message(3)
@dataclass(frozen=True, slots=True)
class TunnelRefused:
    """Nothing follows."""

    refusal: Annotated[TunnelRefusal, _REFUSAL]
    why: Annotated[str, _WHY]


TunnelMessage = OpenTunnel | TunnelOpened | TunnelRefused

pack = _PROTOCOL.pack
parse = _PROTOCOL.parse


def party(roster: Roster, rank: int) -> Member | None:
    """One end of a tunnel: a member, or the owner, whose `fence` is 0. None where the gang has no
    such member now."""
    return Member(OWNER, roster.owner, 0) if rank == OWNER else roster.member(rank)


def opening(
    roster: Roster, rank: int, to_rank: int, service: str, wait_ms: int
) -> OpenTunnel | None:
    """What member `rank` says to open one; None where either is not in the roster."""
    here, there = party(roster, rank), party(roster, to_rank)
    if here is None or there is None:
        return None
    return OpenTunnel(roster.gang_id, rank, here.fence, to_rank, there.fence, service, wait_ms)


def refused(asked: OpenTunnel, remote: PeerId, roster: Roster | None) -> TunnelRefused | None:
    """What is wrong with an opening that the peer `remote` sends; None where it may be. `roster`
    is the newest of the member here that it is for, if there is one."""
    if roster is None or roster.gang_id != asked.gang_id:
        return TunnelRefused(
            TunnelRefusal.NOT_HERE, "that member of that gang is not on this node, or not yet"
        )
    here, there = party(roster, asked.to_rank), party(roster, asked.rank)
    if there is None or there.peer_id != remote or there.fence != asked.fence:
        return TunnelRefused(TunnelRefusal.NOT_A_MEMBER, "you are not that member of that gang now")
    if here is None or here.fence != asked.to_fence:
        return TunnelRefused(
            TunnelRefusal.NOT_HERE, "that member has another lease by now; open it anew"
        )
    return None

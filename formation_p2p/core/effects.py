"""What every layer's inputs and outputs share.

The core never acts: it is told of events and returns effects, both frozen nouns that print and
compare. Each layer defines its own beside the messages they carry (`dht/core/rpc.py`,
`leases/core/session.py`, `drivers/core/effects.py`); `peer/` names them all in one union.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

from formation_p2p.core.identity import PeerId


class Moment(NamedTuple):
    """Now, on both clocks, as the shell read them when an event came in.

    `mono_s` orders everything on this machine: timeouts, leases, caches. `unix_s` is used for
    the expiry inside signed records and grants alone, since only there must machines agree.
    """

    mono_s: float
    unix_s: float


@dataclass(frozen=True, slots=True)
class Contact:
    """A peer and where to dial it: multiaddrs as text, without `/p2p/…`, best first."""

    peer_id: PeerId
    addresses: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Effect:
    """Something the shell is to do. `cause` names the event that led to it, for people.

    The cause is left out of comparisons: it explains, it does not decide.
    """

    cause: str = field(compare=False)


@dataclass(frozen=True, slots=True)
class OwnedEvent(Effect):
    """Hands an event of something that a program has, such as a gang, to the program: it is
    `owned` under this id."""

    owned: str
    event: Any

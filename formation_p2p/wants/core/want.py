"""A want: what a scheduler looks for, signed, with its grant, under a number, until it expires.

It goes to workers that were not asked, by way of peers that need not be trusted: the signature
says that offers go to the very peer whose grant it shows. `seal_want` makes the bytes that travel
and are kept; `open_want` is the one way back.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final

from formation_p2p.core.effects import Contact
from formation_p2p.core.errors import InvalidInput
from formation_p2p.core.identity import Identity, PeerId, peer_id_to_bytes
from formation_p2p.leases.core.messages import MAX_REACH, MAX_WANT_BYTES
from formation_p2p.machine.core.bounds import check_amount
from formation_p2p.machine.core.requirements import Requirements
from formation_p2p.records.core import addresses, codec, resources
from formation_p2p.records.core.addresses import MAX_ADDRESSES
from formation_p2p.records.core.codec import MAX_INT, take_int
from formation_p2p.records.core.envelope import seal
from formation_p2p.records.core.profile import MAX_GRANT_BYTES
from formation_p2p.records.core.resources import pack_requirements, unpack_requirements
from formation_p2p.records.core.signed_fields import (
    check_author,
    check_life,
    open_fields,
    take_addresses,
)
from formation_p2p.workload.core.work import MAX_PRIORITY

# It stands for so long: a worker becomes free within it, or the scheduler leaves another.
WANT_TTL_S: Final = 60
# Workers asked for at once, as in a round of asking.
MAX_PLACES: Final = 16
# Peers that hold a shard.
MAX_HOLDERS: Final = 8

_DOMAIN: Final = "formation-want"
WANT_PAYLOAD_TYPE: Final = b"/formation/want/1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Want:
    """Offers for `places` workers with these `needs` go to `author` under this `number`. As many
    peers as `reach` are to hear it where it is spread, and as many as `holders` keep it where it is
    left. Raises InvalidInput."""

    author: Contact
    number: int
    issued_unix_s: int
    expires_unix_s: int
    needs: Requirements
    priority: int = 0
    places: int = 1
    reach: int = 1
    holders: int = 1
    grant: bytes = field(default=b"", repr=False)

    def __post_init__(self) -> None:
        for name in ("number", "issued_unix_s", "expires_unix_s"):
            check_amount(name, getattr(self, name), 0, MAX_INT)
        check_amount("priority", self.priority, 0, MAX_PRIORITY)
        check_amount("places", self.places, 1, MAX_PLACES)
        check_amount("reach", self.reach, 1, MAX_REACH)
        check_amount("holders", self.holders, 1, MAX_HOLDERS)
        if self.needs.driver == "":
            raise InvalidInput("driver", "it is not named; what a grant allows depends on it")

    @property
    def name(self) -> tuple[PeerId, int]:
        """What tells it from others."""
        return self.author.peer_id, self.number


def seal_want(identity: Identity, want: Want) -> bytes:
    """Sign one's own want. Raises InvalidInput."""
    if want.author.peer_id != identity.peer_id:
        raise InvalidInput("author", f"the want is of {want.author.peer_id}, not {identity}")
    raw = seal(identity, _DOMAIN, WANT_PAYLOAD_TYPE, codec.encode(_pack(want)))
    if len(raw) > MAX_WANT_BYTES:
        raise InvalidInput("needs", f"the want takes {len(raw)} bytes of {MAX_WANT_BYTES}")
    return raw


def open_want(raw: bytes, now_unix_s: float) -> Want:
    """Read a want from anywhere. Raises BadRecord: OversizedRecord, MalformedRecord, ForgedRecord,
    or ExpiredRecord (also for a life too long, or from the future)."""
    want = _open(raw)
    check_life("want", want.issued_unix_s, want.expires_unix_s, WANT_TTL_S, now_unix_s)
    return want


# The same bytes come from several peers. At 6 KiB each, 1.5 MiB at the worst.
@lru_cache(maxsize=256)
def _open(raw: bytes) -> Want:
    return open_fields("a want", raw, _DOMAIN, WANT_PAYLOAD_TYPE, MAX_WANT_BYTES, _unpack)


def _pack(want: Want) -> list[object]:
    """The fields on the wire, in order."""
    return [
        peer_id_to_bytes(want.author.peer_id),
        [addresses.address_bytes(address) for address in want.author.addresses[:MAX_ADDRESSES]],
        want.number,
        want.issued_unix_s,
        want.expires_unix_s,
        pack_requirements(want.needs),
        want.priority,
        want.places,
        want.reach,
        want.holders,
        want.grant,
    ]


def _unpack(value: object, signer: PeerId) -> Want:
    row = resources.take_row(value, 11, "want", "is not a list of eleven fields")
    author, reached_at, number, issued, expires, needs, *others = row
    priority, places, reach, holders, grant = others
    check_author("a want", author, signer)
    return resources.checked(
        Want,
        author=Contact(signer, take_addresses(reached_at)),
        number=number,
        issued_unix_s=take_int(issued, "issued", 0, MAX_INT),
        expires_unix_s=take_int(expires, "expires", 0, MAX_INT),
        needs=unpack_requirements(needs),
        priority=priority,
        places=places,
        reach=reach,
        holders=holders,
        grant=codec.take_bytes(grant, "grant", MAX_GRANT_BYTES),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class AnnounceParameters:
    # Peers that a want is spread to first. Those know, of a hundred workers each, who has announced
    # room; each costs a message.
    first_reach: int = 64
    # ...and where no offer came: with 300, a free worker of a network with 1 % free is among them
    # in 19 of 20 cases, whatever is announced.
    reach: int = 300
    # Offers that a scheduler would like for each place.
    answers: int = 3
    # ...and with how many it is content: the others may be far, or lost on the way.
    enough: int = 2
    # Workers that answer on average, so that these are there early.
    answers_aimed_at: int = 6
    # Where a peer knows few workers with room, this share of the others is taken to know one too:
    # so it is where one worker in 300 has room.
    know_few: float = 0.25
    # A want is spread anew after so long, while tasks wait.
    spread_again_s: float = 10.0
    # A notice is left anew after so long: most of a want's life.
    leave_again_s: float = WANT_TTL_S - 10.0

    # All that follows is per window.
    window_s: float = 10.0
    # Wants of one scheduler that a peer passes on, and keeps: it spreads one in that time for each
    # kind of task.
    max_of_author: int = 4
    # ...and of all bearers of one invitation: any number of ids can be made of one.
    max_of_invitation: int = 32
    # Messages with wants that are looked at, from one peer: a relay passes on those of others...
    max_from_peer: int = 64
    # ...and so many that count for nothing: peers pass on what they have checked themselves. Ids
    # cost nothing, and without this four strangers would use up what is looked at from all.
    max_refused: int = 4
    # ...and from all. To check one takes 0.3 ms of CPU, or a millisecond where the grant is
    # foreign, and to look at the profiles for it another: 5 % of a core.
    max_checked: int = 256
    # Offers that a worker makes for wants. Each holds capacity for 1.5 s at most.
    max_offers: int = 64
    # Peers and invitations that are counted, each with some hundred bytes.
    max_counted: int = 4096

    # Wants seen, so that each is taken once: as many as are checked within the life of one.
    max_seen: int = 4096
    # Wants that are kept for workers that announce themselves anew: 2 MiB at the worst...
    max_kept: int = 512
    # ...and those of one scheduler.
    max_kept_of_author: int = 8
    # A holder hands one on at once where so few of the workers that it knows have room: the other
    # holders may know none. Where there are more, it leaves most of them to the others.
    few: int = 2
    # Workers whose profiles are looked at for one want: 10 us each.
    max_looked_at: int = 128
    # Branches of a tree that are remembered, to take another peer where one is gone: those of the
    # last ten wants.
    max_branches: int = 128
    # A peer that cannot be reached says so within this time.
    branch_s: float = 5.0

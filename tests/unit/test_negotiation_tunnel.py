"""Who may open a tunnel to whom, and what the two say."""

from dataclasses import replace
from typing import Any

import pytest

from formation_p2p.core.effects import Contact
from formation_p2p.core.errors import ProtocolViolation
from formation_p2p.core.identity import Identity, PeerId
from formation_p2p.features.gangs.core.messages import Enlist
from formation_p2p.features.gangs.core.roster import OWNER, Member, Roster
from formation_p2p.features.gangs.core.tunnel import (
    MAX_MESSAGE_BYTES,
    MAX_WHY_CHARS,
    OpenTunnel,
    TunnelError,
    TunnelOpened,
    TunnelRefusal,
    TunnelRefused,
    is_service,
    opening,
    pack,
    parse,
    party,
    refused,
)
from formation_p2p.leases.core import messages as work
from formation_p2p.records.core import codec
from formation_p2p.records.core.codec import Malformed

ALICE, BOB, CAROL, EVE = (Identity.from_seed(bytes([n]) * 32).peer_id for n in range(4))
GANG = "ab" * 16
ROSTER = Roster(
    GANG, 1, 3, Contact(CAROL), (Member(0, Contact(ALICE), 5), Member(1, Contact(BOB), 6))
)
GOOD = OpenTunnel(GANG, 0, 5, 1, 6, "activations", 1000)


@pytest.mark.parametrize(
    "message",
    [
        GOOD,
        OpenTunnel(GANG, OWNER, 0, 1, 6, ":8080", 0),
        TunnelOpened(),
        *(TunnelRefused(each, "because") for each in TunnelRefusal),
    ],
)
def test_messages_are_read_as_they_were_written(message: OpenTunnel | TunnelRefused) -> None:
    assert parse(pack(message)) == message
    assert len(pack(message)) < MAX_MESSAGE_BYTES


def test_a_reason_is_cut_to_what_is_read() -> None:
    long = TunnelRefused(TunnelRefusal.BUSY, "x" * 1000)
    assert parse(pack(long)) == replace(long, why="x" * MAX_WHY_CHARS)


@pytest.mark.parametrize(
    "said",
    [
        [1, GANG, 0, 5, 1, 6, "../../etc", 0],
        [1, GANG, 0, 5, 1, 6, ":70000", 0],
        [1, GANG, -2, 5, 1, 6, "x", 0],
        [1, GANG, 64, 5, 1, 6, "x", 0],
        [1, GANG, 0, 5, 1, 6, "x"],
        [3, "what", "why"],
        [3, 1, "why"],
        [4],
        7,
    ],
)
def test_anything_else_is_no_message(said: object) -> None:
    with pytest.raises(ProtocolViolation):
        parse(codec.encode(said))


@pytest.mark.parametrize(
    ("name", "good"),
    [
        ("activations", True),
        ("_store", True),
        ("a.b-c_9", True),
        (":1", True),
        (":65535", True),
        (":65536", False),
        (":0", False),
        (":", False),
        ("", False),
        (".hidden", False),
        ("-rf", False),
        ("a/b", False),
        ("ä", False),
        ("a\n", False),
        ("x" * 64, True),
        ("x" * 65, False),
    ],
)
def test_the_name_of_a_service_is_that_of_a_plain_file_or_a_port(name: str, good: bool) -> None:
    assert is_service(name) is good


def test_what_is_asked_names_both_leases() -> None:
    assert opening(ROSTER, 0, 1, "activations", 1000) == GOOD
    assert opening(ROSTER, OWNER, 1, "x", 0) == OpenTunnel(GANG, OWNER, 0, 1, 6, "x", 0)
    assert opening(ROSTER, 0, 2, "x", 0) is None
    assert opening(ROSTER, 2, 0, "x", 0) is None
    assert [str(party(ROSTER, rank)) for rank in (OWNER, 0, 2)] == [
        "the owner of the gang",
        "member 0",
        "None",
    ]


@pytest.mark.parametrize(
    ("asked", "remote", "roster", "refusal"),
    [
        (GOOD, ALICE, ROSTER, None),
        (replace(GOOD, rank=OWNER, fence=0), CAROL, ROSTER, None),
        (replace(GOOD, to_rank=OWNER, to_fence=0), ALICE, ROSTER, None),
        # Not on this node, or of another gang.
        (GOOD, ALICE, None, TunnelRefusal.NOT_HERE),
        (GOOD, ALICE, replace(ROSTER, gang_id="cd" * 16), TunnelRefusal.NOT_HERE),
        # The one that opens it: another peer, a fence of before, a rank that is not taken.
        (GOOD, EVE, ROSTER, TunnelRefusal.NOT_A_MEMBER),
        (GOOD, BOB, ROSTER, TunnelRefusal.NOT_A_MEMBER),
        (replace(GOOD, fence=4), ALICE, ROSTER, TunnelRefusal.NOT_A_MEMBER),
        (replace(GOOD, rank=2), ALICE, ROSTER, TunnelRefusal.NOT_A_MEMBER),
        (replace(GOOD, rank=OWNER, fence=0), ALICE, ROSTER, TunnelRefusal.NOT_A_MEMBER),
        # The one that it is for: another lease by now, or replaced just then.
        (replace(GOOD, to_fence=5), ALICE, ROSTER, TunnelRefusal.NOT_HERE),
        (replace(GOOD, to_rank=2), ALICE, ROSTER, TunnelRefusal.NOT_HERE),
    ],
)
def test_a_tunnel_is_between_two_members_under_their_leases(
    asked: OpenTunnel, remote: PeerId, roster: Roster | None, refusal: TunnelRefusal | None
) -> None:
    no = refused(asked, remote, roster)
    assert (no and no.refusal) == refusal


def test_an_error_says_why() -> None:
    error = TunnelError("no", TunnelRefusal.BUSY)
    assert (str(error), error.refusal, TunnelError("x").refusal) == ("no", "busy", None)


# The members of a gang, as each is told of the others.

ENLIST = Enlist("lease", 5, 0, ROSTER)


def test_a_roster_travels_and_names_its_members() -> None:
    assert work.parse(work.pack(ENLIST)) == ENLIST
    assert ROSTER.member(1) == Member(1, Contact(BOB), 6)
    assert ROSTER.member(2) is None
    assert ROSTER.members[0].peer_id == ALICE


@pytest.mark.parametrize(
    "members",
    [
        (Member(2, Contact(CAROL), 6), Member(0, Contact(ALICE), 5)),
        (Member(0, Contact(CAROL), 6), Member(0, Contact(ALICE), 5)),
        (Member(3, Contact(CAROL), 6),),
    ],
)
def test_ranks_are_in_order_and_below_the_size(members: tuple[Member, ...]) -> None:
    with pytest.raises(Malformed):
        replace(ROSTER, members=members)


def test_a_peer_id_that_is_none_is_refused() -> None:
    raw: Any = codec.decode(work.pack(ENLIST), 10_000)
    raw[4][3][0] = b"nobody"
    with pytest.raises(ProtocolViolation, match="peer id"):
        work.parse(codec.encode(raw))
    raw[4][3].clear()
    with pytest.raises(ProtocolViolation, match="names no peer"):
        work.parse(codec.encode(raw))

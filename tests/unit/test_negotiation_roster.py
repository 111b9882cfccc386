"""The members of a gang, as each is told of the others."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from formation_p2p.core.errors import ProtocolViolation
from formation_p2p.features.gangs.core.messages import Enlist
from formation_p2p.features.gangs.core.roster import Member, Roster
from formation_p2p.leases.core.messages import pack, parse
from formation_p2p.records.core import codec
from formation_p2p.records.core.codec import Malformed
from tests.support.stories import ALICE, BOB, CAROL

ROSTER = Roster("ab" * 16, 1, 3, BOB, (Member(0, ALICE, 5), Member(2, CAROL, 6)))
ENLIST = Enlist("lease", 5, 0, ROSTER)


def test_a_roster_travels_and_names_its_members() -> None:
    assert parse(pack(ENLIST)) == ENLIST
    assert ROSTER.member(2) == Member(2, CAROL, 6)
    assert ROSTER.member(1) is None
    assert ROSTER.members[0].peer_id == ALICE.peer_id


@pytest.mark.parametrize(
    "members",
    [
        (Member(2, CAROL, 6), Member(0, ALICE, 5)),
        (Member(0, CAROL, 6), Member(0, ALICE, 5)),
        (Member(3, CAROL, 6),),
    ],
)
def test_ranks_are_in_order_and_below_the_size(members: tuple[Member, ...]) -> None:
    with pytest.raises(Malformed):
        replace(ROSTER, members=members)


def test_a_peer_id_that_is_none_is_refused() -> None:
    raw: Any = codec.decode(pack(ENLIST), 10_000)
    raw[4][3][0] = b"nobody"
    with pytest.raises(ProtocolViolation, match="peer id"):
        parse(codec.encode(raw))
    raw[4][3].clear()
    with pytest.raises(ProtocolViolation, match="names no peer"):
        parse(codec.encode(raw))

"""A want on the wire, which of them a peer takes, and what becomes of one that is left."""

import random
from dataclasses import replace
from functools import cache
from typing import Any

import pytest

from formation_p2p.core.errors import (
    ExpiredRecord,
    ForgedRecord,
    InvalidInput,
    MalformedRecord,
    OversizedRecord,
)
from formation_p2p.core.identity import Identity
from formation_p2p.core.units import GIB
from formation_p2p.leases.core.limits import Limits
from formation_p2p.leases.core.messages import MAX_REACH, MAX_WANT_BYTES
from formation_p2p.machine.core.capability import Capability, Capacity
from formation_p2p.machine.core.requirements import Requirements
from formation_p2p.records.core import codec
from formation_p2p.records.core.envelope import open_envelope, seal
from formation_p2p.records.core.profile import Profile
from formation_p2p.trust.core.grants import Right, Rights, bind, issue
from formation_p2p.trust.core.membership import Membership
from formation_p2p.wants.core.board import Gate, Noticeboard
from formation_p2p.wants.core.caller import Answering, Known, chance, chance_to_hand
from formation_p2p.wants.core.offers import OfferCounts, Offers
from formation_p2p.wants.core.want import (
    MAX_HOLDERS,
    MAX_PLACES,
    WANT_PAYLOAD_TYPE,
    WANT_TTL_S,
    AnnounceParameters,
    Want,
    open_want,
    seal_want,
)
from simulations.simulator.world import EPOCH_UNIX_S
from tests.support.placement_world import profile
from tests.support.stories import ALICE, BOB, CAROL, DAVE, MALLORY, at, contact, identity

ROOT, OTHER_ROOT = identity("root"), identity("another root")
NEEDS = Requirements(cpu_milli=1000, memory_bytes=GIB, driver="process")
NOW = int(EPOCH_UNIX_S)
PARAMETERS = AnnounceParameters()
RIGHTS = Rights(NOW + 10_000)
NO_ROOM = Capacity(0, 0, 0)


@cache
def grant_of(name: str, root: Identity = ROOT) -> bytes:
    return issue(root, RIGHTS, identity(name).peer_id)


def want_of(name: str = "bob", root: Identity = ROOT, **changed: Any) -> Want:
    """With a grant of its author's."""
    who = contact(name)
    values: dict[str, Any] = {
        "author": who,
        "number": 7,
        "issued_unix_s": NOW,
        "expires_unix_s": NOW + WANT_TTL_S,
        "needs": NEEDS,
        "grant": grant_of(name, root),
    }
    return Want(**values | changed)


def sealed(name: str = "bob", **changed: Any) -> bytes:
    return seal_want(identity(name), want_of(name, **changed))


def gate(parameters: AnnounceParameters = PARAMETERS) -> Gate:
    return Gate(Membership(ROOT.public_key), parameters)


# -- on the wire ----------------------------------------------------------------------------


def test_a_want_comes_back_as_it_was() -> None:
    want = want_of(priority=3, places=MAX_PLACES, reach=MAX_REACH, holders=MAX_HOLDERS)
    assert open_want(seal_want(identity("bob"), want), NOW) == want
    assert want.name == (BOB.peer_id, 7)


def test_a_want_out_of_bounds_or_signed_by_another_is_none() -> None:
    for changed, problem in (
        ({"number": -1}, "number"),
        ({"places": 0}, "places"),
        ({"places": MAX_PLACES + 1}, "places"),
        ({"reach": MAX_REACH + 1}, "reach"),
        ({"holders": MAX_HOLDERS + 1}, "holders"),
        ({"needs": replace(NEEDS, driver="")}, "driver"),
    ):
        with pytest.raises(InvalidInput, match=problem):
            want_of(**changed)
    with pytest.raises(InvalidInput, match="the want is of"):
        seal_want(identity("mallory"), want_of())
    with pytest.raises(InvalidInput, match="takes"):
        seal_want(identity("bob"), want_of(grant=bytes(MAX_WANT_BYTES)))


def resigned(by: str, change: Any) -> bytes:
    """What bob's want says, changed, and signed by another or by himself."""
    raw = sealed()
    payload = codec.decode(_payload(raw), MAX_WANT_BYTES)
    return seal(identity(by), "formation-want", WANT_PAYLOAD_TYPE, codec.encode(change(payload)))


def _payload(raw: bytes) -> bytes:
    return open_envelope(raw, "formation-want", WANT_PAYLOAD_TYPE, MAX_WANT_BYTES)[1]


def test_what_is_no_want_is_refused() -> None:
    with pytest.raises(ForgedRecord, match="signed by"):
        open_want(resigned("mallory", lambda row: row), NOW)
    with pytest.raises(MalformedRecord, match="eleven fields"):
        open_want(resigned("bob", lambda row: row[:-1]), NOW)
    with pytest.raises(MalformedRecord, match="reach"):
        open_want(resigned("bob", lambda row: [*row[:8], 10_000, *row[9:]]), NOW)
    with pytest.raises(OversizedRecord):
        open_want(bytes(MAX_WANT_BYTES + 1), NOW)


def test_a_want_expires_and_lives_no_longer_than_a_minute() -> None:
    longer = sealed(expires_unix_s=NOW + WANT_TTL_S + 1)
    for raw, now in ((sealed(), NOW + WANT_TTL_S), (longer, NOW), (sealed(), NOW - 1000)):
        with pytest.raises(ExpiredRecord):
            open_want(raw, now)


# -- which are taken ------------------------------------------------------------------------


def test_a_want_is_taken_once_and_left_by_its_author_alone() -> None:
    """Else any member could have workers offer to bob what he does not want any more."""
    ours = gate()
    assert ours.opened(MALLORY.peer_id, sealed(), at(0), by_author=True) is None
    assert ours.opened(BOB.peer_id, sealed(), at(0), by_author=True) is not None
    ours = gate(AnnounceParameters(max_seen=2))
    assert ours.opened(ALICE.peer_id, sealed(), at(0)) == want_of()
    assert ours.opened(CAROL.peer_id, sealed(), at(1)) is None
    for number in (8, 9):
        assert ours.opened(CAROL.peer_id, sealed(number=number), at(1)) is not None
    assert ours.opened(CAROL.peer_id, sealed(number=9), at(1)) is None
    assert ours.opened(ALICE.peer_id, sealed(), at(1)) is not None, "it has been forgotten"


def test_a_stranger_reaches_nothing() -> None:
    """He has no grant of this network, shows that of another, or has but his word."""
    ours = gate()
    for stranger in (
        sealed("mallory", root=OTHER_ROOT),
        sealed("mallory", grant=want_of("bob").grant),
        sealed("mallory", grant=b""),
        sealed("mallory", grant=issue(ROOT, Rights(NOW + 10_000, frozenset({Right.WORK})))),
        resigned("mallory", lambda row: row),
        b"a want",
    ):
        assert ours.opened(MALLORY.peer_id, stranger, at(0)) is None


def test_a_member_has_so_many_wants_in_a_window() -> None:
    ours = gate()
    taken = [ours.opened(BOB.peer_id, sealed(number=n), at(n / 10)) for n in range(9)]
    assert [want is not None for want in taken] == [True] * 4 + [False] * 5
    late = at(PARAMETERS.window_s)
    assert ours.opened(BOB.peer_id, sealed(number=20), late) is not None


def test_many_ids_of_one_invitation_count_together() -> None:
    """mallory binds one bearer grant to any number of ids."""
    bearer = issue(ROOT, RIGHTS)
    ours = gate(AnnounceParameters(max_of_invitation=3))
    names = [f"mallory{n}" for n in range(6)]
    taken = [
        ours.opened(MALLORY.peer_id, sealed(name, grant=_bound(bearer, name)), at(0)) is not None
        for name in names
    ]
    assert taken == [True] * 3 + [False] * 3
    assert ours.opened(BOB.peer_id, sealed(), at(0)) is not None  # of another invitation


def _bound(bearer: bytes, name: str) -> bytes:
    return bind(bearer, ROOT.public_key, identity(name).peer_id)


def test_what_one_peer_and_all_send_is_bounded_before_it_is_looked_at() -> None:
    ours = gate(AnnounceParameters(max_from_peer=2, max_checked=3))
    for _ in range(2):
        assert ours.opened(MALLORY.peer_id, b"rubbish", at(0)) is None
    assert ours.opened(MALLORY.peer_id, sealed(), at(0)) is None
    assert ours.opened(ALICE.peer_id, sealed(), at(0)) is not None
    assert ours.opened(CAROL.peer_id, sealed(number=9), at(0)) is None


def test_strangers_do_not_use_up_what_is_looked_at() -> None:
    ours = gate()
    for number in range(8):
        stranger = identity(f"stranger {number}")
        for _ in range(PARAMETERS.max_from_peer):
            assert ours.opened(stranger.peer_id, b"rubbish", at(0)) is None
    assert ours.opened(ALICE.peer_id, sealed(), at(1)) is not None
    foreign = sealed("mallory", root=OTHER_ROOT)
    for _ in range(PARAMETERS.max_refused):
        assert ours.opened(MALLORY.peer_id, foreign, at(1)) is None
    assert ours.opened(MALLORY.peer_id, sealed(number=8), at(1)) is None
    assert ours.opened(MALLORY.peer_id, sealed(number=8), at(11)) is not None


def test_counts_are_kept_for_so_many() -> None:
    limits = Limits(most=1, window_s=10.0, max_keys=2)
    assert [limits.admits(key, 0.0) for key in "aabbc"] == [True, False, True, False, False]
    assert limits.admits("c", 10.0)


# -- left with a holder ---------------------------------------------------------------------


def board(parameters: AnnounceParameters = PARAMETERS, seed: int = 7) -> Noticeboard:
    return Noticeboard(gate(parameters), random.Random(seed), parameters)


def workers(count: int, **changed: Any) -> list[Profile]:
    return [profile(f"worker{n}", **changed) for n in range(count)]


def test_a_want_that_is_left_goes_to_those_that_have_or_announce_room() -> None:
    ours = board()
    full, free = profile("alice", capacity=NO_ROOM), profile("carol")
    small = profile("alice", Capability(100, GIB))  # which cannot ever
    assert board().left(BOB.peer_id, sealed(), [full, free, small], at(0)) == [(CAROL, sealed())]
    assert ours.left(BOB.peer_id, sealed(), [full], at(0)) == []
    assert ours.announced(profile("carol", capacity=NO_ROOM), at(1)) == []
    assert ours.announced(profile("bob"), at(1)) == []  # his own machine knows
    assert ours.announced(profile("alice"), at(2)) == [(ALICE, sealed())]
    assert ours.announced(profile("alice"), at(3)) == []  # it has it
    assert ours.announced(profile("carol"), at(4)) == [(CAROL, sealed())]
    assert ours.announced(profile("dave"), at(5)) == [(DAVE, sealed())]
    assert len(ours) == 0  # as many as are to answer
    assert ours.announced(profile("erin"), at(6)) == []
    # However many fit, a worker gets one at a time, and none past its end.
    for number in range(3):
        ours.left(BOB.peer_id, sealed(number=number), [], at(0))
    told = [len(ours.announced(profile("alice"), at(s))) for s in (1, 2, WANT_TTL_S)]
    assert (told, len(ours)) == ([1, 1, 0], 0)


def test_holders_share_the_handing_on() -> None:
    """Where many have room, eight holders hand a want to about three of them together."""
    handed = [
        len(board(seed=seed).left(BOB.peer_id, sealed(holders=8), workers(20), at(0)))
        for seed in range(80)
    ]
    assert 20 <= sum(handed) <= 40
    assert set(handed) == {0, 1}
    many = board().left(BOB.peer_id, sealed(places=16, holders=1), workers(60), at(0))
    assert len(many) == 48


def test_wants_that_are_kept_are_bounded() -> None:
    few = AnnounceParameters(max_kept=3, max_kept_of_author=2)
    ours = board(few)
    for number in range(3):
        ours.left(BOB.peer_id, sealed(number=number), [], at(0))
    assert len(ours) == 2
    for name in ("carol", "dave"):
        ours.left(contact(name).peer_id, sealed(name), [], at(0))
    assert len(ours) == 3
    assert ours.left(MALLORY.peer_id, sealed("mallory", root=OTHER_ROOT), workers(1), at(0)) == []
    assert len(ours) == 3


# -- who answers ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("reach", "with_room", "looked_at", "expected"),
    [(300, 0, 100, 1.0), (300, 1, 100, 1.0), (300, 50, 100, 6 / 150), (50, 100, 100, 0.12)],
)
def test_as_many_answer_as_are_of_use(
    reach: int, with_room: int, looked_at: int, expected: float
) -> None:
    known = Known(workers(with_room), looked_at)
    assert chance(want_of(reach=reach), known, PARAMETERS) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("with_room", "expected"),
    [
        (0, 0.0),  # it knows none to hand it to
        (1, (6 - 0.64) / (64 * 0.25)),
        (3, (6 - 1.92) / 64),
        (50, -26 / 64),  # more hear it than are to answer
    ],
)
def test_those_that_hear_it_make_up_for_what_is_missing(with_room: int, expected: float) -> None:
    known = Known(workers(with_room), 100)
    assert chance_to_hand(want_of(reach=64), known, PARAMETERS) == pytest.approx(expected)


def test_a_want_is_handed_to_one_with_room_at_most() -> None:
    ours, want, raw = Answering(random.Random(7), PARAMETERS), want_of(reach=64), sealed()
    profiles = [profile("alice", capacity=NO_ROOM), profile("carol"), profile("bob")]
    known = ours.look(want, profiles)
    assert known == ([profiles[1]], 3)
    handed = [ours.hands(replace(want, places=16), raw, known) for _ in range(9)]
    assert handed == [[(CAROL, raw)]] * 9
    drawn = sum(len(ours.hands(want, raw, Known(workers(3), 100))) for _ in range(1_000))
    assert 30 <= drawn <= 100


def test_a_worker_draws_by_what_it_knows_of_others() -> None:
    ours = Answering(random.Random(7), PARAMETERS)
    want = want_of(reach=100)
    assert ours.draws(want, ours.look(want, workers(5, capacity=NO_ROOM)))
    drawn = sum(ours.draws(want, ours.look(want, workers(5))) for _ in range(200))
    assert 2 <= drawn <= 25


def test_offers_are_counted_by_what_became_of_them_and_bounded() -> None:
    ours = Answering(random.Random(7), AnnounceParameters(max_offers=2))
    assert [ours.may_offer(at(0)) for _ in range(3)] == [True, True, False]
    assert ours.may_offer(at(PARAMETERS.window_s))
    offers = Offers()
    for lease_id in ("a", "b", "c"):
        offers.offered(lease_id)
    offers.committed("a")
    offers.committed("another lease")
    assert offers.counts({"c"}) == OfferCounts(sent=3, won=1, lost=1)
    assert offers.counts({"c"}).score_milli == 500
    assert OfferCounts().score_milli == 0
    offers = Offers()
    for number in range(1_030):
        offers.offered(str(number))
    assert offers.counts({str(number) for number in range(1_030)}) == OfferCounts(1_030, 0, 6)

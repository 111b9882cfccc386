"""Of two records of one author, the newer counts, and the older never comes back."""

import pytest

from formation_p2p.core.errors import ReplayedRecord
from formation_p2p.core.identity import Identity
from formation_p2p.machine.core.capability import Capability, Capacity
from formation_p2p.records.core.profile import (
    MAX_TTL_S,
    Newest,
    Profile,
    SignedProfile,
    open_profile,
    seal_profile,
)
from formation_p2p.records.core.signed_fields import MAX_CLOCK_SKEW_S

NOW = 1_700_000_000
ALICE, BOB, CAROL = (Identity.from_seed(name * 32) for name in (b"a", b"b", b"c"))


def signed(author: Identity, sequence: int, *, price: int = 0) -> SignedProfile:
    profile = Profile(
        peer_id=author.peer_id,
        sequence=sequence,
        issued_unix_s=NOW,
        expires_unix_s=NOW + 120,
        capability=Capability(1000, 0),
        capacity=Capacity(1000, 0),
        price_micro=price,
    )
    return open_profile(seal_profile(author, profile), NOW)


def test_an_older_profile_is_a_replay() -> None:
    newest = Newest()
    newest.admit(signed(ALICE, 1), NOW)
    newest.admit(signed(ALICE, 2), NOW)
    with pytest.raises(ReplayedRecord, match=f"a newer profile of {ALICE.peer_id} is known"):
        newest.admit(signed(ALICE, 1), NOW)


def test_the_same_profile_may_come_again() -> None:
    newest = Newest()
    for _ in range(3):
        newest.admit(signed(ALICE, 1), NOW)
    assert len(newest) == 1


def test_two_profiles_with_one_number_are_refused() -> None:
    newest = Newest()
    newest.admit(signed(ALICE, 1), NOW)
    with pytest.raises(ReplayedRecord, match="two profiles with one sequence number"):
        newest.admit(signed(ALICE, 1, price=5), NOW)
    newest.admit(signed(ALICE, 1), NOW)


def test_one_authors_number_is_nothing_to_another() -> None:
    newest = Newest()
    newest.admit(signed(ALICE, 9), NOW)
    newest.admit(signed(BOB, 1), NOW)
    assert len(newest) == 2


def test_an_author_is_remembered_for_as_long_as_an_old_record_could_live() -> None:
    newest = Newest()
    newest.admit(signed(ALICE, 2), NOW)
    life_s = MAX_TTL_S + MAX_CLOCK_SKEW_S
    with pytest.raises(ReplayedRecord):
        newest.admit(signed(ALICE, 1), NOW + life_s - 1)
    newest.admit(signed(BOB, 1), NOW + life_s)
    assert len(newest) == 1


def test_a_full_table_forgets_whom_it_has_not_heard_from() -> None:
    newest = Newest(limit=2)
    newest.admit(signed(ALICE, 2), NOW)
    newest.admit(signed(BOB, 2), NOW)
    newest.admit(signed(ALICE, 3), NOW)
    newest.admit(signed(CAROL, 2), NOW)
    assert len(newest) == 2
    with pytest.raises(ReplayedRecord):
        newest.admit(signed(ALICE, 2), NOW)
    newest.admit(signed(BOB, 1), NOW)  # forgotten, and so admitted

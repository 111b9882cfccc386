"""Whom bob asks again, and when: alice refused, failed, fell silent, or is leaving."""

import pytest

from formation_p2p.core.refusals import (
    Busy,
    Denied,
    Faulty,
    GivingWay,
    Gone,
    Infeasible,
    Leaving,
    Preempted,
    Refusal,
    Silent,
    TooDear,
    Unwanted,
)
from formation_p2p.jobs.core.parameters import DISPATCH_DEFAULTS
from formation_p2p.leases.core.back_off import (
    DROPPED,
    EXCLUDED,
    LAST_ASKED,
    RULES,
    BackOff,
    Fault,
    Until,
)
from formation_p2p.leases.core.limits import Limits
from tests.support.stories import ALICE, CAROL, at, contact

ALICE_ID, CAROL_ID = ALICE.peer_id, CAROL.peer_id
NO_ROOM = Infeasible("cpu", 2, 1)
NO_ANSWER = Silent("it did not answer within 3.0 s")
NO_DISK = Faulty("no space left on device")
NEVER = float("inf")


@pytest.fixture
def back_off() -> BackOff:
    return BackOff(DISPATCH_DEFAULTS.max_workers)


def noted(back_off: BackOff, *refusals: Refusal, now_s: float = 0) -> float:
    """When alice may be asked again after these, one after the other at the same moment."""
    for refusal in refusals:
        back_off.note(ALICE_ID, refusal, 7, at(now_s))
    return back_off.until_s(ALICE_ID)


def test_whoever_did_nothing_wrong_may_be_asked(back_off: BackOff) -> None:
    assert back_off.until_s(ALICE_ID) < 0
    assert back_off.fault(ALICE_ID) is None
    assert back_off.reasons() == {}
    assert not back_off.heard(ALICE_ID)
    back_off.found(ALICE_ID, 8)
    back_off.succeeded(ALICE_ID)
    back_off.leased(ALICE_ID)
    assert back_off.reasons() == {}


@pytest.mark.parametrize(
    ("refusal", "fault"),
    [
        (NO_ROOM, Fault.REFUSED),
        (Busy("the table of leases", 1), Fault.REFUSED),
        (Gone("lease x", "it expired"), Fault.REFUSED),
        (Preempted(5), Fault.REFUSED),
        (TooDear(2, 1), Fault.REFUSED),
        (GivingWay("cpu", 5000), Fault.REFUSED),
        (NO_DISK, Fault.FAILED),
        (NO_ANSWER, Fault.SILENT),
        (Leaving(), Fault.LEAVING),
        (Unwanted("near", "it has none of the data"), Fault.UNWANTED),
        (Denied("submit", "no grant"), Fault.DENIED),
    ],
    ids=lambda value: type(value).__name__ if not isinstance(value, Fault) else value,
)
def test_each_refusal_is_one_fault_and_the_table_says_what_follows(
    back_off: BackOff, refusal: Refusal, fault: Fault
) -> None:
    assert back_off.note(ALICE_ID, refusal, 7, at(0)) is fault
    assert back_off.fault(ALICE_ID) is fault
    assert (fault in DROPPED) == isinstance(refusal, Leaving | Unwanted | Denied)
    assert (fault in EXCLUDED) == isinstance(refusal, Unwanted | Denied)
    assert back_off.reasons() == {ALICE_ID: refusal}
    rule = RULES[fault]
    if rule.until is not Until.TIME:
        assert back_off.until_s(ALICE_ID) == NEVER
    elif not isinstance(refusal, GivingWay):
        assert back_off.until_s(ALICE_ID) == rule.first_s


@pytest.mark.parametrize("refusal", [NO_ROOM, NO_DISK], ids=["refused", "failed"])
def test_waits_double_up_to_the_last(back_off: BackOff, refusal: Refusal) -> None:
    rule = RULES[back_off.note(CAROL_ID, refusal, 7, at(0))]
    waits = [noted(back_off, refusal) for _ in range(8)]
    doubled = [rule.first_s * 2**n for n in range(8)]
    assert waits == [min(wait, rule.last_s) for wait in doubled]


def test_a_failure_after_small_refusals_waits_no_less_than_a_first_one(back_off: BackOff) -> None:
    assert noted(back_off, GivingWay("cpu", 100), NO_DISK) == RULES[Fault.FAILED].first_s


def test_the_same_silent_worker_is_not_asked_a_third_time(back_off: BackOff) -> None:
    assert noted(back_off, NO_ANSWER) == 1.0
    assert noted(back_off, NO_ANSWER) == NEVER


@pytest.mark.parametrize("sign", ["a message", "a newer profile"])
def test_a_sign_of_life_lets_a_silent_worker_be_asked_once_more(
    back_off: BackOff, sign: str
) -> None:
    def lives() -> None:
        if sign == "a message":
            assert back_off.heard(ALICE_ID)
            assert not back_off.heard(ALICE_ID)
        else:
            back_off.found(ALICE_ID, 8)

    noted(back_off, NO_ANSWER, NO_ANSWER)
    back_off.found(ALICE_ID, 7)  # a copy of the old profile says nothing
    assert back_off.until_s(ALICE_ID) == NEVER
    lives()
    assert back_off.until_s(ALICE_ID) == 2.0
    assert back_off.fault(ALICE_ID) in LAST_ASKED
    assert noted(back_off, NO_ANSWER) == NEVER  # silent again: and so on, ever more slowly
    lives()
    assert back_off.until_s(ALICE_ID) == 4.0


def test_a_refusal_between_two_silences_is_a_sign_of_life_too(back_off: BackOff) -> None:
    assert noted(back_off, NO_ANSWER, NO_ROOM, NO_ANSWER) == 4.0


def test_who_expects_room_is_asked_when_it_has_it(back_off: BackOff) -> None:
    assert noted(back_off, GivingWay("cpu", 5200), now_s=10) == 15.2
    assert noted(back_off, GivingWay("cpu", 3_600_000), now_s=10) == 40.0
    assert noted(back_off, NO_ROOM, now_s=10) == 12.0  # no longer wait than after one refusal


def test_a_lease_makes_good_for_refusals_and_silence_but_not_for_failures(
    back_off: BackOff,
) -> None:
    noted(back_off, NO_ANSWER)
    back_off.leased(ALICE_ID)
    assert back_off.reasons() == {}
    noted(back_off, NO_DISK)
    back_off.leased(ALICE_ID)
    assert noted(back_off, NO_DISK) == 4.0
    back_off.succeeded(ALICE_ID)
    assert back_off.reasons() == {}


def test_a_success_does_not_say_that_there_is_room_and_keeps_the_waits_short(
    back_off: BackOff,
) -> None:
    assert noted(back_off, NO_ROOM, NO_ROOM) == 2.0
    back_off.succeeded(ALICE_ID)
    assert back_off.until_s(ALICE_ID) == 2.0
    assert back_off.reasons() == {ALICE_ID: NO_ROOM}
    assert noted(back_off, NO_ROOM, now_s=2) == 3.0


def test_who_leaves_is_back_when_it_announces_itself_anew(back_off: BackOff) -> None:
    """One that was started again says so too, until it works."""
    noted(back_off, Leaving())
    back_off.found(ALICE_ID, 7)  # its last profile still goes round
    back_off.heard(ALICE_ID)  # to say good-bye
    assert back_off.until_s(ALICE_ID) == 1.0
    back_off.found(ALICE_ID, 8)
    assert back_off.until_s(ALICE_ID) < 0


def test_a_denial_stands(back_off: BackOff) -> None:
    noted(back_off, Denied("submit", "no grant"))
    back_off.found(ALICE_ID, 8)
    back_off.heard(ALICE_ID)
    assert back_off.fault(ALICE_ID) in EXCLUDED
    assert back_off.until_s(ALICE_ID) == NEVER


def test_a_denial_that_says_when_it_ends_is_a_refusal_until_then(back_off: BackOff) -> None:
    full = Denied("submit", "Concurrent task limit reached: 2/2", 1000)
    closed = Denied("submit", "the grant is good at night", 90_000)
    assert back_off.note(ALICE_ID, full, 7, at(0)) is Fault.REFUSED
    assert back_off.fault(ALICE_ID) not in EXCLUDED
    assert back_off.until_s(ALICE_ID) == 1.0
    back_off.note(ALICE_ID, full, 7, at(1))
    assert back_off.until_s(ALICE_ID) == 3.0
    back_off.note(ALICE_ID, closed, 7, at(3))
    assert back_off.until_s(ALICE_ID) == 93.0


def test_the_table_forgets_the_worker_noted_longest_ago() -> None:
    assert DISPATCH_DEFAULTS.max_workers == 1024
    back_off = BackOff(2)
    for name in ("alice", "carol", "alice", "dave"):
        back_off.note(contact(name).peer_id, NO_ROOM, 0, at(0))
    assert back_off.reasons().keys() == {ALICE_ID, contact("dave").peer_id}


def test_silence_is_as_long_as_the_waits_for_it_until_something_is_heard(back_off: BackOff) -> None:
    assert back_off.silence_s(ALICE_ID) == 0
    noted(back_off, NO_ANSWER)
    assert back_off.silence_s(ALICE_ID) == 0
    noted(back_off, NO_ANSWER)
    assert back_off.silence_s(ALICE_ID) == 2
    noted(back_off, NO_ANSWER)
    assert back_off.silence_s(ALICE_ID) == 4
    back_off.found(ALICE_ID, 8)
    assert back_off.silence_s(ALICE_ID) == 0


# How often something may happen for each of many keys, in each window.


def test_each_key_has_its_own_count_until_the_window_is_over() -> None:
    limits = Limits(1, window_s=10.0, max_keys=2)
    assert not limits.is_spent("alice", 0.0)
    assert limits.admits("alice", 0.0)
    assert limits.is_spent("alice", 5.0)
    assert not limits.is_spent("bob", 5.0)
    assert not limits.admits("alice", 9.9)
    assert limits.admits("bob", 9.9)
    assert not limits.admits("carol", 9.9), "two keys are counted, and no third"
    assert not limits.is_spent("alice", 10.0)
    assert limits.admits("carol", 10.0)

"""The holders of an account: what they note, what they refuse, and how they learn from others."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from formation_p2p.features.quotas.core.messages import (
    MAX_ROWS,
    AccountRows,
    AskAccount,
    AskSlice,
    SliceAnswer,
    SliceRow,
)
from formation_p2p.features.quotas.core.quota_account import KeptAccount, SavedAccount, limit_of
from formation_p2p.features.quotas.core.quota_holder import QuotaHolder
from formation_p2p.features.quotas.core.quota_voucher import VOUCHER_S, open_voucher
from formation_p2p.leases.core.session import Send
from formation_p2p.records.core.envelope import seal
from formation_p2p.trust.core.grants import Right, Rights, attenuate, issue
from formation_p2p.trust.core.quota import NOTHING, Quota, Used
from formation_p2p.trust.core.statements import Block
from tests.support.dht_world import EPOCH_UNIX_S, NOW, contact
from tests.support.dht_world import person as identity
from tests.support.quota_world import (
    CORE,
    HOLDERS,
    HOUR,
    HOUR_MILLI_S,
    MONTH,
    PARAMETERS,
    ROOT,
    Circle,
    accounts_of,
    grant_of,
    later,
    voucher,
)

BOBS = grant_of("bob")
NAME = accounts_of(BOBS)[0].name
ALICE = contact("alice")


def lonely(**changed: int) -> QuotaHolder:
    """One that knows no other peer."""
    return Circle((), replace(PARAMETERS, **changed)).hold("hanna")


def ask(
    cpu_milli_s: int, sequence: int = 1, *, by: str = "bob", raw: bytes | None = None
) -> AskSlice:
    grant = grant_of(by)
    wanted = Used(cpu_milli_s, 0)
    return AskSlice(accounts_of(grant)[0].name, MONTH, sequence, wanted, grant, raw)


def vouched(
    cpu_milli_s: int,
    sequence: int = 1,
    *,
    by: str = "bob",
    worker: str = "alice",
    early_ms: int = 0,
) -> AskSlice:
    return ask(cpu_milli_s, sequence, by=by, raw=voucher(by, worker, early_ms=early_ms))


def answered(sent: list[Send]) -> SliceAnswer:
    [send] = sent
    assert isinstance(send.message, SliceAnswer)
    return send.message


# -- what is noted ---------------------------------------------------------------------------------


def test_what_a_worker_wants_is_noted_with_its_bearers_word() -> None:
    holder = lonely()
    answer = answered(holder.received(ALICE, vouched(60_000), later(0)))
    assert (answer.is_kept, answer.total) == (True, Used(60_000, 0))
    again = answered(holder.received(ALICE, vouched(60_000), later(0)))  # its answer was lost
    assert again.is_kept
    late = answered(holder.received(ALICE, vouched(50_000, 0), later(0)))
    assert (late.is_kept, late.total) == (False, Used(60_000, 0))


def test_without_a_word_nothing_more_is_noted_and_less_is() -> None:
    holder = lonely()
    stranger = answered(holder.received(ALICE, ask(60_000), later(0)))
    assert (stranger.is_kept, stranger.could, len(holder)) == (False, limit_of(HOUR), 0)
    holder.received(ALICE, vouched(60_000), later(0))
    assert not answered(holder.received(ALICE, ask(700_000, 2), later(0))).is_kept
    less = answered(holder.received(ALICE, ask(10_000, 3), later(0)))
    assert (less.is_kept, less.total) == (True, Used(10_000, 0))


def test_a_word_is_good_for_as_much_as_its_leases_reserve_and_once() -> None:
    """What a worker gains that takes slices of a grant without using them."""
    holder = lonely()
    most = VOUCHER_S * CORE.cpu_milli_s
    raw = voucher("bob", "alice")
    refused = answered(holder.received(ALICE, ask(most + 1, 1, raw=raw), later(0)))
    assert (refused.is_kept, refused.could) == (False, NOTHING + Used(most, 0))
    assert answered(holder.received(ALICE, ask(most, 2, raw=raw), later(0))).is_kept
    assert not answered(holder.received(ALICE, ask(most + 1, 3, raw=raw), later(0))).is_kept
    newer = voucher("bob", "alice", early_ms=-7000)  # a renewal later
    assert not answered(holder.received(ALICE, ask(most + 7001, 4, raw=newer), later(7))).is_kept
    assert answered(holder.received(ALICE, ask(most + 7000, 5, raw=newer), later(7))).is_kept


@pytest.mark.parametrize(
    "raw",
    [
        b"rubbish",
        seal(identity("bob"), "formation-quota-voucher", b"/formation/quota-voucher/1", b"\x01"),
        voucher("mallory", "alice"),
        voucher("bob", "carol"),
        voucher("bob", "alice", early_ms=VOUCHER_S * 1000),
        voucher("bob", "alice", early_ms=-90_000),
    ],
)
def test_a_word_that_does_not_count_is_none(raw: bytes) -> None:
    holder = lonely()
    assert not answered(holder.received(ALICE, ask(1, raw=raw), later(0))).is_kept
    assert len(holder) == 0


def test_the_word_of_one_who_may_not_submit_is_none() -> None:
    rights = Rights(int(EPOCH_UNIX_S) + 10**6, may=frozenset({Right.WORK}), quota=HOUR)
    grant = issue(ROOT, rights, identity("bob").peer_id)
    message = AskSlice(accounts_of(grant)[0].name, MONTH, 1, CORE, grant, voucher("bob", "alice"))
    assert not answered(lonely().received(ALICE, message, later(0))).is_kept


@pytest.mark.parametrize(
    "message",
    [
        replace(vouched(1), grant=b"rubbish"),
        replace(vouched(1), grant=grant_of("carol")),  # which has no such account
        replace(vouched(1), grant=grant_of("bob", Quota(leases=1))),
        replace(vouched(1), month="2023-10"),
    ],
)
def test_what_makes_no_sense_is_not_answered(message: AskSlice) -> None:
    assert lonely().received(ALICE, message, later(0)) == []


def test_the_quota_is_never_handed_out_twice() -> None:
    holder = lonely()
    parts = [f"worker {n}" for n in range(10)]
    kept = 0
    for name in parts:
        asks = vouched(500_000, worker=name)
        answer = answered(holder.received(contact(name), asks, later(0)))
        kept += answer.is_kept
        assert answer.total.cpu_milli_s <= HOUR_MILLI_S
    assert kept == HOUR_MILLI_S // 500_000
    last = answered(holder.received(contact("last"), vouched(1, worker="last"), later(0)))
    assert (last.is_kept, last.could) == (True, Used(100_000, 0))


def test_an_account_has_so_many_rows() -> None:
    account = KeptAccount("", 4)
    learnt = [SliceRow(contact(f"w{n}").peer_id, 1, NOTHING) for n in range(MAX_ROWS)]
    account.learn([learnt], 1, 0.0)
    assert len(account) == MAX_ROWS
    word = open_voucher(voucher("bob", "alice"), EPOCH_UNIX_S)
    assert not account.note(ALICE.peer_id, 1, CORE, HOUR, word, EPOCH_UNIX_S).is_kept
    account.learn([[SliceRow(contact("another").peer_id, 1, NOTHING)]], 1, 0.0)
    assert len(account) == MAX_ROWS


def test_who_has_seen_a_grant_takes_no_rows_of_its_accounts() -> None:
    """Each worker that its bearer asked has; ids are free, and need no grant of their own."""
    holder = lonely(max_from_invitation=2 * MAX_ROWS)
    assert answered(holder.received(ALICE, vouched(1000), later(0))).is_kept
    for number in range(MAX_ROWS):
        holder.received(contact(f"stranger {number}"), ask(0), later(0))
    message = vouched(1000, worker="arthur")
    assert answered(holder.received(contact("arthur"), message, later(0))).is_kept


def test_so_many_bearers_share_a_worker_and_places_come_free() -> None:
    account = KeptAccount("", 1)
    first, second = (open_voucher(voucher(each, "alice"), EPOCH_UNIX_S) for each in ("bob", "dave"))
    assert account.note(ALICE.peer_id, 1, CORE, HOUR, first, EPOCH_UNIX_S).is_kept
    most = Used(VOUCHER_S * 1000 + 1, 0)
    assert not account.note(ALICE.peer_id, 2, most, HOUR, second, EPOCH_UNIX_S).is_kept
    after_s = EPOCH_UNIX_S + VOUCHER_S + 1
    third = open_voucher(voucher("dave", "alice", at=later(VOUCHER_S + 1)), after_s)
    assert account.note(ALICE.peer_id, 3, most, HOUR, third, after_s).is_kept


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 4 * 10**6)), max_size=30))
def test_the_total_is_the_sum_of_the_rows_and_within_the_quota(
    steps: list[tuple[int, int]],
) -> None:
    account = KeptAccount("", 4)
    for sequence, (who, wanted) in enumerate(steps):
        name = f"w{who}"
        word = open_voucher(voucher("bob", name, Used(4000, 0)), EPOCH_UNIX_S)
        worker = contact(name).peer_id
        account.note(worker, sequence, Used(wanted, 0), HOUR, word, EPOCH_UNIX_S)
        rows = account.rows()
        assert sum(row.used.cpu_milli_s for row in rows) == account.total.cpu_milli_s
        assert account.total.cpu_milli_s <= HOUR_MILLI_S


# -- bounds ----------------------------------------------------------------------------------------


def test_who_asks_too_often_is_not_answered_for_a_while() -> None:
    holder = lonely(max_from_peer=3, max_from_all=5)
    mallory, asks = contact("mallory"), AskAccount(NAME, MONTH, grant_of("mallory"))
    counts = [len(holder.received(mallory, asks, later(0))) for _ in range(5)]
    assert counts == [1, 1, 1, 0, 0]
    assert answered(holder.received(ALICE, vouched(1), later(0))).is_kept
    holder.received(ALICE, vouched(1), later(0))
    own = AskAccount(NAME, MONTH, grant_of("carol"))
    assert holder.received(contact("carol"), own, later(0)) == []  # all together
    assert answered(holder.received(ALICE, vouched(1), later(11))).is_kept


def test_strangers_do_not_use_up_the_time_for_members() -> None:
    """Their ids are free: each is counted by itself alone."""
    holder = lonely(max_from_all=1)
    for number in range(10):
        stranger = contact(f"stranger{number}")
        assert holder.received(stranger, replace(vouched(1), grant=b"none"), later(0)) == []
        assert holder.received(stranger, AskAccount(NAME, MONTH, b"none"), later(0)) == []
    assert answered(holder.received(ALICE, vouched(1), later(0))).is_kept


def test_who_has_a_copy_of_a_grant_uses_up_the_time_of_its_invitation_alone() -> None:
    holder = lonely(max_from_invitation=3)
    for number in range(10):
        asks = ask(1, by="carol")
        assert len(holder.received(contact(f"stranger{number}"), asks, later(0))) == (number < 3)
    assert holder.received(ALICE, vouched(1, by="carol"), later(0)) == []
    assert answered(holder.received(ALICE, vouched(1), later(0))).is_kept


def test_the_accounts_of_one_invitation_push_out_only_each_other() -> None:
    holder = lonely(max_of_invitation=1, max_accounts=3, max_rows=2)
    for name in ("bob", "carol", "dave"):
        holder.received(ALICE, vouched(1, by=name), later(0))
    assert len(holder) == 2  # by rows
    known = holder.received(ALICE, ask(0, 2, by="dave"), later(0))
    assert answered(known).is_kept
    assert answered(holder.received(ALICE, ask(0, 2), later(0))).could == limit_of(HOUR)
    both = lonely(max_accounts=1)
    for name in ("bob", "carol"):
        both.received(ALICE, vouched(1, by=name), later(0))
    assert len(both) == 1


def test_each_row_takes_one_place() -> None:
    holder = lonely(max_rows=3)
    for worker in ("alice", "carol"):
        holder.received(contact(worker), vouched(1, worker=worker), later(0))
    holder.received(ALICE, vouched(1, by="dave"), later(0))
    assert len(holder) == 2


def test_of_one_invitation_the_oldest_account_goes() -> None:
    narrowed = attenuate(BOBS, ROOT.public_key, Block(quota=Quota(cpu_milli_hours=500)))
    first, second = accounts_of(narrowed)
    holder = lonely(max_of_invitation=1)
    raw = voucher("bob", "alice")
    for account in (first, second):
        asks = AskSlice(account.name, MONTH, 1, CORE, narrowed, raw)
        assert answered(holder.received(ALICE, asks, later(0))).is_kept
    assert len(holder) == 1


def test_what_is_over_is_forgotten() -> None:
    holder = lonely()
    holder.received(ALICE, vouched(1), later(0))
    month_s = 30 * 86_400
    raw = voucher("carol", "alice", at=later(month_s))
    grant = grant_of("carol")
    asks = AskSlice(accounts_of(grant)[0].name, "2023-12", 1, CORE, grant, raw)
    assert answered(holder.received(ALICE, asks, later(month_s))).is_kept
    assert len(holder) == 1


# -- holders among themselves ----------------------------------------------------------------------


def one() -> Circle:
    circle = Circle()
    circle.work("alice")
    circle.lease("alice", "bob", BOBS)
    return circle


def test_a_holder_that_comes_anew_learns_what_the_others_know() -> None:
    circle = one()
    anew = circle.hold("hanna", *HOLDERS)
    circle.work("carol")
    circle.lease("carol", "bob", BOBS)
    assert circle.status("carol").total.cpu_milli_s > circle.status("carol").allowed.cpu_milli_s
    [told] = anew.received(contact("hugo"), AskAccount(NAME, MONTH, grant_of("hugo")), circle.now)
    assert isinstance(told.message, AccountRows)
    assert {row.worker for row in told.message.rows} == {
        contact("alice").peer_id,
        contact("carol").peer_id,
    }


def test_who_is_silent_is_not_waited_for_long() -> None:
    circle = one()
    anew = circle.hold("hanna", *HOLDERS)
    circle.lost = lambda passed: isinstance(passed.message, AccountRows)
    for sequence in (5, 6):
        sent = anew.received(ALICE, vouched(1000, sequence), circle.now)
        assert all(isinstance(each.message, AskAccount) for each in sent)
    told = anew.received(contact("hugo"), AskAccount(NAME, MONTH, grant_of("hugo")), circle.now)
    assert told[0].message == AccountRows(NAME, MONTH, False, ())
    [answer] = anew.tick(later(PARAMETERS.learn_s))
    assert isinstance(answer.message, SliceAnswer)
    assert (answer.message.sequence, answer.message.is_kept) == (6, True)
    assert anew.next_timeout() == float("inf")


def test_only_so_many_workers_wait_for_it() -> None:
    circle = Circle(HOLDERS, replace(PARAMETERS, max_waiting=1))
    anew = circle.hold("hanna", *HOLDERS)
    anew.received(ALICE, vouched(1), circle.now)
    anew.received(contact("carol"), vouched(1, worker="carol"), circle.now)
    [answer] = anew.tick(later(PARAMETERS.learn_s))
    assert answer.to == ALICE


def test_what_was_not_asked_for_is_not_learnt() -> None:
    circle = Circle()
    anew = circle.holders["hanna"]
    rows = AccountRows(NAME, MONTH, True, (SliceRow(ALICE.peer_id, 9, CORE),))
    assert anew.received(contact("hugo"), rows, circle.now) == []
    anew.received(ALICE, vouched(1), circle.now)
    assert anew.received(contact("mallory"), rows, circle.now) == []
    assert anew.received(contact("hugo"), rows, circle.now) == []
    assert anew.received(contact("hugo"), rows, circle.now) == []  # once


def test_a_stranger_learns_nothing_of_an_account() -> None:
    asks = AskAccount(NAME, MONTH, b"rubbish")
    assert lonely().received(contact("mallory"), asks, later(0)) == []


def row(cpu_milli_s: int, sequence: int = 1) -> SliceRow:
    return SliceRow(ALICE.peer_id, sequence, Used(cpu_milli_s, 0))


@pytest.mark.parametrize(
    ("answers", "learnt"),
    [
        ([[row(5)]] * 5, 5),  # a majority noted it, and two are silent
        ([[row(5)]] * 5 + [[]] * 2, 5),
        ([[row(5)]] * 3 + [[]] * 4, 5),
        ([[row(9, 2)]] + [[row(5)]] * 6, 5),  # one lies, or noted what a majority did not
        ([[row(9, 2)]] + [[]] * 6, 0),
        ([[row(9, 2)]] * 5, 9),
        ([[row(9, 2), row(5)]] * 7, 5),  # twice in one answer: the last
        ([], 0),
    ],
)
def test_a_row_counts_where_enough_say_it(answers: list[list[SliceRow]], learnt: int) -> None:
    account = KeptAccount("", 4)
    account.learn(answers, 8, 0.0)
    assert account.total.cpu_milli_s == learnt


def test_who_cannot_be_reached_is_not_waited_for() -> None:
    anew = Circle().hold("hanna", *HOLDERS)
    asks = anew.received(ALICE, vouched(1), later(0))
    assert len(asks) == len(HOLDERS) - 1
    answers = [anew.undelivered(each.to.peer_id, later(0)) for each in asks]
    assert [len(each) for each in answers] == [0] * 6 + [1]
    assert answered(answers[-1]).is_kept


def test_a_holder_looks_at_what_the_others_have_noted_now_and_then() -> None:
    circle = one()
    asks = AskAccount(NAME, MONTH, grant_of("hugo"))
    circle.lost = lambda passed: passed.to == contact("hanna")
    circle.work("carol")
    circle.lease("carol", "bob", BOBS)
    circle.elapse(PARAMETERS.learn_again_s)
    circle.lost = lambda passed: False
    circle.use("alice", "bob", BOBS, Used(300_000, 0))
    [told] = circle.holders["hanna"].received(contact("hugo"), asks, circle.now)
    assert isinstance(told.message, AccountRows)
    assert contact("carol").peer_id in {row.worker for row in told.message.rows}


def test_what_was_noted_is_known_after_all_holders_have_begun_anew_at_once() -> None:
    circle = one()
    used = circle.status("alice").total
    saved = {name: holder.unsaved() for name, holder in circle.holders.items()}
    assert all(holder.unsaved() == [] for holder in circle.holders.values())
    for name, kept in saved.items():
        circle.hold(name, *HOLDERS).recalled(kept, circle.now)
    circle.work("carol")
    circle.lease("carol", "bob", BOBS)
    assert circle.status("carol").total == used + circle.status("carol").allowed


def test_an_account_of_another_month_or_too_many_are_not_recalled() -> None:
    rows = (SliceRow(ALICE.peer_id, 9, CORE),)
    bound = lonely(max_accounts=1)
    before = SavedAccount("bob", "2020-01", "block", rows)
    accounts = [SavedAccount(name, MONTH, "block", rows) for name in ("bob", "bob", "carol")]
    bound.recalled([before, *accounts], NOW)
    assert len(bound) == 1
    assert bound.unsaved() == []

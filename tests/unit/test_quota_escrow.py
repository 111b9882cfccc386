"""Quotas over the network: a worker asks for slices, and an account's holders hand them out."""

from dataclasses import replace
from datetime import UTC, datetime

import pytest

from formation_p2p.features.quotas.core.messages import (
    AccountRows,
    AskAccount,
    AskSlice,
    SliceAnswer,
)
from formation_p2p.features.quotas.core.quota_status import Verdict
from formation_p2p.features.quotas.core.quota_voucher import VOUCHER_S
from formation_p2p.trust.core.quota import NOTHING, Quota, Used
from tests.support.dht_world import contact
from tests.support.quota_world import (
    CORE,
    HOLDERS,
    HOUR_MILLI_S,
    MONTH,
    PARAMETERS,
    Circle,
    Passed,
    accounts_of,
    grant_of,
    later,
    voucher,
)

BOBS = grant_of("bob")
# Holders of the other side of a partition.
OTHERS = ("ida", "ingo", "ines", "ilja", "isa", "ivo", "iris", "ian")
# A sixteenth of an hour's quota is less than five minutes.
FIRST = HOUR_MILLI_S // PARAMETERS.parts


def asked(circle: Circle) -> int:
    return sum(isinstance(each.message, AskSlice) for each in circle.passed)


def one() -> Circle:
    """Eight holders, and alice, of whom bob has a lease."""
    circle = Circle()
    circle.work("alice")
    circle.lease("alice", "bob", BOBS)
    return circle


def test_a_worker_has_a_slice_before_its_lease_has_used_anything() -> None:
    circle = one()
    status = circle.status("alice")
    assert (status.verdict, status.allowed.cpu_milli_s) == (Verdict.HELD, FIRST)
    assert status.total.cpu_milli_s == FIRST
    assert circle.denied("alice", BOBS) is None
    assert all(len(holder) == 1 for holder in circle.holders.values())
    assert circle.escrows["alice"].counts == {"held": 1, "refused": 0, "unanswered": 0}


@pytest.mark.parametrize(("milli_hours", "slice_s"), [(50, 20), (10_000, 300)])
def test_a_slice_is_neither_too_short_to_be_of_use_nor_long(milli_hours: int, slice_s: int) -> None:
    circle = Circle()
    circle.work("alice")
    circle.lease("alice", "bob", grant_of("bob", Quota(cpu_milli_hours=milli_hours)))
    assert circle.status("alice").allowed == Used(slice_s * CORE.cpu_milli_s, 0)


def test_the_next_slice_is_asked_for_just_before_the_last_is_used_up() -> None:
    circle = one()
    circle.passed.clear()
    circle.use("alice", "bob", BOBS, Used(100_000, 0))
    assert not circle.passed
    circle.use("alice", "bob", BOBS, Used(115_000, 0))  # with 10 s left
    assert circle.status("alice").allowed.cpu_milli_s > FIRST


@pytest.mark.at_length
def test_two_workers_together_have_no_more_than_the_quota() -> None:
    circle = Circle()
    for name in ("alice", "carol"):
        circle.work(name)
        circle.lease(name, "bob", BOBS)
    for _ in range(100):
        for name in ("alice", "carol"):
            if circle.denied(name, BOBS) is None:
                circle.use(name, "bob", BOBS, Used(20_000, 0))
            else:
                circle.escrows[name].ended("bob", circle.now)
        circle.elapse(20)
    used = [circle.used[name][accounts_of(BOBS)[0].name] for name in ("alice", "carol")]
    spent = sum(each.cpu_milli_s for each in used)
    assert HOUR_MILLI_S <= spent <= HOUR_MILLI_S + 2 * 20_000
    why = circle.denied("alice", BOBS)
    assert why == "CPU quota used in the network: 1.0 of 1.0 h, until 2023-12-01"
    assert circle.status("alice").verdict is Verdict.SPENT


@pytest.mark.at_length
@pytest.mark.parametrize("others", [OTHERS, OTHERS[:4]])
def test_a_partition_hands_a_quota_out_once_for_each_side_and_no_more_once_it_heals(
    others: tuple[str, ...],
) -> None:
    circle = Circle(())
    for worker, side in (("alice", HOLDERS), ("carol", others)):
        for name in side:
            circle.hold(name, *side)
        circle.work(worker, *side)
        circle.lease(worker, "bob", BOBS)

    def use(workers: tuple[str, ...]) -> list[int]:
        for _ in range(100):
            for name in workers:
                if circle.denied(name, BOBS) is None:
                    circle.use(name, "bob", BOBS, Used(67_000, 0))
            circle.elapse(67)
        account = accounts_of(BOBS)[0].name
        return [circle.used[name].get(account, NOTHING).cpu_milli_s for name in workers]

    apart = use(("alice", "carol"))
    assert all(HOUR_MILLI_S <= each <= HOUR_MILLI_S + 67_000 for each in apart)
    circle.meet()
    circle.work("dave", *circle.holders)
    circle.lease("dave", "bob", BOBS)
    assert use(("alice", "carol", "dave")) == [*apart, 0]
    assert circle.status("dave").total.cpu_milli_s == 2 * HOUR_MILLI_S


@pytest.mark.at_length
def test_a_worker_that_begins_again_has_used_what_it_has_used() -> None:
    """It does not know what was noted for it; where all is used up, it is not to give that back."""
    quarter = grant_of("bob", Quota(cpu_milli_hours=250))
    limit = HOUR_MILLI_S // 4
    circle = Circle()
    for name in ("alice", "carol"):
        circle.work(name)
        circle.lease(name, "bob", quarter)
    for step in range(150):
        if step in (90, 120):
            circle.work("alice")
            circle.lease("alice", "bob", quarter)
        for name in ("alice", "carol"):
            if circle.denied(name, quarter) is None:
                circle.use(name, "bob", quarter, Used(6700, 0))
        circle.elapse(6.7)
    account = accounts_of(quarter)[0].name
    spent = sum(circle.used[name][account].cpu_milli_s for name in ("alice", "carol"))
    assert limit <= spent <= limit + 4 * 6700


def test_a_worker_that_begins_again_gives_back_what_it_left() -> None:
    circle = one()
    circle.use("alice", "bob", BOBS, Used(5000, 0))
    circle.work("alice")  # killed, with a slice
    circle.lease("alice", "bob", BOBS)
    circle.use("alice", "bob", BOBS, Used(5000, 0))
    circle.escrows["alice"].ended("bob", circle.now)
    circle.elapse(PARAMETERS.give_back_s + 1)
    assert circle.status("alice").total == Used(10_000, 0)


def test_what_is_left_of_a_slice_is_given_back_after_the_last_lease() -> None:
    circle = one()
    circle.use("alice", "bob", BOBS, Used(5000, 0))
    circle.escrows["alice"].ended("bob", circle.now)
    circle.escrows["alice"].ended("bob", circle.now)  # again
    circle.elapse(PARAMETERS.give_back_s + 1)
    assert circle.status("alice").total == Used(5000, 0)
    before = asked(circle)
    circle.elapse(100)
    assert asked(circle) == before


def test_a_lease_that_follows_goes_on_with_the_slice() -> None:
    circle = one()
    circle.escrows["alice"].ended("bob", circle.now)
    circle.elapse(PARAMETERS.give_back_s / 2)
    before = asked(circle)
    circle.lease("alice", "bob", BOBS)
    circle.elapse(PARAMETERS.give_back_s)
    assert asked(circle) == before


def test_a_worker_that_leaves_gives_back_without_waiting() -> None:
    circle = one()
    circle.escrows["alice"].leave(circle.now)
    circle.settle()
    circle.work("carol")
    circle.lease("carol", "bob", BOBS)
    assert circle.status("carol").total.cpu_milli_s == FIRST


def test_where_the_holders_are_gone_the_workers_own_count_stands() -> None:
    circle = Circle()
    circle.lost = lambda passed: True
    circle.work("alice")
    circle.lease("alice", "bob", BOBS)
    circle.elapse(PARAMETERS.answer_s)
    assert circle.status("alice").verdict is Verdict.ALONE
    circle.use("alice", "bob", BOBS, Used(10 * FIRST, 0))
    assert circle.denied("alice", BOBS) is None
    circle.lost = lambda passed: False
    circle.use("alice", "bob", BOBS, NOTHING)
    assert circle.status("alice").verdict is Verdict.ALONE  # not asked again at once
    circle.elapse(PARAMETERS.alone_s)
    circle.use("alice", "bob", BOBS, NOTHING)
    assert circle.status("alice").verdict is Verdict.HELD
    assert circle.status("alice").allowed.cpu_milli_s == FIRST  # from now on


def test_a_worker_that_knows_no_peer_counts_alone() -> None:
    circle = Circle(())
    circle.work("alice")
    circle.lease("alice", "bob", BOBS)
    assert circle.status("alice").verdict is Verdict.ALONE
    assert circle.denied("alice", BOBS) is None


def test_a_majority_decides_whatever_the_others_say() -> None:
    circle = Circle()
    silent = {contact(name).peer_id for name in HOLDERS[:3]}
    circle.lost = lambda passed: passed.to.peer_id in silent
    circle.work("alice")
    circle.lease("alice", "bob", BOBS)
    circle.elapse(PARAMETERS.learn_s)  # the others wait for what the three know
    assert circle.status("alice").verdict is Verdict.HELD
    silent = {contact(name).peer_id for name in HOLDERS[:4]}
    circle.elapse(1)
    circle.use("alice", "bob", BOBS, Used(FIRST, 0))
    circle.elapse(PARAMETERS.answer_s)
    assert circle.status("alice").verdict is Verdict.ALONE
    assert circle.escrows["alice"].counts["unanswered"] == 1


def test_three_holders_that_refuse_harm_none() -> None:
    circle = Circle()
    circle.work("alice")
    liars = {contact(name).peer_id for name in HOLDERS[:3]}

    def lie(passed: Passed) -> bool:
        message = passed.message
        if isinstance(message, SliceAnswer) and passed.sender.peer_id in liars:
            high = Used(10**12, 0)
            passed.message = replace(message, is_kept=False, could=NOTHING, total=high)
        return False

    circle.lost = lie
    circle.lease("alice", "bob", BOBS)
    assert circle.status("alice").allowed.cpu_milli_s == FIRST
    assert circle.status("alice").verdict is Verdict.HELD


def test_answers_of_others_and_to_other_requests_count_for_nothing() -> None:
    circle = one()
    escrow, before = circle.escrows["alice"], circle.status("alice")
    [first] = [each.message for each in circle.passed if isinstance(each.message, SliceAnswer)][:1]
    escrow.answered(contact("hanna"), first, circle.now)  # it is over
    circle.lost = lambda passed: isinstance(passed.message, SliceAnswer)
    circle.use("alice", "bob", BOBS, Used(FIRST, 0))
    [asks] = [each.message for each in circle.passed if isinstance(each.message, AskSlice)][-1:]
    forged = replace(first, sequence=asks.sequence, is_kept=True)
    for name in ("mallory", "zoe", "eve", "oscar", "trudy"):
        escrow.answered(contact(name), forged, circle.now)
    for _ in range(8):
        escrow.answered(contact("hanna"), forged, circle.now)
    escrow.answered(contact("hanna"), replace(forged, account="another"), circle.now)
    assert circle.status("alice") == before


@pytest.mark.at_length
def test_after_a_refusal_the_holders_are_asked_again_in_a_while() -> None:
    circle = Circle()
    for name in ("alice", "carol"):
        circle.work(name)
    circle.lease("alice", "bob", BOBS)
    for _ in range(60):
        circle.use("alice", "bob", BOBS, Used(67_000, 0))
        circle.elapse(67)
    circle.lease("carol", "bob", BOBS)
    circle.use("carol", "bob", BOBS, Used(6700, 0))
    assert circle.denied("carol", BOBS) is not None
    circle.escrows["carol"].ended("bob", circle.now)
    # Someone gives back, and carol finds out when she is asked for another lease.
    [account] = accounts_of(BOBS)
    circle.used["alice"][account.name] = Used(FIRST, 0)
    circle.escrows["alice"].ended("bob", circle.now)
    circle.elapse(PARAMETERS.give_back_s + 1)
    assert circle.denied("carol", BOBS) is not None
    circle.elapse(PARAMETERS.spent_s)
    assert circle.denied("carol", BOBS) is not None  # she asks
    assert circle.denied("carol", BOBS) is None
    circle.lease("carol", "bob", BOBS)
    assert circle.status("carol").verdict is Verdict.HELD


def test_a_bearer_that_signs_nothing_uses_nothing() -> None:
    circle = Circle()
    escrow = circle.work("alice")
    escrow.began("lease", contact("bob").peer_id, accounts_of(BOBS), CORE, circle.now)
    circle.settle()
    assert not circle.passed
    assert circle.denied("alice", BOBS) is None
    circle.used["alice"][accounts_of(BOBS)[0].name] = Used(6700, 0)
    assert circle.denied("alice", BOBS) == (
        "the grant's bearer has not signed for the hours of its quota at this worker"
    )
    circle.vouch("alice", "bob", BOBS)
    assert circle.denied("alice", BOBS) is None


@pytest.mark.parametrize(
    "raw",
    [
        b"rubbish",
        voucher("mallory", "alice"),  # of another peer
        voucher("bob", "carol"),  # for another worker
        voucher("bob", "alice", at=later(-601)),
        voucher("bob", "alice", at=later(601)),
    ],
)
def test_a_voucher_that_is_none_is_not_kept(raw: bytes) -> None:
    circle = Circle()
    escrow = circle.work("alice")
    escrow.extended(contact("bob").peer_id, accounts_of(BOBS), BOBS, raw, circle.now)
    escrow.began("lease", contact("bob").peer_id, accounts_of(BOBS), CORE, circle.now)
    circle.settle()
    assert not circle.passed


def test_a_new_month_begins_with_nothing() -> None:
    circle = one()
    circle.elapse(30 * 86_400)
    assert circle.denied("alice", BOBS) is None
    status = circle.status("alice")
    assert (status.month, status.allowed, status.verdict) == ("2023-12", NOTHING, Verdict.ALONE)


def test_in_a_new_month_a_worker_that_counts_alone_asks_at_once() -> None:
    circle = Circle(())
    month_ends = datetime(2023, 12, 1, tzinfo=UTC).timestamp()
    escrow = circle.work("alice")
    circle.elapse(month_ends - circle.now.unix_s - 1)
    circle.lease("alice", "bob", BOBS)
    circle.use("alice", "bob", BOBS, Used(1000, 0))
    assert escrow.counts["unanswered"] == 1
    circle.elapse(2)
    circle.use("alice", "bob", BOBS, Used(1000, 0))
    assert escrow.counts["unanswered"] == 2


def test_leases_of_grants_without_a_quota_ask_for_nothing() -> None:
    circle = Circle()
    escrow = circle.work("alice")
    escrow.began("lease", contact("bob").peer_id, (), CORE, circle.now)
    escrow.charged("lease", circle.now)
    escrow.ended("lease", circle.now)
    assert escrow.status() == ()
    assert escrow.next_timeout() == float("inf")


def test_gpu_hours_are_counted_apart() -> None:
    both = Quota(cpu_milli_hours=1000, gpu_milli_hours=10)
    grant = grant_of("bob", both)
    circle = Circle()
    circle.work("alice")
    reserved = Used(1000, 1000)
    circle.lease("alice", "bob", grant, reserved)
    [account] = accounts_of(grant)
    for _ in range(10):
        circle.vouch("alice", "bob", grant, reserved)
        used = circle.used["alice"].get(account.name, NOTHING)
        circle.used["alice"][account.name] = used + Used(6700, 6700)
        circle.escrows["alice"].charged("bob", circle.now)
        circle.settle()
        circle.elapse(6.7)
    why = circle.denied("alice", grant, takes_gpu=True)
    assert why == "GPU quota used in the network: 0.01 of 0.01 h, until 2023-12-01"
    assert circle.denied("alice", grant) is None


def test_a_quota_of_gpus_alone_limits_no_cores() -> None:
    grant = grant_of("bob", Quota(gpu_milli_hours=1000))
    circle = Circle()
    circle.work("alice")
    circle.lease("alice", "bob", grant)
    assert not circle.passed  # it takes no GPU
    circle.lease("alice", "bob", grant, Used(1000, 1000))
    assert circle.status("alice").allowed.gpu_milli_s == FIRST


def test_a_quota_that_the_charter_changes_counts_from_then_on() -> None:
    circle = one()
    [account] = accounts_of(BOBS)
    fewer = replace(account, quota=Quota(cpu_milli_hours=500))
    escrow, bob = circle.escrows["alice"], contact("bob").peer_id
    escrow.began("another", bob, (fewer,), CORE, circle.now)
    assert circle.status("alice").quota == fewer.quota


def test_accounts_without_leases_are_forgotten_where_there_are_too_many() -> None:
    circle = Circle(HOLDERS, replace(PARAMETERS, max_asked_for=2))
    escrow = circle.work("alice")
    for name in ("bob", "carol", "dave"):
        circle.lease("alice", name, grant_of(name, Quota(cpu_milli_hours=1000)))
    assert len(escrow.status()) == 3  # each has a lease
    escrow.ended("bob", circle.now)
    circle.lease("alice", "erin", grant_of("erin"))
    assert len(escrow.status()) == 3
    assert circle.escrows["alice"].used_up(accounts_of(BOBS)[0], NOTHING, False, circle.now) is None


def test_one_of_two_leases_ends_and_nothing_is_given_back() -> None:
    circle = one()
    escrow = circle.escrows["alice"]
    circle.vouch("alice", "bob", BOBS, Used(2000, 0))
    escrow.began("second", contact("bob").peer_id, accounts_of(BOBS), CORE, circle.now)
    escrow.ended("second", circle.now)
    before = asked(circle)
    circle.elapse(2 * PARAMETERS.give_back_s)
    assert asked(circle) == before


def test_a_bearer_that_signs_for_less_than_it_leases_is_not_believed() -> None:
    circle = one()
    circle.used["alice"][accounts_of(BOBS)[0].name] = Used(FIRST + 1, 0)
    circle.elapse(VOUCHER_S)
    circle.vouch("alice", "bob", BOBS, Used(999, 0))
    assert circle.denied("alice", BOBS) is not None
    circle.vouch("alice", "bob", BOBS, CORE)
    assert circle.denied("alice", BOBS) is None


def test_a_bearer_signs_for_its_own_leases_alone() -> None:
    circle = one()
    carols = grant_of("carol")
    circle.lease("alice", "carol", carols)
    [account] = accounts_of(carols)
    circle.used["alice"][account.name] = Used(FIRST + 1, 0)
    circle.elapse(VOUCHER_S)
    assert circle.denied("alice", carols) is not None
    circle.vouch("alice", "carol", carols, CORE)
    assert circle.denied("alice", carols) is None


def test_each_holder_is_told_in_the_end_or_given_up() -> None:
    circle = one()
    deaf = contact("hanna").peer_id
    circle.lost = lambda passed: passed.to.peer_id == deaf
    circle.use("alice", "bob", BOBS, Used(FIRST, 0))
    circle.lost = lambda passed: False
    circle.elapse(PARAMETERS.again_s)
    [account] = accounts_of(BOBS)
    asks = AskAccount(account.name, MONTH, grant_of("hugo"))
    [told] = circle.holders["hanna"].received(contact("hugo"), asks, circle.now)
    assert isinstance(told.message, AccountRows)
    assert [row.used for row in told.message.rows] == [circle.status("alice").allowed]
    circle.lost = lambda passed: passed.to.peer_id == deaf
    circle.use("alice", "bob", BOBS, Used(FIRST, 0))
    circle.elapse(PARAMETERS.answer_s)
    before = asked(circle)
    circle.elapse(PARAMETERS.answer_s)
    assert asked(circle) == before


def test_what_some_noted_and_a_majority_refused_is_taken_back() -> None:
    """Three holders know less than the others, who have handed out the whole quota."""
    circle = Circle(HOLDERS, replace(PARAMETERS, learn_again_s=1e9))
    circle.work("alice")
    circle.lease("alice", "bob", BOBS)
    few = {contact(name).peer_id for name in HOLDERS[:3]}
    circle.lost = lambda passed: bool({passed.to.peer_id, passed.sender.peer_id} & few)
    for _ in range(60):
        if circle.denied("alice", BOBS) is None:
            circle.use("alice", "bob", BOBS, Used(67_000, 0))
        circle.elapse(67)
    assert circle.status("alice").verdict is Verdict.SPENT
    circle.lost = lambda passed: False
    circle.work("carol")
    circle.lease("carol", "bob", BOBS)
    status = circle.status("carol")
    assert (status.verdict, status.allowed) == (Verdict.SPENT, NOTHING)
    asks = AskAccount(accounts_of(BOBS)[0].name, MONTH, grant_of("hugo"))
    for name in HOLDERS:
        [told] = circle.holders[name].received(contact("hugo"), asks, circle.now)
        assert isinstance(told.message, AccountRows)
        rows = {row.worker: row.used for row in told.message.rows}
        assert rows.get(contact("carol").peer_id, NOTHING) == NOTHING


def test_holders_that_have_forgotten_all_have_room() -> None:
    circle = one()
    for _ in range(60):
        if circle.denied("alice", BOBS) is None:
            circle.use("alice", "bob", BOBS, Used(67_000, 0))
        circle.elapse(67)
    circle.escrows["alice"].ended("bob", circle.now)
    for name in HOLDERS:
        circle.hold(name, *HOLDERS)
    circle.elapse(PARAMETERS.spent_s)
    circle.denied("alice", BOBS)  # she asks
    assert circle.status("alice").verdict is Verdict.HELD


def test_what_is_due_for_one_account_is_not_for_another() -> None:
    circle = one()
    circle.lost = lambda passed: True
    circle.lease("alice", "carol", grant_of("carol"))
    circle.elapse(PARAMETERS.answer_s)
    verdicts = {each.account: each.verdict for each in circle.escrows["alice"].status()}
    [bobs], [carols] = accounts_of(BOBS), accounts_of(grant_of("carol"))
    assert verdicts == {bobs.name: Verdict.HELD, carols.name: Verdict.ALONE}

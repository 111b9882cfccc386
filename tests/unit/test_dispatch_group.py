"""Tasks with the same needs: whom they wait for, whom to ask, and who takes over."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from formation_p2p.core.effects import Contact
from formation_p2p.core.identity import PeerId, key_of_peer, peer_id_of
from formation_p2p.core.keyspace import KEY_BITS, distance
from formation_p2p.core.refusals import Busy, Denied, Faulty, Leaving, Refusal, Silent
from formation_p2p.core.units import MIB
from formation_p2p.jobs.core.active_lease import ActiveLease
from formation_p2p.jobs.core.job_events import Attempt, TaskSucceeded
from formation_p2p.jobs.core.parameters import DISPATCH_DEFAULTS
from formation_p2p.jobs.core.task_group import TaskGroup
from formation_p2p.jobs.core.task_run import JobRun, TaskRun
from formation_p2p.leases.core.held_lease import HeldLease, HeldState
from formation_p2p.leases.core.messages import PlacementRequest
from formation_p2p.leases.core.round import RoundId
from formation_p2p.machine.core.capability import Capability, idle
from formation_p2p.placement.core.decision import Ranked
from formation_p2p.placement.core.task_options import SchedulingKey
from formation_p2p.records.core.profile import Profile
from formation_p2p.workload.core.outcome import Succeeded
from tests.support.stories import (
    ALICE,
    CAROL,
    DAVE,
    NEEDS,
    at,
    at_work,
    job,
    known,
    only,
    passed,
    town,
)

FULL = Busy("the table of leases", 1)
DENIED = Denied("submit", "no grant was shown")


def ranked(peer_id: PeerId, *, sequence: int = 1, expires_s: float = 120) -> Ranked:
    capability = Capability(4000, 2**34)
    profile = Profile(
        peer_id=peer_id,
        sequence=sequence,
        issued_unix_s=int(at(0).unix_s),
        expires_unix_s=int(at(expires_s).unix_s),
        capability=capability,
        capacity=idle(capability),
        addresses=(f"/dns4/{peer_id}.example/tcp/1",),
    )
    return Ranked(profile, 0)


def group_of(*workers: Contact) -> TaskGroup:
    group = TaskGroup(SchedulingKey(NEEDS))
    group.candidates.learn(tuple(ranked(each.peer_id) for each in workers), ())
    return group


def runs(count: int, job_id: str = "job") -> list[TaskRun]:
    owner = JobRun(job(count, job_id=job_id))
    return [TaskRun(task, owner, task.key) for task in owner.job.tasks]


def nearest(run: TaskRun, *workers: Contact) -> PeerId:
    return min((each.peer_id for each in workers), key=lambda p: distance(key_of_peer(p), run.key))


def near(worker: Contact, *others: Contact, count: int = 1) -> list[TaskRun]:
    """Tasks that are nearer to one worker than to the others."""
    found = [run for run in runs(200) if nearest(run, worker, *others) == worker.peer_id]
    return found[:count]


def failed_at(run: TaskRun, worker: Contact) -> TaskRun:
    attempt_id = f"{run.task.task_id}#{len(run.attempts) + 1}"
    run.attempts += (Attempt(attempt_id, worker.peer_id, "exit", lost=False),)
    return run


def held_by(worker: Contact) -> HeldLease:
    return HeldLease("lease", worker, SchedulingKey(NEEDS), HeldState.HELD, expires_s=10)


def next_for(group: TaskGroup, worker: Contact, now_s: float = 0) -> TaskRun | None:
    """The one task that a free worker takes."""
    taken = list(group.queues.take(worker.peer_id, 1, lambda run: True, at(now_s)))
    assert len(taken) <= 1
    return taken[0][0] if taken else None


def asked(group: TaskGroup, now_s: float = 0) -> list[PeerId]:
    head = group.queues.first()
    assert head is not None
    return [
        each.peer_id
        for each in group.candidates.ask_order(head, group.queues.lengths(), at(now_s), known)
    ]


# -- who waits for whom ---------------------------------------------------------------------


@given(st.integers(1, 12), st.integers(0, 3))
def test_each_task_waits_for_the_nearest_worker(tasks: int, workers: int) -> None:
    everyone = (ALICE, CAROL, DAVE)[:workers]
    group = group_of(*everyone)
    waiting = runs(tasks)
    for run in waiting:
        group.queues.wait(run)
    assert group.queues.waiting == tasks
    for run in waiting:
        assert group.candidates.home(run) == (nearest(run, *everyone) if everyone else None)
    for each in everyone:
        for run in [r for r in waiting if nearest(r, *everyone) == each.peer_id]:
            assert next_for(group, each) is run
    assert group.queues.waiting == (0 if everyone else tasks)


def test_tasks_that_came_first_are_sent_to_the_nearest_once_there_is_one() -> None:
    group = TaskGroup(SchedulingKey(NEEDS))
    (run,) = near(CAROL, ALICE)
    group.queues.wait(run)
    assert group.queues.first() is run
    group.candidates.learn((ranked(ALICE.peer_id),), ())
    assert asked(group) == [ALICE.peer_id]
    group.candidates.learn((ranked(CAROL.peer_id),), ())
    assert asked(group) == [CAROL.peer_id, ALICE.peer_id]


def test_a_free_worker_takes_over_from_the_longest_queue() -> None:
    group = group_of(ALICE, CAROL, DAVE)
    of_carol, of_dave = near(CAROL, ALICE, DAVE, count=2), near(DAVE, ALICE, CAROL)
    for run in (*of_dave, *of_carol):
        group.queues.wait(run)
    assert next_for(group, ALICE) is of_carol[0]


def test_a_worker_that_failed_a_task_does_not_take_it_back_while_another_is_left() -> None:
    group = group_of(ALICE, CAROL)
    (run,) = near(ALICE, CAROL)
    group.queues.wait(failed_at(run, ALICE))
    assert group.candidates.home(run) == CAROL.peer_id
    assert next_for(group, ALICE) is None
    group.candidates.refused(CAROL.peer_id, FULL, at(0))
    active = ActiveLease(held_by(CAROL))
    group.leases[active.lease.key] = active  # she is full of our own tasks, and will have it next
    assert next_for(group, ALICE) is None
    del group.leases[active.lease.key]  # nobody else works for us, or can be asked now
    assert next_for(group, ALICE) is run
    # Where all have failed it, the nearest has it again.
    assert group.candidates.home(failed_at(run, CAROL)) == ALICE.peer_id


def test_it_is_not_searched_for_ever_for_a_task_to_take_over() -> None:
    group = group_of(ALICE, CAROL)
    for run in near(CAROL, ALICE, count=DISPATCH_DEFAULTS.max_steal_scan):
        group.queues.wait(failed_at(run, ALICE))
    (good,) = near(CAROL, ALICE)
    group.queues.wait(good)
    assert next_for(group, ALICE) is None
    assert next_for(group, CAROL) is not None
    assert next_for(group, ALICE) is good


def test_the_tasks_of_one_job_can_be_taken_out() -> None:
    group = group_of(ALICE)
    mine, other = runs(3), runs(2, "another")
    for run in (*mine, *other):
        group.queues.wait(run)
    assert group.queues.drain(mine[0].job) == mine
    assert group.queues.drain() == other
    assert group.queues.drain() == []
    assert group.queues.first() is None


# -- whom to ask ----------------------------------------------------------------------------


def test_who_is_nearest_to_most_is_asked_first_and_then_who_is_nearest_to_the_first() -> None:
    group = group_of(ALICE, CAROL, DAVE)
    (head,) = near(ALICE, CAROL, DAVE)
    for run in (head, *near(DAVE, ALICE, CAROL, count=2)):
        group.queues.wait(run)
    assert asked(group) == [DAVE.peer_id, ALICE.peer_id, CAROL.peer_id]


def test_who_refused_is_asked_again_after_a_while_that_doubles() -> None:
    group = group_of(ALICE)
    group.queues.wait(runs(1)[0])
    now_s, waits = 0.0, []
    for _ in range(7):
        assert asked(group, now_s) == [ALICE.peer_id]
        group.candidates.refused(ALICE.peer_id, FULL, at(now_s))
        assert asked(group, now_s) == []
        waits.append(group.candidates.next_askable_s() - now_s)
        now_s = group.candidates.next_askable_s()
    assert waits == [1, 2, 4, 8, 16, 30, 30]
    group.candidates.back_off.leased(ALICE.peer_id)
    assert asked(group, now_s) == [ALICE.peer_id]
    group.candidates.refused(ALICE.peer_id, FULL, at(now_s))
    assert group.candidates.next_askable_s() == now_s + 1


def test_who_denied_is_not_asked_again_however_often_it_is_heard_of() -> None:
    group = group_of(ALICE, CAROL)
    group.queues.wait(runs(1)[0])
    group.candidates.refused(ALICE.peer_id, DENIED, at(0))
    group.candidates.learn((ranked(ALICE.peer_id),), ())
    assert asked(group, 1000) == [CAROL.peer_id]
    assert not group.is_stranded
    assert group.candidates.reasons() == ((ALICE.peer_id, DENIED),)


def test_a_worker_that_was_unfit_and_is_fit_now_is_asked() -> None:
    group = TaskGroup(SchedulingKey(NEEDS))
    unfit, fit = ((), ((ALICE.peer_id, FULL),)), ((ranked(ALICE.peer_id),), ())
    for heard, candidates, reasons in (
        (unfit, False, unfit[1]),
        (fit, True, ()),
        (unfit, False, unfit[1]),
    ):
        group.candidates.learn(*heard)
        assert (not group.is_stranded, group.candidates.reasons()) == (candidates, reasons)


def test_it_tells_whether_there_are_more_workers_than_before() -> None:
    group = TaskGroup(SchedulingKey(NEEDS))
    alice, carol = ranked(ALICE.peer_id), ranked(CAROL.peer_id)
    assert [
        group.candidates.learn((alice,), ()),
        group.candidates.learn((alice,), ()),
        group.candidates.learn((alice, carol), ()),
        group.candidates.learn((), ((CAROL.peer_id, FULL),)),
    ] == [True, False, True, False]


def test_looks_for_more_spread_evenly_over_the_key_space() -> None:
    group, (head,) = group_of(ALICE), runs(1)
    looks = [group.candidates.look_around(head) for _ in range(8)]
    assert looks[0] == head.key
    eighths = [distance(look, head.key) >> (KEY_BITS - 3) for look in looks]
    assert eighths == [0, 4, 2, 6, 1, 5, 3, 7]


def test_a_profile_that_expires_is_forgotten() -> None:
    group = TaskGroup(SchedulingKey(NEEDS))
    group.candidates.learn((ranked(ALICE.peer_id, expires_s=10), ranked(CAROL.peer_id)), ())
    (run,) = near(ALICE, CAROL)
    group.queues.wait(run)
    group.candidates.forget_expired(at(9))
    assert group.candidates.home(run) == ALICE.peer_id
    group.candidates.forget_expired(at(10))
    assert group.candidates.home(run) == CAROL.peer_id
    assert group.candidates.next_askable_s() == float("inf")


def test_however_many_workers_are_heard_of_a_bounded_number_is_kept() -> None:
    group = TaskGroup(SchedulingKey(NEEDS))
    strangers = [
        peer_id_of(n.to_bytes(32, "big")) for n in range(DISPATCH_DEFAULTS.max_workers + 10)
    ]
    refused: list[tuple[PeerId, Refusal]] = [(each, FULL) for each in strangers]
    group.candidates.learn(tuple(map(ranked, strangers)), ())
    group.queues.wait(runs(1)[0])
    assert set(asked(group)) == set(strangers[10:])
    group.candidates.learn((), tuple(refused))
    assert len(group.candidates.reasons()) == DISPATCH_DEFAULTS.max_workers
    for each in strangers:
        group.candidates.refused(each, FULL, at(0))
    assert len(group.candidates.reasons()) == DISPATCH_DEFAULTS.max_workers


def test_a_group_is_idle_when_nothing_waits_runs_or_is_negotiated() -> None:
    group = group_of(ALICE)
    assert group.is_idle
    group.acquisition.round_ended(RoundId(1), [ALICE.peer_id])
    assert not group.is_idle


# -- how long they take ---------------------------------------------------------------------


def test_as_much_is_under_way_as_hides_the_round_trip() -> None:
    estimates = group_of(ALICE).estimates
    assert (estimates.mean_s, estimates.depth(512)) == (float("inf"), DISPATCH_DEFAULTS.pipeline)
    assert [estimates.depth(size) for size in (1, 2, 3)] == [1, 2, 2]
    estimates.took(0.001)
    assert estimates.depth(512) == round(DISPATCH_DEFAULTS.horizon_s / 0.001)
    # A worker gets no more than it says it takes.
    assert [estimates.depth(size) for size in (1, 7, 512)] == [1, 7, 100]
    quick = group_of(ALICE).estimates
    quick.took(0.0)
    assert quick.depth(512) == 512
    for took_s, depth in ((1.0, DISPATCH_DEFAULTS.pipeline), (5.0, 1)):
        estimates.took(took_s)
        assert estimates.depth(512) == depth  # at last the round trip is little beside it
    # A longer task counts at once, and shorter ones bit by bit.
    means, estimates = [], group_of(ALICE).estimates
    for ran_s in (1.0, 3.0, 1.0, 1.0):
        estimates.took(ran_s)
        means.append(round(estimates.mean_s, 6))
    assert means == [1.0, 3.0, 2.6, 2.28]


# -- how much is taken ----------------------------------------------------------------------


def taken(group: TaskGroup, worker: Contact, count: int, room_bytes: int) -> list[tuple[str, bool]]:
    in_flight: list[TaskRun] = []

    def fits(run: TaskRun) -> bool:
        return sum(len(each.task.payload) for each in (*in_flight, run)) <= room_bytes

    ids = []
    for run, nearest in group.queues.take(worker.peer_id, count, fits, at(0)):
        in_flight.append(run)
        ids.append((run.task.task_id, nearest))
    return ids


def test_its_own_tasks_come_first_and_are_told_from_those_of_others() -> None:
    group = group_of(ALICE, CAROL)
    own, others = near(ALICE, CAROL, count=2), near(CAROL, ALICE, count=3)
    for run in (*others, *own):
        group.queues.wait(run)
    mine = [(run.task.task_id, True) for run in own]
    theirs = [(run.task.task_id, False) for run in others]
    assert taken(group, ALICE, 1, MIB) == mine[:1]
    assert taken(group, ALICE, 3, MIB) == mine[1:] + theirs[:2]
    assert taken(group, ALICE, 9, MIB) == theirs[2:]
    assert taken(group, ALICE, 9, MIB) == []


@pytest.mark.parametrize("whose", [ALICE, CAROL])
def test_no_more_bytes_are_taken_than_there_is_room_for(whose: Contact) -> None:
    group = group_of(ALICE, CAROL)
    other = CAROL if whose is ALICE else ALICE
    for run in near(whose, other, count=3):  # each has a payload of its number
        run.task = replace(run.task, payload=bytes(10))
        group.queues.wait(run)
    assert len(taken(group, ALICE, 9, 9)) == 0
    assert len(taken(group, ALICE, 9, 25)) == 2
    assert len(taken(group, ALICE, 9, 10)) == 1


# -- what was placed before -----------------------------------------------------------------


def test_what_was_lost_goes_to_whoever_is_free_next_before_all_that_waits() -> None:
    """Not to the queue of the nearest worker: that may be the one that was lost."""
    group = group_of(ALICE, CAROL)
    lost, *waiting = near(ALICE, CAROL, count=5)
    others = near(CAROL, ALICE, count=5)
    for run in (*waiting, *others):
        group.queues.wait(run)
    group.queues.wait(lost, first=True)
    assert group.queues.waiting == 10
    assert group.queues.first() is lost
    assert next_for(group, CAROL) is lost
    assert next_for(group, CAROL) is others[0]


def test_what_was_lost_is_passed_over_by_the_worker_that_failed_it() -> None:
    group = group_of(ALICE, CAROL)
    failed, lost = near(ALICE, CAROL, count=2)
    group.queues.wait(lost, first=True)
    group.queues.wait(failed_at(failed, ALICE), first=True)
    assert next_for(group, ALICE) is lost
    assert next_for(group, ALICE) is None
    assert next_for(group, CAROL) is failed


def test_what_was_lost_can_be_taken_out_with_its_job_and_keeps_its_place() -> None:
    group = group_of(ALICE)
    mine, other = runs(2), runs(2, "another")
    for run in (*reversed(other), *reversed(mine)):
        group.queues.wait(run, first=True)
    group.candidates.learn((ranked(CAROL.peer_id),), ())  # the queues are sorted out anew
    assert group.queues.drain(mine[0].job) == mine
    assert [next_for(group, CAROL), next_for(group, ALICE)] == other


def test_what_was_lost_keeps_its_place_where_others_of_its_job_are_taken_back() -> None:
    group = group_of(ALICE)
    taken, *kept = runs(4)
    waits, *others = runs(3, "another")
    for run in (waits, *others, kept[0]):
        group.queues.wait(run)
    for run in (*reversed(kept[1:]), taken):
        group.queues.wait(run, first=True)
    ids = {taken.task.task_id, waits.task.task_id}
    assert group.queues.take_back(taken.job, ids) == [taken]
    left = [next_for(group, ALICE) for _ in range(6)]
    assert left == [*kept[1:], waits, *others, kept[0]]


# -- whom it leaves alone for a while, and what brings a worker back into question ---------------


SILENT = Silent("it did not answer within 3.0 s")
FAULTY = Faulty("no space left on device")


def askable(group: TaskGroup, now_s: float) -> set[PeerId]:
    return {p for p in (ALICE.peer_id, CAROL.peer_id) if group.candidates.is_askable(p, at(now_s))}


def leased(group: TaskGroup, worker: Contact) -> None:
    lease = HeldLease("1", worker, SchedulingKey(NEEDS), HeldState.HELD, 10.0)
    group.leases[lease.key] = ActiveLease(lease, idle_s=0.0)


def test_a_worker_that_was_silent_twice_is_not_asked_a_third_time_until_it_shows_life() -> None:
    group = group_of(ALICE)
    for now_s in (0, 4):
        group.candidates.refused(ALICE.peer_id, SILENT, at(now_s))
    assert askable(group, 1000) == {CAROL.peer_id}
    assert group.candidates.next_askable_s() == float("inf")
    group.candidates.learn((ranked(ALICE.peer_id),), ())  # the same profile: somebody else kept it
    assert askable(group, 1000) == {CAROL.peer_id}
    group.candidates.learn((ranked(ALICE.peer_id, sequence=2),), ())
    assert askable(group, 6) == {ALICE.peer_id, CAROL.peer_id}


def test_a_sign_of_life_wakes_the_group_when_the_wait_is_over() -> None:
    group = group_of(ALICE)
    group.wake_by(group.candidates.heard(ALICE.peer_id))
    assert group.wake_s == float("inf")
    for now_s in (0, 4):
        group.candidates.refused(ALICE.peer_id, SILENT, at(now_s))
    group.wake_by(group.candidates.heard(ALICE.peer_id))
    assert group.wake_s == 6.0


def test_who_leaves_is_a_candidate_again_once_found_and_with_a_new_profile_at_once() -> None:
    group = group_of(ALICE)
    group.candidates.refused(ALICE.peer_id, Leaving(), at(0))
    known = []
    for sequence in (1, 2):
        known.append(
            (not group.is_stranded, group.candidates.reasons(), group.candidates.next_askable_s())
        )
        group.candidates.learn((ranked(ALICE.peer_id, sequence=sequence),), ())
    known.append(
        (not group.is_stranded, group.candidates.reasons(), group.candidates.next_askable_s())
    )
    why = ((ALICE.peer_id, Leaving()),)
    never = float("inf")
    assert known == [(False, why, never), (True, why, 1.0), (True, (), never)]


def test_a_worker_that_fails_tasks_gets_no_more_while_another_may_take_them() -> None:
    group = group_of(ALICE, CAROL)
    leased(group, ALICE)
    assert not group.candidates.is_failing(ALICE.peer_id, at(0))
    group.candidates.refused(ALICE.peer_id, FAULTY, at(0))
    assert group.candidates.is_failing(ALICE.peer_id, at(0))
    assert not group.candidates.is_failing(ALICE.peer_id, at(2))  # it may try again
    group.candidates.refused(CAROL.peer_id, SILENT, at(0))
    assert not group.candidates.is_failing(ALICE.peer_id, at(0))  # there is nobody else
    leased(group, CAROL)
    assert group.candidates.is_failing(ALICE.peer_id, at(0))
    both = group_of(ALICE, CAROL)
    for worker in (ALICE, CAROL):
        leased(both, worker)
        both.candidates.refused(worker.peer_id, FAULTY, at(0))
    assert not any(both.candidates.is_failing(each.peer_id, at(0)) for each in (ALICE, CAROL))
    group.candidates.back_off.succeeded(ALICE.peer_id)
    assert not group.candidates.is_failing(ALICE.peer_id, at(0))


def test_who_was_silent_is_asked_after_who_was_not_however_near() -> None:
    group = group_of(ALICE, CAROL)
    work = job()
    head = TaskRun(work.tasks[0], JobRun(work), key_of_peer(ALICE.peer_id))
    assert (
        group.candidates.ask_order(head, group.queues.lengths(), at(0), known)[0].peer_id
        == ALICE.peer_id
    )
    group.candidates.refused(ALICE.peer_id, SILENT, at(0))
    order = [
        each.peer_id
        for each in group.candidates.ask_order(head, group.queues.lengths(), at(1), known)
    ]
    assert order == [CAROL.peer_id, ALICE.peer_id]


@pytest.mark.at_length
def test_a_worker_without_room_is_asked_once_a_second_however_many_tasks_it_ends() -> None:
    world, bob = at_work(town(7, lambda _: (0.01, Succeeded(b"")), alice=1), job(400), for_s=6)
    assert len(only(bob.reported, TaskSucceeded)) == 400
    assert len(only(passed(world, "bob", "alice"), PlacementRequest)) <= 6

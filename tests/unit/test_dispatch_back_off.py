"""Whom a group of tasks leaves alone for a while, and what brings a worker back into question."""

from __future__ import annotations

import pytest

from formation_p2p.core.effects import Contact
from formation_p2p.core.identity import PeerId, key_of_peer
from formation_p2p.core.refusals import Faulty, Leaving, Silent
from formation_p2p.jobs.core.active_lease import ActiveLease
from formation_p2p.jobs.core.job_events import TaskSucceeded
from formation_p2p.jobs.core.task_group import TaskGroup
from formation_p2p.jobs.core.task_run import JobRun, TaskRun
from formation_p2p.leases.core.held_lease import HeldLease, HeldState
from formation_p2p.leases.core.messages import PlacementRequest
from formation_p2p.machine.core.capability import Capability, idle
from formation_p2p.placement.core.decision import Ranked
from formation_p2p.placement.core.task_options import SchedulingKey
from formation_p2p.records.core.profile import Profile
from formation_p2p.workload.core.outcome import Succeeded
from tests.support.stories import ALICE, CAROL, NEEDS, at, at_work, job, known, only, passed, town

pytestmark = pytest.mark.at_length

SILENT = Silent("it did not answer within 3.0 s")
FAULTY = Faulty("no space left on device")


def ranked(worker: Contact, sequence: int = 1) -> Ranked:
    capability = Capability(4000, 2**34)
    profile = Profile(
        peer_id=worker.peer_id,
        sequence=sequence,
        issued_unix_s=int(at(0).unix_s),
        expires_unix_s=int(at(120).unix_s),
        capability=capability,
        capacity=idle(capability),
    )
    return Ranked(profile, 0)


def group_of(*workers: Contact) -> TaskGroup:
    group = TaskGroup(SchedulingKey(NEEDS))
    group.candidates.learn(tuple(ranked(each) for each in workers), ())
    return group


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
    group.candidates.learn((ranked(ALICE),), ())  # the same profile: somebody else kept it
    assert askable(group, 1000) == {CAROL.peer_id}
    group.candidates.learn((ranked(ALICE, sequence=2),), ())
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
        group.candidates.learn((ranked(ALICE, sequence),), ())
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
    group.candidates.back_off.succeeded(ALICE.peer_id)
    assert not group.candidates.is_failing(ALICE.peer_id, at(0))


def test_two_workers_that_fail_are_as_good_as_each_other() -> None:
    group = group_of(ALICE, CAROL)
    for worker in (ALICE, CAROL):
        leased(group, worker)
        group.candidates.refused(worker.peer_id, FAULTY, at(0))
    assert not group.candidates.is_failing(ALICE.peer_id, at(0))
    assert not group.candidates.is_failing(CAROL.peer_id, at(0))


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


def test_a_worker_without_room_is_asked_once_a_second_however_many_tasks_it_ends() -> None:
    world, bob = at_work(town(7, lambda _: (0.01, Succeeded(b"")), alice=1), job(400), for_s=6)
    assert len(only(bob.reported, TaskSucceeded)) == 400
    assert len(only(passed(world, "bob", "alice"), PlacementRequest)) <= 6

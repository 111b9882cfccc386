"""bob dies, and lives again from what is on his disk."""

import random
from typing import Self

import pytest

from formation_p2p.core.effects import Effect
from formation_p2p.drivers.core.effects import ExecutionSaved
from formation_p2p.jobs.core.job import Job
from formation_p2p.jobs.core.job_events import (
    Attempt,
    ForgetLease,
    JobEnded,
    JobEvent,
    PersistLease,
    TaskGaveUp,
    TaskPlaced,
    TaskRecalled,
    TaskRetried,
    TaskSaved,
    TaskSucceeded,
    WorkerLost,
)
from formation_p2p.jobs.core.saved import SavedJob, SavedTask
from formation_p2p.jobs.core.task_run import TaskState
from formation_p2p.leases.core.messages import Dispatch, Leased, Release, Renew, ResultAck
from formation_p2p.leases.core.parameters import LEASE_DEFAULTS
from formation_p2p.peer.core.events import Resume
from formation_p2p.workload.core.blob import RAW, Blob, Cid, digest_of
from formation_p2p.workload.core.outcome import Failed, FailureKind, Outcome, Succeeded
from simulations.simulator.disk import Disk
from simulations.simulator.executor import Running
from simulations.simulator.node import SimNode
from tests.support.stories import END, NEEDS, is_idle, job, name_of, only, passed, peer_of, town

FAILED = Failed(FailureKind.EXIT, "exit code 1")


class Story:
    """A world in which bob has a disk, and what he told over all of his incarnations."""

    def __init__(self, seconds: float = 2.0, seed: int = 3, **cores: int) -> None:
        self.ran: list[str] = []
        self.seconds = seconds
        self.world = town(seed, self.run, **(cores or {"alice": 1, "carol": 1, "dave": 1}))
        self.bob = self.world.nodes["bob"]
        self.disk = self.bob.disk = Disk(self.world, lambda: 0.001)

    def run(self, running: Running) -> tuple[float, Outcome]:
        self.ran.append(running.work.attempt_id)
        return self.seconds, Succeeded(running.work.payload)

    def submit(self, given: Job) -> None:
        assert self.disk.submit(given)
        self.bob.submit(given)

    def given(self, job: Job, for_s: float) -> Self:
        """So long after bob submitted it."""
        self.submit(job)
        self.world.elapse(for_s)
        return self

    def die(self, *, written: bool = True) -> None:
        self.world.kill(self.bob)
        self.disk.crash(written)

    def live_again(self) -> None:
        saved = Resume(*self.disk.saved())
        self.bob.reported.clear()
        self.world.restart(self.bob, saved)

    @property
    def workers(self) -> list[SimNode]:
        return [n for n in self.world.nodes.values() if n.name not in ("gate", "bob")]

    def events(self, job_id: str = "job") -> list[JobEvent]:
        """All that its jobs told, as it is on the disk."""
        return self.disk.jobs[job_id].events


# -- what goes on ---------------------------------------------------------------------------


@pytest.mark.at_length
def test_attempts_under_way_go_on_and_their_results_count() -> None:
    story = Story(4.0).given(job(9), for_s=2)
    in_flight = len(only(story.events(), TaskPlaced))
    story.die()
    story.world.elapse(1)
    story.live_again()
    story.world.elapse(30)
    events = story.events()
    assert events[-1] == JobEnded(9, 0, 0, 0)
    assert len(only(events, TaskSucceeded)) == 9
    assert only(events, WorkerLost) == []
    assert only(events, TaskRetried) == []
    assert in_flight >= 3
    assert len(story.ran) == len(set(story.ran)) == 9  # nothing ran twice
    story.world.elapse(1)
    assert all(map(is_idle, story.workers))


def test_a_result_that_was_told_and_not_acknowledged_is_acknowledged_then() -> None:
    story = Story(1.0, alice=1).given(job(1), for_s=0.5)
    reported = len(passed(story.world, "bob", "alice"))
    while not only(story.bob.reported, TaskSucceeded):
        story.world.elapse(0.0001)
    acks = only(passed(story.world, "bob", "alice")[reported:], ResultAck)
    story.die()
    story.live_again()
    story.world.elapse(1)
    assert only(story.bob.reported, TaskSucceeded) == []
    assert only(passed(story.world, "bob", "alice"), ResultAck)[len(acks) :] != [] or acks
    assert is_idle(story.world.nodes["alice"])


def test_a_result_that_was_not_written_down_comes_again_and_counts_once() -> None:
    story = Story(1.0, alice=1)
    story.disk.latency_s = lambda: 0.2
    story.submit(job(1))
    story.world.elapse(1.1)
    acks = only(passed(story.world, "bob", "alice"), ResultAck)
    assert (acks, only(story.bob.reported, TaskSucceeded)) == ([], [])
    story.die(written=False)
    story.live_again()
    story.world.elapse(1)
    assert len(only(story.events(), TaskSucceeded)) == 1
    assert story.events()[-1] == JobEnded(1, 0, 0, 0)
    assert story.ran == ["job/0#1"]


def test_a_job_of_which_all_tasks_had_ended_ends() -> None:
    story = Story()
    given = job(2)
    ended = (
        SavedTask("job/0", 1, (), TaskState.SUCCEEDED),
        SavedTask("job/1", 1, (), TaskState.FAILED),
    )
    story.world.deliver(story.bob, Resume((SavedJob(given, ended),), ()))
    story.world.elapse(0.1)
    assert story.bob.reported == [JobEnded(1, 1, 0, 0)]
    story.bob.submit(given)  # the id is free
    assert story.bob.refused == []


def test_a_job_of_which_nothing_had_begun_begins() -> None:
    story = Story(0.5)
    story.world.deliver(story.bob, Resume((SavedJob(job(2), ()),), ()))
    story.world.elapse(3)
    assert story.bob.reported[-1] == JobEnded(2, 0, 0, 0)


def test_attempts_of_an_earlier_life_count_and_are_not_named_again() -> None:
    story = Story(0.5, alice=1)
    alice = story.workers[0].identity.peer_id
    failed = Attempt("job/0#1", alice, "exit: exit code 1", lost=False)
    saved = SavedJob(job(1, attempts=2), (SavedTask("job/0", 4, (failed,), None),))
    story.world.run = lambda running: (0.1, FAILED)
    story.world.deliver(story.bob, Resume((saved,), ()))
    story.world.elapse(3)
    (gave_up,) = only(story.bob.reported, TaskGaveUp)
    first, second = (each.attempt_id for each in gave_up.attempts)
    # Which attempts the last incarnation made and did not note, nobody knows.
    assert (first, second[:8]) == ("job/0#1", "job/0#5.")


# -- what is gone ---------------------------------------------------------------------------


def test_what_ran_with_a_worker_that_is_gone_too_runs_elsewhere_and_does_not_count() -> None:
    story = Story(4.0).given(job(3), for_s=2)
    story.die()
    victim = next(n for n in story.workers if n.running)
    story.world.kill(victim)
    story.live_again()
    story.world.elapse(LEASE_DEFAULTS.answer_s + 20)
    events = story.events()
    assert events[-1] == JobEnded(3, 0, 0, 0)
    assert only(events, WorkerLost) == []
    retried = only(events, TaskRetried)
    assert {name_of(story.world, each.attempt.worker) for each in retried} == {victim.name}
    assert len(retried) + len(only(events, TaskRecalled)) == len(only(events, TaskPlaced)) - 3


def test_a_task_goes_on_from_what_an_earlier_life_held() -> None:
    story = Story(30.0, alice=1).given(job(1), for_s=2)
    (alice,) = story.workers
    (key,) = alice.running
    saved = Blob(Cid(RAW, digest_of(b"half")), 4, (alice.contact,))
    story.world.deliver(alice, ExecutionSaved(*key, saved))
    story.world.elapse(1)
    (told,) = only(story.events(), TaskSaved)
    assert told.checkpoint.sequence == 1
    story.die()
    story.world.kill(alice)
    story.world.elapse(60)
    carol = story.world.add("carol", serve=story.world.machine(cpu=1))
    story.live_again()
    story.world.elapse(20)
    (running,) = carol.running.values()
    assert running.work.restored is not None
    assert running.work.restored.cid == saved.cid
    assert [each.peer_id for each in running.work.restored.sources] == [story.bob.identity.peer_id]
    # The chain goes on.
    (key,) = carol.running
    story.world.deliver(carol, ExecutionSaved(*key, saved))
    story.world.elapse(1)
    assert only(story.events(), TaskSaved)[-1].checkpoint.sequence == 2
    story.world.elapse(60)
    assert story.events()[-1] == JobEnded(1, 0, 0, 0)


def test_a_worker_that_does_not_answer_has_lost_its_tasks_after_a_while() -> None:
    story = Story(60.0).given(job(3), for_s=2)
    story.die()
    victim = next(n for n in story.workers if n.running)
    story.world.cut(story.bob, victim)
    story.live_again()
    story.world.elapse(LEASE_DEFAULTS.answer_s - 0.1)
    assert only(story.bob.reported, TaskRetried) == []
    story.world.elapse(0.2)
    assert len(only(story.bob.reported, TaskRetried)) == 1


def test_leases_that_expired_meanwhile_are_told_so_and_their_tasks_run_again() -> None:
    story = Story(60.0).given(job(3), for_s=2)
    story.die()
    story.world.elapse(15)
    assert all(map(is_idle, story.workers))  # they have fenced themselves
    story.live_again()
    story.world.elapse(1)
    assert len(only(story.bob.reported, TaskRetried)) == 3
    story.world.elapse(2)
    assert sum(len(n.running) for n in story.workers) == 3


def test_a_lease_that_nothing_needs_any_more_is_given_back() -> None:
    story = Story(60.0, alice=1).given(job(1), for_s=2)
    story.die()
    _, leases = story.disk.saved()
    story.world.restart(story.bob, Resume((), leases))
    story.world.elapse(1)
    given_back = only(passed(story.world, "bob", "alice"), Release)
    assert [each.lease_id for each in given_back] == [leases[0].lease_id]
    assert is_idle(story.workers[0])


def test_an_attempt_that_was_never_written_down_on_a_lease_that_was() -> None:
    """Its worker has its result, which nobody knows what to make of; and it is run again there."""
    story = Story(0.5, alice=1)
    story.disk.latency_s = lambda: 0.05
    story.submit(job(1))
    while not only(passed(story.world, "bob", "alice"), Dispatch):
        story.world.elapse(0.001)
    story.world.elapse(0.06)  # the lease is on the disk, and not yet what was placed on it
    story.die(written=False)
    saved, leases = story.disk.saved()
    assert (saved[0].begun, [each.attempts for each in leases]) == ((), [()])
    story.world.elapse(2)
    story.live_again()
    story.world.elapse(5)
    assert story.events()[-1] == JobEnded(1, 0, 0, 0)
    assert len(story.ran) == len(set(story.ran)) == 2


def test_an_adopted_lease_is_doubtful_until_its_worker_answers() -> None:
    story = Story(60.0, alice=2).given(job(2), for_s=2)
    story.die()
    story.live_again()
    sent = [type(m) for m in passed(story.world, "bob", "alice")]
    last_life = len(sent) - 2
    assert sent[last_life:] == [Renew, Renew]  # and no word of any task before that is answered
    story.world.elapse(0.1)
    assert Dispatch in [type(m) for m in passed(story.world, "bob", "alice")][last_life:]


def test_a_job_that_went_on_ends_at_its_deadline() -> None:
    story = Story(60.0).given(job(6, deadline_s=5.0), for_s=2)
    story.die()
    story.live_again()
    story.world.elapse(6)
    assert story.bob.reported[-1] == JobEnded(0, 6, 0, 0)
    assert {each.kind for each in only(story.bob.reported, TaskGaveUp)} == {FailureKind.DEADLINE}
    story.world.elapse(1)
    assert all(map(is_idle, story.workers))


def test_what_its_workers_find_missing_comes_with_the_first_message() -> None:
    """The worker may have what tasks share, but who lives again cannot know."""
    story = Story(4.0, alice=1).given(job(4, shared=b"a function"), for_s=2)
    story.die()
    story.live_again()
    story.world.elapse(20)
    assert story.events()[-1] == JobEnded(4, 0, 0, 0)
    brought = [
        d.shared_blobs
        for d in only(passed(story.world, "bob", "alice"), Dispatch)
        if d.shared_blobs
    ]
    assert brought == [((1, b"a function"),), ((1, b"a function"),)]


# -- what is written down -------------------------------------------------------------------


def test_leases_are_noted_when_they_are_held_and_when_they_are_no_more() -> None:
    story, noted = Story(0.5), list[Effect]()
    story.world.witness = lambda node, event, effects: noted.extend(
        effect for effect in effects if isinstance(effect, PersistLease | ForgetLease)
    )
    story.submit(job(6))
    story.world.elapse(0.2)
    story.world.kill(next(n for n in story.workers if n.running))
    story.world.elapse(20)
    held = [(h.lessor.peer_id, h.lease_id) for h in only(noted, PersistLease)]
    let_go = [(each.worker, each.lease_id) for each in only(noted, ForgetLease)]
    assert sorted(held) == sorted(let_go)
    assert len(held) == len(set(held)) >= 3
    for hold in only(noted, PersistLease):
        (leased,) = [
            each
            for each in only(
                passed(story.world, name_of(story.world, hold.lessor.peer_id), "bob"), Leased
            )
            if each.lease_id == hold.lease_id
        ]
        assert (hold.fence, hold.needs, hold.priority) == (leased.fence, NEEDS, 0)


# -- the law --------------------------------------------------------------------------------


@pytest.mark.at_length
@pytest.mark.parametrize("seed", range(4))
def test_whenever_it_dies_each_task_ends_once_on_its_disk(seed: int) -> None:
    chance = random.Random(seed)
    story = Story(chance.choice([0.01, 0.3, 2.0]), seed)
    story.disk.latency_s = lambda: chance.choice([0.0005, 0.005, 0.05])
    story.submit(job(20, speculate=chance.random() < 0.5, shared=b"function"))
    for _ in range(chance.randint(1, 4)):
        story.world.elapse(chance.uniform(0, 2))
        story.die(written=chance.random() < 0.5)
        story.world.elapse(chance.choice([0, 0.5, 12]))
        story.live_again()
    story.world.elapse(120)
    events = story.events()
    ended = [event.task_id for event in events if isinstance(event, END)]
    assert sorted(ended) == sorted(f"job/{n}" for n in range(20))
    assert len(only(events, TaskSucceeded)) == 20
    assert events[-1] == JobEnded(20, 0, 0, 0)
    assert not peer_of(story.bob).scheduler.groups
    assert all(map(is_idle, story.workers))

"""What a scheduler's disk holds after a crash, and what its next incarnation begins with."""

import pytest

from formation_p2p.assembly import PeerEffect
from formation_p2p.jobs.core.job_events import (
    Attempt,
    EmitJobEvent,
    ForgetLease,
    JobEnded,
    JobEvent,
    PersistLease,
    TaskBegan,
    TaskGaveUp,
    TaskPlaced,
    TaskRecalled,
    TaskRetried,
    TaskSucceeded,
)
from formation_p2p.jobs.core.task_run import TaskState
from formation_p2p.leases.core.messages import ResultAck
from formation_p2p.leases.core.session import Send
from formation_p2p.machine.core.requirements import Requirements
from simulations.simulator.disk import Disk
from simulations.simulator.world import World
from tests.support.stories import ALICE, NEEDS, job

W = ALICE.peer_id
WRITE_S = 0.01


class Desk:
    def __init__(self) -> None:
        self.world = World(1)
        self.disk = Disk(self.world, lambda: WRITE_S)
        self.performed: list[PeerEffect] = []
        assert self.disk.submit(job(3))

    def note(self, *effects: PeerEffect) -> None:
        for effect in effects:
            self.disk.note(effect, self.performed.append)

    def emit(self, *events: JobEvent) -> None:
        self.note(*(EmitJobEvent("job", event, cause="test") for event in events))


@pytest.fixture
def desk() -> Desk:
    return Desk()


def hold(lease_id: str, needs: Requirements = NEEDS) -> PersistLease:
    return PersistLease(lease_id, ALICE, needs, 0, 7, (), cause="test")


def placed(task: int, attempt: int, lease_id: str = "L") -> TaskPlaced:
    return TaskPlaced(f"job/{task}", f"job/{task}#{attempt}", W, lease_id, True)


def retried(task: int, attempt: int) -> TaskRetried:
    return TaskRetried(f"job/{task}", Attempt(f"job/{task}#{attempt}", W, "why", lost=True))


def test_what_is_noted_is_performed_once_it_is_written_and_in_order(desk: Desk) -> None:
    ack = Send(ALICE, ResultAck("L", ("job/0#1",)), cause="test")
    desk.emit(TaskBegan("job/0", W))
    desk.note(ack)
    assert desk.performed == []
    desk.world.elapse(WRITE_S)
    assert len(desk.performed) == 1  # the second came while the first was being written
    desk.world.elapse(WRITE_S)
    assert desk.performed[1:] == [ack]


def test_a_full_disk_keeps_all_waiting(desk: Desk) -> None:
    desk.disk.is_full = True
    assert not desk.disk.submit(job(1, job_id="another"))
    desk.emit(TaskBegan("job/0", W))
    desk.world.elapse(5)
    assert desk.performed == []
    desk.disk.is_full = False
    desk.world.elapse(2)
    assert len(desk.performed) == 1


@pytest.mark.parametrize("written", [True, False])
def test_a_crash_loses_what_was_not_written(desk: Desk, written: bool) -> None:
    desk.emit(TaskBegan("job/0", W))  # is being written
    desk.emit(TaskBegan("job/1", W))  # waits
    desk.disk.crash(written)
    desk.world.elapse(1)
    assert desk.performed == []
    assert len(desk.disk.jobs["job"].events) == written
    desk.emit(TaskBegan("job/2", W))
    desk.world.elapse(1)
    assert len(desk.performed) == 1
    desk.disk.crash(written)  # with nothing under way
    assert len(desk.performed) == 1


def test_the_next_life_begins_with_what_is_known_of_each_task(desk: Desk) -> None:
    desk.note(hold("L"), hold("M"), hold("gone"))
    desk.emit(placed(0, 1), placed(1, 1), retried(1, 1), placed(1, 2, "M"))
    desk.emit(placed(2, 1), TaskRecalled("job/2", "job/2#1"))
    desk.emit(TaskSucceeded("job/0", W, b"0", 5))
    desk.note(ForgetLease(W, "gone", cause="test"), ForgetLease(W, "never", cause="test"))
    desk.world.elapse(1)
    ((saved,), leases) = desk.disk.saved()
    begun = {each.task_id: each for each in saved.begun}
    assert begun["job/0"].ended is TaskState.SUCCEEDED
    assert (begun["job/1"].tried, begun["job/1"].ended) == (2, None)
    assert begun["job/1"].attempts == (retried(1, 1).attempt,)
    assert begun["job/2"].tried == 1
    assert {lease.lease_id: lease.attempts for lease in leases} == {
        "L": (),
        "M": (("job/1#2", "job/1"),),
    }
    assert desk.disk.settled == {"job/0"}


def test_a_job_that_is_over_is_not_begun_again_and_told_no_more(desk: Desk) -> None:
    desk.emit(TaskGaveUp("job/0", (), None, b""), JobEnded(0, 1, 0, 0), TaskBegan("job/0", W))
    desk.world.elapse(1)
    assert desk.disk.saved() == ((), ())
    assert len(desk.disk.jobs["job"].events) == 2


def test_a_job_that_was_refused_is_forgotten(desk: Desk) -> None:
    desk.disk.forget("job")
    desk.emit(TaskBegan("job/0", W))
    desk.world.elapse(1)
    assert desk.disk.jobs == {}


def test_an_attempt_that_counts_for_nothing_is_not_held_against_its_task(desk: Desk) -> None:
    attempt = Attempt("job/0#1", W, "it made room", lost=True)
    desk.note(hold("L"))
    desk.emit(placed(0, 1), TaskRetried("job/0", attempt, counts=False))
    desk.world.elapse(1)
    (saved,), (lease,) = desk.disk.saved()
    (begun,) = saved.begun
    assert (begun.tried, begun.attempts, lease.attempts) == (1, (), ())

"""The status of tasks in a build's words, from the events of their job."""

from formation_p2p.core.refusals import Infeasible
from formation_p2p.core.units import GIB
from formation_p2p.features.builds.core.task_status import Statuses, TaskStatus
from formation_p2p.jobs.core.job_events import (
    Answer,
    Attempt,
    Awaited,
    JobEnded,
    JobEvent,
    JobWaits,
    TaskAnswered,
    TaskBegan,
    TaskCancelled,
    TaskDisagreed,
    TaskGaveUp,
    TaskPlaced,
    TaskRecalled,
    TaskReopened,
    TaskRetried,
    TaskSucceeded,
    TaskUnplaceable,
)
from formation_p2p.machine.core.capability import Capacity
from formation_p2p.placement.core.policies import Cheapest
from formation_p2p.placement.core.xor import Xor
from tests.support.placement_world import placed, profile, task, worker
from tests.support.stories import ALICE, CAROL

NAMES = {ALICE.peer_id: "alice", CAROL.peer_id: "carol", "j/1": "app"}
BUSY = Capacity(0, 16 * GIB, 100 * GIB)
LOST = Attempt("j/0#0", ALICE.peer_id, "silent", lost=True)
FAILED = Attempt("j/0#1", CAROL.peer_id, "exit 7", lost=False)


def statuses() -> Statuses:
    return Statuses(["j/0", "j/1"], lambda known: NAMES.get(known, "one"))


def told(by: Statuses, *events: JobEvent) -> list[str]:
    return [f"{x.task_id} {x.status} {x.reason}" for e in events for x in by.observed(e)]


def placement(*, nearest: bool = True) -> TaskPlaced:
    return TaskPlaced("j/0", "j/0#0", ALICE.peer_id, "a1", nearest)


def test_from_assessed_to_completed_each_has_its_reason() -> None:
    by = statuses()
    assert by.of("j/0") is TaskStatus.PENDING_ASSESSMENT
    decision = placed(
        task("j/0"), [worker("alice"), worker(profile("carol", capacity=BUSY))], Xor()
    )
    (assigned,) = by.assessed("j/0", decision)
    assert (assigned.status, assigned.reason) == (
        TaskStatus.ASSIGNED,
        "to alice: 2 workers are capable, 1 with room; it is the nearest",
    )
    assert by.assessed("j/0", decision) == []
    assert told(by, placement(), TaskBegan("j/0", ALICE.peer_id)) == [
        "j/0 claimed by alice, the responsible one, under the lease a1",
        "j/0 in progress on alice",
    ]
    assert told(by, TaskSucceeded("j/0", ALICE.peer_id, b"", 1250), JobEnded(1, 0, 0, 0)) == [
        "j/0 completed on alice, in 1.2 s"
    ]
    assert by.assessed("j/0", decision) == []


def test_a_task_with_another_attempt_in_flight_is_where_that_one_is() -> None:
    by = statuses()
    other = TaskPlaced("j/0", "j/0#1", CAROL.peer_id, "c1", False)
    told(by, placement(), other, TaskBegan("j/0", ALICE.peer_id))
    assert told(by, TaskRetried("j/0", LOST))[0].startswith("j/0 in progress lost on alice")
    assert by.of("j/0") is TaskStatus.IN_PROGRESS
    told(by, TaskRetried("j/0", FAILED))
    assert by.of("j/0") is TaskStatus.PENDING_ASSESSMENT


def test_what_is_assessed_where_none_has_room_or_none_is_capable() -> None:
    by = statuses()
    assert by.assessed("j/0", placed(task("j/0"), [], Xor())) == []
    decision = placed(task("j/0"), [worker(profile("carol", capacity=BUSY))], Cheapest())
    (assigned,) = by.assessed("j/0", decision)
    assert assigned.reason.startswith("to carol: 1 worker is capable, none with room yet; it is")
    assert assigned.reason.endswith("the best by cheapest")


def test_a_short_task_is_assigned_and_in_progress_as_well() -> None:
    by = statuses()
    ended = TaskSucceeded("j/0", ALICE.peer_id, b"", 10)
    assert told(by, placement(nearest=False), placement(), ended) == [
        "j/0 assigned to alice, the first that was free",
        "j/0 claimed by alice, the first that was free, under the lease a1",
        "j/0 in progress on alice",
        "j/0 completed on alice, in 0.0 s",
    ]


def test_what_is_lost_or_fails_is_assessed_again() -> None:
    by = statuses()
    assert told(by, placement(), TaskRetried("j/0", LOST))[-1] == (
        "j/0 pending assessment lost on alice: silent; it is placed again"
    )
    assert told(by, placement(), TaskRetried("j/0", FAILED))[-1] == (
        "j/0 pending assessment failed on carol: exit 7; it is placed again"
    )
    assert told(by, placement(), TaskRecalled("j/0", "j/0#2"))[-1] == (
        "j/0 pending assessment taken back before it began; it is placed again"
    )
    ended = TaskSucceeded("j/0", ALICE.peer_id, b"", 10)
    assert told(by, placement(), ended, TaskReopened("j/0", ALICE.peer_id))[-1] == (
        "j/0 pending assessment its result is lost with alice; it runs again"
    )


def test_how_a_task_ends_without_a_result() -> None:
    why = Infeasible("memory", 2, 1)
    ends: list[tuple[JobEvent, str]] = [
        (TaskGaveUp("j/0", (LOST, FAILED), None, b""), "j/0 failed exit 7"),
        (TaskGaveUp("j/0", (), None, b""), "j/0 failed its deadline passed"),
        (
            TaskGaveUp("j/0", (), None, b"", "j/1"),
            "j/0 failed it waited for app, which has no result",
        ),
        (TaskUnplaceable("j/0", ()), "j/0 failed no worker can run it"),
        (
            TaskUnplaceable("j/0", ((ALICE.peer_id, why),)),
            f"j/0 failed no worker can run it: {why}",
        ),
        (TaskCancelled("j/0"), "j/0 cancelled it was cancelled"),
    ]
    for event, said in ends:
        assert told(statuses(), event) == [said]


def test_those_that_no_worker_is_in_sight_for_say_so() -> None:
    by = statuses()
    by.observed(placement())
    assert told(by, JobWaits(Awaited.WORKERS)) == ["j/1 pending assessment it waits for workers"]


def test_answers_that_disagree_fail_a_task() -> None:
    by = statuses()
    answer = Answer("j/0#0", ALICE.peer_id, b"1", 1000)
    assert told(by, placement(), TaskAnswered("j/0", answer))[-1] == (
        "j/0 pending assessment alice has answered; more answers are needed"
    )
    assert told(by, placement(), TaskDisagreed("j/0", (answer, answer)))[-1] == (
        "j/0 failed too few of its 2 answers are the same"
    )

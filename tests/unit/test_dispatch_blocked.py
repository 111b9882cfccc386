"""bob's tasks that wait for others of his, in small worlds and on their own."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from formation_p2p.core.errors import InvalidInput
from formation_p2p.core.refusals import Distrusted, Refusal
from formation_p2p.core.units import MIB
from formation_p2p.discovery.core.finder import FindId, Found
from formation_p2p.discovery.core.trace import Trace
from formation_p2p.jobs.core.job import Job
from formation_p2p.jobs.core.job_events import (
    JobEnded,
    TaskCancelled,
    TaskGaveUp,
    TaskPlaced,
    TaskRetried,
    TaskSucceeded,
    TaskUnplaceable,
)
from formation_p2p.jobs.core.jobs import Jobs, Outbox
from formation_p2p.jobs.core.parameters import DISPATCH_DEFAULTS
from formation_p2p.jobs.core.task_run import Blocked, JobRun, TaskRun, TaskState
from formation_p2p.machine.core.requirements import DEFAULT_MEMORY_BYTES
from formation_p2p.peer.core.events import Submit
from formation_p2p.placement.core.candidate import Candidate, TaskView
from formation_p2p.placement.core.policy import Policy
from formation_p2p.placement.core.task_options import TaskOptions
from formation_p2p.trust.core.experience import Experience
from formation_p2p.workload.core.outcome import Failed, FailureKind, Outcome, Succeeded
from formation_p2p.workload.core.work import Task
from simulations.simulator.executor import Running
from simulations.simulator.node import SimNode
from simulations.simulator.world import World
from tests.support.stories import (
    BOB,
    NEEDS,
    at,
    at_work,
    ends,
    is_idle,
    job,
    named,
    only,
    peer_of,
    town,
    workers_of,
)
from tests.unit.test_dispatch_resume import Story

EXIT = Failed(FailureKind.EXIT, "exit code 1")


def ordered(after: Mapping[int, Sequence[int]], count: int, **terms: object) -> Job:
    """A job of so many tasks, of which some wait for others."""
    plain = job(count, **terms)  # type: ignore[arg-type]  # as `job` takes them
    tasks = tuple(
        replace(task, after=tuple(f"job/{each}" for each in after.get(number, ())))
        for number, task in enumerate(plain.tasks)
    )
    return replace(plain, tasks=tasks)


def town_where(fails: Sequence[str] = (), **cores: int) -> World:
    """Tasks take a second; those of these ids fail."""

    def run(running: Running) -> tuple[float, Outcome]:
        bad = running.work.attempt_id.partition("#")[0] in fails
        return 1.0, EXIT if bad else Succeeded(running.work.payload)

    return town(5, run, **(cores or {"alice": 2, "carol": 2}))


def order_of(bob: SimNode) -> list[str]:
    """The tasks as they were placed and as they succeeded: +1 and -1."""
    return [
        ("+" if isinstance(e, TaskPlaced) else "-") + e.task_id.removeprefix("job/")
        for e in bob.reported
        if isinstance(e, TaskPlaced | TaskSucceeded)
    ]


# -- when all goes well ---------------------------------------------------------------------


def test_a_task_is_placed_when_all_that_it_waits_for_have_succeeded() -> None:
    _, bob = at_work(town_where(), ordered({2: [0, 1], 3: [2]}, 4), for_s=8)
    story = order_of(bob)
    assert story[-4:] == ["+2", "-2", "+3", "-3"]
    assert set(story[:-4]) == {"+0", "+1", "-0", "-1"}
    assert bob.reported[-1] == JobEnded(4, 0, 0, 0)


def test_one_that_needs_something_else_goes_to_another_worker_when_its_turn_comes() -> None:
    world, bob = at_work(town_where(alice=1, carol=8))
    small, big = job(2).tasks
    big = replace(big, needs=replace(NEEDS, cpu_milli=8000), after=("job/0",))
    bob.submit(Job("job", (small, big)))
    world.elapse(8)
    assert bob.reported[-1] == JobEnded(2, 0, 0, 0)
    assert workers_of(bob)[-1] == "carol"


# -- when it does not -----------------------------------------------------------------------


def test_what_waits_for_a_failure_ends_without_having_run_and_names_it() -> None:
    after = {1: [0], 2: [1, 3], 4: [3], 5: [0, 1]}  # the last in two ways, and once
    _, bob = at_work(town_where(["job/0"]), ordered(after, 6, attempts=1), for_s=8)
    ended = ends(bob)
    fell = TaskGaveUp("job/1", (), FailureKind.UPSTREAM, b"", waited_for="job/0")
    assert ended["job/1"] == fell
    assert ended["job/2"] == replace(fell, task_id="job/2")
    assert isinstance(ended["job/4"], TaskSucceeded)
    assert bob.reported[-1] == JobEnded(2, 4, 0, 0)
    assert {placed.task_id for placed in only(bob.reported, TaskPlaced)} == {
        "job/0",
        "job/3",
        "job/4",
    }


def test_cancelling_cancels_also_what_waits() -> None:
    world, bob = at_work(town_where(), ordered({1: [0], 2: [1]}, 3), for_s=0.6)
    bob.cancel("job")
    world.elapse(3)
    assert len(only(bob.reported, TaskCancelled)) == 3
    assert bob.reported[-1] == JobEnded(0, 0, 0, 3)
    assert all(is_idle(world.nodes[name]) for name in ("alice", "carol"))


def test_a_job_whose_tasks_wait_for_each_other_is_none() -> None:
    for after in ({0: [1], 1: [0]}, {0: [0]}):
        with pytest.raises(InvalidInput, match="wait for each other in a circle"):
            ordered(after, 2)
    with pytest.raises(InvalidInput, match="'job/7' is not a task of this job"):
        ordered({0: [7]}, 2)


# -- another incarnation ---------------------------------------------------------------------------


def test_another_life_goes_on_in_order() -> None:
    story = Story(2.0)
    story.submit(ordered({2: [0, 1], 3: [2]}, 4))
    story.world.elapse(2.8)  # the first two have succeeded, the third has begun
    story.die()
    story.world.elapse(1)
    story.live_again()
    story.world.elapse(30)
    reported = [e for e in story.events() if isinstance(e, TaskPlaced | TaskSucceeded)]
    assert [e.task_id for e in reported][-3:] == ["job/2", "job/3", "job/3"]
    assert story.events()[-1] == JobEnded(4, 0, 0, 0)
    assert len(story.ran) == len(set(story.ran)) == 4


def test_another_life_gives_up_what_waits_for_a_failure_that_was_stored_last() -> None:
    story = Story(2.0)
    story.submit(ordered({1: [0], 2: [1]}, 3))
    story.world.elapse(0.1)
    story.die()
    failed = TaskGaveUp("job/0", (), FailureKind.EXIT, b"")
    story.disk.jobs["job"].events.append(failed)
    story.live_again()
    story.world.elapse(5)
    ended = [e for e in story.events() if isinstance(e, TaskGaveUp)]
    assert [(e.task_id, e.waited_for) for e in ended] == [
        ("job/0", ""),
        ("job/1", "job/0"),
        ("job/2", "job/0"),
    ]
    assert story.events()[-1] == JobEnded(0, 3, 0, 0)


# -- on their own ---------------------------------------------------------------------------


def test_a_task_that_waits_is_neither_placed_nor_taken_back() -> None:
    run = TaskRun(job().tasks[0], JobRun(job()), job().tasks[0].key, TaskState.BLOCKED)
    assert not any(run.move(event) for event in ("dispatch", "success", "retry", "nobody"))
    assert run.move("ready")
    assert run.state is TaskState.WAITING


@st.composite
def graphs(draw: st.DrawFn) -> dict[int, list[int]]:
    count = draw(st.integers(2, 10))
    return {number: sorted(draw(st.sets(st.integers(0, number - 1)))) for number in range(1, count)}


@given(graphs(), st.sets(st.integers(0, 10)))
def test_each_is_ready_once_after_all_before_it_or_falls_once(
    after: dict[int, list[int]], failing: set[int]
) -> None:
    outbox = Outbox()
    jobs = Jobs(outbox)
    given_job = replace(ordered(after, len(after) + 1), options=TaskOptions(attempts=1))
    run = jobs.begin(given_job, at(0))
    queue: list[TaskRun] = []
    for task in given_job.tasks:
        if task.after:
            run.blocked.add(
                TaskRun(task, run, task.key, TaskState.BLOCKED), dict.fromkeys(task.after)
            )
        else:
            queue.append(TaskRun(task, run, task.key))
    done: set[str] = set()
    for each in queue:  # which grows on the way
        assert set(each.task.after) <= done
        each.move("dispatch")
        if int(each.task.task_id.removeprefix("job/")) in failing:
            assert not jobs.failed(each, "x", BOB.peer_id, EXIT)
        else:
            jobs.succeeded(each, TaskSucceeded(each.task.task_id, BOB.peer_id, b"", 1))
            done.add(each.task.task_id)
        queue += jobs.take_ready()
    assert len(run.blocked) == 0
    assert run.is_over
    assert run.ended[TaskState.SUCCEEDED] == len(done)


@pytest.mark.at_length
def test_twenty_thousand_tasks_that_wait_take_a_moment() -> None:
    blocked = Blocked()
    run = JobRun(job())
    began_s = time.thread_time()
    for number in range(1, 20_000):
        task = Task(f"job/{number}", NEEDS, b"", after=(f"job/{number - 1}", "job/0"))
        blocked.add(TaskRun(task, run, task.key, TaskState.BLOCKED), dict.fromkeys(task.after))
    count = 0
    for number in range(19_999):
        count += len(blocked.succeeded(f"job/{number}"))
    assert count == 19_999
    assert time.thread_time() - began_s < 2


# -- memory that was learnt -----------------------------------------------------------------


def forgetful(needed_bytes: int) -> World:
    """Tasks are stopped where their lease has less memory than this."""

    def run(running: Running) -> tuple[float, Outcome]:
        if running.under.needs.memory_bytes < needed_bytes:
            return 0.5, Failed(FailureKind.MEMORY, "stopped at its memory limit")
        return 0.5, Succeeded(running.work.payload)

    return town(5, run, alice=2, carol=2)


def learnt(memory_bytes: int) -> Job:
    once = job(attempts=1)
    needs = replace(NEEDS, memory_bytes=memory_bytes)
    (task,) = once.tasks
    task = replace(task, needs=needs, more_memory_bytes=DEFAULT_MEMORY_BYTES)
    return replace(once, tasks=(task,))


def test_what_is_stopped_at_memory_that_was_learnt_is_tried_again_with_more_but_only_once() -> None:
    world, bob = at_work(forgetful(300 * MIB), learnt(100 * MIB), for_s=5)
    assert bob.reported[-1] == JobEnded(1, 0, 0, 0)
    (retried,) = only(bob.reported, TaskRetried)
    assert not retried.counts
    world.elapse(3)
    assert all(is_idle(world.nodes[name]) for name in ("alice", "carol"))
    _, bob = at_work(forgetful(600 * MIB), learnt(100 * MIB), for_s=5)
    assert bob.reported[-1] == JobEnded(0, 1, 0, 0)
    (gave_up,) = only(bob.reported, TaskGaveUp)
    assert (gave_up.kind, len(gave_up.attempts)) == (FailureKind.MEMORY, 1)


def test_one_of_two_attempts_that_is_stopped_leaves_it_to_the_other() -> None:
    outbox = Outbox()
    jobs = Jobs(outbox)
    given_job = learnt(100 * MIB)
    owner = jobs.begin(given_job, at(0))
    run = TaskRun(given_job.tasks[0], owner, given_job.tasks[0].key)
    run.move("dispatch")
    run.dispatched()  # the other one
    stopped = Failed(FailureKind.MEMORY, "stopped at its memory limit")
    assert not jobs.failed(run, "first", BOB.peer_id, stopped)
    assert jobs.take_ready() == []
    run.ended()
    assert not jobs.failed(run, "second", BOB.peer_id, stopped)
    assert jobs.take_ready() == [run]
    assert run.task.needs.memory_bytes == DEFAULT_MEMORY_BYTES
    assert run.attempts == ()


def test_what_somebody_said_is_not_changed() -> None:
    _, bob = at_work(forgetful(1024 * MIB), job(attempts=2), for_s=8)
    (gave_up,) = only(bob.reported, TaskGaveUp)
    assert len(gave_up.attempts) == 2


def test_what_is_stopped_while_its_job_is_cancelled_is_cancelled() -> None:
    world, bob = at_work(forgetful(300 * MIB), learnt(100 * MIB), for_s=0.3)
    jobs = next(iter(peer_of(bob).scheduler.jobs()))
    jobs.move("cancel")
    world.elapse(5)
    assert bob.reported[-1] == JobEnded(0, 0, 0, 1)


# -- A policy's gate, while tasks run: whom it shuts out gets nothing more ------------------


def a_second(running: Running) -> tuple[float, Outcome]:
    return 1.0, Succeeded(b"")


def shame(world: World, name: str) -> None:
    """bob finds out that results of a worker are false."""
    worker = world.nodes[name].identity.peer_id
    for _ in range(10):
        peer_of(world.nodes["bob"]).reputation.note(worker, Experience.WRONG, at(world.now_s))


@pytest.mark.at_length
def test_whoever_falls_below_the_gate_in_the_middle_of_a_job_gets_nothing_more() -> None:
    world = town(7, a_second, alice=2, carol=2)
    _, bob = at_work(world, job(60, policy="trust>=0.3 & balanced"), for_s=5)
    shame(world, "alice")
    world.elapse(DISPATCH_DEFAULTS.review_every_s + 1)
    placed = workers_of(bob).count("alice")
    world.elapse(40)
    assert workers_of(bob).count("alice") == placed > 0
    assert is_idle(world.nodes["alice"])
    assert len(ends(bob)) == 60
    assert len(workers_of(bob)) == 60


@pytest.mark.at_length
def test_whoever_has_fallen_below_the_gate_when_it_is_found_again_gets_nothing_more() -> None:
    world = town(7, a_second, alice=2, carol=2)
    _, bob = at_work(world, job(60, policy="trust>=0.3 & balanced"), for_s=5)
    shame(world, "alice")
    scheduler = peer_of(bob).scheduler
    (group,) = scheduler.groups.values()
    group.candidates.reviewed(at(world.now_s))  # just before all that
    group.acquisition.search_began(FindId(99), world.now_s, stranded=False)
    found = Found(FindId(99), tuple(group.candidates.pool.values()), Trace(()), True, True)
    scheduler.found(found, at(world.now_s))
    placed = workers_of(bob).count("alice")
    world.elapse(60)
    assert workers_of(bob).count("alice") == placed > 0
    assert is_idle(world.nodes["alice"])


def test_whoever_falls_below_the_gate_gets_no_second_attempt() -> None:
    def one_slow(running: Running) -> tuple[float, Outcome]:
        return (1000.0 if running.work.attempt_id == "job/19#1" else 1.0), Succeeded(b"")

    world, bob = at_work(town(7, one_slow, alice=1, carol=1))
    bob.submit(job(20, policy="trust>=0.3 & balanced", speculate=True))
    while len(ends(bob)) < 19:
        world.elapse(0.1)
    assert workers_of(bob)[-1] == "alice"
    shame(world, "carol")
    placed = workers_of(bob).count("carol")
    world.elapse(100)
    assert workers_of(bob).count("carol") == placed > 0


def test_where_nobody_is_admitted_any_more_the_job_ends_and_says_why() -> None:
    world, bob = at_work(town(7, a_second, alice=2), job(40, policy="trust>=0.3 & balanced"))
    world.elapse(5)
    shame(world, "alice")
    world.elapse(60)
    assert len(ends(bob)) == 40
    reasons = {named(world, end.reasons)["alice"] for end in only(bob.reported, TaskUnplaceable)}
    assert {type(reason) for reason in reasons} == {Distrusted}


@dataclass(frozen=True)
class Asking(Policy):
    """Notes of which tasks it is asked."""

    names: tuple[list[str]]

    def __hash__(self) -> int:
        return 0

    def admit(self, task: TaskView, candidate: Candidate) -> Refusal | None:
        self.names[0].append(task.name)
        return None


def test_a_policy_is_asked_about_tasks_that_there_are() -> None:
    asked: list[str] = []
    world, bob = at_work(town(7, a_second, alice=1))
    world.deliver(bob, Submit(job(6, policy=Asking((asked,)))))
    world.elapse(20)
    assert len(ends(bob)) == 6
    assert set(asked) <= set(ends(bob))
    assert len(asked) > 3  # found, and judged each second


def test_what_discovery_brings_when_all_is_done_is_left() -> None:
    world, bob = at_work(town(7, a_second, alice=1), job(1))
    while not ends(bob):
        world.elapse(0.05)
    scheduler = peer_of(bob).scheduler
    (group,) = scheduler.groups.values()  # its lease is kept warm for a moment
    group.acquisition.search_began(FindId(99), world.now_s, stranded=False)
    known = dict(group.candidates.pool)
    assert scheduler.found(Found(FindId(99), (), Trace(()), True, True), at(world.now_s)) == []
    assert group.candidates.pool == known

"""Slow tasks: what waits behind them goes elsewhere, and some of them are overtaken."""

from collections.abc import Callable

import pytest

from formation_p2p.jobs.core.active_lease import ActiveLease
from formation_p2p.jobs.core.job_events import JobEnded, TaskPlaced, TaskRecalled, TaskSucceeded
from formation_p2p.jobs.core.parameters import DISPATCH_DEFAULTS
from formation_p2p.jobs.core.task_group import Estimates, TaskGroup
from formation_p2p.jobs.core.task_run import JobRun, TaskRun
from formation_p2p.leases.core.held_lease import HeldLease, HeldState
from formation_p2p.leases.core.messages import Cancel
from formation_p2p.placement.core.task_options import SchedulingKey
from formation_p2p.workload.core.outcome import Failed, FailureKind, Outcome, Succeeded
from simulations.simulator.executor import Running
from simulations.simulator.node import SimNode
from simulations.simulator.world import World
from tests.support.stories import (
    ALICE,
    NEEDS,
    at,
    at_work,
    ends,
    is_idle,
    job,
    mend,
    name_of,
    only,
    passed,
    peer_of,
    town,
    where,
)

pytestmark = pytest.mark.at_length

NEVER = float("inf")
EXIT = Failed(FailureKind.EXIT, "exit code 1")


def lease_with(count: int, *, began_s: float | None = 0.0, speculate: bool = False) -> ActiveLease:
    """A lease with so many attempts under way. The first has been said to run since then."""
    lease = HeldLease("lease", ALICE, SchedulingKey(NEEDS), HeldState.HELD, expires_s=10)
    active, owner = ActiveLease(lease), JobRun(job(max(1, count), speculate=speculate))
    for task in owner.job.tasks[:count]:
        run = TaskRun(task, owner, task.key)
        run.move("dispatch")
        active.add(f"{task.task_id}#1", run, at(0))
    if began_s is not None:
        active.started("job/0#1", at(began_s))
    return active


def taking(mean_s: float) -> Estimates:
    """Others take so long; nobody knows where it is infinite."""
    estimates = Estimates(DISPATCH_DEFAULTS)
    if mean_s != NEVER:
        estimates.took(mean_s)
    return estimates


# -- when -----------------------------------------------------------------------------------


def test_nothing_is_taken_back_from_behind_a_task_that_is_not_slow() -> None:
    assert taking(0.1).to_recall(lease_with(3, began_s=None), True, at(99)) == ([], NEVER)
    assert taking(0.1).to_recall(lease_with(0), True, at(99)) == ([], NEVER)
    assert taking(0.1).to_recall(lease_with(1), True, at(99)) == ([], NEVER)  # nothing waits there
    suspect = lease_with(3)
    suspect.lease.move("undelivered")
    assert taking(0.1).to_recall(suspect, True, at(99)) == ([], NEVER)  # nobody would hear it


def test_a_lease_gets_more_to_do_where_its_worker_is_not_in_doubt() -> None:
    idle, busy, suspect = lease_with(0), lease_with(1), lease_with(0)
    suspect.lease.move("undelivered")
    group = TaskGroup(SchedulingKey(NEEDS))
    assert [x for x in (busy, idle, suspect) if group.employs(x, at(0))] == [busy, idle]


@pytest.mark.parametrize(
    ("mean_s", "patience_s"),
    [
        (0.0, DISPATCH_DEFAULTS.min_patience_s),
        (0.5, DISPATCH_DEFAULTS.patience * 0.5),
        (60.0, DISPATCH_DEFAULTS.max_patience_s),
        (NEVER, DISPATCH_DEFAULTS.max_patience_s),
    ],
)
def test_where_nobody_is_idle_it_is_taken_back_after_a_while_and_once(
    mean_s: float, patience_s: float
) -> None:
    active = lease_with(3, began_s=7.0)
    due_s = 7.0 + patience_s
    assert taking(mean_s).to_recall(active, False, at(due_s - 0.01)) == ([], due_s)
    assert not taking(mean_s).is_stuck(active, at(due_s - 0.01))
    assert taking(mean_s).to_recall(active, False, at(due_s)) == (["job/1#1", "job/2#1"], NEVER)
    assert active.recalled == {"job/1#1", "job/2#1"}
    assert taking(mean_s).is_stuck(active, at(due_s))
    assert taking(mean_s).to_recall(active, True, at(due_s + 9)) == ([], NEVER)


def test_where_somebody_is_idle_it_is_taken_back_at_once_and_nothing_follows_it() -> None:
    active = lease_with(2)
    assert taking(10.0).to_recall(active, True, at(0.05)) == (["job/1#1"], NEVER)
    assert taking(10.0).is_stuck(active, at(0.05))
    active.remove("job/0#1", at(1))
    assert not taking(10.0).is_stuck(active, at(1))


def test_a_task_is_overtaken_after_twice_what_others_take_if_its_job_allows_it() -> None:
    for mean_s, after_s in (
        (0.0, DISPATCH_DEFAULTS.min_straggler_s),
        (2.0, DISPATCH_DEFAULTS.straggler * 2.0),
        (NEVER, NEVER),
    ):
        assert (
            taking(mean_s).overtake_s(lease_with(1, began_s=3.0, speculate=True)) == 3.0 + after_s
        )
    assert taking(1.0).overtake_s(lease_with(1)) == NEVER
    assert taking(1.0).overtake_s(lease_with(0, speculate=True)) == NEVER
    assert taking(1.0).overtake_s(lease_with(1, began_s=None, speculate=True)) == NEVER


@pytest.mark.parametrize("why", ["overtaken already", "over", "cancelled", "overdue"])
def test_a_task_of_which_no_other_result_would_count_is_not_overtaken(why: str) -> None:
    active = lease_with(1, speculate=True)
    run = active.attempts["job/0#1"]
    match why:
        case "overtaken already":
            run.dispatched()
        case "over":
            run.move("success")
        case "cancelled":
            run.job.move("cancel")
        case _:
            run.job.move("deadline")
    assert taking(1.0).overtake_s(active) == NEVER


# -- what waits behind a slow task ----------------------------------------------------------


def slowly(slow: Callable[[Running], bool], *, usual_s: float = 0.1, slow_s: float = 30.0) -> World:
    """Three workers of a core each. What is slow takes long there."""

    def run(running: Running) -> tuple[float, Outcome]:
        return slow_s if slow(running) else usual_s, Succeeded(running.work.payload)

    return town(3, run, alice=1, carol=1, dave=1)


def test_what_waits_behind_a_slow_task_runs_elsewhere() -> None:
    world, bob = at_work(slowly(lambda running: running.work.payload == b"0"), job(30), for_s=3)
    assert len(only(bob.reported, TaskSucceeded)) == 29
    recalled = only(bob.reported, TaskRecalled)
    assert len(recalled) <= 1  # one waits behind another, as a rule
    for each in recalled:
        (cancel,) = [
            c for n in ("alice", "carol", "dave") for c in only(passed(world, "bob", n), Cancel)
        ]
        assert (cancel.attempt_ids, cancel.begun) == ((each.attempt_id,), False)
    world.elapse(30)
    assert bob.reported[-1] == JobEnded(30, 0, 0, 0)
    assert len(only(bob.reported, TaskPlaced)) == 30 + len(recalled)


def test_a_node_that_works_for_itself_does_not_go_round_in_circles() -> None:
    world = town(7, lambda x: (8.0, Succeeded(x.work.payload)))
    alice = world.add("alice", serve=world.machine(cpu=2))
    world.elapse(2)
    alice.submit(job(6))
    world.elapse(40)
    assert alice.reported[-1] == JobEnded(6, 0, 0, 0)
    assert len(only(alice.reported, TaskRecalled)) <= 6


def test_nothing_is_taken_back_for_an_idle_worker_that_is_failing() -> None:
    """She would not get it."""

    def run(running: Running) -> tuple[float, Outcome]:
        if where(world, running).name != "alice":
            return 0.1, Failed(FailureKind.DRIVER, "no such driver")
        return 4.0, Succeeded(running.work.payload)

    world, bob = at_work(town(3, run, alice=1, carol=1), job(2))
    world.elapse(15)
    assert bob.reported[-1] == JobEnded(2, 0, 0, 0)
    recalled = only(bob.reported, TaskRecalled)
    assert len(recalled) <= 1  # before it was known
    assert len(only(bob.reported, TaskPlaced)) == 3 + len(recalled)


def test_a_recall_that_was_lost_is_sent_again() -> None:
    world, bob = at_work(town(3, lambda x: (20.0, Succeeded(x.work.payload)), alice=1), job(2))
    alice = world.nodes["alice"]
    world.elapse(2)
    assert len(only(bob.reported, TaskPlaced)) == 2
    world.cut(bob, alice)
    world.elapse(4)  # the patience with the first ends
    (active,) = peer_of(bob).scheduler.leases()
    assert len(active.recalled) == 1
    assert only(bob.reported, TaskRecalled) == []
    mend(world, bob, alice)
    world.elapse(0.1)
    assert len(only(bob.reported, TaskRecalled)) == 1
    world.elapse(60)
    assert bob.reported[-1] == JobEnded(2, 0, 0, 0)


# -- second attempts ------------------------------------------------------------------------


def first_is_slow(running: Running) -> bool:
    return running.work.payload == b"7" and running.work.attempt_id.endswith("#1")


def until_overtaken(world: World, bob: SimNode) -> tuple[SimNode, SimNode]:
    """Where the first and where the second attempt of the slow task runs."""
    while True:
        world.elapse(0.02)
        placed = [p for p in only(bob.reported, TaskPlaced) if p.task_id == "job/7"]
        if len(placed) == 2:
            world.elapse(0.05)
            one, two = (world.nodes[name_of(world, each.worker)] for each in placed)
            return one, two


def test_no_second_attempt_is_made_unless_the_job_asks_for_it() -> None:
    world, bob = at_work(slowly(first_is_slow), job(9), for_s=29)
    assert len(only(bob.reported, TaskSucceeded)) == 8
    world.elapse(3)
    assert bob.reported[-1] == JobEnded(9, 0, 0, 0)
    assert len(only(bob.reported, TaskPlaced)) == 9 + len(only(bob.reported, TaskRecalled))


def test_the_first_result_counts_and_the_other_attempt_is_stopped() -> None:
    world, bob = at_work(slowly(first_is_slow), job(9, speculate=True))
    one, two = until_overtaken(world, bob)
    assert one is not two
    assert {attempt for _, attempt in one.running} == {"job/7#1"}
    world.elapse(0.2)
    ended = ends(bob)["job/7"]
    assert isinstance(ended, TaskSucceeded)
    assert ended.worker == two.identity.peer_id
    assert bob.reported[-1] == JobEnded(9, 0, 0, 0)
    (cancel,) = only(passed(world, "bob", one.name), Cancel)
    assert (cancel.attempt_ids, cancel.begun) == (("job/7#1",), True)
    world.elapse(0.1)
    assert one.running == {}
    world.elapse(1)
    assert all(is_idle(world.nodes[name]) for name in ("alice", "carol", "dave"))


def test_a_slow_task_of_the_last_ones_is_overtaken_too() -> None:
    """An idle lease is kept for it, since it would be given back before."""
    assert DISPATCH_DEFAULTS.linger_s < DISPATCH_DEFAULTS.min_straggler_s
    world = slowly(lambda running: running.work.attempt_id == "job/9#1")
    _, bob = at_work(world, job(10, speculate=True), for_s=1.5)
    assert bob.reported[-1] == JobEnded(10, 0, 0, 0)
    world.elapse(1)
    assert all(is_idle(world.nodes[name]) for name in ("alice", "carol", "dave"))


def test_a_lease_that_is_kept_for_a_second_attempt_is_given_to_what_waits_for_room() -> None:
    world = slowly(lambda running: running.work.payload == b"7", usual_s=2.0)
    _, bob = at_work(world, job(9, speculate=True), for_s=7.5)
    assert len(only(bob.reported, TaskSucceeded)) == 8
    kept = [n for n in ("alice", "carol", "dave") if not is_idle(world.nodes[n])]
    assert len(kept) == 2  # that of the slow task, and the one to overtake it
    bob.submit(job(3, job_id="urgent", priority=9, payload=b"x"))
    world.elapse(5)
    assert len([e for e in only(bob.reported, TaskSucceeded) if e.task_id[:6] == "urgent"]) == 3


@pytest.mark.parametrize("which", [0, 1])
def test_where_one_worker_is_lost_the_other_attempt_goes_on(which: int) -> None:
    world, bob = at_work(slowly(lambda running: running.work.payload == b"7", slow_s=5.0))
    bob.submit(job(9, speculate=True))
    victim = until_overtaken(world, bob)[which]
    world.kill(victim)
    world.elapse(0.5)
    placed = [p for p in only(bob.reported, TaskPlaced) if p.task_id == "job/7"]
    assert len(placed) >= 2
    world.elapse(10)
    assert bob.reported[-1] == JobEnded(9, 0, 0, 0)
    assert isinstance(ends(bob)["job/7"], TaskSucceeded)


def test_the_loser_is_stopped_again_where_the_first_word_of_it_was_lost() -> None:
    world, bob = at_work(slowly(first_is_slow), job(9, speculate=True))
    one, _ = until_overtaken(world, bob)
    world.cut(bob, one)
    world.elapse(2)
    assert bob.reported[-1] == JobEnded(9, 0, 0, 0)
    placed = len(only(bob.reported, TaskPlaced))
    assert one.running  # and nobody tries to overtake it again
    mend(world, bob, one)
    world.elapse(0.2)
    assert one.running == {}
    world.elapse(1)
    assert len(only(bob.reported, TaskPlaced)) == placed
    assert is_idle(one)


def test_a_late_result_of_the_loser_counts_nothing() -> None:
    world, bob = at_work(slowly(lambda running: running.work.attempt_id == "job/7#1", slow_s=1.5))
    bob.submit(job(9, speculate=True))
    one, _ = until_overtaken(world, bob)
    world.cut(bob, one)
    world.elapse(2)  # it has ended there, and bob does not know
    reported = list(bob.reported)
    mend(world, bob, one)
    world.elapse(1)
    assert bob.reported == reported
    assert is_idle(one)


def test_a_second_attempt_is_not_made_where_the_task_failed_before() -> None:
    world, bob = at_work(slowly(first_is_slow))
    failed_at: set[str] = set()

    def run(running: Running) -> tuple[float, Outcome]:
        if running.work.payload != b"7":
            return 0.4, Succeeded(running.work.payload)
        name = where(world, running).name
        if not failed_at:
            failed_at.add(name)
            return 0.1, EXIT
        return 3.0, Succeeded(running.work.payload)

    world.run = run
    bob.submit(job(9, speculate=True))
    world.elapse(10)
    assert bob.reported[-1] == JobEnded(9, 0, 0, 0)
    names = [
        name_of(world, p.worker) for p in only(bob.reported, TaskPlaced) if p.task_id == "job/7"
    ]
    assert failed_at.isdisjoint(names[1:])

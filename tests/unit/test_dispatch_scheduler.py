"""bob's jobs in small worlds, where workers are full, fail, die, leave and come back."""

from dataclasses import replace

import pytest

from formation_p2p.assembly import PeerParameters
from formation_p2p.core.identity import key_of_peer
from formation_p2p.core.keyspace import distance
from formation_p2p.core.refusals import Denied, Infeasible, Leaving, Preempted, Silent
from formation_p2p.discovery.core.finder import Finder
from formation_p2p.discovery.core.parameters import DiscoveryParameters
from formation_p2p.drivers.core.effects import ExecutionOutput
from formation_p2p.jobs.core.job import Job
from formation_p2p.jobs.core.job_events import (
    Awaited,
    CodeSent,
    JobEnded,
    JobWaits,
    TaskBegan,
    TaskCancelled,
    TaskGaveUp,
    TaskPlaced,
    TaskPrinted,
    TaskRetried,
    TaskSucceeded,
    TaskUnplaceable,
    WorkerLost,
)
from formation_p2p.jobs.core.parameters import DISPATCH_DEFAULTS
from formation_p2p.leases.core.in_flight import MAX_IN_FLIGHT_BYTES
from formation_p2p.leases.core.messages import (
    MAX_OUTPUT_BYTES,
    Commit,
    Dispatch,
    Leased,
    LeaseEnded,
    Offer,
    OutputRead,
    PlacementRequest,
    Release,
    ResultAck,
    TaskOutput,
    TasksEnded,
    TaskStarted,
    WorkMessage,
)
from formation_p2p.leases.core.session import Received, Undelivered
from formation_p2p.machine.core.requirements import Requirements
from formation_p2p.peer.core.events import CancelJob, OutputSeen
from formation_p2p.workload.core.blob import RAW, Blob, Cid, digest_of
from formation_p2p.workload.core.code_bundle import Code
from formation_p2p.workload.core.outcome import Ended, Failed, FailureKind, Succeeded
from formation_p2p.workload.core.work import MAX_PAYLOAD_BYTES, Task
from simulations.simulator.node import SimNode
from simulations.simulator.world import World
from tests.support.stories import (
    NEEDS,
    at_work,
    ends,
    is_idle,
    job,
    mend,
    name_of,
    named,
    only,
    passed,
    peer_of,
    town,
    town_with,
    workers_of,
)

BIG = replace(NEEDS, cpu_milli=64_000)
EXIT = Failed(FailureKind.EXIT, "exit code 1")


def all_succeeded(bob: SimNode, count: int) -> bool:
    """And each counted once, with its own result."""
    results = {e.task_id: e.result for e in only(ends(bob).values(), TaskSucceeded)}
    return (
        results == {f"job/{n}": b"%d" % n for n in range(count)}
        and bob.reported[-1] == JobEnded(count, 0, 0, 0)
        and len(only(bob.reported, JobEnded)) == 1
    )


def nearest_first(world: World, run: Task) -> list[str]:
    workers = [n for n in world.nodes.values() if n.name not in ("gate", "bob")]
    workers.sort(key=lambda n: distance(key_of_peer(n.identity.peer_id), run.key))
    return [each.name for each in workers]


THREE = {"alice": 1, "carol": 1, "dave": 1}


def lasting(seconds: float, **cores: int) -> World:
    """Workers, three of a core each or these, whose tasks take so long and echo their payload."""
    return town(3, lambda x: (seconds, Succeeded(x.work.payload)), **(cores or THREE))


# -- when all goes well ---------------------------------------------------------------------


def test_one_task_goes_to_the_nearest_worker_in_four_messages() -> None:
    world = town(alice=1, carol=1, dave=1)
    bob, one = world.nodes["bob"], job()
    nearest, *others = nearest_first(world, one.tasks[0])
    bob.submit(one)
    world.elapse(0.5)
    (placed,) = only(bob.reported, TaskPlaced)
    assert (name_of(world, placed.worker), placed.nearest) == (nearest, True)
    there, back = passed(world, "bob", nearest), passed(world, nearest, "bob")
    assert [type(message) for message in there] == [PlacementRequest, Commit, Dispatch]
    assert [type(message) for message in back[:2]] == [Offer, Leased]
    for each in others:
        assert [type(x) for x in passed(world, "bob", each)] == [PlacementRequest, Release]


def test_a_job_whose_calls_need_code_tells_of_it_first() -> None:
    world = town(alice=1)
    code = Code(Blob(Cid(RAW, digest_of(b"")), 0), ("shop",), 2, 100)
    world.nodes["bob"].submit(replace(job(), code=code))
    world.elapse(5)
    first, *others = world.nodes["bob"].reported
    assert first == CodeSent(code)
    assert not only(others, CodeSent)
    assert isinstance(others[-1], JobEnded)


def test_the_whole_story_is_told_in_order_and_the_lease_given_back_soon() -> None:
    world = town(alice=1)
    bob, alice = world.nodes["bob"], world.nodes["alice"]
    her = alice.identity.peer_id
    bob.submit(job())
    world.elapse(0.5)
    (lease_id,) = {key[0] for key in alice.running}
    world.deliver(alice, ExecutionOutput(lease_id, "job/0#1", True, b"oh"))
    world.elapse(1)
    assert bob.reported == [
        TaskPlaced("job/0", "job/0#1", her, lease_id, True),
        TaskBegan("job/0", her),
        TaskPrinted("job/0", True, b"oh", her),
        TaskSucceeded("job/0", her, b"0", 1000),
        JobEnded(1, 0, 0, 0),
    ]
    assert passed(world, "bob", "alice")[-2:] == [
        ResultAck(lease_id, ("job/0#1",)),
        Release(lease_id),
    ]
    assert is_idle(alice)


def test_many_tasks_use_every_core_and_few_leases() -> None:
    cores = {"alice": 4, "carol": 1, "dave": 1}
    world, bob = at_work(lasting(1, **cores), job(18), for_s=0.9)
    assert {name: len(world.nodes[name].running) for name in cores} == cores
    world.elapse(4)  # three rounds of a second, and little more
    assert all_succeeded(bob, 18)
    for name, count in cores.items():
        assert len(only(passed(world, name, "bob"), Leased)) == count
        assert is_idle(world.nodes[name])


def test_tasks_of_different_needs_and_priorities_do_not_share_leases() -> None:
    world, bob = at_work(town(alice=4))
    small, large = job(1), replace(NEEDS, cpu_milli=2000)
    mixed = Job("job", (*small.tasks, Task("job/1", large, b"1")))
    bob.submit(mixed)
    bob.submit(job(1, job_id="urgent", priority=9))
    world.elapse(3)
    assert len(only(bob.reported, TaskSucceeded)) == 3
    asked = only(passed(world, "bob", "alice"), PlacementRequest)
    assert {(x.needs, x.priority) for x in asked} == {(NEEDS, 0), (large, 0), (NEEDS, 9)}


def test_a_job_may_be_submitted_before_the_node_has_joined() -> None:
    world = town(alice=1)
    world.latency = lambda a, b: 0.6  # the gate's first answer takes longer than two looks
    late = world.add("late")
    late.submit(job())
    world.elapse(0.5)
    assert late.reported == []
    world.elapse(30)
    assert all_succeeded(late, 1)


# -- when there is nobody, or nothing free --------------------------------------------------


def test_where_nobody_is_capable_it_fails_in_about_a_second_with_each_ones_reason() -> None:
    world, bob = at_work(town(alice=1, carol=2), job(2, needs=BIG), for_s=1.5)
    for unplaceable in ends(bob).values():
        assert isinstance(unplaceable, TaskUnplaceable)
        assert named(world, unplaceable.reasons) == {
            "alice": Infeasible("cpu", 64_000, 1000),
            "carol": Infeasible("cpu", 64_000, 2000),
        }
    assert bob.reported[-1] == JobEnded(0, 0, 2, 0)


def test_in_an_empty_network_it_fails_in_some_seconds_without_a_reason() -> None:
    """A gate that restarted is told of workers in that time."""
    world, bob = at_work(town(), job(), for_s=1.5)
    assert bob.reported == [JobWaits(Awaited.WORKERS)]
    world.elapse(4)
    assert bob.reported[1:] == [TaskUnplaceable("job/0", ()), JobEnded(0, 0, 1, 0)]


@pytest.mark.at_length
def test_a_job_waits_for_workers_that_are_full_and_runs_when_they_are_not() -> None:
    world = lasting(4)
    bob, eve = world.nodes["bob"], world.add("eve")
    world.elapse(1)
    eve.submit(job(6, job_id="hog"))
    world.elapse(1)
    bob.submit(job(3))
    world.elapse(3)
    assert bob.reported == []
    asked = only(passed(world, "bob", "alice"), PlacementRequest)
    assert 1 <= len(asked) <= 3  # and does not pester them
    world.elapse(25)
    assert all_succeeded(bob, 3)
    assert len(only(eve.reported, TaskSucceeded)) == 6


@pytest.mark.at_length
def test_a_worker_that_joins_during_the_job_is_used() -> None:
    world, bob = at_work(town(alice=1), job(30), for_s=2)
    world.add("carol", serve=world.machine(cpu=2))
    world.elapse(20)
    assert all_succeeded(bob, 30)
    assert "carol" in workers_of(bob)


@pytest.mark.at_length
def test_it_looks_again_for_as_long_as_that_brings_somebody_new() -> None:
    """One answer of discovery names the nearest few; a large job can use them all."""
    few = PeerParameters(discovery=DiscoveryParameters(max_providers=4))
    workers = {f"w{n}": 1 for n in range(8)}
    world = town_with(few, 1, lambda x: (9, Succeeded(x.work.payload)), **workers)
    world.elapse(90)  # by now all of them are known wherever one may ask
    _, bob = at_work(world, job(40), for_s=1)
    assert len({*workers_of(bob)}) == 8


def test_finds_that_must_wait_their_turn_are_made_up_for() -> None:
    one = PeerParameters(discovery=DiscoveryParameters(max_finds=1))
    _, bob = at_work(town_with(one, alice=4), job(), job(job_id="another", priority=1), for_s=5)
    assert len(only(bob.reported, TaskSucceeded)) == 2


def test_where_what_is_free_decides_and_discovery_has_no_time_whoever_is_known_is_asked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world, bob = at_work(lasting(8), job(4, policy="packed"), for_s=1)
    monkeypatch.setattr(Finder, "find", lambda *asked, **options: None)
    world.elapse(20)
    assert all_succeeded(bob, 4)


def test_a_worker_that_leased_is_asked_for_more_as_if_it_had_never_refused() -> None:
    world = town(
        3, lambda x: (10 if x.work.payload == b"hog" else 3, Succeeded(x.work.payload)), alice=1
    )
    bob, eve = world.nodes["bob"], world.add("eve")
    world.elapse(1)
    eve.submit(job(payload=b"hog"))
    world.elapse(0.5)
    bob.submit(job(6))
    while not only(bob.reported, TaskPlaced):
        world.elapse(0.1)
    refused = len(only(passed(world, "bob", "alice"), PlacementRequest))
    assert refused >= 4
    world.elapse(5)
    assert len(only(passed(world, "bob", "alice"), PlacementRequest)) >= refused + 2


# -- when tasks fail ------------------------------------------------------------------------


def test_a_task_that_fails_is_tried_elsewhere_first_and_up_to_its_limit() -> None:
    world, bob = at_work(town(3, lambda x: (0.5, EXIT), alice=1, carol=1, dave=1), job(attempts=5))
    world.elapse(30)
    (gave_up,) = ends(bob).values()
    assert isinstance(gave_up, TaskGaveUp)
    assert (len(gave_up.attempts), gave_up.kind) == (5, FailureKind.EXIT)
    first_three = {name_of(world, attempt.worker) for attempt in gave_up.attempts[:3]}
    assert first_three == {"alice", "carol", "dave"}
    assert [attempt.why for attempt in gave_up.attempts] == ["exit: exit code 1"] * 5
    assert len(only(bob.reported, TaskRetried)) == 4
    assert bob.reported[-1] == JobEnded(0, 1, 0, 0)


# -- when workers are lost ------------------------------------------------------------------


def test_a_worker_dies_in_mid_task_and_its_tasks_run_elsewhere() -> None:
    world, bob = at_work(lasting(2), job(9), for_s=3)
    alice = world.nodes["alice"]
    world.kill(alice)
    world.elapse(1)
    (lost,) = only(bob.reported, WorkerLost)
    assert lost.worker == alice.identity.peer_id
    moved = [retried.task_id for retried in only(bob.reported, TaskRetried)]
    # The one that ran counts, and not the one that waited behind it.
    assert [each.counts for each in only(bob.reported, TaskRetried)] == [True, False]
    world.elapse(30)
    assert all_succeeded(bob, 9)
    again = {p.task_id: name_of(world, p.worker) for p in only(bob.reported, TaskPlaced)}
    assert all(again[task] != "alice" for task in moved)


@pytest.mark.at_length
def test_a_worker_that_is_cut_off_in_silence_is_lost_when_its_lease_expires() -> None:
    """Nobody is told: packets vanish. Both sides stop believing in the lease, the worker last."""
    world, bob = at_work(lasting(30), job(3), for_s=2)
    alice = world.nodes["alice"]
    assert len(alice.running) == 1
    world.cut(bob, alice)
    for _ in range(100):
        world.elapse(0.1)
        if only(bob.reported, WorkerLost):
            break
        assert alice.running
    (lost,) = only(bob.reported, WorkerLost)
    assert lost.why == "the worker is gone: it did not answer in time"
    world.elapse(1)
    assert is_idle(alice)  # she has fenced herself
    mend(world, bob, alice)
    world.elapse(90)
    assert all_succeeded(bob, 3)
    assert all(map(is_idle, (alice, world.nodes["carol"], world.nodes["dave"])))


def test_a_worker_that_is_cut_off_before_it_leases_is_given_up_for_another() -> None:
    world = lasting(1)
    bob, one = world.nodes["bob"], job()
    nearest, second, _ = nearest_first(world, one.tasks[0])
    bob.submit(one)
    while not only(passed(world, nearest, "bob"), Offer):
        world.elapse(0.005)
    world.cut(bob, world.nodes[nearest])
    world.elapse(6)
    assert all_succeeded(bob, 1)
    assert workers_of(bob) == [second]
    assert only(bob.reported, WorkerLost) == []  # nothing ran there
    assert is_idle(world.nodes[nearest])


def until_a_result_is_under_way(world: World) -> None:
    while not only(passed(world, "alice", "bob"), TasksEnded):
        world.elapse(0.005)


def test_a_dispatch_that_was_lost_is_sent_again() -> None:
    world, bob = at_work(town(alice=1), job(3))
    alice = world.nodes["alice"]
    until_a_result_is_under_way(world)
    world.cut(bob, alice)  # bob will hear of it, and dispatch the third task into the void
    world.elapse(4)
    assert len(only(bob.reported, TaskPlaced)) == 3
    mend(world, bob, alice)
    world.elapse(4)
    assert all_succeeded(bob, 3)
    assert len(only(bob.reported, TaskPlaced)) == 3
    assert only(bob.reported, WorkerLost) == []


def test_a_worker_that_leaves_says_so_and_its_tasks_run_elsewhere() -> None:
    world, bob = at_work(lasting(3), job(6), for_s=1)
    alice = world.nodes["alice"]
    alice.leave()
    world.elapse(0.2)
    assert alice.left
    (lost,) = only(bob.reported, WorkerLost)
    assert lost.why == str(Leaving())
    world.elapse(20)
    assert all_succeeded(bob, 6)


@pytest.mark.at_length
def test_a_poison_task_gives_up_and_what_waited_behind_it_succeeds() -> None:
    """It takes down every worker that runs it, and each time the other task waits there too."""
    run = lambda x: (60.0 if x.work.payload == b"poison" else 0.5, Succeeded(x.work.payload))  # noqa: E731
    world, bob = at_work(town(5, run))
    bob.submit(Job("job", (Task("job/poison", NEEDS, b"poison"), *job(1).tasks)))
    for n in range(DISPATCH_DEFAULTS.max_lost):
        victim = world.add(f"w{n}", serve=world.machine())
        world.elapse(40)
        assert {attempt.split("#")[0] for _, attempt in victim.running} == {"job/poison"}
        assert len(only(bob.reported, TaskPlaced)) == 2 * (n + 1)
        world.kill(victim)
    world.add("last", serve=world.machine())
    world.elapse(40)
    ended = ends(bob)
    gave_up = ended["job/poison"]
    assert isinstance(gave_up, TaskGaveUp)
    assert (len(gave_up.attempts), gave_up.kind) == (DISPATCH_DEFAULTS.max_lost, None)
    assert isinstance(ended["job/0"], TaskSucceeded)
    assert bob.reported[-1] == JobEnded(1, 1, 0, 0)


# -- results that do not count --------------------------------------------------------------


def test_a_result_counts_only_under_its_lease_and_fence_from_its_worker_and_once() -> None:
    world, bob = at_work(town(alice=1, carol=1), job(), for_s=0.5)
    alice, carol = world.nodes["alice"], world.nodes["carol"]
    if not alice.running:
        alice, carol = carol, alice
    ((lease_id, attempt_id),) = alice.running
    (leased,) = only(passed(world, alice.name, "bob"), Leased)
    ended = Ended(attempt_id, Succeeded(b"true"), 5000)
    true = TasksEnded(lease_id, leased.fence, (ended,))
    for sender, stale, acknowledged in (
        (alice, replace(true, fence=leased.fence - 1), 0),
        (alice, replace(true, lease_id="0123456789abcdef"), 0),
        # Under a lease of ours it is: the worker is to forget it.
        (alice, replace(true, ended=(replace(ended, attempt_id="job/0#9"),)), 1),
        (carol, true, 0),
    ):
        reported, acks = len(bob.reported), len(only(passed(world, "bob", sender.name), ResultAck))
        world.deliver(bob, Received(sender.contact, stale))
        assert len(bob.reported) == reported
        assert len(only(passed(world, "bob", sender.name), ResultAck)) == acks + acknowledged
    for _ in range(2):
        world.deliver(bob, Received(alice.contact, true))
    her = alice.identity.peer_id
    assert bob.reported[-2:] == [TaskSucceeded("job/0", her, b"true", 5), JobEnded(1, 0, 0, 0)]


def test_that_an_attempt_has_begun_is_told_on_once_and_nothing_of_unknown_ones() -> None:
    world, bob = at_work(town(alice=1), job(), for_s=0.5)
    alice = world.nodes["alice"]
    (attempt,) = alice.running
    for _ in range(2):
        world.deliver(bob, Received(alice.contact, TaskStarted(*attempt)))
    assert only(bob.reported, TaskBegan) == [TaskBegan("job/0", alice.identity.peer_id)]
    reported = len(bob.reported)
    for lease in (attempt[0], "0123456789abcdef"):
        unknown = (lease, "job/0#9")
        for message in (TaskStarted(*unknown), TaskOutput(*unknown, False, b"psst")):
            world.deliver(bob, Received(alice.contact, message))
    assert len(bob.reported) == reported


def test_what_an_attempt_prints_is_told_on_up_to_a_bound() -> None:
    world, bob = at_work(town(alice=1), job(), for_s=0.5)
    alice = world.nodes["alice"]
    (attempt,) = alice.running
    piece = TaskOutput(*attempt, False, bytes(MAX_OUTPUT_BYTES))
    pieces = DISPATCH_DEFAULTS.max_printed_bytes // MAX_OUTPUT_BYTES
    for _ in range(pieces + 10):
        world.deliver(bob, Received(alice.contact, piece))
    assert len(only(bob.reported, TaskPrinted)) == pieces
    # What has been read does not count. Its worker is told, and no other.
    for worker in (alice, world.nodes["gate"]):
        for more in (False, True):
            world.deliver(bob, OutputSeen("job", "job/0", worker.identity.peer_id, more))
    world.elapse(0.1)
    told = only(passed(world, "bob", "alice"), OutputRead)
    assert told == [OutputRead(*attempt, False), OutputRead(*attempt, True)]
    world.deliver(bob, Received(alice.contact, piece))
    assert len(only(bob.reported, TaskPrinted)) == pieces + 1


# -- cancelling -----------------------------------------------------------------------------


def test_cancelling_takes_back_what_waits_and_stops_what_runs() -> None:
    world, bob = at_work(lasting(60), job(10), for_s=1)
    running = len(only(bob.reported, TaskBegan))
    bob.cancel("job")
    cancelled = only(bob.reported, TaskCancelled)
    assert 0 < running < 10
    assert len(cancelled) == 10 - len(only(bob.reported, TaskPlaced))  # those that waited, at once
    world.elapse(1)
    assert len(only(ends(bob).values(), TaskCancelled)) == 10
    assert bob.reported[-1] == JobEnded(0, 0, 0, 10)
    assert all(is_idle(world.nodes[name]) for name in ("alice", "carol", "dave"))
    bob.cancel("job")
    bob.cancel("no such job")
    assert bob.reported[-1] == JobEnded(0, 0, 0, 10)


def test_tasks_that_wait_can_be_cancelled_alone() -> None:
    world, bob = at_work(lasting(2), job(10), for_s=1)
    placed = {each.task_id for each in only(bob.reported, TaskPlaced)}
    unplaced = [f"job/{n}" for n in range(10) if f"job/{n}" not in placed]
    bob.submit(job(job_id="another", needs=replace(NEEDS, memory_bytes=1)))
    world.deliver(bob, CancelJob("job", frozenset([unplaced[0], *placed])))
    assert [each.task_id for each in only(bob.reported, TaskCancelled)] == unplaced[:1]
    world.elapse(60)
    assert {JobEnded(9, 0, 0, 1), JobEnded(1, 0, 0, 0)} <= set(only(bob.reported, JobEnded))


@pytest.mark.parametrize("waiting", [frozenset(), frozenset({"job/0"})])
@pytest.mark.parametrize("sent", [None, PlacementRequest, Commit])
def test_cancelling_during_a_search_or_a_round_gives_back_what_comes_of_it(
    sent: type[WorkMessage] | None, waiting: frozenset[str]
) -> None:
    world, bob = at_work(town(alice=1), job())
    while sent is not None and not only(passed(world, "bob", "alice"), sent):
        world.elapse(0.005)
    world.deliver(bob, CancelJob("job", waiting))
    world.elapse(1)
    assert bob.reported == [TaskCancelled("job/0"), JobEnded(0, 0, 0, 1)]
    assert (passed(world, "bob", "alice") == []) == (sent is None)
    assert only(passed(world, "bob", "alice"), Dispatch) == []
    assert is_idle(world.nodes["alice"])


# -- what a worker may say ------------------------------------------------------------------


def test_a_lease_that_ends_by_a_denial_ends_with_that_worker() -> None:
    world, bob = at_work(lasting(60), job(), for_s=1)
    (name,) = workers_of(bob)
    ((lease_id, _),) = world.nodes[name].running
    denied = LeaseEnded(lease_id, Denied("submit", "the grant expired"))
    world.deliver(bob, Received(world.nodes[name].contact, denied))
    world.elapse(5)
    assert workers_of(bob)[1] != name


def test_needs_that_no_query_has_room_for_are_refused_before_anything_begins() -> None:
    world, bob = at_work(town(alice=1))
    labels = tuple((f"{n}" + "k" * 62, "v" * 63) for n in range(8))
    models = tuple(f"{n}" + "m" * 90 for n in range(16))
    huge = Requirements(driver="process", gpu_count=1, gpu_models=models, labels=labels)
    bob.submit(job(needs=huge))
    (refused,) = bob.refused
    assert refused.what == "job"
    assert "ask for fewer labels or models" in refused.why
    bob.refused.clear()
    bob.submit(job())  # the id is free
    world.elapse(3)
    assert bob.refused == []
    assert all_succeeded(bob, 1)


# -- how much is under way ------------------------------------------------------------------


def batches(world: World, name: str = "alice") -> list[int]:
    """How many tasks came with each message."""
    return [len(each.assignments) for each in only(passed(world, "bob", name), Dispatch)]


@pytest.mark.at_length
def test_two_go_out_at_first_and_many_once_it_is_known_how_short_they_are() -> None:
    world, bob = at_work(lasting(0.001, alice=1), job(500), for_s=5)
    assert all_succeeded(bob, 500)
    sizes = batches(world)
    assert sizes[:2] == [1, 1]  # one runs, and one waits behind it
    assert max(sizes) >= 50
    assert len(sizes) < 30
    (leased,) = only(passed(world, "alice", "bob"), Leased)[:1]
    assert leased.window >= 100


@pytest.mark.at_length
def test_more_goes_out_when_half_of_it_is_done() -> None:
    world, bob = at_work(lasting(0.01, alice=1), job(200), for_s=3)
    assert all_succeeded(bob, 200)
    middle = batches(world)[4:-4]
    assert min(middle) >= 3  # of ten


@pytest.mark.at_length
def test_payloads_under_way_stay_within_what_a_worker_takes() -> None:
    world, bob = at_work(lasting(0.3, alice=1))
    most = 0

    def look(node: SimNode, event: object, effects: object) -> None:
        nonlocal most
        for active in peer_of(bob).scheduler.leases():
            payloads = [len(run.task.payload) for run in active.attempts.values()]
            assert active.load.total_bytes == sum(payloads)
            most = max(most, active.load.total_bytes)

    world.witness = look
    size = MAX_PAYLOAD_BYTES // 2 + 1
    tasks = tuple(Task(f"job/{n}", NEEDS, bytes(size)) for n in range(6))
    bob.submit(Job("job", tasks))
    world.elapse(5)
    assert bob.reported[-1] == JobEnded(6, 0, 0, 0)
    assert size <= most <= MAX_IN_FLIGHT_BYTES
    assert len(only(bob.reported, TaskRetried)) == 0  # the worker refused none


def test_what_tasks_share_travels_once_for_each_lease_and_again_after_a_break() -> None:
    world = lasting(0.2, alice=1)
    bob, alice = world.nodes["bob"], world.nodes["alice"]
    function = bytes(10_000)
    bob.submit(job(20, shared=function))
    world.elapse(1)
    dispatches = only(passed(world, "bob", "alice"), Dispatch)
    assert len(dispatches) > 3
    assert [d.shared_blobs for d in dispatches if d.shared_blobs] == [((1, function),)]
    world.deliver(bob, Undelivered(alice.identity.peer_id, "connection reset"))
    world.elapse(6)
    assert all_succeeded(bob, 20)
    dispatches = only(passed(world, "bob", "alice"), Dispatch)
    assert [d.shared_blobs for d in dispatches if d.shared_blobs] == [
        ((1, function),),
        ((2, function),),
    ]


def test_results_are_written_down_before_they_are_acknowledged_and_come_in_batches() -> None:
    world, bob = at_work(lasting(0.0, alice=1), job(200), for_s=3)
    assert all_succeeded(bob, 200)
    ended = only(passed(world, "alice", "bob"), TasksEnded)
    acks = only(passed(world, "bob", "alice"), ResultAck)
    assert [[each.attempt_id for each in e.ended] for e in ended] == [
        [*a.attempt_ids] for a in acks
    ]
    assert len(acks) < 20


# -- leases that are kept for a moment ------------------------------------------------------


def test_the_next_call_of_a_loop_finds_the_lease_warm() -> None:
    world = lasting(0.01, alice=1)
    bob, alice = world.nodes["bob"], world.nodes["alice"]
    for n in range(5):
        bob.submit(job(job_id=f"call {n}"))
        world.elapse(0.2)
        assert len(only(bob.reported, JobEnded)) == n + 1
    assert len(only(passed(world, "alice", "bob"), Leased)) == 1
    world.elapse(DISPATCH_DEFAULTS.linger_s - 0.15)
    assert len(only(passed(world, "bob", "alice"), Release)) == 1
    world.elapse(0.1)
    assert is_idle(alice)


def test_a_job_says_for_how_long_its_leases_are_kept() -> None:
    world, bob = at_work(lasting(0.01, alice=1))
    for n in range(2):
        bob.submit(job(job_id=f"call {n}", linger_s=3.0))
        world.elapse(2.0)
    assert len(only(passed(world, "alice", "bob"), Leased)) == 1
    assert only(passed(world, "bob", "alice"), Release) == []
    world.elapse(1.5)
    assert len(only(passed(world, "bob", "alice"), Release)) == 1


def test_a_lease_that_is_kept_makes_room_for_another_kind_of_task_at_once() -> None:
    world, bob = at_work(lasting(0.01, alice=1), job(), for_s=0.1)
    assert only(passed(world, "bob", "alice"), Release) == []
    bob.submit(job(job_id="another", needs=replace(NEEDS, memory_bytes=2**30)))
    world.elapse(0.15)
    assert len(only(bob.reported, TaskSucceeded)) == 2


def test_a_lease_under_which_something_runs_does_not_make_room() -> None:
    world, bob = at_work(lasting(2.0, alice=2), job(), for_s=0.5)
    bob.submit(job(job_id="another", needs=replace(NEEDS, memory_bytes=2**30)))
    world.elapse(6)
    assert len(only(bob.reported, TaskSucceeded)) == 2
    assert only(bob.reported, WorkerLost) == []


# -- giving way -----------------------------------------------------------------------------


def test_what_gives_way_to_more_urgent_work_runs_again_and_does_not_count() -> None:
    world, bob = at_work(lasting(4.0, alice=1), job(2, attempts=1))
    alice = world.nodes["alice"]
    for _ in range(DISPATCH_DEFAULTS.max_lost + 1):
        while not alice.running:
            world.elapse(0.5)
        ((lease_id, _),) = alice.running
        preempted = LeaseEnded(lease_id, Preempted(50))
        world.deliver(bob, Received(alice.contact, preempted))
        alice.executor.fence(lease_id)
        world.elapse(1.5)
    retried = only(bob.reported, TaskRetried)
    assert len(retried) == 2 * (DISPATCH_DEFAULTS.max_lost + 1)
    assert {each.attempt.why for each in retried} == {str(Preempted(50))}
    assert only(bob.reported, WorkerLost) == []
    world.elapse(60)
    assert bob.reported[-1] == JobEnded(2, 0, 0, 0)


# -- deadlines ------------------------------------------------------------------------------


def test_what_has_not_ended_by_the_deadline_is_given_up() -> None:
    world, bob = at_work(lasting(2), job(9, deadline_s=3.0), for_s=2.99)
    ended = ends(bob)
    assert len(only(ended.values(), TaskSucceeded)) == len(ended) == 3
    world.elapse(0.1)
    ended = ends(bob)
    gave_up = only(ended.values(), TaskGaveUp)
    assert {each.kind for each in gave_up} == {FailureKind.DEADLINE}
    assert {len(each.attempts) for each in gave_up} == {0, 1}  # some were never placed
    assert bob.reported[-1] == JobEnded(3, 6, 0, 0)
    world.elapse(1)
    assert all(is_idle(world.nodes[name]) for name in ("alice", "carol", "dave"))


# -- workers that come back -----------------------------------------------------------------


def test_the_only_worker_restarts_and_the_job_waits_for_it() -> None:
    world, bob = at_work(lasting(0.2, alice=1), job(20), for_s=1)
    alice = world.nodes["alice"]
    world.kill(alice)
    world.restart(alice)  # and says to all that it takes no work, until it serves
    world.elapse(5)
    assert only(bob.reported, TaskUnplaceable) == []
    world.deliver(alice, world.machine(cpu=1))
    world.elapse(15)
    assert all_succeeded(bob, 20)


def test_who_asks_while_such_tasks_run_hears_of_a_worker_that_discovery_no_longer_names() -> None:
    world = lasting(60, alice=1, carol=1)
    bob, alice = world.nodes["bob"], world.nodes["alice"]
    bob.submit(job(4))
    world.elapse(1)
    alice.leave()
    world.elapse(5)
    bob.explain(NEEDS)
    world.elapse(1)
    decision = bob.explained[0].decision
    assert [name_of(world, each.profile.peer_id) for each in decision.ranked] == ["carol"]
    assert named(world, decision.rejected) == {"alice": Silent("connection refused")}


# -- odd moments ----------------------------------------------------------------------------


def test_a_lease_that_expires_at_the_moment_when_it_is_given_back() -> None:
    """The machine slept: both are due when it wakes."""
    world, bob = at_work(lasting(0.1, alice=1), job(), for_s=0.3)
    assert bob.reported[-1] == JobEnded(1, 0, 0, 0)
    world.suspend(bob)
    world.elapse(40)
    world.resume(bob)
    world.elapse(1)
    assert not peer_of(bob).scheduler.groups
    bob.submit(job(job_id="another"))
    world.elapse(2)
    assert bob.reported[-1] == JobEnded(1, 0, 0, 0)

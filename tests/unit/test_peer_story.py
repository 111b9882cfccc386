"""The story of a task: each step of its way, by its scheduler, with what caused it."""

import tracemalloc
from collections.abc import Callable, Iterable
from functools import partial

import pytest

from formation_p2p.assembly import Peer, PeerParameters
from formation_p2p.core.refusals import Leaving
from formation_p2p.jobs.core.job_events import (
    Attempt,
    CodeSent,
    EmitJobEvent,
    JobEnded,
    JobEvent,
    TaskBegan,
    TaskCancelled,
    TaskGaveUp,
    TaskPlaced,
    TaskPrinted,
    TaskRecalled,
    TaskReopened,
    TaskRetried,
    TaskSaved,
    TaskSucceeded,
    TaskUnplaceable,
    WorkerLost,
)
from formation_p2p.jobs.core.saved import SavedJob
from formation_p2p.jobs.core.wanted import SearchEnded
from formation_p2p.leases.core.messages import Commit, PlacementRequest
from formation_p2p.leases.core.session import Received
from formation_p2p.machine.core.capability import idle
from formation_p2p.peer.core.effects import MemberMet
from formation_p2p.peer.core.events import Resume
from formation_p2p.peer.core.status import Status
from formation_p2p.peer.core.story import JobTaken, Story, StoryEntry, StoryParameters, StoryStep
from formation_p2p.placement.core.task_options import SchedulingKey
from formation_p2p.workload.core.blob import RAW, Blob, Cid, digest_of
from formation_p2p.workload.core.checkpoint import MAX_INLINE_BYTES, Checkpoint, inline
from formation_p2p.workload.core.code_bundle import Code
from formation_p2p.workload.core.outcome import Failed, FailureKind, Succeeded
from simulations.simulator.executor import Running
from simulations.simulator.node import SimNode
from simulations.simulator.world import EPOCH_UNIX_S, World
from tests.support.stories import (
    NEEDS,
    at,
    at_work,
    identity,
    job,
    name_of,
    only,
    passed,
    peer_of,
    town,
)

ALICE = identity("alice").peer_id
EVERYTHING_KEPT = StoryParameters(None, None)


SAVED = Checkpoint(2, Blob(Cid(RAW, digest_of(b"half")), 4))


def story(node: SimNode, task_id: str = "job/0") -> tuple[StoryEntry, ...]:
    return peer_of(node).story(task_id)


def steps(world: World, entries: Iterable[StoryEntry]) -> list[tuple[str, str]]:
    """What happened, and the name of the worker that it concerns."""
    return [
        (each.step.value, "" if each.peer is None else name_of(world, each.peer))
        for each in entries
    ]


def reported(*events: JobEvent, kept: StoryParameters = EVERYTHING_KEPT) -> Story:
    """A story of these events, one a second."""
    noted = Story(kept)
    for second, event in enumerate(events):
        noted.emitted([EmitJobEvent("job", event, cause="test")], at(second))
    return noted


def test_the_way_of_a_task_is_told_from_its_submission_to_its_end() -> None:
    world, bob = at_work(town(alice=1))
    began_s = world.now_s
    bob.submit(job())
    world.elapse(5)
    entries = story(bob)
    assert steps(world, entries) == [
        ("submitted", ""),
        ("found", "alice"),
        ("asked", "alice"),
        ("leased", "alice"),
        ("sent", "alice"),
        ("began", "alice"),
        ("succeeded", "alice"),
    ]
    assert entries[0].at.mono_s == began_s
    times = [each.at.mono_s for each in entries]
    assert times == sorted(times)
    assert 1.0 <= times[-1] - times[4] <= 1.1  # it takes a second, and there and back
    assert entries[0].cause == "job job"
    assert entries[1].cause == "1 of 1"
    assert entries[4].cause.startswith("job/0#1 under lease ")
    assert entries[4].cause.endswith(", the nearest")
    assert entries[-1].cause == "ran for 1000 ms"


def test_who_was_ruled_out_or_refused_is_named_with_the_reason() -> None:
    world, bob = at_work(town(alice=1, carol=1), job(2, job_id="before"))  # it takes both
    world.elapse(0.5)
    dave = world.add("dave")
    world.elapse(3)
    bob.submit(job(4, job_id="first"))
    world.elapse(0.3)
    dave.submit(job())
    world.elapse(30)
    entries = story(dave)
    refused = [each for each in entries if each.step in (StoryStep.REFUSED, StoryStep.RULED_OUT)]
    assert refused
    assert all(each.peer is not None and each.cause for each in refused)
    assert entries[-1].step is StoryStep.SUCCEEDED


def test_a_task_that_waits_has_a_story_before_it_was_ever_sent() -> None:
    world, bob = at_work(town(alice=1))
    world.kill(world.nodes["alice"])
    bob.submit(job())
    world.elapse(1)
    entries = story(bob)
    assert steps(world, entries)[:3] == [("submitted", ""), ("found", "alice"), ("asked", "alice")]
    assert ("refused", "alice") in steps(world, entries)


def test_a_lost_worker_is_told_with_what_follows_from_it() -> None:
    world, bob = at_work(town(alice=1, carol=1), job(), for_s=0.5)
    first = next(each.peer for each in story(bob) if each.step is StoryStep.SENT)
    assert first is not None
    lost = name_of(world, first)
    world.kill(world.nodes[lost])
    world.elapse(10)
    [other] = {"alice", "carol"} - {lost}
    way = steps(world, story(bob))
    assert ("lease lost", lost) in way
    assert way.index(("lease lost", lost)) < way.index(("retried", lost))
    assert way[-1] == ("succeeded", other)


def test_a_search_that_brings_no_worker_says_so() -> None:
    world, bob = at_work(town(), job(), for_s=0.5)
    assert [(each.step, each.cause) for each in story(bob)] == [
        (StoryStep.SUBMITTED, "job job"),
        (StoryStep.FOUND, "no worker that can run it"),
    ]
    world.elapse(10)
    assert (story(bob)[-1].step, story(bob)[-1].cause) == (
        StoryStep.UNPLACEABLE,
        "no worker was found",
    )


def test_a_job_that_is_resumed_begins_its_story_anew() -> None:
    world, bob = at_work(town(alice=1))
    world.deliver(bob, Resume((SavedJob(job(), ()),), ()))
    world.elapse(5)
    assert steps(world, story(bob))[:2] == [("resumed", ""), ("found", "alice")]
    assert story(bob)[-1].step is StoryStep.SUCCEEDED


def test_a_failed_attempt_is_told_with_its_reason() -> None:
    def failing(running: Running) -> tuple[float, Succeeded | Failed]:
        return 1.0, Failed(FailureKind.EXIT, "exit code 1")

    _, bob = at_work(town(run=failing, alice=1), job(attempts=2), for_s=10)
    way = [(each.step, each.cause) for each in story(bob)]
    assert (StoryStep.RETRIED, "exit: exit code 1") in way
    assert way[-1] == (StoryStep.FAILED, "exit: exit code 1")


def test_what_a_task_tells_becomes_a_step_of_its_own() -> None:
    attempt = Attempt("job/0#1", ALICE, "it is gone", lost=True)
    events: list[JobEvent] = [
        TaskPlaced("job/0", "job/0#1", ALICE, "lease", nearest=False),
        TaskBegan("job/0", ALICE),
        TaskSaved("job/0", SAVED, ()),
        TaskSaved("job/0", SAVED, (ALICE,)),
        TaskRetried("job/0", attempt),
        TaskRecalled("job/0", "job/0#2"),
        TaskReopened("job/0", ALICE),
        TaskGaveUp("job/0", (attempt,), None, b""),
        TaskGaveUp("job/0", (), FailureKind.DEADLINE, b""),
        TaskUnplaceable("job/0", ((ALICE, Leaving()),)),
        TaskCancelled("job/0"),
        TaskSucceeded("job/0", ALICE, b"", 7),
    ]
    entries = reported(*events).of("job/0", None)
    assert [(each.step, each.peer, each.cause) for each in entries] == [
        (StoryStep.SENT, ALICE, "job/0#1 under lease lease"),
        (StoryStep.BEGAN, ALICE, "it runs for longer than a moment"),
        (StoryStep.SAVED, None, "checkpoint 2, held by this node alone"),
        (StoryStep.SAVED, None, f"checkpoint 2, held by {ALICE}"),
        (StoryStep.RETRIED, ALICE, "it is gone"),
        (StoryStep.RECALLED, None, "job/0#2 can run sooner elsewhere"),
        (StoryStep.REOPENED, ALICE, "its files are lost, and tasks wait for them"),
        (StoryStep.FAILED, ALICE, "it is gone"),
        (StoryStep.FAILED, None, "deadline"),
        (StoryStep.UNPLACEABLE, None, f"{ALICE}: {Leaving()}"),
        (StoryStep.CANCELLED, None, "its job was cancelled"),
        (StoryStep.SUCCEEDED, ALICE, "ran for 7 ms"),
    ]
    assert [each.at for each in entries] == [at(second) for second in range(len(events))]


def test_output_and_the_events_of_jobs_push_no_task_out() -> None:
    kept = StoryParameters(task_events=1, placing_events=1)
    noted = reported(
        TaskBegan("job/0", ALICE),
        TaskPrinted("job/0", False, b"hello", ALICE),
        CodeSent(Code(Blob(Cid(RAW, digest_of(b"")), 0), ("shop",), 2, 100)),
        WorkerLost(ALICE, "it is gone"),
        JobEnded(1, 0, 0, 0),
        kept=kept,
    )
    assert [each.step for each in noted.of("job/0", None)] == [StoryStep.BEGAN]


def test_the_ring_forgets_the_oldest_and_a_simulation_may_keep_all() -> None:
    events = [TaskBegan(f"job/{n}", ALICE) for n in range(5)]
    bounded = reported(*events, kept=StoryParameters(task_events=3))
    assert [len(bounded.of(f"job/{n}", None)) for n in range(5)] == [0, 0, 1, 1, 1]
    unbounded = reported(*events)
    assert [len(unbounded.of(f"job/{n}", None)) for n in range(5)] == [1, 1, 1, 1, 1]
    world = World(1, parameters=PeerParameters(story=EVERYTHING_KEPT))
    bob = world.add("bob")
    bob.submit(job())
    assert [each.step for each in story(bob)][:1] == [StoryStep.SUBMITTED]


def test_a_worker_that_is_ruled_out_by_what_it_announces_is_named_with_the_reason() -> None:
    noted, key = reported(TaskBegan("job/0", ALICE)), SchedulingKey(NEEDS)
    noted.note(JobTaken("job", StoryStep.SUBMITTED), at(-2))
    noted.note(SearchEnded(key, (), 0, ((ALICE, Leaving()),)), at(-1))
    assert noted.of("job/0", ("job", key))[1:3] == (
        StoryEntry(at(-1), StoryStep.FOUND, None, "no worker that can run it"),
        StoryEntry(at(-1), StoryStep.RULED_OUT, ALICE, str(Leaving())),
    )


def test_a_worker_that_dies_between_its_offer_and_the_lease_has_refused() -> None:
    world, bob = at_work(town(alice=1), job())
    while not only(passed(world, "bob", "alice"), Commit):
        world.elapse(0.005)
    world.kill(world.nodes["alice"])
    world.elapse(1)
    assert steps(world, story(bob))[:4] == [
        ("submitted", ""),
        ("found", "alice"),
        ("asked", "alice"),
        ("refused", "alice"),
    ]


def saved(number: int) -> TaskSaved:
    told = bytes([number]) * MAX_INLINE_BYTES
    return TaskSaved("job/0", Checkpoint(number, inline(told), told), ())


def succeeded(number: int) -> TaskSucceeded:
    return TaskSucceeded("job/0", ALICE, bytes(2**20 + number), 7)


def gave_up(number: int) -> TaskGaveUp:
    attempts = (Attempt("job/0#1", ALICE, "exit code 1", lost=False),)
    return TaskGaveUp("job/0", attempts, FailureKind.EXIT, bytes(2**20 + number))


@pytest.mark.parametrize(("make", "count"), [(saved, 100), (succeeded, 20), (gave_up, 1)])
def test_what_is_large_is_not_kept(make: Callable[[int], JobEvent], count: int) -> None:
    """Of tasks that save twice a second, the ring would be a GiB."""
    noted = reported(make(1))
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    for number in range(1, count + 1):
        noted.emitted([EmitJobEvent("job", make(number), cause="test")], at(1))
    kept = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    assert kept < 2**20
    assert len(noted.of("job/0", None)) == count + 1


def test_the_story_of_a_task_is_found_among_several_jobs_of_several_tasks() -> None:
    _, bob = at_work(town(alice=1), job(2, job_id="first"), job(2, job_id="second"))
    assert story(bob, "second/1")[0].step is StoryStep.SUBMITTED
    assert story(bob, "third/0") == ()


def test_the_newest_steps_are_told_in_order_whatever_they_are_of() -> None:
    _, bob = at_work(town(alice=1), job(), for_s=5)
    every = [event for _, event in peer_of(bob).newest_steps(100)]
    assert isinstance(every[0], JobTaken)
    assert isinstance(every[-1], TaskSucceeded)
    assert {TaskPlaced, SearchEnded} <= {*map(type, every)}
    assert [event for _, event in peer_of(bob).newest_steps(2)] == every[-2:]


# What a peer tells of itself while it has work done, and does others'.

# Of the grants of a world.
UNTIL_UNIX_S = int(EPOCH_UNIX_S) + 10**7


def status(node: SimNode) -> Status:
    return peer_of(node).status(at(node.world.now_s))


def test_both_sides_tell_of_the_same_leases_and_of_the_tasks_on_them() -> None:
    world = town(7, lambda _: (60.0, Succeeded(b"")), alice=2)
    alice, bob = world.nodes["alice"], world.nodes["bob"]
    assert status(bob) == Status((), (), (), None, UNTIL_UNIX_S)
    assert status(alice).free == idle(world.machine(cpu=2).capability)
    bob.submit(job(5, priority=3))
    world.elapse(2)
    seen, worker = status(bob), status(alice)
    (shown,) = seen.jobs
    assert (shown.job_id, shown.priority, shown.tasks) == ("job", 3, 5)
    assert shown.waiting + shown.in_flight == 5
    assert shown.in_flight >= 2
    assert [(lease.worker, lease.suspect) for lease in seen.held] == [
        (alice.identity.peer_id, False)
    ] * 2
    assert {lease.lease_id for lease in worker.granted} == {lease.lease_id for lease in seen.held}
    assert {lease.owner for lease in worker.granted} == {bob.identity.peer_id}
    assert sum(lease.in_flight for lease in worker.granted) == shown.in_flight
    assert all(0 < lease.expires_in_s <= 10 and not lease.ending for lease in worker.granted)
    assert worker.free is not None
    assert worker.free.cpu_milli == 0


def test_a_job_that_is_over_is_told_no_more() -> None:
    world, bob = at_work(town(alice=2), job(3), for_s=5)
    assert status(bob) == Status((), (), (), None, UNTIL_UNIX_S)
    assert status(world.nodes["alice"]).granted == ()


# Who a peer meets: members of its network, as they showed by a grant, and what they go by.


def met_by(world: World, name: str) -> dict[str, str]:
    """Whom a node meets from now on, and what each goes by."""
    found: dict[str, str] = {}

    def note(met: MemberMet) -> None:
        found[world.peers[met.peer_id].name] = met.name

    world.nodes[name].met = note
    return found


def test_a_scheduler_and_its_worker_learn_the_names_of_each_other() -> None:
    world = World(7)
    world.peer = partial(Peer, name="bobs-box")
    world.add("gate")
    world.add("bob")
    world.add("alice", serve=world.machine(labels=(("host", "kitchen"),)))
    of_bob, of_alice = met_by(world, "bob"), met_by(world, "alice")
    world.elapse(5)
    world.nodes["bob"].submit(job())
    world.elapse(5)
    assert of_bob == {"alice": "kitchen"}
    assert of_alice == {"bob": "bobs-box"}


def test_a_stranger_is_never_met() -> None:
    world = town(alice=1)
    mallory = world.add("m", stranger=True)
    of_alice = met_by(world, "alice")
    request = PlacementRequest(5, NEEDS, peer_of(mallory).network.grant, 0, (), "kitchen")
    world.deliver(world.nodes["alice"], Received(mallory.contact, request))
    assert of_alice == {}


def test_the_peers_that_store_a_profile_meet_its_author() -> None:
    world = town()
    of_gate = met_by(world, "gate")
    world.add("carol", serve=world.machine())
    world.elapse(5)
    assert of_gate == {"carol": ""}

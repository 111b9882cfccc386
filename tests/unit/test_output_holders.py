"""Outputs that several workers hold: a task has succeeded once they do, and its result names them;
who is lost or leaves is replaced while the job runs."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from formation_p2p.assembly import PeerEffect, PeerEvent
from formation_p2p.core.effects import Contact
from formation_p2p.core.errors import InvalidInput
from formation_p2p.core.identity import key_of_peer
from formation_p2p.core.keyspace import distance, key_of
from formation_p2p.jobs.core.fetch import CopyOutputs, StopFetch
from formation_p2p.jobs.core.job import Job
from formation_p2p.jobs.core.job_events import JobEnded, TaskPlaced, TaskReopened, TaskSucceeded
from formation_p2p.jobs.core.output_holders import AGAIN_S, MAX_ASKED, RENEWED_S
from formation_p2p.peer.core.events import Resume, Vacate
from formation_p2p.placement.core.task_options import TaskOptions
from formation_p2p.trust.core.grants import Rights
from formation_p2p.workload.core.blob import Blob
from formation_p2p.workload.core.hints import Hints, Kind
from formation_p2p.workload.core.inputs_from import outputs_of
from formation_p2p.workload.core.outcome import Failed, FailureKind, Outcome, Succeeded
from formation_p2p.workload.core.process import ProcessResult
from formation_p2p.workload.core.quorum import Quorum
from formation_p2p.workload.core.scope import Place
from simulations.simulator.disk import Disk
from simulations.simulator.executor import Running
from simulations.simulator.node import SimNode
from simulations.simulator.world import EPOCH_UNIX_S
from tests.support.stories import name_of, only, peer_of
from tests.unit.test_dispatch_outputs import Reads, Town, once, reading

FOUR = {"alice": 1, "carol": 1, "dave": 1, "erin": 1}
LONG_S = 4000.0


def kept(reads: Reads, count: int, copies: int = 2, **terms: object) -> Job:
    plain = reading(reads, count, **terms)
    return replace(plain, options=replace(plain.options, copies=copies))


class Copying(Town):
    """A town in which bob's requests for holders are noted. `longs` take their time."""

    def __init__(
        self,
        missing: Callable[[str, str], str | None] = lambda worker, task: None,
        longs: tuple[str, ...] = (),
        **cores: int,
    ) -> None:
        super().__init__(missing, lambda attempt: False, None, **(cores or FOUR))
        self.asked: list[CopyOutputs] = []
        self.stopped = 0
        plain = self.world.run

        def see(node: SimNode, event: PeerEvent, effects: list[PeerEffect]) -> None:
            self.asked += only(effects, CopyOutputs)
            self.stopped += len(only(effects, StopFetch))

        def run(running: Running) -> tuple[float, Outcome]:
            seconds, outcome = plain(running)
            return (LONG_S if running.work.attempt_id.startswith(longs) else seconds), outcome

        self.world.witness = see
        if longs:
            self.world.run = run

    def until(self, happened: Callable[[], object]) -> None:
        for _ in range(100_000):
            if happened():
                return
            self.world.elapse(0.01)
        raise AssertionError("it does not happen")

    def outputs(self, task_id: str = "job/0") -> list[Blob]:
        (told,) = (x for x in only(self.bob.reported, TaskSucceeded) if x.task_id == task_id)
        return list(outputs_of(told.result).values())

    def names(self, contacts: tuple[Contact, ...]) -> list[str]:
        return [name_of(self.world, each.peer_id) for each in contacts]


def sources_of_needed(town: Copying) -> list[str]:
    """As a later stage is told."""
    (run,) = peer_of(town.bob).scheduler.jobs()
    ((_, needed),) = run.outputs.needed()
    return town.names(needed.sources)


def test_a_task_has_succeeded_once_two_workers_hold_what_it_has_made() -> None:
    town = Copying()
    town.bob.submit(kept({1: [0]}, 2))
    town.until(lambda: town.asked)
    assert only(town.bob.reported, TaskSucceeded) == []
    town.world.elapse(10)
    assert town.bob.reported[-1] == JobEnded(2, 0, 0, 0)
    (first, _) = town.asked
    (blob,) = town.outputs()
    maker, other = town.names(blob.sources)
    assert maker == name_of(town.world, first.worker)
    assert other == town.names(first.others)[1]
    # A later stage knows both.
    (read,) = (blobs for attempt, blobs in town.read.items() if attempt.startswith("job/1"))
    assert town.names(read["in-0"].sources) == [maker, other]
    # What is nearest to the content by XOR is asked first.
    key = key_of(blob.cid.digest)
    far = [distance(key, key_of_peer(each.peer_id)) for each in first.others[1:]]
    assert far == sorted(far)
    assert len(first.others) == min(len(FOUR), MAX_ASKED + 1)


def test_without_a_wish_the_worker_alone_holds_them() -> None:
    town = Copying()
    town.bob.submit(kept({}, 1, copies=1))
    town.world.elapse(5)
    assert town.bob.reported[-1] == JobEnded(1, 0, 0, 0)
    assert town.asked == []


@pytest.mark.parametrize(
    ("outcome", "succeeded"),
    [
        (Succeeded(b"no record"), 1),
        (Succeeded(ProcessResult(0).encode()), 1),
        (Failed(FailureKind.EXIT, "exit 1"), 0),
    ],
)
def test_of_a_task_without_outputs_nothing_is_held_or_waited_for(
    outcome: Outcome, succeeded: int
) -> None:
    town = Copying()
    town.world.run = lambda running: (1.0, outcome)
    town.bob.submit(kept({}, 1, attempts=1))
    town.world.elapse(5)
    assert town.bob.reported[-1] == JobEnded(succeeded, 1 - succeeded, 0, 0)
    assert town.asked == []


def test_where_no_other_can_hold_them_its_worker_alone_does_and_others_are_asked_again() -> None:
    town = Copying(longs=("job/1",), alice=2)
    town.bob.submit(kept({}, 2))
    town.until(lambda: only(town.bob.reported, TaskSucceeded))
    (blob,) = town.outputs()
    assert town.names(blob.sources) == ["alice"]
    town.world.add("carol", serve=town.world.machine(cpu=1))
    town.world.elapse(8 * AGAIN_S)
    assert len(town.asked) > 1
    assert [len(each.others) for each in town.asked[:2]] == [1, 1]


@pytest.mark.at_length
def test_the_place_of_a_holder_that_dies_goes_to_another() -> None:
    town = Copying(longs=("job/1",))
    town.bob.submit(kept({2: [0, 1]}, 3))
    town.until(lambda: only(town.bob.reported, TaskSucceeded))
    (blob,) = town.outputs()
    maker, other = town.names(blob.sources)
    town.world.kill(town.world.nodes[other])
    town.world.elapse(2 * RENEWED_S + 10)
    sources = town.names(town.asked[-1].blobs[0][1].sources)
    assert maker in sources
    assert other not in sources
    assert len(sources) == 2
    assert sources_of_needed(town) == sources


@pytest.mark.at_length
def test_others_are_looked_for_where_what_was_known_of_them_has_expired() -> None:
    town = Copying(longs=("job/1",))
    plain = town.world.run

    def run(running: Running) -> tuple[float, Outcome]:
        seconds, outcome = plain(running)
        return (300.0 if running.work.attempt_id.startswith("job/2") else seconds), outcome

    town.world.run = run
    town.bob.submit(kept({3: [0, 1]}, 4))
    town.until(lambda: only(town.bob.reported, TaskSucceeded))
    maker, other = town.names(town.outputs()[0].sources)
    town.until(lambda: len(only(town.bob.reported, TaskSucceeded)) == 2)
    town.world.kill(town.world.nodes[other])
    town.world.elapse(RENEWED_S + 4 * AGAIN_S)
    assert len(sources := sources_of_needed(town)) == 2
    assert maker in sources
    assert other not in sources


def lived_again(town: Copying, given: Job, *dead: str) -> None:
    """Once its first task has succeeded bob is killed, and these workers, or the one that holds
    what that one has made."""
    disk = town.bob.disk = Disk(town.world, lambda: 0.001)
    assert disk.submit(given)
    town.bob.submit(given)
    town.until(lambda: only(disk.jobs["job"].events, TaskSucceeded))
    town.world.kill(town.bob)
    disk.crash(written=True)
    for each in dead or town.names(town.outputs()[0].sources)[1:]:
        town.world.kill(town.world.nodes[each])
    town.asked.clear()
    town.world.restart(town.bob, Resume(*disk.saved()))


def test_another_life_has_the_place_of_a_holder_that_died_meanwhile_filled() -> None:
    town = Copying(longs=("job/1",))
    lived_again(town, kept({2: [0, 1]}, 3))
    maker, other = town.names(town.outputs()[0].sources)
    town.until(lambda: town.asked)
    assert town.names(town.asked[0].others)[:2] == [maker, other]
    town.world.elapse(3 * AGAIN_S)
    assert len(sources := sources_of_needed(town)) == 2
    assert maker in sources
    assert other not in sources


def test_another_life_has_nothing_held_of_what_is_none_of_a_process() -> None:
    town = Copying(longs=("job/1",))
    plain = town.world.run
    town.world.run = lambda running: (plain(running)[0], Succeeded(b"no record"))
    lived_again(town, kept({}, 2), "erin")
    town.world.elapse(3 * AGAIN_S)
    assert town.asked == []


@pytest.mark.at_length
def test_a_worker_that_leaves_hands_over_what_it_made() -> None:
    town = Copying(longs=("job/1", "job/2"))
    town.bob.submit(kept({}, 3, linger_s=60.0))
    town.until(lambda: only(town.bob.reported, TaskSucceeded))
    (blob,) = town.outputs()
    maker, other = town.names(blob.sources)
    before = len(town.asked)
    town.world.deliver(town.world.nodes[maker], Vacate(30.0))
    town.until(lambda: len(town.asked) > before)
    (again,) = town.asked[before:]
    assert maker not in town.names(again.others)
    assert town.names(again.others)[0] == other
    # It has them until then.
    assert maker in town.names(again.blobs[0][1].sources)
    town.world.elapse(RENEWED_S + 5)
    assert maker not in town.names(town.asked[-1].blobs[0][1].sources)
    assert len(town.asked[-1].blobs[0][1].sources) == 2


def test_a_holder_without_a_lease_tells_that_it_leaves_and_is_replaced() -> None:
    town = Copying(longs=("job/1",))
    town.bob.submit(kept({2: [0, 1]}, 3))
    town.until(lambda: only(town.bob.reported, TaskSucceeded))
    town.world.elapse(2)
    leased = {each.lessor.peer_id for each in peer_of(town.bob).lessee.held.values()}
    holders = town.outputs()[0].sources
    leaves, *_ = town.names(tuple(each for each in holders if each.peer_id not in leased))
    before = len(town.asked)
    town.world.deliver(town.world.nodes[leaves], Vacate(30.0, (town.bob.contact,)))
    town.world.elapse(AGAIN_S)
    (again,) = town.asked[before:]
    assert leaves not in town.names(again.others)
    assert leaves not in sources_of_needed(town)
    assert len(sources_of_needed(town)) == 2


def test_one_that_leaves_while_it_is_asked_is_replaced_at_once() -> None:
    town = Copying(longs=("job/1", "job/2"))
    town.bob.submit(kept({}, 3, linger_s=60.0))
    town.until(lambda: town.asked)
    maker = town.asked[0].worker
    holders = peer_of(town.bob).scheduler.holders
    holders.leaves(maker, town.world.moment(town.bob))
    holders.leaves(maker, town.world.moment(town.bob))
    town.until(lambda: len(town.asked) == 2)
    assert maker not in {each.peer_id for each in town.asked[1].others}


def test_a_worker_that_dies_before_others_hold_them_has_them_made_again() -> None:
    town = Copying()
    town.world.performer.copy_s = 60.0
    town.bob.submit(kept({}, 1))
    town.until(lambda: town.asked)
    (first,) = town.asked
    town.world.kill(town.world.nodes[name_of(town.world, first.worker)])
    town.until(lambda: town.stopped)
    assert only(town.bob.reported, TaskSucceeded) == []
    town.world.elapse(150)
    assert town.bob.reported[-1] == JobEnded(1, 0, 0, 0)
    assert len({each.worker for each in only(town.bob.reported, TaskPlaced)}) == 2


def test_a_job_that_is_cancelled_waits_for_no_holder() -> None:
    town = Copying()
    town.bob.submit(kept({}, 1))
    town.until(lambda: town.asked)
    town.bob.cancel("job")
    town.world.elapse(5)
    assert town.bob.reported[-1] == JobEnded(0, 0, 0, 1)
    assert peer_of(town.bob).scheduler.holders.due_s == float("inf")


def test_of_two_attempts_the_first_that_is_held_counts() -> None:
    town = Copying()
    plain = town.world.run

    def run(running: Running) -> tuple[float, Outcome]:
        _, outcome = plain(running)
        return (20.0 if running.work.attempt_id == "job/0#1" else 1.0), outcome

    town.world.run = run
    town.world.performer.copy_s = 60.0
    town.bob.submit(kept({}, 8, speculate=True))
    town.world.elapse(200)
    assert town.bob.reported[-1] == JobEnded(8, 0, 0, 0)
    assert sum(each.task_id == "job/0" for each in town.asked) == 2
    assert peer_of(town.bob).scheduler.holders.due_s == float("inf")


def test_what_is_lost_is_made_and_held_again() -> None:
    town = Copying(once("in-0", "job/1"), alice=1)
    town.bob.submit(kept({1: [0]}, 2))
    town.world.elapse(30)
    assert town.bob.reported[-1] == JobEnded(2, 0, 0, 0)
    assert len(only(town.bob.reported, TaskReopened)) == 1
    assert [each.attempt_id for each in town.asked] == ["job/0#1", "job/0#2", "job/1#2"]


def test_outputs_stay_within_the_region_and_scope_of_their_job() -> None:
    town = Copying(alice=1)
    for name, org, region in (("erin", "acme", "eu"), ("fred", "acme", "us")):
        rights = Rights(int(EPOCH_UNIX_S) + 10**6, place=Place(org=org))
        serve = town.world.machine(cpu=1, labels=(("region", region),))
        town.world.add(name, serve=serve, rights=rights)
    town.world.elapse(3)
    inside = Hints(region="eu", required=frozenset({Kind.REGION}))
    town.bob.submit(kept({}, 1, hints=inside))
    town.world.elapse(10)
    (asked,) = town.asked
    assert town.names(asked.others) == ["erin"]
    assert len(town.outputs()[0].sources) == 1


@pytest.mark.at_length
def test_another_operator_comes_first() -> None:
    town = Copying(alice=1)
    for name in ("erin", "fred", "gina", "hank"):
        org = "acme" if name != "hank" else "other"
        rights = Rights(int(EPOCH_UNIX_S) + 10**6, place=Place(org=org))
        town.world.add(name, serve=town.world.machine(cpu=1), rights=rights)
    town.world.elapse(3)
    town.world.kill(town.world.nodes["alice"])
    town.bob.submit(kept({}, 6))
    town.world.elapse(30)
    by_acme = [
        each for each in town.asked if name_of(town.world, each.worker) not in ("hank", "alice")
    ]
    assert by_acme
    for each in by_acme:
        (other, *_) = (x for x in town.names(each.others)[1:] if x != "alice")
        assert other == "hank"


def test_copies_are_from_one_to_three_and_not_of_a_quorum() -> None:
    for wrong in (0, 4):
        with pytest.raises(InvalidInput, match="copies"):
            TaskOptions(copies=wrong)
    with pytest.raises(InvalidInput, match="a quorum has several"):
        TaskOptions(copies=2, quorum=Quorum(2, of=3))
    assert TaskOptions.unpack(TaskOptions(copies=3).pack()).copies == 3

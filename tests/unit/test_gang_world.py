"""Gangs in small worlds: gate, the owner bob, and workers."""

import itertools
from collections import Counter
from dataclasses import replace
from typing import Any, Self, TypeVar, overload

import pytest

from formation_p2p.assembly import DEFAULT_PARAMETERS, Peer, PeerParameters
from formation_p2p.core.errors import InvalidInput
from formation_p2p.core.identity import PeerId
from formation_p2p.discovery.core.parameters import DiscoveryParameters
from formation_p2p.drivers.core.effects import ExecutionSaved
from formation_p2p.features.gangs.core.choice import Arrangement
from formation_p2p.features.gangs.core.events import (
    EmitGangEvent,
    FormGang,
    GangEnded,
    GangEvent,
    GangFormed,
    GangNotGrown,
    GangRejected,
    GangUnplaceable,
    MemberJoined,
    MemberLost,
    MemberReleased,
    MemberReplaced,
    MemberUsed,
    ResizeGang,
    UsageMeasured,
)
from formation_p2p.features.gangs.core.messages import Enlist, ReportUsage
from formation_p2p.features.gangs.core.parameters import GangParameters
from formation_p2p.features.gangs.core.roster import OWNER, Member, Roster
from formation_p2p.features.gangs.core.spec import GangSpec, OnLoss
from formation_p2p.features.gangs.core.usage import LeaseUsage, LinkBytes
from formation_p2p.jobs.core.job import Job
from formation_p2p.jobs.core.job_events import JobEnded, TaskGaveUp, TaskPlaced, TaskSucceeded
from formation_p2p.leases.core import messages as work
from formation_p2p.leases.core.session import Disconnected, Received
from formation_p2p.machine.core.requirements import Requirements
from formation_p2p.peer.core.events import Measured
from formation_p2p.peer.core.worker import Worker
from formation_p2p.placement.core.names import parse_policy
from formation_p2p.placement.core.task_options import TaskOptions
from formation_p2p.trust.core.experience import Experience
from formation_p2p.workload.core.blob import RAW, Blob, Cid, digest_of
from formation_p2p.workload.core.outcome import FailureKind, Succeeded
from formation_p2p.workload.core.work import Task
from simulations.simulator.node import SimNode
from simulations.simulator.world import World

T = TypeVar("T")
NEEDS = Requirements(cpu_milli=1000, driver="process")
GANG = "ab" * 16


class Gangs:
    """`names` are workers of `cpu` cores."""

    def __init__(
        self, *names: str, cpu: int = 1, parameters: PeerParameters = DEFAULT_PARAMETERS
    ) -> None:
        self.world = World(1, parameters=parameters)
        self.gate = self.world.add("gate")
        self.workers = {
            name: self.world.add(name, serve=self.world.machine(cpu=cpu)) for name in names
        }
        self.bob = self.world.add("bob")
        self.world.elapse(5)

    def form(self, spec: GangSpec) -> None:
        self.spec = spec
        self.bob.form(GANG, spec)

    def after(self, spec: GangSpec, for_s: float) -> Self:
        """So long after bob began to form this one."""
        self.form(spec)
        self.world.elapse(for_s)
        return self

    @overload
    def events(self) -> list[GangEvent]: ...

    @overload
    def events(self, kind: type[T]) -> list[T]: ...

    def events(self, kind: type[object] = object) -> list[Any]:
        """Those that bob was told, of one kind where that is given."""
        return [event for _, event in self.bob.gang_events if isinstance(event, kind)]

    def submit(self, *ranks: int, job_id: str = "job") -> None:
        tasks = tuple(
            Task(f"{job_id}/{n}", self.spec.needs[rank], b"x", member=(GANG, rank))
            for n, rank in enumerate(ranks)
        )
        self.bob.submit(Job(job_id, tasks, options=self.spec.options))

    def until(self, kind: type[work.WorkMessage], count: int) -> None:
        """Returns once so many of them have been sent."""
        for _ in range(5000):
            if len(self.sent(kind)) >= count:
                return
            self.world.elapse(0.001)
        raise AssertionError(f"{count} of {kind.__name__} were not sent")

    def slow(self, name: str, one_way_s: float = 0.15) -> None:
        self.world.latency = lambda a, b: one_way_s if name in (a.name, b.name) else 0.01

    def asks(self, sender: SimNode, ago_ms: int, needs: Requirements = NEEDS) -> str:
        """What alice answers to one whose gang has sought for so long."""
        began_ms = round(self.world.moment(sender).unix_s * 1000) - ago_ms
        request = work.PlacementRequest(7, needs, sender.network().grant, since_ms=began_ms)
        self.world.deliver(self.workers["alice"], Received(sender.contact, request))
        return type(self.world.sent[-1].message).__name__

    def save(self, member: SimNode) -> None:
        """What runs there saves: others are to hold it, and are looked for."""
        (running,) = member.running
        state = Blob(Cid(RAW, digest_of(b"")), 0, (member.contact,))
        self.world.deliver(member, ExecutionSaved(*running, state))

    def sent(self, kind: type[work.WorkMessage]) -> list[tuple[float, str]]:
        return [(s.at_s, s.receiver) for s in self.world.sent if isinstance(s.message, kind)]

    def idle(self) -> bool:
        """Whether no worker has a lease."""
        peers = (node.peer for node in self.workers.values() if node.alive)
        return not any(isinstance(p, Peer) and p.worker and p.worker.has_leases for p in peers)

    def worker(self, node: SimNode) -> Worker:
        assert isinstance(node.peer, Peer)
        assert node.peer.worker is not None
        return node.peer.worker

    def formed(self) -> GangFormed:
        (formed,) = self.events(GangFormed)
        return formed

    def name_of(self, worker: PeerId) -> str:
        return self.of(worker).name

    def of(self, worker: PeerId) -> SimNode:
        return self.world.peers[worker]

    def resize(self, size: int) -> None:
        self.world.deliver(self.bob, ResizeGang(GANG, size))

    def submit_to(self, member: tuple[str, int], needs: Requirements, job_id: str) -> None:
        task = Task(f"{job_id}/0", needs, b"x", member=member)
        self.bob.submit(Job(job_id, (task,), options=self.spec.options))

    def rosters(self) -> dict[str, tuple[int, int, tuple[int, ...]]]:
        """Rank, sequence and the ranks in the roster of each worker that has one."""
        return {
            name: (each.rank, each.roster.sequence, tuple(m.rank for m in each.roster.members))
            for name, node in self.workers.items()
            for each in node.gangs.values()
        }


def test_nothing_runs_before_all_are_leased_and_told() -> None:
    gangs = Gangs("alice", "carol", "dave").after(GangSpec((NEEDS,) * 3), 2)
    (formed,) = gangs.events()
    assert isinstance(formed, GangFormed)
    assert [member.rank for member in formed.members] == [0, 1, 2]
    assert len({member.peer_id for member in formed.members}) == 3
    first = formed.members[0]
    assert repr(first) == f"GangMember(0, '', '{first.peer_id}', device_ids=())"
    assert set(gangs.rosters().values()) == {(rank, 1, (0, 1, 2)) for rank in range(3)}
    gangs.submit(0, 1, 2, 1)
    gangs.world.elapse(5)
    placed = {e.task_id: e.worker for e in gangs.bob.reported if isinstance(e, TaskPlaced)}
    by_rank = [member.peer_id for member in formed.members]
    assert placed == {f"job/{n}": by_rank[rank] for n, rank in enumerate((0, 1, 2, 1))}
    assert sum(isinstance(e, TaskSucceeded) for e in gangs.bob.reported) == 4
    assert max(gangs.sent(work.Leased)) < min(gangs.sent(Enlist))
    assert max(gangs.sent(Enlist)) < min(gangs.sent(work.Dispatch))
    gangs.world.elapse(60)
    assert len(gangs.rosters()) == 3  # and kept
    gangs.bob.close(GANG)
    gangs.world.elapse(2)
    assert gangs.events()[1:] == [GangEnded("")]
    assert gangs.idle()


def test_a_member_that_dies_is_replaced_and_its_tasks_run_again() -> None:
    gangs = Gangs("alice", "carol", "dave", "erin").after(GangSpec((NEEDS,) * 3), 2)
    formed = gangs.formed()
    gangs.submit(0, 1, 2)
    gangs.world.elapse(0.5)
    gangs.world.kill(gangs.of(formed.members[1].peer_id))
    gangs.world.elapse(0.2)
    gangs.submit(1, job_id="more")  # waits while the member is being replaced
    gangs.world.elapse(10)
    lost, replaced = gangs.events()[1:]
    assert isinstance(lost, MemberLost)
    assert (lost.rank, lost.worker) == (1, formed.members[1].peer_id)
    assert isinstance(replaced, MemberReplaced)
    assert replaced.member.rank == 1
    assert replaced.member.peer_id not in {member.peer_id for member in formed.members}
    assert replaced.member.name == ""
    ended = [e for e in gangs.bob.reported if isinstance(e, TaskSucceeded)]
    assert sorted(e.task_id for e in ended) == ["job/0", "job/1", "job/2", "more/0"]
    live = {r for name, r in gangs.rosters().items() if gangs.workers[name].alive}
    assert live == {(0, 3, (0, 1, 2)), (1, 3, (0, 1, 2)), (2, 3, (0, 1, 2))}


def test_a_gang_may_end_with_its_first_loss() -> None:
    gangs = Gangs("alice", "carol").after(GangSpec((NEEDS,) * 2, on_loss=OnLoss.END), 2)
    gangs.submit(0, 1)
    gangs.submit(0, job_id="later")
    gangs.world.elapse(0.5)
    gangs.world.kill(gangs.of(gangs.formed().members[0].peer_id))
    gangs.world.elapse(3)
    why = gangs.events()[-1]
    assert isinstance(why, GangEnded)
    assert "its member of rank 0 is lost" in why.why
    gave_up = [e for e in gangs.bob.reported if isinstance(e, TaskGaveUp)]
    assert {(e.task_id, e.kind, e.result) for e in gave_up} == {
        (task, FailureKind.GANG, why.why.encode()) for task in ("job/0", "job/1", "later/0")
    }
    assert sum(isinstance(e, JobEnded) for e in gangs.bob.reported) == 2
    gangs.world.elapse(15)
    assert gangs.idle()


def test_closing_cancels_what_has_not_ended() -> None:
    gangs = Gangs("alice", "carol").after(GangSpec((NEEDS,) * 2), 2)
    gangs.submit(0, 1)
    gangs.world.elapse(0.5)
    gangs.bob.close(GANG)
    gangs.bob.close(GANG)  # it is gone
    gangs.world.elapse(3)
    assert gangs.bob.reported[-1] == JobEnded(0, 0, 0, 2)
    assert gangs.idle()


def test_a_gang_that_finds_too_few_workers_says_why() -> None:
    gangs = Gangs("alice", "carol")
    gangs.form(GangSpec((NEEDS, NEEDS, replace(NEEDS, cpu_milli=64_000))))
    gangs.world.elapse(10)
    (told,) = gangs.events()
    assert isinstance(told, GangUnplaceable)
    assert {peer for peer, _ in told.refusals} == {
        n.identity.peer_id for n in gangs.workers.values()
    }
    assert gangs.idle()
    assert gangs.sent(work.PlacementRequest) == []


def test_fewer_workers_than_three_are_all_members() -> None:
    gangs = Gangs("alice", "carol").after(GangSpec((NEEDS,) * 3, fewer=True), 10)
    assert [member.rank for member in gangs.formed().members] == [0, 1]
    assert set(gangs.rosters().values()) == {(0, 1, (0, 1)), (1, 1, (0, 1))}


@pytest.mark.at_length
def test_a_gang_waits_for_room_and_holds_nothing_meanwhile() -> None:
    gangs = Gangs("alice", "carol", "dave")
    erin = gangs.world.add("erin")
    gangs.world.elapse(2)
    erin.form("cd" * 16, GangSpec((NEEDS,) * 2))
    gangs.world.elapse(2)
    gangs.form(GangSpec((NEEDS,) * 2))
    gangs.world.elapse(10)
    assert gangs.events() == []
    leases = [x for n in gangs.workers.values() for x in gangs.worker(n).lessor]
    assert sum(lease.owner.peer_id == gangs.bob.identity.peer_id for lease in leases) <= 1
    erin.close("cd" * 16)
    gangs.world.elapse(20)
    assert len(gangs.formed().members) == 2


@pytest.mark.at_length
@pytest.mark.parametrize(
    ("arrange", "machines"),
    [
        (Arrangement.SPREAD, [2, 2]),
        (Arrangement.PACK, [4]),
        (Arrangement.STRICT_PACK, [4]),
        (Arrangement.RTT, []),
    ],
)
def test_arrangements_lie_as_they_are_called(arrange: Arrangement, machines: list[int]) -> None:
    gangs = Gangs("alice", "carol", cpu=4).after(GangSpec((NEEDS,) * 4, arrange=arrange), 5)
    if not machines:
        assert isinstance(gangs.events()[-1], GangUnplaceable)
        return
    on = Counter(member.peer_id for member in gangs.formed().members)
    assert sorted(on.values()) == machines


def test_workers_say_how_far_they_are_from_each_other() -> None:
    gangs = Gangs("alice", "carol", "dave", "erin")
    for name, near in (("alice", "carol"), ("carol", "alice")):
        for other in gangs.workers:
            if other != name:
                measured = Measured(
                    gangs.workers[other].identity.peer_id, 1_000 if other == near else 90_000
                )
                gangs.world.deliver(gangs.workers[name], measured)
    gangs.form(GangSpec((NEEDS,) * 2, arrange=Arrangement.RTT))
    gangs.world.elapse(5)
    members = {member.peer_id for member in gangs.formed().members}
    assert members == {gangs.workers[name].identity.peer_id for name in ("alice", "carol")}


def test_members_of_any_gang_come_with_the_round_trips_between_them() -> None:
    gangs = Gangs("alice", "carol", "dave")
    for name in gangs.workers:
        for node in gangs.workers.values():
            if node.name != name:
                measured = Measured(node.identity.peer_id, 3_000)
                gangs.world.deliver(gangs.workers[name], measured)
    gangs.form(GangSpec((NEEDS,) * 2))
    gangs.world.elapse(2)
    one, other = gangs.formed().members
    assert one.trips_us == ((other.peer_id, 3_000),)
    assert other.trips_us == ((one.peer_id, 3_000),)
    gangs.world.kill(gangs.of(one.peer_id))
    gangs.world.elapse(20)
    (replaced,) = gangs.events(MemberReplaced)
    assert replaced.member.trips_us == ((other.peer_id, 3_000),)


def test_a_gang_grows_and_shrinks_while_it_works() -> None:
    gangs = Gangs("alice", "carol", "dave").after(GangSpec((NEEDS,) * 2), 2)
    gangs.resize(3)
    gangs.world.elapse(3)
    joined = gangs.events()[-1]
    assert isinstance(joined, MemberJoined)
    assert joined.member.rank == 2
    gangs.spec = gangs.spec.of_size(3)
    gangs.submit(0, 2)
    gangs.world.elapse(0.3)
    gangs.resize(4)  # there is no fourth worker
    gangs.world.elapse(10)
    refused = gangs.events()[-1]
    assert isinstance(refused, GangNotGrown)
    gangs.submit(2, job_id="last")
    gangs.world.elapse(0.3)
    gangs.resize(1)
    gangs.resize(1)
    gangs.world.elapse(3)
    assert gangs.events()[-2:] == [MemberReleased(1), MemberReleased(2)]
    assert sum(gangs.worker(node).has_leases for node in gangs.workers.values()) == 1
    assert isinstance(gangs.bob.reported[-2], TaskGaveUp)
    assert gangs.rosters()[gangs.name_of(gangs.formed().members[0].peer_id)][2] == (0,)


@pytest.mark.parametrize(
    ("how", "of_the_gang"), [("leaves", True), ("is killed", False), ("vanishes", True)]
)
def test_a_gang_that_cannot_grow_since_a_worker_went_is_told_soon(
    how: str, of_the_gang: bool
) -> None:
    gangs = Gangs("alice", "carol", "dave").after(GangSpec((NEEDS,) * 2), 20)
    members = {gangs.name_of(member.peer_id) for member in gangs.formed().members}
    goes = next(node for name, node in gangs.workers.items() if (name in members) == of_the_gang)
    if how == "leaves":
        goes.leave()
    elif how == "is killed":
        gangs.world.kill(goes)
    else:
        gangs.world.vanish(goes)
    gangs.world.elapse(1)
    gangs.resize(3)  # what the one that went has announced is good for minutes
    gangs.world.elapse(55)
    refused = gangs.events()[-1]
    assert isinstance(refused, GangNotGrown)
    gangs.workers["erin"] = gangs.world.add("erin", serve=gangs.world.machine())
    gangs.world.elapse(5)
    gangs.resize(3)
    gangs.world.elapse(55)
    joined = gangs.events()[-1]
    assert isinstance(joined, MemberJoined)
    assert gangs.name_of(joined.member.peer_id) == "erin"


def test_what_cannot_be_done_is_said() -> None:
    gangs = Gangs("alice", "carol")
    gangs.resize(2)
    gangs.form(GangSpec((NEEDS,) * 2))
    gangs.resize(3)  # it has not formed
    gangs.form(GangSpec((NEEDS,) * 2))
    gangs.submit(0, job_id="early")
    gangs.world.elapse(2)
    gangs.submit(0, job_id="good")
    gangs.submit_to((GANG, 2), NEEDS, "rank")
    gangs.submit_to((GANG, 1), replace(NEEDS, cpu_milli=1), "needs")
    gangs.submit_to(("cd" * 16, 0), NEEDS, "other")
    gangs.resize(0)
    gangs.world.elapse(3)
    rejected = [str(event.why) for event in gangs.events(GangRejected)]
    assert len(rejected) == 4
    assert ["has ended" in why or "not there" in why or "already" in why for why in rejected[:3]]
    assert {refused.what for refused in gangs.bob.refused} == {"early", "rank", "needs", "other"}
    gangs.bob.leave()
    gangs.world.elapse(3)
    assert gangs.events()[-1] == GangEnded("its node has left")
    assert isinstance(gangs.bob.peer, Peer)
    event = FormGang(GANG, GangSpec((NEEDS,)))
    (effect,) = gangs.bob.peer.handle(event, gangs.world.moment(gangs.bob))
    assert isinstance(effect, EmitGangEvent)
    assert "leaving" in str(effect.event)


def test_a_table_of_gangs_is_bounded() -> None:
    gangs = Gangs()
    for number in range(GangParameters().max_gangs + 1):
        gangs.bob.form(f"{number:032x}", GangSpec((NEEDS,)))
    assert len(gangs.events(GangRejected)) == 1


@pytest.mark.parametrize("needs", [(), (Requirements(),), (NEEDS,) * 65])
def test_specifications_are_checked(needs: tuple[Requirements, ...]) -> None:
    with pytest.raises(InvalidInput):
        GangSpec(needs)


def test_a_member_that_went_silent_is_told_again() -> None:
    gangs = Gangs("alice", "carol").after(GangSpec((NEEDS,) * 2), 2)
    member = gangs.of(gangs.formed().members[0].peer_id)
    before = len(gangs.sent(Enlist))
    gangs.world.deliver(gangs.bob, Disconnected(member.identity.peer_id))
    gangs.world.elapse(1)
    assert len(gangs.sent(Enlist)) == before + 1
    assert len(gangs.events()) == 1


def test_a_roster_counts_only_of_ones_own_gang_with_the_lease_that_it_is_told_under() -> None:
    """Who owns another lease of a worker could lead the streams of a gang elsewhere otherwise."""
    gangs = Gangs("alice", "carol").after(GangSpec((NEEDS,) * 2), 2)
    before = gangs.rosters()
    first = gangs.formed().members[0]
    node, bob = gangs.of(first.peer_id), gangs.bob.contact
    there = Member(0, node.contact, first.fence)
    own = Roster(GANG, 99, 2, bob, (there,))
    for roster in (
        replace(own, owner=gangs.gate.contact),
        replace(own, members=()),
        replace(own, members=(replace(there, fence=first.fence + 1),)),
        replace(own, members=(replace(there, contact=bob),)),
    ):
        enlist = Enlist(first.lease_id, first.fence, 0, roster)
        gangs.world.deliver(node, Received(bob, enlist))
    gangs.world.deliver(node, Received(bob, Enlist("no lease", first.fence, 0, own)))
    assert gangs.rosters() == before
    gangs.world.deliver(node, Received(bob, Enlist(first.lease_id, first.fence, 0, own)))
    assert gangs.rosters()[node.name] == (0, 99, (0,))


def test_nobody_replaces_the_last_worker() -> None:
    gangs = Gangs("alice", "carol").after(GangSpec((NEEDS,) * 2), 2)
    gangs.world.kill(gangs.of(gangs.formed().members[0].peer_id))
    gangs.world.elapse(600)
    ended = gangs.events()[-1]
    assert isinstance(ended, GangEnded)
    assert "no worker can replace its member of rank 0" in ended.why
    assert gangs.idle()


def test_an_elder_gang_gets_what_a_younger_one_holds_softly() -> None:
    gangs = Gangs("alice")
    asked = []
    bob, gate = gangs.bob, gangs.gate
    for ago_ms, sender in ((100, gate), (500, bob), (300, gate), (500, gate)):
        asked.append(gangs.asks(sender, ago_ms))
    assert asked == ["Offer", "Offer", "RequestRefused", "RequestRefused"]


def test_a_forged_ticket_wins_against_none_that_waits_longer() -> None:
    gangs = Gangs("alice")
    assert gangs.asks(gangs.bob, 0) == "Offer"
    gangs.world.elapse(6)  # it has lapsed, and bob seeks on
    assert gangs.asks(gangs.bob, 6000) == "Offer"
    assert gangs.asks(gangs.gate, 10**9) == "RequestRefused"


def test_one_that_lets_offers_lapse_takes_none_of_others() -> None:
    gangs = Gangs("alice")
    assert gangs.asks(gangs.gate, 0) == "Offer"
    offer = gangs.world.sent[-1].message
    assert isinstance(offer, work.Offer)
    for message in (work.Commit(offer.lease_id), work.Release(offer.lease_id)):
        gangs.world.deliver(gangs.workers["alice"], Received(gangs.gate.contact, message))
    gangs.world.elapse(0.1)
    gangs.world.suspend(gangs.bob)  # it would give back what it did not ask for
    for _ in range(2):
        assert gangs.asks(gangs.bob, 2000) == "Offer"
        gangs.world.elapse(1.6)
    assert gangs.asks(gangs.gate, 0) == "Offer"
    assert gangs.asks(gangs.bob, 4000) == "RequestRefused"


def test_several_younger_gangs_yield_where_one_makes_no_room() -> None:
    gangs = Gangs("alice", cpu=2)
    whole = replace(NEEDS, cpu_milli=2000)
    for ago_ms, sender, needs in (
        (100, gangs.gate, NEEDS),
        (200, gangs.gate, NEEDS),
        (500, gangs.bob, whole),
    ):
        assert gangs.asks(sender, ago_ms, needs) == "Offer"


def test_what_members_use_reaches_the_owner_of_their_leases_alone() -> None:
    gangs = Gangs("alice", "carol").after(GangSpec((NEEDS,) * 2), 2)
    formed = gangs.formed()
    for member in formed.members:
        node = next(x for x in gangs.workers.values() if x.contact.peer_id == member.peer_id)
        good = LeaseUsage(member.lease_id, member.fence, 700, 64, (LinkBytes(OWNER, 1, 2),))
        stale = replace(good, fence=member.fence + 1)
        of_none = replace(good, lease_id="none")
        gangs.world.deliver(node, UsageMeasured((good, stale, of_none)))
    gangs.world.elapse(1)
    assert sorted(gangs.events(MemberUsed), key=lambda used: used.rank) == [
        MemberUsed(x.rank, LeaseUsage(x.lease_id, x.fence, 700, 64, (LinkBytes(OWNER, 1, 2),)))
        for x in formed.members
    ]
    # A worker cannot speak for another, nor one that is no worker for any.
    told = gangs.events(MemberUsed)
    other = next(
        x for x in gangs.workers.values() if x.contact.peer_id == formed.members[0].peer_id
    )
    usage = LeaseUsage(formed.members[1].lease_id, formed.members[1].fence, 1, 1)
    report = Received(other.contact, ReportUsage((usage,)))
    gangs.world.deliver(gangs.bob, report)
    gangs.world.deliver(gangs.bob, UsageMeasured((usage,)))
    gangs.world.elapse(1)
    assert gangs.events(MemberUsed) == told


def test_all_go_back_where_one_dies_before_it_is_leased() -> None:
    gangs = Gangs("alice", "carol")
    gangs.slow("carol")
    gangs.form(GangSpec((NEEDS,) * 2))
    gangs.until(work.Leased, 1)
    gangs.world.elapse(0.05)
    gangs.world.kill(gangs.workers["carol"])
    gangs.until(work.Release, 1)
    gangs.world.elapse(0.015)  # it arrives, and the next try has not begun
    assert gangs.events() == []
    assert not gangs.worker(gangs.workers["alice"]).has_leases
    gangs.workers["dave"] = gangs.world.add("dave", serve=gangs.world.machine())
    gangs.world.elapse(30)
    assert len(gangs.formed().members) == 2


@pytest.mark.parametrize("arrange", [Arrangement.STRICT_SPREAD, Arrangement.STRICT_PACK])
def test_several_may_end_at_once_before_they_are_leased(arrange: Arrangement) -> None:
    gangs = Gangs("alice", "carol", cpu=2)
    gangs.slow("alice")
    gangs.form(GangSpec((NEEDS,) * 2, arrange=arrange))
    gangs.until(work.Commit, 2)
    for node in gangs.workers.values():
        gangs.world.vanish(node)
    gangs.world.elapse(4)
    assert gangs.events() == []
    for node in gangs.workers.values():
        gangs.world.restart(node, gangs.world.machine(cpu=2))
    gangs.world.elapse(30)
    assert len(gangs.formed().members) == 2


def test_one_that_is_told_late_may_recover_before_the_gang_is_complete() -> None:
    gangs = Gangs("alice", "carol")
    gangs.slow("carol")
    gangs.form(GangSpec((NEEDS,) * 2))
    gangs.until(work.Leased, 1)
    gangs.world.elapse(0.02)
    gangs.world.deliver(gangs.bob, Disconnected(gangs.workers["alice"].identity.peer_id))
    gangs.world.elapse(3)
    assert len(gangs.formed().members) == 2


def test_closing_while_it_forms_gives_all_back() -> None:
    gangs = Gangs("alice", "carol")
    gangs.form(GangSpec((NEEDS,) * 2))
    gangs.bob.form("cd" * 16, GangSpec((NEEDS,)))
    gangs.until(work.PlacementRequest, 2)
    gangs.bob.close(GANG)
    gangs.bob.close("cd" * 16)
    gangs.world.elapse(3)
    assert gangs.events() == [GangEnded(""), GangEnded("")]
    assert gangs.idle()


def test_two_gangs_of_one_owner_do_not_mix() -> None:
    discovery = DiscoveryParameters(max_finds=1)
    gangs = Gangs("alice", "carol", "dave", parameters=PeerParameters(discovery=discovery))
    gangs.form(GangSpec((NEEDS, replace(NEEDS, cpu_milli=500))))
    gangs.bob.form("cd" * 16, GangSpec((NEEDS,)))
    gangs.world.elapse(30)
    assert sorted(len(formed.members) for formed in gangs.events(GangFormed)) == [1, 2]


def test_the_workers_kept_in_mind_are_bounded() -> None:
    parameters = PeerParameters(gang=GangParameters(max_workers=1))
    gangs = Gangs("alice", "carol", parameters=parameters).after(GangSpec((NEEDS,)), 5)
    assert len(gangs.formed().members) == 1


def test_searches_go_on_while_they_bring_more_workers() -> None:
    gangs = Gangs("alice", "carol", parameters=PeerParameters(gang=GangParameters(looks=9)))
    gangs.form(GangSpec((NEEDS,) * 4))
    for name in ("dave", "erin"):
        gangs.world.elapse(1)
        gangs.world.add(name, serve=gangs.world.machine(cpu=1))
    gangs.world.elapse(10)
    assert len(gangs.formed().members) == 4


def test_two_that_are_lost_at_once_end_a_gang_once() -> None:
    gangs = Gangs("alice", "carol").after(GangSpec((NEEDS,) * 2, on_loss=OnLoss.END), 2)
    gangs.world.suspend(gangs.bob)
    gangs.world.elapse(60)
    gangs.world.resume(gangs.bob)
    gangs.world.elapse(5)
    assert [type(event) for event in gangs.events()] == [GangFormed, MemberLost, GangEnded]


def test_a_second_loss_is_mended_after_the_first() -> None:
    gangs = Gangs("alice", "carol", "dave").after(GangSpec((NEEDS,) * 3), 2)
    members = gangs.formed().members
    gangs.world.kill(gangs.of(members[2].peer_id))
    gangs.world.elapse(0.5)
    gangs.world.kill(gangs.of(members[1].peer_id))
    gangs.world.elapse(0.5)
    gangs.resize(2)  # of what is lost already
    for name in ("erin", "frank"):
        gangs.workers[name] = gangs.world.add(name, serve=gangs.world.machine())
    gangs.world.elapse(40)
    kinds = [type(event) for event in gangs.events()]
    assert kinds == [GangFormed, MemberLost, MemberLost, MemberReplaced]
    live = {r for name, r in gangs.rosters().items() if gangs.workers[name].alive}
    assert {roster[2] for roster in live} == {(0, 1)}


def test_a_search_of_a_job_is_none_of_a_gang_that_has_a_round_of_its_number() -> None:
    town = Gangs("alice", "carol", cpu=2)
    town.form(GangSpec((NEEDS,) * 2, arrange=Arrangement.STRICT_PACK))
    town.world.elapse(0.005)
    town.bob.submit(Job("job", (Task("job/0", replace(NEEDS, memory_bytes=1), b"x"),)))
    town.world.elapse(5)
    assert town.events(GangFormed)
    assert any(isinstance(event, TaskSucceeded) for event in town.bob.reported)


@pytest.mark.at_length
def test_searches_of_a_gang_that_waits_for_room_become_rare_while_they_bring_nothing() -> None:
    gangs = Gangs("alice", "carol")
    erin = gangs.world.add("erin")
    gangs.world.elapse(2)
    erin.form("cd" * 16, GangSpec((NEEDS,) * 2))
    gangs.world.elapse(2)
    gangs.form(GangSpec((NEEDS,) * 2))
    gangs.world.elapse(1)
    once = gangs.bob.messages["a gang"]  # for one search
    counts = [once]
    for _ in range(6):
        gangs.world.elapse(15)
        counts.append(gangs.bob.messages["a gang"])
    first, *later = (after - before for before, after in itertools.pairwise(counts))
    assert first >= 2 * once
    assert max(later) <= once
    assert gangs.events() == []


@pytest.mark.parametrize("on_loss", [OnLoss.REPLACE, OnLoss.END])
def test_a_member_that_the_policy_admits_no_longer_is_replaced(on_loss: OnLoss) -> None:
    gangs = Gangs("alice", "carol", "dave")
    gangs.world.run = lambda running: (90.0, Succeeded(b""))
    options = TaskOptions(policy=parse_policy("trust>=0.3 & balanced"))
    gangs.form(GangSpec((NEEDS,) * 2, options, on_loss=on_loss))
    gangs.world.elapse(2)
    gangs.submit(0, 1)
    gangs.world.elapse(0.5)
    member = gangs.of(gangs.formed().members[1].peer_id)
    gangs.save(member)
    gangs.world.elapse(0.5)
    assert isinstance(gangs.bob.peer, Peer)
    for _ in range(10):
        now = gangs.world.moment(gangs.bob)
        gangs.bob.peer.reputation.note(member.identity.peer_id, Experience.WRONG, now)
    gangs.world.elapse(250)
    (lost,) = gangs.events(MemberLost)
    assert lost.worker == member.identity.peer_id
    assert not gangs.worker(member).has_leases
    if on_loss is OnLoss.REPLACE:
        (replaced,) = gangs.events(MemberReplaced)
        assert replaced.member.peer_id != member.identity.peer_id
        ended = [each.task_id for each in gangs.bob.reported if isinstance(each, TaskSucceeded)]
        assert sorted(ended) == ["job/0", "job/1"]
    else:
        assert isinstance(gangs.events()[-1], GangEnded)

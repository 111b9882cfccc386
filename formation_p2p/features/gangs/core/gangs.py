"""Gangs, as a part of a peer: those that this node owns, formed, told of each other, mended,
resized, ended; and the leases here that members of the gangs of others have.

What the lessee tells of leases comes here first. Those of a gang's members are handed on to the
scheduler once the gang is complete, and each member has been told who the others are: nothing is
dispatched before.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, assert_never

from formation_p2p.core.effects import Contact, Effect, Moment
from formation_p2p.core.errors import InvalidInput, ensure
from formation_p2p.core.identity import PeerId
from formation_p2p.discovery.core.finder import Found
from formation_p2p.features.gangs.core.acquisition import Acquisition, Stage
from formation_p2p.features.gangs.core.candidates import Means
from formation_p2p.features.gangs.core.events import (
    EmitGangEvent,
    EndGang,
    FormGang,
    GangEnded,
    GangEvent,
    GangFormed,
    GangNotGrown,
    GangRejected,
    GangRequest,
    GangUnplaceable,
    JoinGang,
    MemberJoined,
    MemberLost,
    MemberReleased,
    MemberReplaced,
    MemberUsed,
    OwnRoster,
    ResizeGang,
    UsageMeasured,
)
from formation_p2p.features.gangs.core.gang import Gang, GangState, GangStatus, status_of_gang
from formation_p2p.features.gangs.core.messages import Enlist, ReportUsage
from formation_p2p.features.gangs.core.parameters import GangParameters
from formation_p2p.features.gangs.core.spec import OnLoss
from formation_p2p.features.gangs.core.usage import LeaseUsage
from formation_p2p.jobs.core.job import Job
from formation_p2p.leases.core.held_lease import HeldLease
from formation_p2p.leases.core.lease import Lease, LeaseState
from formation_p2p.leases.core.lessee import (
    LeaseHeld,
    LeaseLost,
    LeaseRecovered,
    LeaseYields,
    LesseeEvent,
    NegotiationEvent,
    OffersCollected,
    RoundClosed,
)
from formation_p2p.leases.core.messages import Beside
from formation_p2p.leases.core.session import Send
from formation_p2p.peer.core.part import Part, claims, on, reads, types_of
from formation_p2p.peer.core.peer import Kernel
from formation_p2p.peer.core.worker import Worker
from formation_p2p.records.core.resources import encode_requirements


@dataclass(frozen=True, slots=True)
class RanksEnded:
    """These have no lease any more, and get none: their tasks end. `why` is for people, empty where
    that was asked for."""

    members: frozenset[tuple[str, int]]
    why: str


# For the scheduler, in order.
ForScheduler = NegotiationEvent | RanksEnded


class Gangs:
    """`gangs` are those that this node owns. Others read them, and change nothing there."""

    def __init__(self, kernel: Kernel[Any, Any], parameters: GangParameters) -> None:
        self._kernel = kernel
        context, rng = kernel.context, kernel.rng
        facts = context.authorised, context.candidate
        self._means = Means(kernel.finder, kernel.lessee, *facts, rng, parameters)
        self.gangs: dict[str, Gang] = {}
        self._effects: list[Effect] = []
        self._handed: list[ForScheduler] = []
        self._left = False

    @property
    def part(self) -> Part:
        return Part(
            reads=reads(self.reported, ReportUsage) | reads(self.enlisted, Enlist),
            handles=on(self.handle, *types_of(GangRequest)) | on(self.measured, UsageMeasured),
            tick=self.tick,
            next_timeout=self.next_timeout,
            settle=self.settle,
            found=claims(self.found),
            negotiated=claims(self.negotiated),
            check=self.check,
            leave=self.leave,
            employed=self.employed,
            validate=self.validate,
        )

    def status(self) -> tuple[GangStatus, ...]:
        """Of the gangs that this node owns."""
        return tuple(map(status_of_gang, self.gangs.values()))

    def settle(self, now: Moment) -> Sequence[Effect]:
        """What gangs tell comes first: their members are to know each other before they work."""
        effects, self._effects = self._effects, []
        handed, self._handed = self._handed, []
        scheduler = self._kernel.scheduler
        for each in handed:
            if isinstance(each, RanksEnded):
                effects += scheduler.ranks_ended(each.members, each.why)
            else:
                effects += scheduler.negotiated([each], now)
        return effects

    # -- what the owner asks for ----------------------------------------------------------------

    def handle(self, event: GangRequest, now: Moment) -> None:
        """What cannot be done ends in GangRejected, and changes nothing."""
        try:
            match event:
                case FormGang():
                    self._form(event, now)
                case EndGang(gang_id):
                    if (gang := self.gangs.get(gang_id)) is not None:
                        self._end(gang, "")
                case ResizeGang(gang_id, size):
                    self._resize(gang_id, size, now)
                case _:
                    assert_never(event)
        except InvalidInput as error:
            rejected = GangRejected(str(error))
            self._effects.append(EmitGangEvent(event.gang_id, rejected, cause="asked for"))

    def _form(self, event: FormGang, now: Moment) -> None:
        if self._left:
            raise InvalidInput("gang", "the node is leaving")
        if event.gang_id in self.gangs:
            raise InvalidInput("gang", f"{event.gang_id} is there already")
        if len(self.gangs) >= (limit := self._means.parameters.max_gangs):
            raise InvalidInput("gang", f"{limit} are there; close one first")
        for needs in dict.fromkeys(event.spec.needs):
            encode_requirements(needs)
        gang = Gang(event.gang_id, event.spec, self._means, now.unix_s)
        self.gangs[event.gang_id] = gang
        self._mend(gang, now)

    def _resize(self, gang_id: str, size: int, now: Moment) -> None:
        gang = self.gangs.get(gang_id)
        if gang is None or gang.state is GangState.FORMING:
            raise InvalidInput("gang", f"{gang_id} is not there, or has not formed yet")
        before = gang.spec.size
        spec = gang.spec.of_size(size)
        if size == before:
            return
        for rank in range(size, before):
            self._release(gang, rank)
        gang.spec = spec
        gang.acquisition.stop("the gang changes its size")
        if size < before:
            self._tell_all(gang, "the gang has shrunk")
        self._settle(gang, now)

    def leave(self, now: Moment) -> None:
        """The leases are the lessee's to give back, and the tasks the scheduler's to end."""
        self._left = True
        for gang in self.gangs.values():
            gang.move("end")
            self._emit(gang, GangEnded("its node has left"))
        self.gangs.clear()

    def check(self, job: Job) -> None:
        """Raises InvalidInput for tasks of a gang's member that is not there, or has other needs:
        they would wait for ever."""
        for task in job.tasks:
            if task.member is None:
                continue
            gang_id, rank = task.member
            gang = self.gangs.get(gang_id)
            if gang is None or gang.state is GangState.FORMING:
                raise InvalidInput("gang", f"{gang_id} has ended, or has not formed")
            if not 0 <= rank < gang.spec.size:
                raise InvalidInput("rank", f"{rank} is not below the gang's size, {gang.spec.size}")
            if gang.spec.key(gang_id, rank) != job.options.scheduling_key(task.needs, task.member):
                raise InvalidInput("needs", "a member's tasks have the needs and options of it")

    # -- what happens ---------------------------------------------------------------------------

    def found(self, found: Found, now: Moment) -> bool:
        """Whether the search was ours."""
        for gang in self.gangs.values():
            if gang.acquisition.seeks(found.find):
                gang.acquisition.found(found, now)
                self._settle(gang, now)
                return True
        return False

    def negotiated(self, event: LesseeEvent, now: Moment) -> bool:
        """Whether it was of a gang."""
        match event:
            case OffersCollected():
                return self._collected(event, now)
            case RoundClosed() | LeaseYields():  # the lease of a member never does
                return False
            case LeaseHeld(lease) | LeaseRecovered(lease) | LeaseLost(lease):
                member = lease.scheduling_key.member
                if member is not None and (gang := self.gangs.get(member[0])) is not None:
                    self._of_member(gang, lease, event, now)
                return member is not None
            case _:
                assert_never(event)

    def reported(self, sender: Contact, message: ReportUsage, now: Moment) -> list[EmitGangEvent]:
        """What members use. A worker speaks of the leases alone that we have of it."""
        told: list[EmitGangEvent] = []
        for usage in message.reports:
            for gang in self.gangs.values():
                for rank, lease in gang.leases.items():
                    if (
                        lease.lease_id == usage.lease_id
                        and lease.fence == usage.fence
                        and lease.lessor.peer_id == sender.peer_id
                    ):
                        gang.used[rank] = usage
                        event = MemberUsed(rank, usage)
                        told.append(EmitGangEvent(gang.gang_id, event, cause="reported"))
        return told

    def tick(self, now: Moment) -> None:
        for gang in list(self.gangs.values()):
            if gang.acquisition.due_s <= now.mono_s:
                gang.acquisition.tick(now)
                self._settle(gang, now)

    def next_timeout(self) -> float:
        due = (gang.acquisition.due_s for gang in self.gangs.values())
        return min(due, default=float("inf"))

    def validate(self) -> None:
        """Raises InvariantBroken."""
        held = self._means.lessee.held
        for gang in self.gangs.values():
            ensure(gang.state is not GangState.ENDED, f"{gang.gang_id} has ended, and is kept")
            complete = not gang.lacking
            ensure((gang.state is GangState.FORMED) == complete, f"{gang.gang_id} lacks a member")
            for lease in (*gang.leases.values(), *gang.acquisition.held.values()):
                ensure(held.get(lease.key) is lease, f"{lease.lease_id} is not held any more")

    # -- leases here that members of the gangs of others have -------------------------------------

    def employed(self, worker: Worker) -> None:
        worker.lessor.beside = self._trips_us

    def _trips_us(self, others: Beside, now: Moment) -> Beside:
        """To those that were measured, but for this node itself."""
        rtt_us = self._kernel.round_trips.rtt_us
        trips = ((place, rtt_us(other, now)) for place, other in enumerate(others))
        return tuple((place, us) for place, us in trips if us)

    def enlisted(self, sender: Contact, message: Enlist, now: Moment) -> Sequence[JoinGang]:
        worker = self._kernel.worker
        if worker is None or not self._is_meant(message, sender):
            return ()
        lease = worker.lessor.lease(sender, message.lease_id, message.fence)
        if not isinstance(lease, Lease):
            return ()
        return [JoinGang(lease.lease_id, message.rank, message.roster, cause="enlisted")]

    def _is_meant(self, message: Enlist, sender: Contact) -> bool:
        """Whether the roster is one of the sender's own gang, and has this lease under that rank.
        One who owns another lease here could lead the streams of a gang elsewhere otherwise."""
        member = message.roster.member(message.rank)
        return (
            message.roster.owner.peer_id == sender.peer_id
            and member is not None
            and (member.peer_id, member.fence) == (self._kernel.own.peer_id, message.fence)
        )

    def measured(self, event: UsageMeasured, now: Moment) -> list[Send]:
        """Tell the owners of these leases, each in one message, as far as they live."""
        worker, found = self._kernel.worker, dict[PeerId, tuple[Contact, list[LeaseUsage]]]()
        leases = () if worker is None else worker.lessor
        live = {x.lease_id: x.owner for x in leases if x.state is LeaseState.LEASED}
        for usage in event.reports:
            owner = live.get(usage.lease_id)
            if owner is not None:
                found.setdefault(owner.peer_id, (owner, []))[1].append(usage)
        return [
            Send(owner, ReportUsage(tuple(each)), cause="a look at what its gang uses")
            for owner, each in found.values()
        ]

    # -- one gang -------------------------------------------------------------------------------

    def _collected(self, event: OffersCollected, now: Moment) -> bool:
        for gang in self.gangs.values():
            if gang.acquisition.asks(event.round):
                gang.acquisition.collected(event, now)
                self._settle(gang, now)
                return True
        return False

    def _of_member(
        self,
        gang: Gang,
        lease: HeldLease,
        event: LeaseHeld | LeaseRecovered | LeaseLost,
        now: Moment,
    ) -> None:
        rank = gang.rank_of(lease)
        match event:
            case LeaseHeld():
                gang.acquisition.leased(lease)
                self._settle(gang, now)
            case LeaseRecovered():
                if rank is not None:  # it may have missed the last roster
                    self._effects += gang.told(rank, self._kernel.own, "the worker answers again")
                    self._handed.append(event)
            case LeaseLost(refusal=refusal):
                if rank is None:
                    gang.acquisition.lost(lease, refusal, now)
                    return
                gang.lose(rank)
                self._handed.append(event)
                why = str(refusal)
                self._emit(gang, MemberLost(rank, lease.lessor.peer_id, why))
                if gang.spec.on_loss is OnLoss.END:
                    self._end(gang, f"its member of rank {rank} is lost: {why}")
                    return
                gang.acquisition.candidates.refused(lease.lessor.peer_id, refusal, now)
                gang.move("lack")
                self._tell_all(gang, "a member is lost")
                if gang.acquisition.stage is Stage.IDLE:
                    self._mend(gang, now)
            case _:
                assert_never(event)

    def _settle(self, gang: Gang, now: Moment) -> None:
        """Act on how far its acquisition has come."""
        acquisition = gang.acquisition
        if acquisition.stage is Stage.COMPLETE:
            self._enter(gang, acquisition, now)
        elif acquisition.stage is Stage.HOPELESS:
            self._hopeless(gang, acquisition)
        if gang.state is not GangState.ENDED and acquisition.stage is Stage.IDLE:
            self._mend(gang, now)

    def _mend(self, gang: Gang, now: Moment) -> None:
        """Seek what is lacking: first those that were lost."""
        if not gang.lacking:
            gang.move("complete")
            return
        gang.move("lack")
        ranks = sorted(gang.lost) or gang.lacking
        parameters = self._means.parameters
        looks = parameters.looks_for_lost if gang.lost else parameters.looks
        gang.acquisition.begin(gang.spec, ranks, gang.workers, now, looks=looks)

    def _enter(self, gang: Gang, acquisition: Acquisition, now: Moment) -> None:
        """All leases that were sought are held."""
        leases = acquisition.taken_over()
        lost = gang.lost & leases.keys()
        if gang.spec.fewer:
            gang.resized(len(leases))
        joined = gang.enter(leases, now)
        was = gang.state
        self._tell_all(gang, "the gang is complete")
        self._handed += (LeaseHeld(lease) for lease in leases.values())
        if was is GangState.FORMING:
            gang.move("complete")
            self._emit(gang, GangFormed(gang.members))
            return
        for member in joined:
            replaced = member.rank in lost
            self._emit(gang, MemberReplaced(member) if replaced else MemberJoined(member))

    def _hopeless(self, gang: Gang, acquisition: Acquisition) -> None:
        """There are not workers enough, time and again."""
        refusals = acquisition.refusals
        if gang.state is GangState.FORMING:
            self._drop(gang)
            self._emit(gang, GangUnplaceable(refusals))
        elif gang.lost:
            reasons = "; ".join(f"{worker}: {why}" for worker, why in refusals)
            ranks = ", ".join(map(str, sorted(gang.lost)))
            self._end(gang, f"no worker can replace its member of rank {ranks}. {reasons}".strip())
        else:
            acquisition.stop("there are not workers enough")
            gang.resized(max(gang.leases) + 1)
            self._emit(gang, GangNotGrown(refusals))

    def _release(self, gang: Gang, rank: int) -> None:
        lease = gang.drop(rank)
        self._handed.append(RanksEnded(frozenset({(gang.gang_id, rank)}), "the gang has shrunk"))
        if lease is not None:
            self._means.lessee.release(lease, "the gang has shrunk")
            self._emit(gang, MemberReleased(rank))

    def _end(self, gang: Gang, why: str) -> None:
        formed = gang.state is not GangState.FORMING
        self._drop(gang)
        if formed:
            ranks = frozenset((gang.gang_id, rank) for rank in range(gang.spec.size))
            self._handed.append(RanksEnded(ranks, why))
        for lease in gang.leases.values():
            self._means.lessee.release(lease, why or "the gang is closed")
        gang.leases.clear()
        self._emit(gang, GangEnded(why))

    def _drop(self, gang: Gang) -> None:
        gang.move("end")
        del self.gangs[gang.gang_id]
        gang.acquisition.stop("the gang has ended")

    def _tell_all(self, gang: Gang, cause: str) -> None:
        owner = self._kernel.own
        self._effects += gang.enlist(owner, cause)
        self._effects.append(OwnRoster(gang.roster(owner), cause=cause))

    def _emit(self, gang: Gang, event: GangEvent) -> None:
        self._effects.append(EmitGangEvent(gang.gang_id, event, cause=type(event).__name__))

"""The gangs that this node owns: formed, told of each other, mended, resized, ended.

What the lessee tells of leases comes here first. Those of a gang's members are handed on to the
scheduler once the gang is complete, and each member has been told who the others are: nothing is
dispatched before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import assert_never

from formation_p2p.core.effects import Contact, Moment
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
    GangUnplaceable,
    MemberJoined,
    MemberLost,
    MemberReleased,
    MemberReplaced,
    MemberUsed,
    OwnRoster,
    ResizeGang,
)
from formation_p2p.features.gangs.core.gang import Gang, GangState
from formation_p2p.features.gangs.core.spec import OnLoss
from formation_p2p.leases.core.gang_usage import LeaseUsage
from formation_p2p.leases.core.held_lease import HeldLease
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
from formation_p2p.leases.core.session import Send
from formation_p2p.placement.core.task_options import TaskOptions
from formation_p2p.records.core.resources import encode_requirements
from formation_p2p.workload.core.work import Task

GangEffect = EmitGangEvent | OwnRoster | Send


@dataclass(frozen=True, slots=True)
class RanksEnded:
    """These have no lease any more, and get none: their tasks end. `why` is for people, empty where
    that was asked for."""

    members: frozenset[tuple[str, int]]
    why: str


# For the scheduler, in order.
ForScheduler = NegotiationEvent | RanksEnded


class Gangs:
    """`own` is where this node is reached. Call `take` after each of the others: what is to be
    done, and what the scheduler is to know. Others read `gangs`, and change nothing there."""

    def __init__(self, means: Means, own: Callable[[], Contact]) -> None:
        self._means = means
        self._own = own
        self.gangs: dict[str, Gang] = {}
        self._effects: list[GangEffect] = []
        self._handed: list[ForScheduler] = []
        self._left = False

    def take(self) -> tuple[list[GangEffect], list[ForScheduler]]:
        effects, self._effects = self._effects, []
        handed, self._handed = self._handed, []
        return effects, handed

    # -- what the owner asks for ----------------------------------------------------------------

    def handle(self, event: FormGang | EndGang | ResizeGang, now: Moment) -> None:
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

    def leave(self) -> None:
        """The leases are the lessee's to give back, and the tasks the scheduler's to end."""
        self._left = True
        for gang in self.gangs.values():
            gang.move("end")
            self._emit(gang, GangEnded("its node has left"))
        self.gangs.clear()

    def check(self, options: TaskOptions, tasks: Iterable[Task]) -> None:
        """Raises InvalidInput for tasks of a gang's member that is not there, or has other needs:
        they would wait for ever."""
        for task in tasks:
            if task.member is None:
                continue
            gang_id, rank = task.member
            gang = self.gangs.get(gang_id)
            if gang is None or gang.state is GangState.FORMING:
                raise InvalidInput("gang", f"{gang_id} has ended, or has not formed")
            if not 0 <= rank < gang.spec.size:
                raise InvalidInput("rank", f"{rank} is not below the gang's size, {gang.spec.size}")
            if gang.spec.key(gang_id, rank) != options.scheduling_key(task.needs, task.member):
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

    def negotiated(self, events: Iterable[LesseeEvent], now: Moment) -> None:
        """What is of no gang is handed on as it is."""
        for event in events:
            match event:
                case OffersCollected():
                    self._collected(event, now)
                case RoundClosed() | LeaseYields():  # the lease of a member never does
                    self._handed.append(event)
                case LeaseHeld(lease) | LeaseRecovered(lease) | LeaseLost(lease):
                    member = lease.scheduling_key.member
                    if member is None:
                        self._handed.append(event)
                    elif (gang := self.gangs.get(member[0])) is not None:
                        self._of_member(gang, lease, event, now)
                case _:
                    assert_never(event)

    def reported(self, sender: PeerId, reports: Iterable[LeaseUsage]) -> list[GangEffect]:
        """What members use. A worker speaks of the leases alone that we have of it."""
        told: list[GangEffect] = []
        for usage in reports:
            for gang in self.gangs.values():
                for rank, lease in gang.leases.items():
                    if (
                        lease.lease_id == usage.lease_id
                        and lease.fence == usage.fence
                        and lease.lessor.peer_id == sender
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

    # -- one gang -------------------------------------------------------------------------------

    def _collected(self, event: OffersCollected, now: Moment) -> None:
        for gang in self.gangs.values():
            if gang.acquisition.asks(event.round):
                gang.acquisition.collected(event, now)
                self._settle(gang, now)
                return
        self._means.lessee.turn_down(event.offers, "they are not waited for any more")

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
                    self._effects += gang.told(rank, self._own(), "the worker answers again")
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
        owner = self._own()
        self._effects += gang.enlist(owner, cause)
        self._effects.append(OwnRoster(gang.roster(owner), cause=cause))

    def _emit(self, gang: Gang, event: GangEvent) -> None:
        self._effects.append(EmitGangEvent(gang.gang_id, event, cause=type(event).__name__))

"""What a gang has, what it uses, and which member has which part of the work."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final, Self

from formation_p2p.core.errors import FormationError, InvalidInput
from formation_p2p.core.identity import PeerId
from formation_p2p.features.gangs.api.base import GangBase
from formation_p2p.features.gangs.core.events import GangEvent, GangMember, MemberJoined
from formation_p2p.features.gangs.core.part import (
    ASSUMED_BYTES_S,
    LOCAL_BYTES_S,
    Links,
    MemberCapacity,
)
from formation_p2p.features.gangs.core.pool import Pool, PoolMember, less
from formation_p2p.features.gangs.core.resizing import (
    GraceExpired,
    Phase,
    Reconciler,
    Resize,
    Resizing,
    RolledBack,
)
from formation_p2p.features.gangs.core.usage import LeaseUsage, LinkBytes
from formation_p2p.machine.clock import moment
from formation_p2p.machine.core.capability import Capability, Capacity
from formation_p2p.records.core.profile import Profile
from formation_p2p.workload.core.scaling import Autoscaler, ScalingPolicy


@dataclass(frozen=True, slots=True)
class MemberUsage:
    """What the tasks of a rank use: `cpu_milli` is the mean of some seconds, in thousandths of a
    core. `links` are bytes on streams with other ranks, -1 for the owner, since the lease began."""

    rank: int
    worker: PeerId
    cpu_milli: int
    memory_bytes: int
    links: tuple[LinkBytes, ...]


def pool_of(gang: GangBase) -> Pool:
    members = gang.members
    return Pool(tuple(_member(each, members, gang.reported.get(each.rank)) for each in members))


def pool_of_workers(profiles: Iterable[Profile]) -> Pool:
    return Pool(tuple(PoolMember(x.peer_id, x.capability, x.capacity) for x in profiles))


def usage_of(gang: GangBase) -> tuple[MemberUsage, ...]:
    return tuple(
        MemberUsage(each.rank, each.peer_id, used.cpu_milli, used.memory_bytes, used.links)
        for each in gang.members
        if (used := gang.reported.get(each.rank)) is not None
    )


def used_percent(gang: GangBase) -> float | None:
    """Of the cores that the members hold; None before all have reported."""
    if not gang.members or len(gang.reported) < len(gang.members):
        return None
    held_milli = sum(each.needs.cpu_milli for each in gang.members)
    return 100 * sum(each.cpu_milli for each in gang.reported.values()) / held_milli


def capacities(
    gang: GangBase,
    speeds: Mapping[int, int] | None = None,
    has: Mapping[int, Iterable[str]] | None = None,
    *,
    of_gpus: bool = False,
) -> tuple[MemberCapacity, ...]:
    """Raises InvalidInput for speeds of other ranks than the members'."""
    ranks = {member.rank for member in gang.members}
    if speeds is not None and speeds.keys() != ranks:
        raise InvalidInput("speeds", f"give one for each of the ranks {sorted(ranks)}")
    return tuple(
        MemberCapacity(
            each.rank,
            each.needs.cpu_milli if speeds is None else speeds[each.rank],
            _gpu_bytes(each) if of_gpus else each.needs.memory_bytes,
            frozenset((has or {}).get(each.rank, ())),
        )
        for each in gang.members
    )


def links_of(gang: GangBase) -> Links:
    """What is known of the links between the members: round trips as their workers have told them,
    and rates where streams were seen to be faster than is assumed. One machine has no link."""
    bytes_s, rtt_us = dict(gang.rates.over(ASSUMED_BYTES_S)), {}
    for one in gang.members:
        trips_us = dict(one.trips_us)
        for other in gang.members:
            pair = one.rank, other.rank
            if one.peer_id == other.peer_id and one is not other:
                bytes_s[pair], rtt_us[pair] = LOCAL_BYTES_S, 0
            elif other.peer_id in trips_us:
                rtt_us[pair] = trips_us[other.peer_id]
    return Links(bytes_s, rtt_us)


def _member(
    member: GangMember, members: Iterable[GangMember], used: LeaseUsage | None
) -> PoolMember:
    needs, profile = member.needs, member.profile
    if profile is None:  # all that is known of it is what it holds for us
        capability = Capability(needs.cpu_milli, needs.memory_bytes, needs.storage_bytes)
        free = Capacity(0, 0)
    else:
        capability, free = profile.capability, profile.capacity
        for each in members:  # it is known from before they were leased
            if each.peer_id == member.peer_id:
                free = less(free, each.needs, each.device_ids)
    return PoolMember(
        member.peer_id,
        capability,
        free,
        member.rank,
        needs,
        member.device_ids,
        0 if used is None else used.cpu_milli,
        0 if used is None else used.memory_bytes,
    )


def _gpu_bytes(member: GangMember) -> int:
    gpus = () if member.profile is None else member.profile.capability.gpus
    held = sum(gpu.memory_bytes for gpu in gpus if gpu.device_id in member.device_ids)
    return held * member.needs.gpu_share_milli // 1000


log = logging.getLogger(__name__)

# Twice as long as between two reports of what members use: each look sees another.
LOOK_S: Final = 4.0
# A lost member is replaced within seconds, or there is no worker for it now.
GRACE_S: Final = 60.0


class Autoscaling:
    """Enter it by `async with`; it looks at the gang every LOOK_S until then. `policy` may be
    replaced meanwhile: a change that it no longer allows is rolled back. `ended` says why it ended
    the gang, and `rolled_back` lists changes that failed."""

    def __init__(self, gang: GangBase, policy: ScalingPolicy, grace_s: float = GRACE_S) -> None:
        self.policy = policy
        self.resizing = Resizing()
        self.ended: GraceExpired | None = None
        self.rolled_back: list[RolledBack] = []
        self._gang = gang
        self._grace_s = grace_s
        self._scaler = Autoscaler(policy)
        self._reconciler = Reconciler(policy.least, max(gang.size, policy.least), grace_s)
        self._changing: asyncio.Task[None] | None = None
        self._loop: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        self._gang.watchers.append(self._seen)
        self._loop = asyncio.create_task(self._run())
        return self

    async def __aexit__(self, *raised: object) -> None:
        self._gang.watchers.remove(self._seen)
        for task in (self._loop, self._changing):
            if task is not None:
                task.cancel()
                await asyncio.wait([task])

    async def _run(self) -> None:
        while not self._gang.is_over:
            await asyncio.sleep(LOOK_S)
            await self.look(moment().mono_s)

    async def look(self, now_s: float) -> None:
        """Do what is due."""
        gang, current = self._gang, self.resizing.current
        if current is not None and not current.is_over:
            undone = current.check(self.policy, now_s)
            if undone is not None:
                await self._roll_back(undone, now_s)
            return
        found = self._reconciler.reconcile(len(gang.members), now_s)
        if isinstance(found, GraceExpired):
            self.ended = found
            log.warning("a gang ends: %s", found)
            await gang.close()
            return
        used = used_percent(gang)
        if used is None or gang.is_over:
            return
        self._scaler.policy = self.policy
        target = self._scaler.decide(gang.size, used, now_s)
        if target is not None:
            change = self.resizing.begin(gang.size, target, now_s)
            for _ in range(3):  # the policy allows it, and the target is known
                change.advance(now_s)
            self._changing = asyncio.create_task(self._resize(change))

    async def _resize(self, change: Resize) -> None:
        try:
            await self._gang.resize(change.target)
        except FormationError as error:
            log.info("the gang keeps its %d members: %s", change.size, error)
            change.cancel()
        else:
            while not change.is_over:  # each member has been told by now
                change.advance(moment().mono_s)
            self._reconciler = Reconciler(
                min(self.policy.least, change.target), change.target, self._grace_s
            )
        self._scaler.changed(moment().mono_s)

    async def _roll_back(self, undone: RolledBack, now_s: float) -> None:
        self.rolled_back.append(undone)
        self._scaler.changed(now_s)
        if self._changing is not None:
            self._changing.cancel()
            await asyncio.wait([self._changing])
        if self._gang.size != undone.size and not self._gang.is_over:
            await self._gang.resize(undone.size)

    def _seen(self, event: GangEvent) -> None:
        current = self.resizing.current
        allocating = current is not None and current.phase is Phase.ALLOCATING
        if current is not None and allocating and isinstance(event, MemberJoined):
            current.joined(event.member.rank)

"""A gang that follows what it uses: more members, fewer, or its end where too few are left."""

from __future__ import annotations

import asyncio
import logging
from typing import Final, Self

from formation_p2p.api.gang_base import GangBase
from formation_p2p.api.gang_pool import used_percent
from formation_p2p.core.errors import FormationError
from formation_p2p.core.gang.events import GangEvent, MemberJoined
from formation_p2p.core.gang.resizing import Phase, Resize, Resizing, RolledBack
from formation_p2p.core.gang.scaling import Autoscaler, GraceExpired, Reconciler, ScalingPolicy
from formation_p2p.host.clock import moment

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

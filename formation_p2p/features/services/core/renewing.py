"""Another version of a replica, started beside the one that serves, and taking over from it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from formation_p2p.core.effects import Moment
from formation_p2p.features.services.core.events import (
    ReplicaReported,
    ReplicaState,
    ServiceStep,
    StartReplica,
    StopReplica,
)
from formation_p2p.features.services.core.means import Machine, Means
from formation_p2p.features.services.core.replica import Fresh, Replica, reserved
from formation_p2p.features.services.core.signed_spec import SignedSpec

_OVER: Final = (ReplicaState.STOPPED, ReplicaState.FAILED)
# Failed starts of a newer version, before the older one goes on alone.
MAX_STUMBLES: Final = 3


class Renewing:
    """Of the replicas of one worker. `publish` tells others of a replica, `emit` people."""

    def __init__(
        self,
        means: Means,
        publish: Callable[[Replica, Moment], None],
        emit: Callable[[Replica, ServiceStep, str, Moment], None],
    ) -> None:
        self._means = means
        self._publish = publish
        self._emit = emit
        # What stops while another serves, and has something reserved until then. Each has to be
        # ready before the next one, or is given up for minutes.
        self._ending: dict[tuple[str, int], Machine] = {}

    def renew(self, replica: Replica, signed: SignedSpec, now: Moment) -> bool:
        """Start another version beside the one that serves; False without room."""
        machine, spec = replica.machine, signed.spec
        epoch = replica.tried_epoch = max(replica.epoch, replica.tried_epoch) + 1
        at = reserved(spec.name, epoch), spec.needs, now
        device_ids = machine.set_aside(*at) if machine.suits(spec.needs) else None
        if device_ids is None:
            return False
        due_s = now.mono_s + spec.start_grace_s + self._means.parameters.prepare_s
        replica.fresh = Fresh(signed, epoch, due_s)
        why = f"version {spec.version}"
        start = StartReplica(signed, replica.slot, epoch, device_ids, beside=True, cause=why)
        self._means.effects.append(start)
        self._emit(replica, ServiceStep.STARTED, why, now)
        self._publish(replica, now)
        return True

    def takes_over(self, replica: Replica, now: Moment) -> bool:
        """The one that served has failed: whether the other one is ready, and serves instead."""
        fresh = replica.fresh
        if fresh is None or fresh.since_s is None:
            return False
        self._promote(replica, fresh, now)
        return True

    def give_up(self, replica: Replica, why: str, now: Moment) -> None:
        """The other version does not become ready: the one that serves goes on."""
        assert replica.fresh is not None, "it is given up once"
        version = replica.failed_version = replica.fresh.signed.spec.version
        replica.failed_until_s = now.mono_s + self._means.parameters.avoid_s
        self.drop(replica)
        goes_on = f"version {replica.signed.spec.version} goes on"
        told = f"version {version} did not become ready: {why}; {goes_on}"
        self._emit(replica, ServiceStep.FAILED, told, now)
        self._publish(replica, now)

    def drop(self, replica: Replica) -> None:
        """The other version is not to run, if there is one."""
        fresh, replica.fresh = replica.fresh, None
        if fresh is not None:
            self._stop(replica, fresh.epoch, 0, "it is not to run")

    def reported(self, replica: Replica | None, event: ReplicaReported, now: Moment) -> bool:
        """Whether it was of one that serves no more, or not yet."""
        key, is_over = (event.service, event.epoch), event.state in _OVER
        fresh = None if replica is None else replica.fresh
        if replica is not None and fresh is not None and fresh.epoch == event.epoch:
            self._judge(replica, fresh, event, now)
        elif key not in self._ending:
            return False
        if is_over:
            self._ending.pop(key).give_back(reserved(*key), now)
        return True

    def tick(self, replica: Replica, now: Moment) -> None:
        fresh = replica.fresh
        if fresh is not None and now.mono_s >= self._due_s(fresh):
            if fresh.since_s is None:
                self.give_up(replica, "it takes too long", now)
            else:
                self._promote(replica, fresh, now)
        if replica.failed_version and now.mono_s >= replica.failed_until_s:
            replica.failed_version = 0  # it may do better now
            self._publish(replica, now)

    def next_timeout(self, replicas: Iterable[Replica]) -> float:
        due = [self._due_s(each.fresh) for each in replicas if each.fresh is not None]
        due += [each.failed_until_s for each in replicas if each.failed_version]
        return min(due, default=float("inf"))

    def _due_s(self, fresh: Fresh) -> float:
        if fresh.since_s is None:
            return fresh.due_s
        return fresh.since_s + self._means.parameters.min_healthy_s

    def _judge(self, replica: Replica, fresh: Fresh, event: ReplicaReported, now: Moment) -> None:
        if event.state is ReplicaState.READY:
            fresh.since_s = now.mono_s if fresh.since_s is None else fresh.since_s
        elif event.state is not ReplicaState.STARTING:
            fresh.stumbles += 1
            is_lost = event.state in _OVER or fresh.since_s is not None
            if is_lost or fresh.stumbles >= MAX_STUMBLES:
                self.give_up(replica, event.why or "it has stopped", now)

    def _promote(self, replica: Replica, fresh: Fresh, now: Moment) -> None:
        """It serves from now on, and the one before it stops."""
        drain_s = replica.signed.spec.drain_s
        self._stop(replica, replica.epoch, drain_s, "a newer version serves")
        replica.signed, replica.epoch, replica.fresh = fresh.signed, fresh.epoch, None
        replica.outstanding, replica.old_since_s = 0, None
        replica.move("ready")
        self._emit(replica, ServiceStep.RENEWED, f"version {fresh.signed.spec.version}", now)
        self._publish(replica, now)

    def _stop(self, replica: Replica, epoch: int, drain_s: int, why: str) -> None:
        self._ending[replica.service, epoch] = replica.machine
        at = replica.service, replica.slot, epoch
        self._means.effects.append(StopReplica(*at, drain_s, cause=why))

"""The replicas that this worker has: their claims are kept fresh, watched over and withdrawn."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Final, assert_never

from formation_p2p.core.effects import Contact, Moment
from formation_p2p.core.errors import ensure
from formation_p2p.core.identity import key_of_peer
from formation_p2p.dht.core.operations import Asked
from formation_p2p.discovery.core.finder import Found
from formation_p2p.features.services.core.claim import (
    CLAIM_TTL_S,
    MAX_GUARDIANS,
    Claim,
    ClaimState,
    SignedClaim,
    seal_claim,
    slot_key,
)
from formation_p2p.features.services.core.events import (
    ReplicaReported,
    ReplicaState,
    ServiceStep,
    StartReplica,
    StopReplica,
)
from formation_p2p.features.services.core.means import Means, ignored
from formation_p2p.features.services.core.renewing import Renewing
from formation_p2p.features.services.core.replica import Own, Replica, reserved
from formation_p2p.features.services.core.scaling import is_elastic, own_word
from formation_p2p.features.services.core.signed_spec import SignedSpec
from formation_p2p.features.services.core.spec import needs_of
from formation_p2p.machine.core.capability import idle

_CLAIM_STATES: Final = {
    Own.CLAIMED: ClaimState.JOINING,
    Own.STARTING: ClaimState.JOINING,
    Own.READY: ClaimState.READY,
    Own.DRAINING: ClaimState.DRAINING,
}


class Holding:
    """`gone` is told of each service that this worker has no more, and whether it failed."""

    def __init__(self, means: Means, gone: Callable[[str, bool, Moment], None]) -> None:
        self._means = means
        self._gone = gone
        self._replicas: dict[str, Replica] = {}
        self.renewing = Renewing(means, self._publish, self._emit)
        # For a machine whose clock went back: sequence numbers only grow.
        self._sequence = 0
        # Whether this worker runs services no more: what it has then, it takes on first when it
        # comes back.
        self.stops = False

    def __len__(self) -> int:
        return len(self._replicas)

    def __contains__(self, service: str) -> bool:
        return service in self._replicas

    def __iter__(self) -> Iterator[Replica]:
        return iter(list(self._replicas.values()))

    def get(self, service: str) -> Replica | None:
        return self._replicas.get(service)

    def claim(
        self,
        signed: SignedSpec,
        slot: int,
        epoch: int,
        now: Moment,
        then: Callable[[Asked, Moment], None],
        enough: int,
    ) -> bool:
        """Reserve what a replica needs, and claim the slot; `then` gets who has taken the claim.
        False where the machine has no room."""
        machine, name = self._means.machine(), signed.spec.name
        at = reserved(name, epoch), signed.spec.needs, now
        device_ids = None if machine is None else machine.set_aside(*at)
        if machine is None or device_ids is None:
            return False
        replica = self._replicas[name] = Replica(machine, signed, slot, epoch)
        replica.device_ids = device_ids
        replica.wanted = own_word(signed.spec, self._means.wanted(signed, now))
        self._write(replica, _CLAIM_STATES[replica.state], now, "claim", then, enough)
        return True

    def claim_again(
        self, service: str, now: Moment, then: Callable[[Asked, Moment], None], enough: int
    ) -> None:
        """Too few have taken the claim: put it where it is missing."""
        replica = self._replicas[service]
        self._write(replica, _CLAIM_STATES[replica.state], now, "claim", then, enough)

    def start(self, service: str, now: Moment, cause: str) -> None:
        """The claim counts: start the replica."""
        replica = self._replicas[service]
        replica.move("start")
        self._means.had[service] = replica.slot
        replica.look_s = now.mono_s + self._means.parameters.look_s
        replica.guardians_s = now.mono_s
        at = replica.signed, replica.slot, replica.epoch
        start = StartReplica(*at, replica.device_ids, cause=cause)
        self._means.effects.append(start)
        self._emit(replica, ServiceStep.STARTED, cause, now)

    def withdraw(self, service: str, now: Moment, why: str, *, failed: bool = False) -> None:
        """It does not run: others are told, and what it needed is given back."""
        replica = self._replicas.pop(service)
        if not self.stops:
            self._means.had.pop(service, None)
        self.renewing.drop(replica)
        self._write(replica, ClaimState.GONE, now, "withdraw", ignored, 1)
        replica.machine.give_back(reserved(service, replica.epoch), now)
        self._gone(service, failed, now)

    def unclaim(self, service: str, now: Moment, why: str) -> None:
        """Give back a slot that is claimed, and has nothing started in it yet."""
        replica = self._replicas.get(service)
        if replica is not None and replica.state is Own.CLAIMED:
            self.withdraw(service, now, why)

    def drain(self, service: str, now: Moment, why: str, *, at_once: bool = False) -> None:
        """Announce that it stops, have it serve what it has, and stop it."""
        replica = self._replicas.get(service)
        if replica is None:
            return
        if replica.state is Own.CLAIMED:
            self.withdraw(service, now, why)
            return
        if not replica.move("drain"):
            return
        self.renewing.drop(replica)
        self._stop(replica, 0 if at_once else replica.signed.spec.drain_s, why)
        self._emit(replica, ServiceStep.DRAINING, why, now)
        self._publish(replica, now)

    def _stop(self, replica: Replica, drain_s: int, why: str) -> None:
        at = replica.service, replica.slot, replica.epoch
        self._means.effects.append(StopReplica(*at, drain_s, cause=why))

    def reported(self, event: ReplicaReported, now: Moment) -> None:
        replica = self._replicas.get(event.service)
        if self.renewing.reported(replica, event, now):
            return
        if replica is None or (replica.slot, replica.epoch) != (event.slot, event.epoch):
            return  # of one before
        replica.outstanding = event.outstanding
        replica.load.told(event.busy, event.outstanding, now.mono_s)
        self._weigh(replica, now)
        match event.state:
            case ReplicaState.STARTING:
                pass
            case ReplicaState.READY:
                if replica.move("ready"):
                    self._emit(replica, ServiceStep.READY, event.why, now)
                    self._publish(replica, now)
            case ReplicaState.UNREADY:
                if replica.move("unready"):
                    self._emit(replica, ServiceStep.UNREADY, event.why, now)
                    self._publish(replica, now)
            case ReplicaState.STOPPED:
                self._emit(replica, ServiceStep.STOPPED, event.why, now)
                self.withdraw(event.service, now, "it has stopped")
            case ReplicaState.FAILED if self.renewing.takes_over(replica, now):
                pass
            case ReplicaState.FAILED:
                self._emit(replica, ServiceStep.FAILED, event.why, now)
                self.withdraw(event.service, now, event.why, failed=True)
            case _:
                assert_never(event.state)

    def moved(self, now: Moment) -> None:
        """This machine is reached elsewhere."""
        for replica in self:
            self._publish(replica, now)

    def adopt(self, replica: Replica, signed: SignedSpec, now: Moment) -> None:
        """Another version of its service, which has the same program, and another number of
        replicas: it goes on as that."""
        replica.signed, replica.old_since_s, replica.wanted = signed, None, 0
        self._publish(replica, now)

    def disputed(self, claim: Claim, now: Moment) -> None:
        """Another claims a slot of ours, as if this replica were not there: say that it is."""
        replica = self._replicas.get(claim.service)
        if replica is not None and replica.slot == claim.slot and replica.state is Own.READY:
            replica.due_s = now.mono_s

    def wants(self, replica: Replica, count: int, why: str, now: Moment) -> None:
        """By the load so many replicas of its service are to be there: tell the others."""
        replica.wanted = own_word(replica.signed.spec, count)
        self._emit(replica, ServiceStep.SCALED, why, now)
        self._publish(replica, now)

    def _weigh(self, replica: Replica, now: Moment) -> None:
        """Where its load differs much from what its claim says, the others hear of it soon."""
        spec, claim = replica.signed.spec, replica.claim
        if claim is None or not is_elastic(spec):
            return
        ours = self._means.parameters
        differs = abs(replica.load.busy_percent(spec, now.mono_s) - claim.claim.busy_percent)
        if differs >= ours.load_step_percent:
            said_s = replica.due_s - ours.republish_s
            replica.due_s = min(replica.due_s, max(said_s + ours.load_s, now.mono_s))

    def tick(self, now: Moment) -> list[Replica]:
        """Returns the replicas whose service is to be looked at."""
        looks = []
        for replica in self:
            if now.mono_s >= replica.due_s:
                self._publish(replica, now)
            if now.mono_s >= replica.guardians_s:
                self._choose_guardians(replica, now)
            self.renewing.tick(replica, now)
            if now.mono_s >= replica.look_s:
                replica.look_s = now.mono_s + self._means.parameters.look_s
                looks.append(replica)
        return looks

    def next_timeout(self) -> float:
        due = (min(each.due_s, each.look_s, each.guardians_s) for each in self)
        return min(self.renewing.next_timeout(self), *due, float("inf"))

    def validate(self) -> None:
        """Raises InvariantBroken."""
        for name, replica in self._replicas.items():
            ensure(replica.service == name, f"{replica.service} is kept as {name}")

    # -- the claim ------------------------------------------------------------------------------

    def _publish(self, replica: Replica, now: Moment) -> None:
        state = _CLAIM_STATES[replica.state]
        then = partial(self._published, replica)
        self._write(replica, state, now, "republish", then, len(replica.guardians) + 64)

    def _published(self, replica: Replica, ended: Asked, now: Moment) -> None:
        watching = {contact.peer_id for contact in replica.guardians}
        if any(each.reply is None and each.to.peer_id in watching for each in ended.answers):
            replica.guardians_s = min(replica.guardians_s, now.mono_s + 1.0)

    def _write(
        self,
        replica: Replica,
        state: ClaimState,
        now: Moment,
        cause: str,
        then: Callable[[Asked, Moment], None],
        enough: int,
    ) -> None:
        means, name = self._means, self._means.name(replica.service)
        signed = replica.claim = self._sealed(replica, state, now)
        replica.due_s = now.mono_s + means.parameters.republish_s
        means.sight(replica.service).take(signed)
        means.shelf.keep_claim(name, signed, now)
        holders = means.holders.nearest(name, now)
        # A claim counts with a majority of those that answer; afterwards the others are told too.
        others = () if cause == "claim" else (*means.holders.lost(name, now), *replica.guardians)
        means.write(replica.service, signed, (*holders, *others), now, cause, then, enough)

    def _sealed(self, replica: Replica, state: ClaimState, now: Moment) -> SignedClaim:
        means, spec = self._means, replica.signed.spec
        issued_unix_s = int(now.unix_s)
        self._sequence = max(self._sequence + 1, int(now.unix_s * 1000))
        claim = Claim(
            service=spec.name,
            digest=replica.signed.digest,
            version=spec.version,
            slot=replica.slot,
            peer_id=means.peer_id,
            epoch=replica.epoch,
            state=state,
            sequence=self._sequence,
            issued_unix_s=issued_unix_s,
            expires_unix_s=issued_unix_s + CLAIM_TTL_S,
            worker_type=spec.worker_type,
            addresses=means.own().addresses,
            guardians=tuple(contact.peer_id for contact in replica.guardians),
            outstanding=replica.outstanding,
            capacity=spec.max_requests,
            services_held=len(self._replicas),
            busy_percent=replica.load.busy_percent(spec, now.mono_s),
            wanted=replica.wanted,
            next_version=0 if replica.fresh is None else replica.fresh.signed.spec.version,
            failed_version=replica.failed_version,
            grant=means.grant(),
        )
        return seal_claim(means.identity, claim)

    # -- guardians ------------------------------------------------------------------------------

    def _choose_guardians(self, replica: Replica, now: Moment) -> None:
        """The workers nearest to the slot that could run it, and do not yet: first those that have
        nothing to do."""
        replica.guardians_s = now.mono_s + self._means.parameters.guardians_s
        spec = replica.signed.spec
        if spec.pinned is not None:
            return  # no other peer may run it
        key = slot_key(spec.name, replica.slot)
        then = partial(self._chosen, replica)
        if not self._means.inquiries.find(needs_of(spec), key, now, "guardians", then):
            replica.guardians_s = now.mono_s + self._means.parameters.retry_s

    def _chosen(self, replica: Replica, found: Found, now: Moment) -> None:
        if self._replicas.get(replica.service) is not replica:
            return
        if len(found.profiles) <= MAX_GUARDIANS:  # this worker among them: more may come
            soon_s = now.mono_s + self._means.parameters.few_guardians_s
            replica.guardians_s = min(replica.guardians_s, soon_s)
        if not found.suited:
            return
        spec = replica.signed.spec
        live = self._means.sight(spec.name).live(now.unix_s)
        having = {claim.peer_id for claim in live.values()} | {self._means.peer_id}
        key = slot_key(spec.name, replica.slot)
        holders = self._means.holders
        others = (each for each in found.profiles if each.peer_id not in having)
        profiles = sorted(
            # A profile outlives its worker.
            (each for each in others if not holders.is_lost(each.peer_id, now)),
            key=lambda each: (
                each.capacity != idle(each.capability),
                key_of_peer(each.peer_id) ^ key,
            ),
        )
        chosen = [Contact(each.peer_id, each.addresses) for each in profiles[:MAX_GUARDIANS]]
        before = {contact.peer_id for contact in replica.guardians}
        replica.guardians = tuple(chosen)
        if {contact.peer_id for contact in chosen} != before:
            self._publish(replica, now)

    def _emit(self, replica: Replica, step: ServiceStep, why: str, now: Moment) -> None:
        self._means.emit(replica.service, replica.slot, step, why, now)

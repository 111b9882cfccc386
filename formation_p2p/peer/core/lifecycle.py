"""How far a peer has come in its network: it joins, works for others, vacates, and leaves."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from formation_p2p.core.effects import Contact, Moment
from formation_p2p.core.errors import InvalidInput
from formation_p2p.core.refusals import Leaving
from formation_p2p.dht.core.operations import OperationId
from formation_p2p.leases.core import messages
from formation_p2p.leases.core.session import Send
from formation_p2p.peer.core.effects import KernelEffect, Left, RejectRequest, Vacated
from formation_p2p.peer.core.events import Serve, Vacate
from formation_p2p.peer.core.part import Effects
from formation_p2p.peer.core.worker import Worker
from formation_p2p.trust.core.network import Network
from formation_p2p.trust.core.renewal import GrantEffect, OwnGrant

# Makes the worker of the peer at this address, as `Serve` wants it.
Employ = Callable[[Serve, Contact], Worker]
T = TypeVar("T")


class Lifecycle:
    """`own` is where this peer is reached, once it is known; `worker` is there once it works for
    others."""

    def __init__(self, network: Network, grant: OwnGrant, employ: Employ) -> None:
        self.own: Contact | None = None
        self.worker: Worker | None = None
        self._network = network
        self._grant = grant
        self._employ = employ
        self._serve: Serve | None = None
        self._joining: OperationId | None = None
        self.is_leaving = False
        self._withdrawn = self._left = self._vacating = False

    def at_work(self, do: Callable[[Worker, T, Moment], Effects]) -> Callable[[T, Moment], Effects]:
        """What a worker does about something, which is nothing to a peer that does not work."""
        return lambda what, now: None if self.worker is None else do(self.worker, what, now)

    def is_at(self, own: Contact) -> None:
        """Where it is reached from now on."""
        self.own = own

    def joins(self, operation: OperationId) -> None:
        """It looks for its neighbours by this operation."""
        self._joining = operation

    def is_joining_by(self, operation: OperationId) -> bool:
        return operation == self._joining

    def joined(self, again: OperationId | None, now: Moment) -> Sequence[KernelEffect]:
        """The operation ended, and where it found no peer, goes on as another."""
        self._joining = again
        return self._start_worker(now)

    def serves(self, event: Serve, now: Moment) -> Sequence[KernelEffect]:
        self._serve = event
        return self._start_worker(now)

    def _start_worker(self, now: Moment) -> Sequence[KernelEffect]:
        """Once it is known what to serve, and the first neighbours: they are to store it."""
        if (
            self._serve is None
            or self.own is None
            or self._joining is not None
            or self.worker is not None
            or self.is_leaving
        ):
            return []
        worker = self._employ(self._serve, self.own)
        try:
            worker.start(now)
        except InvalidInput as error:
            return [RejectRequest("serve", str(error), cause="serve")]
        self.worker = worker
        return self.licensed((), now)

    def renewed(self, network: Network) -> None:
        """Its grant is the one of `network` from now on."""
        self._network = network

    def licensed(self, told: Sequence[GrantEffect], now: Moment) -> list[KernelEffect]:
        """After a look at the grant, which told this."""
        effects: list[KernelEffect] = [*told]
        if self.worker is not None:
            effects += self.worker.licensed(self._network, self._grant.may_work, now)
        return effects

    def vacate(self, event: Vacate, now: Moment) -> Sequence[KernelEffect]:
        grace_s = event.grace_s
        self._vacating = True
        notice = messages.Notice("", 0, round(grace_s * 1000), Leaving())
        told = [
            Send(each, notice, cause="what it holds is to go elsewhere") for each in event.owners
        ]
        return told if self.worker is None else [*told, *self.worker.vacate(grace_s, now)]

    def reopen(self) -> None:
        self._vacating = False
        if self.worker is not None:
            self.worker.reopen()

    def leave(self, now: Moment) -> Sequence[KernelEffect]:
        self.is_leaving = True
        return [] if self.worker is None else self.worker.leave(now)

    def withdrawn(self) -> None:
        """Those that stored what the worker announced know that it has gone."""
        self._withdrawn = True

    def completed(self) -> list[KernelEffect]:
        """What it was asked for and is done by now: to vacate, to leave. Each is told once."""
        effects: list[KernelEffect] = []
        if self._vacating and (self.worker is None or self.worker.is_vacant):
            self._vacating = False
            effects.append(Vacated(cause="vacate"))
        serves = self.worker is not None and (self.worker.has_leases or not self._withdrawn)
        if self.is_leaving and not serves and not self._left:
            self._left = True
            effects.append(Left(cause="leave"))  # the last: what is sent before still goes out
        return effects

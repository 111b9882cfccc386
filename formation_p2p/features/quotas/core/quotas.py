"""Quotas over the network, as a part of a peer: the accounts that it keeps for others, and what it
asks of the holders of the accounts that leases here are charged to."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from formation_p2p.core.effects import Contact, Effect, Moment
from formation_p2p.dht.core.operations import Searched
from formation_p2p.features.quotas.core.messages import SliceAnswer, ToHolder
from formation_p2p.features.quotas.core.quota_account import SavedAccount
from formation_p2p.features.quotas.core.quota_escrow import QuotaEscrow
from formation_p2p.features.quotas.core.quota_holder import QuotaHolder
from formation_p2p.features.quotas.core.quota_parameters import EscrowParameters
from formation_p2p.features.quotas.core.quota_status import account_in_json
from formation_p2p.features.quotas.core.vouching import Vouching
from formation_p2p.peer.core.part import Completed, Part, Told, claims, on, reads, types_of
from formation_p2p.peer.core.peer import Kernel
from formation_p2p.peer.core.worker import Worker

_SLICES = ("quota_slices", "Slices of quotas asked for.")


@dataclass(frozen=True, slots=True)
class AccountsRecalled:
    """The accounts that this node kept in an earlier run, as its disk has them."""

    accounts: tuple[SavedAccount, ...]


class Quotas:
    """`escrow` is there once this peer works for others."""

    def __init__(self, kernel: Kernel[Any, Any], parameters: EscrowParameters) -> None:
        self._kernel = kernel
        self._parameters = parameters
        self.holder = QuotaHolder(
            kernel.identity.peer_id,
            kernel.dht,
            kernel.membership,
            lambda: kernel.network.grant,
            parameters,
        )
        self.escrow: QuotaEscrow | None = None
        lessee = kernel.lessee
        lessee.extension = Vouching(
            kernel.identity, kernel.membership, lambda: lessee.grant, lessee.held.values
        ).voucher

    @property
    def part(self) -> Part:
        holder = self.holder
        return Part(
            reads=reads(holder.received, *types_of(ToHolder)) | reads(self._answered, SliceAnswer),
            handles=on(lambda each, now: holder.recalled(each.accounts, now), AccountsRecalled),
            tick=self._tick,
            next_timeout=self._next_timeout,
            settle=lambda now: None if self.escrow is None else self.escrow.take(),
            ended=claims(self._searched),
            undelivered=lambda each, now: holder.undelivered(each.to, now),
            employed=self._employed,
            told=self._told,
        )

    def _employed(self, worker: Worker) -> None:
        me, used = self._kernel.identity.peer_id, worker.admission.used.of
        self.escrow = QuotaEscrow(me, self._kernel.dht, used, self._parameters)
        worker.admission.network = self.escrow

    def _answered(self, sender: Contact, answer: SliceAnswer, now: Moment) -> None:
        if self.escrow is not None:
            self.escrow.answered(sender, answer, now)

    def _searched(self, completed: Completed, now: Moment) -> bool:
        if self.escrow is None or not isinstance(completed, Searched):
            return False
        return self.escrow.searched(completed, now)

    def _tick(self, now: Moment) -> list[Effect]:
        if self.escrow is not None:
            self.escrow.tick(now)
        return [*self.holder.tick(now)]

    def _next_timeout(self) -> float:
        due_s = self.holder.next_timeout()
        return due_s if self.escrow is None else min(due_s, self.escrow.next_timeout())

    def _told(self) -> Told:
        if self.escrow is None:
            return Told({"quotas": []})
        rows = [account_in_json(each) for each in self.escrow.status()]
        return Told({"quotas": rows}, {_SLICES: self.escrow.counts})

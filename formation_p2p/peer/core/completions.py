"""What one layer of a peer completed is carried to the one above that waits for it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from formation_p2p.core.effects import Moment
from formation_p2p.dht.core.kademlia import Kademlia
from formation_p2p.dht.core.operations import Asked, Published, Searched
from formation_p2p.dht.core.store import RecordStore
from formation_p2p.discovery.core.finder import Finder
from formation_p2p.features.services.core.services import Services
from formation_p2p.leases.core.lessee import Lessee
from formation_p2p.peer.core.charter_news import CharterAdopted, CharterNews
from formation_p2p.peer.core.effects import PeerEffect
from formation_p2p.peer.core.lifecycle import Lifecycle
from formation_p2p.peer.core.placement_context import PlacementContext
from formation_p2p.peer.core.renewal import Inviters, Renewal
from formation_p2p.peer.core.reports import Reports
from formation_p2p.peer.core.wants import Wants
from formation_p2p.records.core.profile import SignedProfile

# After a new charter, leases are judged by it for as long as what was asked for before comes.
JUDGE_S: Final = 30.0


class Completions:
    """All parts are the peer's own."""

    def __init__(
        self,
        dht: Kademlia[SignedProfile],
        store: RecordStore,
        finder: Finder,
        lessee: Lessee,
        services: Services,
        wants: Wants,
        charters: CharterNews,
        reports: Reports,
        context: PlacementContext,
        lifecycle: Lifecycle,
        renewal: Renewal,
        inviters: Inviters,
    ) -> None:
        self._dht = dht
        self._store = store
        self._finder = finder
        self._lessee = lessee
        self._services = services
        self._wants = wants
        self._charters = charters
        self._reports = reports
        self._context = context
        self._lifecycle = lifecycle
        self._renewal = renewal
        self._inviters = inviters
        self._judge_until_s = float("-inf")

    def settle(self, now: Moment) -> list[PeerEffect]:
        """Until nothing is left to carry."""
        effects: list[PeerEffect] = []
        while True:
            for gate in self._dht.take_gates():
                if self._lifecycle.worker is not None:
                    self._lifecycle.worker.announcer.met(gate, now)
            self._services.settle(now)
            effects += self._chartered(now)
            asked, completed = self._dht.take()
            sent, negotiated = self._lessee.take()
            effects += [*asked, *sent, *self._services.take(), *self._wants.settle(now)]
            found = [each for each in self._finder.take() if not self._services.found(each, now)]
            told = self._reports.of_gangs(now)
            effects += told or ()
            if not completed and not negotiated and not found and told is None:
                return effects
            for each in completed:
                effects += self._completed(each, now)
            effects += self._reports.negotiated(negotiated, now)
            effects += self._reports.found(found, now)

    def _chartered(self, now: Moment) -> Sequence[PeerEffect]:
        """What came of charters. Where there is a new one, who is banned is here no more."""
        told = self._charters.take()
        if any(isinstance(each, CharterAdopted) for each in told):
            self._store.judge_again(now)
            self._renewal.judged(now)
            self._judge_until_s = now.mono_s + JUDGE_S
        if now.mono_s < self._judge_until_s:  # offers that are being taken up, too
            self._lessee.forsake(lambda lease: self._context.refuses(lease, now))
        return told

    def _completed(
        self, completed: Searched[SignedProfile] | Published | Asked, now: Moment
    ) -> Sequence[PeerEffect]:
        worker = self._lifecycle.worker
        if self._charters.ended(completed, now):
            return []
        if (found := self._inviters.ended(completed, now)) is not None:
            return self._renewal.found(found, now)
        if isinstance(completed, Published):
            if worker is not None and worker.announcer.published(completed, now):
                self._lifecycle.withdrawn()
        elif self._services.ended(completed, now) or isinstance(completed, Asked):
            pass
        elif self._lifecycle.is_joining_by(completed.operation):
            again = self._dht.fall_back(now)
            if again is None:
                self._charters.begin(now)
            return self._lifecycle.joined(again, now)
        elif worker is not None and worker.escrow.searched(completed, now):
            return worker.escrowed(now)
        elif worker is None or not worker.announcer.searched(completed, now):
            self._finder.searched(completed, now)
        return []

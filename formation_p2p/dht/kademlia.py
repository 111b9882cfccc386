"""One node's part in the DHT: it answers others, keeps its table fresh, and runs operations.

Pure. Inputs are the events of `dht/rpc.py` and the calls below; what comes of them is collected
until `take()`. Sources are named where each part is: `routing.py`, `lookup.py`, `store.py`.
"""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, assert_never

from formation_p2p.dht.lookup import Lookup
from formation_p2p.dht.messages import (
    AddProvider,
    FindNode,
    GetProviders,
    GetValue,
    Nodes,
    Ping,
    Provider,
    ProviderQuery,
    Providers,
    PutValue,
    Reply,
    Request,
    Stored,
    Value,
)
from formation_p2p.dht.operations import (
    BETA,
    Completed,
    OperationId,
    Publish,
    Query,
    Search,
    Write,
)
from formation_p2p.dht.routing import K, RoutingTable
from formation_p2p.dht.rpc import Answer, Answered, Ask, Asked, AskFailed
from formation_p2p.dht.serving import Server, Suits
from formation_p2p.dht.store import RecordStore
from formation_p2p.effects import Contact, Effect, Moment
from formation_p2p.errors import BadRecord
from formation_p2p.identity import PeerId, key_of_peer, peer_id_to_bytes
from formation_p2p.keyspace import Key, distance, key_of
from formation_p2p.records.profile import SignedProfile

# A request, dial included. A wide-area dial takes three round trips of at most 0.3 s (the 90th
# percentile between PlanetLab hosts); three seconds leave room for one lost packet.
REQUEST_TIMEOUT_S: Final = 3.0
# The table is refreshed by a lookup of our own key and of a random one, and the gates are told
# of us again: one that was restarted knows nobody.
REFRESH_S: Final = 300.0
# With an empty table the gates are asked again, ever more rarely.
FIRST_RETRY_S: Final = 1.0
LAST_RETRY_S: Final = 30.0
# Expired records are dropped this often; they are never returned in between.
SWEEP_S: Final = 30.0
# Strangers being pinged at once, to see whether they belong into the table.
MAX_PINGS: Final = 32
# Operations under way at once; a worker announces in at most 32 buckets.
MAX_OPERATIONS: Final = 256


@dataclass(frozen=True, slots=True)
class _Asking:
    """A request of ours under way. Without an operation it is a ping, for the table's sake."""

    to: Contact
    request: Request
    operation: OperationId | None


class Kademlia:
    """Call `handle` for events, `tick` when `next_timeout` has passed, `take` after either."""

    def __init__(
        self,
        own: PeerId,
        store: RecordStore,
        suits: Suits,
        rng: random.Random,
        *,
        k: int = K,
    ) -> None:
        self.store = store
        self._own = own
        self._suits = suits
        self._rng = rng
        self._k = k
        self.table = RoutingTable(key_of_peer(own), k=k)
        self._server = Server(self.table, store, suits, k)
        self._gates: tuple[Contact, ...] = ()
        self._asking: dict[int, _Asking] = {}
        self._pinging: set[PeerId] = set()
        self._operations: dict[OperationId, Search | Publish] = {}
        self._ask_count = 0
        self._operation_count = 0
        self._refresh_at = float("inf")
        self._retry_s = FIRST_RETRY_S
        self._sweep_at = float("inf")
        self._effects: list[Effect] = []
        self._completed: list[Completed] = []

    # -- operations -------------------------------------------------------------------------

    def bootstrap(self, gates: Iterable[Contact], now: Moment, cause: str) -> OperationId:
        """Join through peers with known addresses, and keep trying while the table is empty.
        The first try ends as Searched."""
        self._gates = tuple(gate for gate in gates if gate.peer_id != self._own)
        self._retry_s = FIRST_RETRY_S
        self._sweep_at = now.mono_s + SWEEP_S
        return self._refresh(now, cause)

    def find_providers(
        self, name: bytes, query: ProviderQuery, now: Moment, cause: str
    ) -> OperationId:
        """Ends as Searched, with the providers' profiles."""
        local = self.store.providers(name, query, self._suits(query.requirements), now)
        return self._search(name, GetProviders(name, query), local, now, cause)

    def get_value(self, name: bytes, now: Moment, cause: str) -> OperationId:
        """Ends as Searched, with at most one profile: the newest under `/formation/<peer id>`."""
        local = self.store.value(name, now)
        return self._search(name, GetValue(name), (local,) if local else (), now, cause)

    def find_node(self, peer_id: PeerId, now: Moment, cause: str) -> OperationId:
        """Ends as Searched, whose `closest` are the k peers nearest to `peer_id`."""
        name = peer_id_to_bytes(peer_id)
        return self._search(name, FindNode(name), (), now, cause, width=self._k)

    def provide(self, name: bytes, provider: Provider, now: Moment, cause: str) -> OperationId:
        """Write our provider record to the k nearest. Ends as Published."""
        return self._publish(name, AddProvider(name, provider), now, cause)

    def put_value(self, name: bytes, value: bytes, now: Moment, cause: str) -> OperationId:
        """Write our value record to the k nearest. Ends as Published."""
        return self._publish(name, PutValue(name, value), now, cause)

    def tell(
        self, peers: Iterable[Contact], write: PutValue, now: Moment, cause: str
    ) -> OperationId:
        """Write to these peers, and to ourselves, without a lookup: withdrawals go where the
        announcements went. Ends as Published."""
        lookup = Lookup(key_of(write.name), (), own=self._own)
        publish = Publish(self._new_operation(), lookup, FindNode(write.name), write, cause)
        self._operations[publish.operation] = publish
        self._server.keep(write, now)
        self._write_to(publish, peers)
        return publish.operation

    def abandon(self, operation: OperationId) -> tuple[Contact, ...]:
        """End a publish at once, without Published. Returns who has, or may have, taken it."""
        match self._operations.pop(operation, None):
            case Publish(stored_at=stored_at, writing=writing):
                return (*stored_at, *(writing or {}).values())
            case _:
                return ()

    # -- inputs and outputs -----------------------------------------------------------------

    def handle(self, event: Asked | Answered | AskFailed, now: Moment) -> None:
        match event:
            case Asked(ask_id, sender, message):
                reply = self._server.reply(sender.peer_id, message, now)
                self._effects.append(Answer(ask_id, reply, cause=f"asked by {sender.peer_id}"))
                self._meet(sender)
            case Answered(ask_id, sender, message):
                asking = self._asking.pop(ask_id)
                # Where identify told no addresses, those that it was dialled at are good.
                self._saw(sender if sender.addresses else asking.to, now)
                self._settle(asking, True, message, now)
            case AskFailed(ask_id):
                asking = self._asking.pop(ask_id)
                self._lost(asking.to.peer_id, now)
                self._settle(asking, False, None, now)
            case _:
                assert_never(event)

    def tick(self, now: Moment) -> None:
        if now.mono_s >= self._sweep_at:
            self.store.expire(now)
            self._sweep_at = now.mono_s + SWEEP_S
        if now.mono_s >= self._refresh_at:
            self._refresh(now, "refresh")

    def next_timeout(self) -> float:
        """When `tick` is due next, on the monotonic clock."""
        return min(self._refresh_at, self._sweep_at)

    def take(self) -> tuple[list[Effect], list[Completed]]:
        """What has come of the calls since the last `take`."""
        effects, self._effects = self._effects, []
        completed, self._completed = self._completed, []
        return effects, completed

    # -- asking -----------------------------------------------------------------------------

    def _meet(self, sender: Contact) -> None:
        """A stranger asked us something: ping it, since only who answers enters the table.

        Only while there is room for it: two who have none for each other would ping for ever.
        One that tells no address is a client; nobody could be sent to it.
        """
        if sender.addresses and self.table.has_room_for(sender.peer_id):
            self._ping(sender, "meet a stranger")

    def _saw(self, contact: Contact, now: Moment) -> None:
        doubtful = self.table.saw(contact, now.mono_s)
        if doubtful is not None:
            self._ping(doubtful, "is the least recently seen still there?")

    def _lost(self, peer_id: PeerId, now: Moment) -> None:
        known = len(self.table)
        self.table.lost(peer_id)
        if known and not len(self.table):  # it was the last one: back to the gates, soon
            self._refresh_at = min(self._refresh_at, now.mono_s + FIRST_RETRY_S)

    def _ping(self, contact: Contact, cause: str) -> None:
        if contact.peer_id not in self._pinging and len(self._pinging) < MAX_PINGS:
            self._pinging.add(contact.peer_id)
            self._ask(contact, Ping(), None, cause)

    def _ask(
        self, to: Contact, request: Request, operation: OperationId | None, cause: str
    ) -> None:
        self._ask_count += 1
        self._asking[self._ask_count] = _Asking(to, request, operation)
        self._effects.append(Ask(self._ask_count, to, request, REQUEST_TIMEOUT_S, cause=cause))

    def _search(
        self,
        name: bytes,
        request: Query,
        local: Iterable[SignedProfile],
        now: Moment,
        cause: str,
        *,
        width: int | None = None,
    ) -> OperationId:
        if width is None:
            # With fewer than k peers every one of them is among the k nearest to every name, and
            # records that were written when there were fewer still may be at any of them.
            width = self._k if len(self.table) < self._k else BETA
        search = Search(self._new_operation(), self._lookup(name, width), request, cause)
        search.gather(local)
        self._operations[search.operation] = search
        self._drive(search, now)
        return search.operation

    def _publish(self, name: bytes, write: Write, now: Moment, cause: str) -> OperationId:
        lookup = self._lookup(name, self._k)
        publish = Publish(self._new_operation(), lookup, FindNode(name), write, cause)
        self._operations[publish.operation] = publish
        self._drive(publish, now)
        return publish.operation

    def _lookup(self, name: bytes, width: int) -> Lookup:
        target = key_of(name)
        # The gates are asked only by a node that knows nobody else, so that they stay cool.
        seeds = self.table.closest(target, self._k) or self._gates
        return Lookup(target, seeds, own=self._own, width=width)

    def _new_operation(self) -> OperationId:
        if len(self._operations) >= MAX_OPERATIONS:
            oldest = next(iter(self._operations))
            self._finish(self._operations[oldest])
        self._operation_count += 1
        return OperationId(self._operation_count)

    def _drive(self, running: Search | Publish, now: Moment) -> None:
        """Ask whom the lookup names; at its end write, or finish."""
        for contact in running.lookup.next_peers():
            self._ask(contact, running.request, running.operation, running.cause)
        if not running.lookup.finished:
            return
        if isinstance(running, Search):
            self._finish(running)
        elif running.writing is None:
            self._write(running, now)
        elif not running.writing:
            self._finish(running)

    def _write(self, publish: Publish, now: Moment) -> None:
        """Write to the k nearest peers that answered; this node itself may be one of the k."""
        nearest = publish.lookup.closest()
        if len(nearest) < self._k or self._is_nearer(publish.lookup.target, nearest[-1]):
            nearest = nearest[: self._k - 1]
            if self._server.keep(publish.write, now):
                publish.stored_at.append(Contact(self._own))
        self._write_to(publish, nearest)

    def _write_to(self, publish: Publish, peers: Iterable[Contact]) -> None:
        publish.writing = {contact.peer_id: contact for contact in peers}
        for contact in publish.writing.values():
            self._ask(contact, publish.write, publish.operation, publish.cause)
        if not publish.writing:
            self._finish(publish)

    def _is_nearer(self, target: Key, than: Contact) -> bool:
        mine = distance(key_of_peer(self._own), target)
        return mine < distance(key_of_peer(than.peer_id), target)

    def _settle(self, asking: _Asking, answered: bool, reply: Reply | None, now: Moment) -> None:
        """Tell the operation that asked how it went."""
        if asking.operation is None:
            self._pinging.discard(asking.to.peer_id)
            return
        running = self._operations.get(asking.operation)
        if running is None:
            return  # it has ended since
        peer_id = asking.to.peer_id
        if isinstance(running, Publish) and running.writing is not None:
            contact = running.writing.pop(peer_id, None)
            if contact is None:
                return  # asked by the lookup, which was done without its answer
            if answered and _accepted(running.write, reply):
                running.stored_at.append(contact)
        elif answered:
            closer = reply.closer if isinstance(reply, Nodes | Providers | Value) else ()
            running.lookup.answered(peer_id, closer)
            if isinstance(running, Search):
                running.gather(self._verified(running.request.name, reply, now))
        else:
            running.lookup.failed(peer_id)
        self._drive(running, now)

    def _verified(self, name: bytes, reply: Reply | None, now: Moment) -> list[SignedProfile]:
        """The profiles in a reply that are what they claim to be; the others are left out."""
        match reply:
            case Providers(providers):
                raws = [provider.profile for provider in providers]
            case Value(value) if value is not None:
                raws = [value]
            case _:
                return []
        verified = []
        for raw in raws:
            try:
                verified.append(self.store.check(name, raw, now))
            except BadRecord:
                continue  # a storing peer that lies is outvoted by the others asked
        return verified

    def _finish(self, running: Search | Publish) -> None:
        del self._operations[running.operation]
        self._completed.append(running.completed())

    # -- keeping the table fresh --------------------------------------------------------------

    def _refresh(self, now: Moment, cause: str) -> OperationId:
        """Look up our own key, so that our neighbours know us, and a random one."""
        if len(self.table) == 0:
            self._refresh_at = now.mono_s + self._retry_s
            self._retry_s = min(self._retry_s * 2, LAST_RETRY_S)
            return self.find_node(self._own, now, cause)
        self._retry_s = FIRST_RETRY_S
        missing = [gate for gate in self._gates if gate.peer_id not in self.table]
        # A gate that restarts knows nobody, and newcomers know nobody but it.
        self._refresh_at = now.mono_s + (LAST_RETRY_S if missing else REFRESH_S)
        for gate in missing:
            self._ping(gate, cause)
        name = self._rng.randbytes(32)
        self._search(name, FindNode(name), (), now, cause, width=self._k)
        return self.find_node(self._own, now, cause)


def _accepted(write: Write, reply: Reply | None) -> bool:
    """Whether a peer took a write: a value is echoed, a provider record has no reply."""
    return not isinstance(write, PutValue) or reply == Stored(write.name, write.value)

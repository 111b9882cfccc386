"""One node's part in the DHT: it answers others, keeps its table fresh, and runs operations.

Pure. Inputs are the events of `dht/rpc.py` and the calls below; what comes of them is collected
until `take()`. Sources are named where each part is: `routing.py`, `lookup.py`, `store.py`.
"""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, Generic, assert_never

from formation_p2p.core.dht.lookup import ALPHA, Lookup
from formation_p2p.core.dht.messages import (
    AddProvider,
    FindNode,
    GetProviders,
    GetValue,
    Nodes,
    Ping,
    Pong,
    Provider,
    ProviderQuery,
    Providers,
    PutValue,
    Reply,
    Request,
    Value,
)
from formation_p2p.core.dht.operations import (
    BETA,
    SEARCH_ALPHA,
    SEARCH_SPARE,
    Delivery,
    OperationId,
    Publish,
    Published,
    Query,
    Search,
    Searched,
    delivery,
)
from formation_p2p.core.dht.reachability import DIAL_BACK_S, DialBacks, Reach, Reachability
from formation_p2p.core.dht.records import R, Records, Write
from formation_p2p.core.dht.refresh import Refresh
from formation_p2p.core.dht.routing import K, RoutingTable
from formation_p2p.core.dht.rpc import (
    Advertise,
    DhtEffect,
    DhtEvent,
    InboundConnection,
    PeerIdentified,
    ProbeReachability,
    ReachabilityProbed,
    RequestFailed,
    RequestReceived,
    ResponseReceived,
    SendRequest,
    SendResponse,
)
from formation_p2p.core.dht.serving import Server
from formation_p2p.core.dht.subnets import crowding, subnets
from formation_p2p.core.effects import Contact, Moment
from formation_p2p.core.identity import PeerId, key_of_peer, peer_id_to_bytes
from formation_p2p.core.keyspace import distance, key_of

# A request, dial included. A wide-area dial takes two round trips of at most 0.3 s (the 90th
# percentile between PlanetLab hosts); three seconds leave room for one lost packet.
REQUEST_TIMEOUT_S: Final = 3.0
# With an empty table the gates are asked again, ever more rarely. One that is not in the table,
# though there is room, was restarted perhaps: then it knows nobody, and is told of us again.
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


class Kademlia(Generic[R]):
    """Call `handle` for events, `tick` when `next_timeout` has passed, `take` after either."""

    def __init__(
        self,
        own: PeerId,
        records: Records[R],
        rng: random.Random,
        *,
        k: int = K,
    ) -> None:
        self.records = records
        self._own = own
        self._k = k
        self._own_name = peer_id_to_bytes(own)
        self.table = RoutingTable(key_of_peer(own), k=k)
        self._refresh = Refresh(key_of_peer(own), self._own_name, self.table, rng)
        self._reachability = Reachability()
        self._dial_backs = DialBacks()
        self._server = Server(own, self.table, records, k)
        self._gates: tuple[Contact, ...] = ()
        self._asking: dict[int, _Asking] = {}
        self._pinging: set[PeerId] = set()
        self._operations: dict[OperationId, Search[R] | Publish] = {}
        self._ask_count = 0
        self._operation_count = 0
        self._retry_at = float("inf")
        self._retry_s = FIRST_RETRY_S
        self._sweep_at = float("inf")
        self._effects: list[DhtEffect] = []
        self._completed: list[Searched[R] | Published] = []

    # -- operations -------------------------------------------------------------------------

    def moved(self, addresses: tuple[str, ...], now: Moment) -> None:
        """Where others are to dial us: to call before joining, and when it changes. A node that
        was not told joins as a server, and finds out nothing."""
        self.table.moved(addresses)
        self._reachability.moved(addresses, now.mono_s)
        self._effects.append(Advertise(self._reachability.reach, cause="the addresses changed"))

    def bootstrap(self, gates: Iterable[Contact], now: Moment, cause: str) -> OperationId:
        """Join through peers with known addresses, and keep trying while the table is empty.
        The first try ends as Searched."""
        self._gates = tuple(gate for gate in gates if gate.peer_id != self._own)
        self._retry_s = FIRST_RETRY_S
        self._sweep_at = now.mono_s + SWEEP_S
        return self._join(now, cause)

    def find_providers(
        self,
        name: bytes,
        query: ProviderQuery | None,
        now: Moment,
        cause: str,
        *,
        width: int | None = None,
    ) -> OperationId:
        """Ends as Searched, with the providers that `width` of the nearest peers hold."""
        return self._search(name, GetProviders(name, query), now, cause, width=width)

    def get_value(self, name: bytes, now: Moment, cause: str) -> OperationId:
        """Ends as Searched, with the value that the nearest peers hold, if any."""
        return self._search(name, GetValue(name), now, cause)

    def find_node(self, peer_id: PeerId, now: Moment, cause: str) -> OperationId:
        """Ends as Searched, whose `closest` are the k peers nearest to `peer_id`."""
        name = peer_id_to_bytes(peer_id)
        return self._search(name, FindNode(name), now, cause, width=self._k)

    def provide(self, name: bytes, provider: Provider, now: Moment, cause: str) -> OperationId:
        """Write our provider record to the k nearest. Ends as Published."""
        return self._publish(name, AddProvider(name, provider), now, cause)

    def put_value(self, name: bytes, value: bytes, now: Moment, cause: str) -> OperationId:
        """Write our value record to the k nearest. Ends as Published."""
        return self._publish(name, PutValue(name, value), now, cause)

    def deliver(
        self, writes: Iterable[tuple[Contact, Write]], now: Moment, cause: str
    ) -> OperationId:
        """Write to these peers without a lookup; this node may be among them. Ends as Published."""
        publish = Publish(self._new_operation(), cause)
        self._operations[publish.operation] = publish
        self._write(publish, writes, now)
        return publish.operation

    def abandon(self, operation: OperationId) -> tuple[Contact, ...]:
        """End a publish at once, without Published. Returns who has, or may have, taken it."""
        match self._operations.pop(operation, None):
            case Publish(deliveries=deliveries, pending=pending):
                taken = (delivery.to for delivery in deliveries if delivery.taken)
                return (*taken, *(to for to, _ in pending.values()))
            case _:
                return ()

    def nearest(self, name: bytes, peers: Iterable[Contact], count: int) -> tuple[Contact, ...]:
        """The `count` nearest to a name of these peers and, if others can ask it, this node. Those
        of a crowded subnet are among them only where there are too few others, as in a lookup:
        anybody may have named them."""
        target = key_of(name)
        by_id = {peer.peer_id: peer for peer in peers}
        if self._reachability.reach is not Reach.CLIENT:
            by_id[self._own] = Contact(self._own)
        ranked = sorted(by_id.values(), key=lambda c: distance(key_of_peer(c.peer_id), target))
        crowded = crowding(subnets(contact.addresses) for contact in ranked)
        first = sorted(range(len(ranked)), key=crowded.__getitem__)[:count]  # stable
        return tuple(ranked[place] for place in sorted(first))

    # -- inputs and outputs -----------------------------------------------------------------

    def handle(self, event: DhtEvent, now: Moment) -> None:
        before = self._reachability.reach
        match event:
            case RequestReceived(ask_id, sender, Ping(dial_back=True)) if self._dial_backs.admits(
                sender.peer_id, now.mono_s
            ):
                cause = f"asked by {sender.peer_id}"
                self._effects.append(ProbeReachability(ask_id, sender, DIAL_BACK_S, cause=cause))
                self._meet(sender)
            case ReachabilityProbed(ask_id, reached):
                self._dial_backs.ended()
                self._effects.append(SendResponse(ask_id, Pong(reached), cause="dialled back"))
            case InboundConnection(peer_id, host):
                self._reachability.dialled_by(peer_id, host)
            case PeerIdentified(peer):
                if peer.addresses:
                    self._meet(peer)
                else:
                    self._lost(peer.peer_id, now)
            case RequestReceived(ask_id, sender, message):
                reply = self._server.reply(sender, message, now)
                self._effects.append(
                    SendResponse(ask_id, reply, cause=f"asked by {sender.peer_id}")
                )
                self._meet(sender)
            case ResponseReceived(ask_id, sender, message):
                asking = self._asking.pop(ask_id)
                self._saw(sender, now)
                if isinstance(message, Pong):
                    self._reachability.told(asking.to.peer_id, message.reached)
                self._settle(ask_id, asking, True, message, now)
            case RequestFailed(ask_id):
                asking = self._asking.pop(ask_id)
                if self.table.is_at(asking.to):  # and not elsewhere, as a liar may have said
                    self._lost(asking.to.peer_id, now)
                self._reachability.told(asking.to.peer_id, None)
                self._settle(ask_id, asking, False, None, now)
            case _:
                assert_never(event)
        self._reach_out(before)

    def tick(self, now: Moment) -> None:
        if now.mono_s >= self._sweep_at:
            self.records.expire(now)
            self._sweep_at = now.mono_s + SWEEP_S
        if now.mono_s >= self._retry_at:
            self._retry(now)
        if now.mono_s >= self._refresh.at_s:
            name = self._refresh.due(now.mono_s)
            if name is not None and len(self.table):  # or the gates are asked, see below
                width = self._k if name == self._own_name else None
                self._search(name, FindNode(name), now, "refresh", width=width)
        before = self._reachability.reach
        self._reachability.tick(now.mono_s)
        self._reach_out(before)

    def next_timeout(self) -> float:
        """When `tick` is due next, on the monotonic clock."""
        return min(self._retry_at, self._refresh.at_s, self._reachability.at_s, self._sweep_at)

    def take(self) -> tuple[list[DhtEffect], list[Searched[R] | Published]]:
        """What has come of the calls since the last `take`."""
        effects, self._effects = self._effects, []
        completed, self._completed = self._completed, []
        return effects, completed

    # -- asking -----------------------------------------------------------------------------

    def _meet(self, sender: Contact) -> None:
        """A stranger asked us something: ping it, since only who answers enters the table.

        Only while there is room for it: two who have none for each other would ping for ever.
        One that tells no address is a client; nobody may be sent to it.
        """
        if sender.addresses and self.table.has_room_for(sender):
            self._ping(sender, "meet a stranger")

    def _saw(self, contact: Contact, now: Moment) -> None:
        doubtful = self.table.saw(contact, now.mono_s)
        if doubtful is not None:
            self._ping(doubtful, "is it still there? another one waits for its place")

    def _lost(self, peer_id: PeerId, now: Moment) -> None:
        known = len(self.table)
        self.table.lost(peer_id)
        if known and not len(self.table):  # it was the last one: back to the gates, soon
            self._retry_at = min(self._retry_at, now.mono_s + FIRST_RETRY_S)
        elif any(gate.peer_id == peer_id for gate in self._gates):
            self._retry_at = min(self._retry_at, now.mono_s + LAST_RETRY_S)

    def _ping(self, contact: Contact, cause: str) -> None:
        if contact.peer_id not in self._pinging and len(self._pinging) < MAX_PINGS:
            self._pinging.add(contact.peer_id)
            self._ask(contact, Ping(), None, cause)

    def _ask(
        self,
        to: Contact,
        request: Request,
        operation: OperationId | None,
        cause: str,
        timeout_s: float = REQUEST_TIMEOUT_S,
    ) -> int:
        self._ask_count += 1
        self._asking[self._ask_count] = _Asking(to, request, operation)
        self._effects.append(SendRequest(self._ask_count, to, request, timeout_s, cause=cause))
        return self._ask_count

    def _search(
        self,
        name: bytes,
        request: Query,
        now: Moment,
        cause: str,
        *,
        width: int | None = None,
    ) -> OperationId:
        if width is None:
            # With fewer than k peers every one of them is among the k nearest to every name, and
            # records that were written when there were fewer still may be at any of them.
            width = self._k if len(self.table) < self._k else BETA
        lookup = self._lookup(name, width)
        search: Search[R] = Search(self._new_operation(), lookup, request, cause)
        self._operations[search.operation] = search
        match request:
            case GetProviders():
                self._gather(search, self.records.providers(request, now), now)
            case GetValue():
                self._gather(search, Value(self.records.value(name, now), ()), now)
        self._drive(search, now)
        return search.operation

    def _publish(self, name: bytes, write: Write, now: Moment, cause: str) -> OperationId:
        lookup = self._lookup(name, self._k)
        publish = Publish(self._new_operation(), cause, lookup, FindNode(name), write)
        self._operations[publish.operation] = publish
        self._drive(publish, now)
        return publish.operation

    def _lookup(self, name: bytes, width: int) -> Lookup:
        target = key_of(name)
        # The gates are asked only by a node that knows nobody else, so that they stay cool.
        seeds = self.table.closest(target, self._k) or self._gates
        alpha, spare = (SEARCH_ALPHA, SEARCH_SPARE) if width == BETA else (ALPHA, 0)
        return Lookup(target, seeds, own=self._own, width=width, alpha=alpha, spare=spare)

    def _new_operation(self) -> OperationId:
        if len(self._operations) >= MAX_OPERATIONS:
            oldest = next(iter(self._operations))
            self._finish(self._operations[oldest])
        self._operation_count += 1
        return OperationId(self._operation_count)

    def _drive(self, running: Search[R] | Publish, now: Moment) -> None:
        """Ask whom the lookup names; at its end write, or finish."""
        lookup, request = running.lookup, running.request
        assert lookup is not None, "it is writing"
        assert request is not None, "it is writing"
        for contact in lookup.next_peers():
            self._ask(contact, request, running.operation, running.cause)
        if not lookup.finished:
            return
        if isinstance(running, Search):
            self._finish(running)
        else:
            assert running.write is not None, "it looked for where to write"
            write, running.request = running.write, None
            nearest = self.nearest(write.name, lookup.closest(), self._k)
            self._write(running, [(contact, write) for contact in nearest], now)

    def _write(
        self, publish: Publish, writes: Iterable[tuple[Contact, Write]], now: Moment
    ) -> None:
        own = Contact(self._own)
        for to, write in writes:
            if to.peer_id == self._own:
                kept = self.records.keep(own, write, now)
                publish.deliveries.append(Delivery(own, write, kept))
            else:
                ask_id = self._ask(to, write, publish.operation, publish.cause)
                publish.pending[ask_id] = (to, write)
        if not publish.pending:
            self._finish(publish)

    def _settle(
        self, ask_id: int, asking: _Asking, answered: bool, reply: Reply | None, now: Moment
    ) -> None:
        """Tell the operation that asked how it went."""
        if asking.operation is None:
            self._pinging.discard(asking.to.peer_id)
            return
        running = self._operations.get(asking.operation)
        if running is None:
            return  # it has ended since
        if isinstance(running, Publish) and ask_id in running.pending:
            to, write = running.pending.pop(ask_id)
            running.deliveries.append(delivery(to, write, answered, reply))
            if not running.pending:
                self._finish(running)
            return
        if running.request is None or running.lookup is None:
            return  # asked by the lookup, which was done without its answer
        if answered:
            closer = reply.closer if isinstance(reply, Nodes | Providers | Value) else ()
            running.lookup.answered(asking.to.peer_id, closer)
            self.table.looked_into(running.lookup.target, now.mono_s)
            if isinstance(running, Search) and isinstance(reply, Providers | Value):
                self._gather(running, reply, now)
                if isinstance(reply, Providers) and reply.count is not None:
                    running.counts[asking.to.peer_id] = reply.count
        else:
            running.lookup.failed(asking.to.peer_id)
        self._drive(running, now)

    def _gather(self, search: Search[R], reply: Providers | Value, now: Moment) -> None:
        assert not isinstance(search.request, FindNode), "its reply has no records"
        search.gather(self.records, self.records.verified(search.request, reply, now))

    def _finish(self, running: Search[R] | Publish) -> None:
        del self._operations[running.operation]
        if isinstance(running, Search):
            self._completed.append(running.completed(self.records))
        else:
            self._completed.append(running.completed())

    # -- keeping the table fresh --------------------------------------------------------------

    def _join(self, now: Moment, cause: str) -> OperationId:
        """Look up our own key, through the gates while nobody else is known."""
        self._retry_at = now.mono_s + self._retry_s
        self._retry_s = min(self._retry_s * 2, LAST_RETRY_S)
        self._refresh.joined(now.mono_s)
        return self.find_node(self._own, now, cause)

    def _retry(self, now: Moment) -> None:
        if len(self.table) == 0:
            self._join(now, "join")
            return
        self._retry_s = FIRST_RETRY_S
        missing = [gate for gate in self._gates if self.table.has_room_for(gate)]
        self._retry_at = now.mono_s + LAST_RETRY_S if missing else float("inf")
        for gate in missing:
            self._ping(gate, "the gate may not know us")

    def _reach_out(self, before: Reach) -> None:
        """Tell what has become of our reachability since, and find out more about it."""
        reach = self._reachability.reach
        if reach is not before:
            self._effects.append(Advertise(reach, cause=f"it was {before.value}"))
        for contact in self._reachability.wanted(self.table):
            timeout_s = REQUEST_TIMEOUT_S + DIAL_BACK_S
            self._ask(contact, Ping(dial_back=True), None, "can others dial us?", timeout_s)

"""One node's part in the DHT: it answers others, keeps its table fresh, and starts searches.

Pure. Inputs are the events of `dht/core/rpc.py` and the calls below; `take()` returns the effects.
Sources are named where each part is: `routing.py`, `lookup.py`, `store.py`.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Collection, Iterable, Set
from typing import Generic, assert_never

from formation_p2p.core.effects import Contact, Moment
from formation_p2p.core.identity import PeerId, key_of_peer, peer_id_to_bytes
from formation_p2p.core.keyspace import KEY_BITS, Key, distance, key_of
from formation_p2p.dht.core import messages as kad
from formation_p2p.dht.core import rpc
from formation_p2p.dht.core.gates import Gates
from formation_p2p.dht.core.lookup import Lookup
from formation_p2p.dht.core.operations import (
    Asked,
    OperationId,
    Operations,
    Published,
    R,
    Records,
    Searched,
)
from formation_p2p.dht.core.parameters import DhtParameters
from formation_p2p.dht.core.reachability import ProbeLimits, Reach, Reachability, crowding, subnets
from formation_p2p.dht.core.routing import RoutingTable

# When to look up what, so that the routing table stays full and true.
#
# Our own key, so that our neighbours know us and we them; and for each bucket without a lookup for
# long, a key that lies in it. A lookup is of a name, whose SHA-256 is the key, so that a
# name for a certain bucket can only be found by trying: one for the bucket whose peers share p bits
# with us takes 2**(p + 1) tries on average, 1 us each.
#
# Source: Kademlia, section 2.3 (refresh); go-libp2p-kbucket, which carries a table of such names
# for up to 15 bits, and go-libp2p-kad-dht, which refreshes every ten minutes. The paper has an
# hour.


class Refresh:
    """Call `joined` for each try to join, and `due` when `at_s` has passed."""

    def __init__(
        self,
        own_name: bytes,
        table: RoutingTable,
        rng: random.Random,
        parameters: DhtParameters = DhtParameters(),
    ) -> None:
        self._parameters = parameters
        self.at_s = float("inf")
        self._own = key_of(own_name)
        self._own_name = own_name
        self._table = table
        self._rng = rng
        self._is_new = True

    def joined(self, now_s: float) -> None:
        """Our own key is being looked up. It will be once more, soon: peers that join at the same
        time are not known yet to the peers that the others ask."""
        self._is_new = True
        self.at_s = now_s + self._jittered(self._parameters.fill_s)

    def due(self, now_s: float) -> bytes | None:
        """The name to look up now, if any. At most one: a burst would disturb what matters more."""
        ours = self._parameters
        deepest = KEY_BITS - ours.max_refresh_depth
        looks = [(at_s, n) for at_s, n in self._table.looks() if not 0 < n < deepest]
        ages = [
            (now_s - at_s) / (ours.bucket_refresh_s if n else ours.own_refresh_s)
            for at_s, n in looks
        ]
        age, (_, length) = max(zip(ages, looks, strict=True))
        # Each step looks at the one that is the most overdue, so that all have their turn.
        wait_s = ours.fill_s if ages.count(float("inf")) > 1 else ours.own_refresh_s / len(looks)
        self.at_s = now_s + self._jittered(wait_s)
        if self._is_new:
            self._is_new, length = False, 0
        elif age < ours.refresh_early:
            return None
        name = self._own_name if length == 0 else self.name_at(KEY_BITS - length)
        # Whether or not it finds a peer: with none to ask it need not be tried at each step.
        self._table.looked_into(Key(self._own ^ (1 << length >> 1)), now_s)
        return name

    def _jittered(self, wait_s: float) -> float:
        return wait_s * self._rng.uniform(*self._parameters.refresh_jitter)

    def name_at(self, depth: int) -> bytes | None:
        """A name whose key shares exactly `depth` bits with ours."""
        wanted = self._own >> (KEY_BITS - depth - 1) ^ 1
        unused = 15 - depth
        random_part = self._rng.randbytes(28)
        for number in range(self._parameters.max_name_tries):
            name = random_part + number.to_bytes(4, "big")
            if int.from_bytes(hashlib.sha256(name).digest()[:2], "big") >> unused == wanted:
                return name
        return None


class Kademlia(Generic[R]):
    """Call `handle` for events, `tick` when `next_timeout` has passed, `take` after either."""

    def __init__(
        self,
        own: PeerId,
        records: Records[R],
        rng: random.Random,
        *,
        parameters: DhtParameters = DhtParameters(),
    ) -> None:
        self.records = records
        self.parameters = parameters
        self._own = own
        self._k = parameters.k
        self._own_name = peer_id_to_bytes(own)
        self.table = RoutingTable(key_of_peer(own), parameters=parameters)
        self._refresh = Refresh(self._own_name, self.table, rng, parameters)
        self._reachability = Reachability(parameters)
        self._probe_limits = ProbeLimits(parameters)
        self.operations = Operations(own, records, self._request, self._reply, parameters)
        self._gates = Gates(own, parameters)
        # By request of ours: the peer that it went to, its operation, None for a ping, and whether
        # it asked to be dialled back.
        self._in_flight: dict[int, tuple[Contact, OperationId | None, bool]] = {}
        self._pinging: set[PeerId] = set()
        self._dialling_back: dict[int, tuple[Contact, kad.FindNode]] = {}  # by request of others
        self._request_count = 0
        self._sweep_at = float("inf")
        self._effects: list[rpc.DhtEffect] = []
        # The version of the charter that this node goes by, which all that it says carries.
        self.charter: Callable[[], int] = lambda: 0

    def moved(self, addresses: tuple[str, ...], now: Moment) -> None:
        """The addresses at which others dial us: to call before joining, and when they change. A
        node without this call joins as a server, and probes nothing."""
        self.table.moved(addresses)
        self._reachability.moved(addresses, now.mono_s)
        reach = self._reachability.reach
        self._effects.append(rpc.Advertise(reach, cause="the addresses changed"))
        self._reach_out(reach)

    def bootstrap(
        self,
        gates: Iterable[Contact],
        now: Moment,
        cause: str,
        *,
        remembered: Iterable[Contact] = (),
    ) -> OperationId:
        """Join through peers with known addresses, and keep trying while the table is empty.
        The first try ends as Searched: to be told to `fall_back`."""
        self._gates.begin(gates, remembered)
        self._sweep_at = now.mono_s + self.parameters.sweep_s
        return self._join(now, cause)

    def fall_back(self, now: Moment) -> OperationId | None:
        """The first try has ended. Where it found no peer, the remembered ones are tried, which
        ends as Searched too; None where that is not so, or there are none."""
        if len(self.table) or not self._gates.unanswered():
            return None
        return self._join(now, "no gate answers")

    def found_nearby(self, contacts: Iterable[Contact], now: Moment) -> None:
        """Peers of this network may be on the same LAN. Where no peer is known they are asked at
        once, whatever the gates do; else those that the table has room for."""
        others = [contact for contact in contacts if contact.peer_id != self._own]
        self._gates.found(others)
        if others and not len(self.table):
            self._join(now, "found nearby", others)
            return
        for contact in others:
            self._meet(contact)

    def met(self, member: PeerId) -> None:
        """A peer has shown a grant of this network: it is asked where no other peer is known."""
        self._gates.met(member)

    def disconnected(self, peer_id: PeerId, now: Moment) -> None:
        """The last connection with a peer broke. In a network of fewer than k peers each gate is to
        know all of them; in a larger one it finds them once it knows some."""
        self.table.doubt(peer_id)
        contact = self.table.contact(peer_id)
        if contact is not None and len(self.table) < self._k:
            self._gates.disconnected(contact, now.mono_s)

    def search(
        self,
        request: kad.Query,
        now: Moment,
        cause: str,
        *,
        width: int | None = None,
        seeds: Iterable[Contact] = (),
    ) -> OperationId:
        """Ask the peers nearest to the request's name. Ends as Searched, with what `width` of the
        nearest hold, and who they are. Where no peer is known, it begins with the `seeds`, or else
        with the gates."""
        ours = self.parameters
        if width is None:
            # With fewer than k peers every one of them is among the k nearest to every name, and
            # records that were written when there were fewer still may be at any of them.
            width = self._k if len(self.table) < self._k else ours.beta
        target = key_of(request.name)
        is_wide = width != ours.beta
        alpha, spare = (ours.alpha, 0) if is_wide else (ours.search_alpha, ours.search_spare)
        known = self.table.known(target, self._k)
        if self.table.is_whole(target, known[:width]):
            alpha = max(alpha, width + spare)  # then one step is enough
        wants_peers = request.name != self._own_name and (
            isinstance(request, kad.FindNode)
            or (isinstance(request, kad.GetProviders) and request.query and not request.query.limit)
        )
        lookup = Lookup(
            target,
            known or tuple(seeds) or self._gates.seeds,
            own=self._own,
            width=width,
            alpha=alpha,
            spare=spare,
            parameters=ours,
            there=self.table.there(known, now.mono_s) if wants_peers else frozenset(),
        )
        return self.operations.search(lookup, request, now, cause)

    def surely_nearest(self, name: bytes, count: int, now: Moment) -> tuple[Contact, ...]:
        """Those peers that a search would end with, where this node knows all that are near the
        name, and each has answered lately; else none."""
        target = key_of(name)
        known = self.table.known(target, count)
        is_sure = len(self.table.there(known, now.mono_s)) == count
        return known if is_sure and self.table.is_whole(target, known) else ()

    @property
    def gates(self) -> Set[PeerId]:
        """Those through which this node joined, whether they answer or not."""
        return self._gates.known

    @property
    def missing_gates(self) -> Set[PeerId]:
        """Those that have answered, and are gone."""
        return self._gates.missing

    @property
    def is_client(self) -> bool:
        """Whether others cannot dial this node: they are not sent to it."""
        return self._reachability.reach is Reach.CLIENT

    def nearest(self, name: bytes, peers: Iterable[Contact], count: int) -> tuple[Contact, ...]:
        """The `count` nearest to a name of these peers and, if others can ask it, this node. Those
        of a crowded subnet are among them only where there are too few others, as in a lookup:
        anyone may have named them."""
        target = key_of(name)
        by_id = {peer.peer_id: peer for peer in peers}
        if not self.is_client:
            by_id[self._own] = Contact(self._own)
        ranked = sorted(by_id.values(), key=lambda c: distance(key_of_peer(c.peer_id), target))
        crowded = crowding(subnets(contact.addresses) for contact in ranked)
        first = sorted(range(len(ranked)), key=crowded.__getitem__)[:count]  # stable
        return tuple(ranked[place] for place in sorted(first))

    def handle(self, event: rpc.DhtEvent, now: Moment) -> None:
        before, emit = self._reachability.reach, self._effects.append
        match event:
            case rpc.RequestReceived(request_id, sender, kad.FindNode(dial_back=True) as asked) if (
                self._probe_limits.admits(sender.peer_id, now.mono_s)
            ):
                self._dialling_back[request_id] = (sender, asked)
                cause, probe_s = f"asked by {sender.peer_id}", self.parameters.probe_s
                emit(rpc.ProbeReachability(request_id, sender, probe_s, cause=cause))
                self._meet(sender)
            case rpc.RequestReceived(request_id, sender, message):
                reply = self._reply(sender, message, now)
                cause = f"asked by {sender.peer_id}"
                emit(rpc.SendResponse(request_id, reply, self.charter(), cause=cause))
                self._meet(sender)
            case rpc.ReachabilityProbed(request_id, reached):
                self._probe_limits.ended()
                sender, asked = self._dialling_back.pop(request_id)
                nodes = kad.Nodes(self._named(asked, sender), reached)
                emit(rpc.SendResponse(request_id, nodes, self.charter(), cause="dialled back"))
            case rpc.InboundConnection(peer_id, host):
                self._reachability.dialled_by(peer_id, host)
            case rpc.PeerIdentified(peer):
                if peer.addresses:
                    self._meet(peer)
                else:
                    self._lost(peer.peer_id, now)
            case rpc.ResponseReceived(request_id, sender, message):
                was_alone = not len(self.table)
                suspect = self.table.saw(sender, now.mono_s)
                self._gates.answered(sender)
                if was_alone and len(self.table):
                    self._begin_again(tuple(self.table))
                if suspect is not None:
                    self._ping(suspect, "is it still there? another one waits for its place")
                self._settle(request_id, True, message, now)
            case rpc.RequestFailed(request_id):
                to, _, _ = self._in_flight[request_id]
                if self.table.is_at(to):  # and not elsewhere, as a liar may have said
                    self._lost(to.peer_id, now)
                    if not len(self.table):
                        self._begin_again(self._gates.members)
                self._settle(request_id, False, None, now)
            case _:
                assert_never(event)
        self._reach_out(before)

    def tick(self, now: Moment) -> None:
        if now.mono_s >= self._sweep_at:
            self.records.expire(now)
            self._sweep_at = now.mono_s + self.parameters.sweep_s
        if now.mono_s >= self._gates.at_s:
            self._retry(now)
        if now.mono_s >= self._refresh.at_s:
            name = self._refresh.due(now.mono_s)
            if name is not None and len(self.table):  # or the gates are asked, see below
                width = self._k if name == self._own_name else None
                self.search(kad.FindNode(name), now, "refresh", width=width)
        before = self._reachability.reach
        self._reachability.tick(now.mono_s)
        self._reach_out(before)

    def next_timeout(self) -> float:
        """When `tick` is due next, on the monotonic clock."""
        return min(self._gates.at_s, self._refresh.at_s, self._reachability.at_s, self._sweep_at)

    def take(self) -> tuple[list[rpc.DhtEffect], list[Searched[R] | Published | Asked]]:
        """The effects, and the operations that have ended, since the last `take`."""
        effects, self._effects = self._effects, []
        ended, self.operations.ended = self.operations.ended, []
        return effects, ended

    def take_gates(self) -> list[Contact]:
        """The gates that answer again, or for the first time, since the last call."""
        back, self._gates.back = self._gates.back, []
        return back

    def _meet(self, sender: Contact) -> None:
        """Probe a stranger that sent a request, since only peers that answer enter the table.

        Only while there is room for it: two that have none for each other would ping for ever.
        One that tells no address is a client, and stays out.
        """
        if sender.addresses and self.table.has_room_for(sender):
            self._ping(sender, "meet a stranger")
        elif self._gates.is_gone(sender.peer_id):
            self._ping(sender, "the gate is back")

    def _lost(self, peer_id: PeerId, now: Moment) -> None:
        contact = self.table.contact(peer_id)
        self.table.lost(peer_id)
        if contact is not None:
            self._gates.lost(contact, now.mono_s, last=not len(self.table))

    def _ping(self, contact: Contact, cause: str) -> None:
        if contact.peer_id not in self._pinging and len(self._pinging) < self.parameters.max_pings:
            self._pinging.add(contact.peer_id)
            # The specification has peers not send PING, and some close the stream.
            self._request(contact, kad.FindNode(self._own_name), None, cause)

    def _request(
        self,
        to: Contact,
        request: kad.Request,
        operation: OperationId | None,
        cause: str,
        extra_s: float = 0.0,
    ) -> int:
        self._request_count += 1
        number, timeout_s = self._request_count, self.parameters.request_timeout_s + extra_s
        dials_back = isinstance(request, kad.FindNode) and request.dial_back
        self._in_flight[number] = (to, operation, dials_back)
        charter = self.charter()
        self._effects.append(rpc.SendRequest(number, to, request, timeout_s, charter, cause=cause))
        return number

    def _settle(self, number: int, answered: bool, reply: kad.Reply | None, now: Moment) -> None:
        to, operation, dials_back = self._in_flight.pop(number)
        if not answered or dials_back:
            reached = reply.reached if isinstance(reply, kad.Nodes) else None
            self._reachability.answered(to.peer_id, reached)
        if operation is None:
            self._pinging.discard(to.peer_id)
            return
        lookup = self.operations.settle(operation, number, to, answered, reply, now)
        if lookup is not None:
            self.table.looked_into(lookup.target, now.mono_s)

    def _reply(self, sender: Contact, request: kad.Request, now: Moment) -> kad.Reply | None:
        """None for a plain ADD_PROVIDER, which has no reply."""
        match request:
            case kad.Ping():
                return kad.Pong()
            case kad.FindNode():
                return kad.Nodes(self._named(request, sender))
            case kad.GetProviders(name):
                held = self.records.providers(request, now)
                return kad.Providers(held.providers, self._closer(name, sender), held.count)
            case kad.GetValue(name):
                value, closer = self.records.value(name, now), self._closer(name, sender)
                found = b"" if value is None else name
                return kad.Value(value, closer, found, self.records.received_unix_s(name))
            case kad.AddProvider(name):
                # The specification has no reply that could carry a refusal: a bad record is
                # dropped, and its author finds it missing when it looks.
                kept = self.records.keep(sender, request, now)
                if not request.acknowledged:
                    return None
                # Counting is work, which a refused write does not get.
                nothing = (kad.ShardCount(),) * len(request.names)
                counts = self.records.counts(request, now) if kept else nothing
                return kad.Added(counts, self._closer(name, sender))
            case kad.PutValue(name, value):
                # A refusal echoes no value; the specification has no other way to say it.
                kept = self.records.keep(sender, request, now)
                return kad.Stored(name, value if kept else b"")
            case _:
                assert_never(request)

    def _named(self, asked: kad.FindNode, sender: Contact) -> tuple[Contact, ...]:
        """The peers that answer a FIND_NODE."""
        closer = self._closer(asked.name, sender)
        if asked.name == self._own_name:
            # go admits only peers that name one when asked for themselves: at least themselves.
            # Their addresses the requester knows.
            closer = (Contact(self._own), *closer)[: self._k]
        return closer

    def _closer(self, name: bytes, sender: Contact) -> tuple[Contact, ...]:
        nearest = self.table.closest(key_of(name), self._k + 1)
        return tuple(each for each in nearest if each.peer_id != sender.peer_id)[: self._k]

    def _join(self, now: Moment, cause: str, seeds: Iterable[Contact] = ()) -> OperationId:
        """Look up our own key: through the seeds, or the gates and those of before, while no peer
        is known."""
        self._gates.asked(now.mono_s)
        self._refresh.joined(now.mono_s)
        own = kad.FindNode(self._own_name)
        return self.search(own, now, cause, width=self._k, seeds=seeds)

    def _begin_again(self, seeds: Collection[Contact]) -> None:
        """There is a first peer, or the last one is lost. The searches that wait for others, such
        as gates that do not answer, go through these; what those have to say is not waited for."""
        if not seeds:
            return
        stuck = self.operations.stuck({contact.peer_id for contact in seeds})
        for number, (to, operation, dials_back) in self._in_flight.items():
            if operation in stuck:
                self._in_flight[number] = (to, None, dials_back)
        self.operations.begin_again(stuck, seeds)

    def _retry(self, now: Moment) -> None:
        if len(self.table) == 0:
            self._gates.unanswered()
            self._join(now, "join")
            return
        for gate in self._gates.due(self.table, now.mono_s):
            self._ping(gate, "the gate may not know us")

    def _reach_out(self, before: Reach) -> None:
        """Advertise our reachability where it has changed, and probe it further."""
        reach = self._reachability.reach
        if reach is not before:
            self._effects.append(rpc.Advertise(reach, cause=f"it was {before.value}"))
        for contact in self._reachability.wanted(self.table):
            probe = kad.FindNode(self._own_name, dial_back=True)
            self._request(contact, probe, None, "can others dial us?", self.parameters.probe_s)

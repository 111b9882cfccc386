"""The replies to others' requests: the peers that this node knows, and the records it keeps."""

from __future__ import annotations

from typing import Generic, assert_never

from formation_p2p.core.dht import messages as kad
from formation_p2p.core.dht.records import R, Records
from formation_p2p.core.dht.routing import RoutingTable
from formation_p2p.core.effects import Contact, Moment
from formation_p2p.core.identity import PeerId, peer_id_to_bytes
from formation_p2p.core.keyspace import key_of


class Server(Generic[R]):
    """Answers from the table and the records that its owner keeps; `k` is the owner's as well."""

    def __init__(self, own: PeerId, table: RoutingTable, records: Records[R], k: int) -> None:
        self._own = own
        self._table = table
        self._records = records
        self._k = k

    def reply(self, sender: Contact, request: kad.Request, now: Moment) -> kad.Reply | None:
        """None for a plain ADD_PROVIDER, which has no reply."""
        match request:
            case kad.Ping():
                return kad.Pong()
            case kad.FindNode(name):
                closer = self._closer(name, sender.peer_id)
                if name == peer_id_to_bytes(self._own):
                    # go admits only peers that name one when asked for themselves: at least
                    # themselves. Their addresses the requester knows.
                    closer = (Contact(self._own), *closer)[: self._k]
                return kad.Nodes(closer)
            case kad.GetProviders(name):
                held = self._records.providers(request, now)
                return kad.Providers(held.providers, self._closer(name, sender.peer_id), held.count)
            case kad.GetValue(name):
                value = self._records.value(name, now)
                return kad.Value(value, self._closer(name, sender.peer_id), name)
            case kad.AddProvider(name, acknowledged=acknowledged):
                # The specification has no reply that could carry a refusal: a bad record is
                # dropped, and its author finds it missing when it looks.
                kept = self._records.keep(sender, request, now)
                if not acknowledged:
                    return None
                # Counting is work, which a refused write does not get.
                nothing = tuple(kad.ShardCount() for _ in request.names)
                counts = self._records.counts(request, now) if kept else nothing
                return kad.Added(counts, self._closer(name, sender.peer_id))
            case kad.PutValue(name, value):
                # A refusal echoes no value; the specification has no other way to say it.
                kept = self._records.keep(sender, request, now)
                return kad.Stored(name, value if kept else b"")
            case _:
                assert_never(request)

    def _closer(self, name: bytes, sender: PeerId) -> tuple[Contact, ...]:
        nearest = self._table.closest(key_of(name), self._k + 1)
        return tuple(contact for contact in nearest if contact.peer_id != sender)[: self._k]

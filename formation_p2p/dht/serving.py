"""What this node answers to others: whom it knows, and what it keeps for them."""

from __future__ import annotations

from collections.abc import Callable
from typing import assert_never

from formation_p2p.dht.messages import (
    MAX_PROVIDERS,
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
    Stored,
    Value,
)
from formation_p2p.dht.operations import Write
from formation_p2p.dht.routing import RoutingTable
from formation_p2p.dht.store import RecordStore
from formation_p2p.effects import Contact, Moment
from formation_p2p.errors import BadRecord
from formation_p2p.identity import PeerId
from formation_p2p.keyspace import key_of
from formation_p2p.records.profile import Profile

Suits = Callable[[bytes], Callable[[Profile], bool]]
"""Turns a query's CBOR into a test of profiles. It accepts any bytes, and rejects every profile
for those that do not parse."""


class Server:
    """Answers from the table and the store that its owner keeps; `k` is the owner's as well."""

    def __init__(self, table: RoutingTable, store: RecordStore, suits: Suits, k: int) -> None:
        self._table = table
        self._store = store
        self._suits = suits
        self._k = k

    def reply(self, sender: PeerId, request: Request, now: Moment) -> Reply | None:
        """None for ADD_PROVIDER, which has no reply."""
        match request:
            case Ping():
                return Pong()
            case FindNode(name):
                return Nodes(self._closer(name, sender))
            case GetProviders(name, query):
                wanted = query or ProviderQuery(key_of(name), b"", MAX_PROVIDERS)
                found = self._store.providers(name, wanted, self._suits(wanted.requirements), now)
                providers = tuple(
                    Provider(Contact(s.profile.peer_id, s.profile.addresses), s.raw) for s in found
                )
                return Providers(providers, self._closer(name, sender))
            case GetValue(name):
                kept = self._store.value(name, now)
                return Value(None if kept is None else kept.raw, self._closer(name, sender))
            case AddProvider():
                # The specification has no reply that could carry a refusal: a bad record is
                # dropped, and its author finds it missing when it looks.
                self.keep(request, now)
                return None
            case PutValue(name, value):
                # A refusal echoes no value; the specification has no other way to say it.
                return Stored(name, value if self.keep(request, now) else b"")
            case _:
                assert_never(request)

    def keep(self, write: Write, now: Moment) -> bool:
        """Whether the record is one to keep; then it is kept."""
        raw = write.value if isinstance(write, PutValue) else write.provider.profile
        try:
            self._store.keep(write.name, raw, now)
        except BadRecord:
            return False
        return True

    def _closer(self, name: bytes, sender: PeerId) -> tuple[Contact, ...]:
        nearest = self._table.closest(key_of(name), self._k + 1)
        return tuple(contact for contact in nearest if contact.peer_id != sender)[: self._k]

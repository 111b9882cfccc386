"""What a node does in the DHT on its own behalf: searches, and deliveries of its own records.

A search asks the peers nearest to a name what they hold; a publish writes to given peers; an
inquiry asks given peers, each on its own, and need not wait for all.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Set
from dataclasses import dataclass, field
from typing import Final, Generic, NewType, Protocol, TypeVar

from formation_p2p.core.effects import Contact, Moment
from formation_p2p.core.identity import PeerId
from formation_p2p.dht.core import messages as kad
from formation_p2p.dht.core.lookup import Lookup
from formation_p2p.dht.core.parameters import DhtParameters

R = TypeVar("R")
OperationId = NewType("OperationId", int)
# Of requests whose outcome is waited for by none.
_NO_OPERATION: Final = OperationId(0)


class Records(Protocol[R]):
    """`store.py` has Formation's, signed profiles; tests/interop the specification's. `R` is what a
    search finds."""

    def keep(self, sender: Contact, write: kad.Write, now: Moment) -> bool:
        """Whether the record is one to keep, under every name of the write; then it is kept."""

    def providers(self, request: kad.GetProviders, now: Moment) -> kad.Providers:
        """What is held under the name; the server adds the closer peers."""

    def counts(self, write: kad.AddProvider, now: Moment) -> tuple[kad.ShardCount, ...]:
        """What is held under each name of a write, as its author is to see it."""

    def value(self, name: bytes, now: Moment) -> bytes | None:
        """The value record under the name, fresh."""

    def put(self, name: bytes, record: R) -> kad.PutValue:
        """The write of a record that was found under a name as a value."""

    def received_unix_s(self, name: bytes) -> float | None:
        """When the value under the name came, where that is known."""

    def verified(
        self, name: bytes, reply: kad.Providers | kad.Value, now: Moment
    ) -> Iterable[tuple[Hashable, R]]:
        """What may be believed of a reply about a name: whose record each is, and the record."""

    def supersedes(self, new: R, old: R) -> bool:
        """Which of two records of the same author counts."""

    def is_live(self, record: R) -> bool:
        """False for an author's word that it is gone: it counts, but is not to be found."""

    def expire(self, now: Moment) -> None:
        """Drop what has expired; nothing expired is returned in between."""


@dataclass(frozen=True, slots=True)
class Searched(Generic[R]):
    """A search ended. `found` is verified and fresh, one record per author, the newest of each;
    `closest` are the peers nearest to the name that answered, nearest first, and `counts` what
    those of them said that they hold under it; `asked` is what it cost."""

    operation: OperationId
    found: tuple[R, ...]
    closest: tuple[Contact, ...]
    counts: tuple[kad.ShardCount, ...]
    asked: int


@dataclass(frozen=True, slots=True)
class Delivery:
    """One write to one peer (this node itself may be it). `added` is what it said of itself,
    where the write was an acknowledged ADD_PROVIDER."""

    to: Contact
    write: kad.Write
    taken: bool
    added: kad.Added | None = None


@dataclass(frozen=True, slots=True)
class Published:
    """A publish ended."""

    operation: OperationId
    deliveries: tuple[Delivery, ...]

    @property
    def stored_at(self) -> tuple[Contact, ...]:
        return tuple(delivery.to for delivery in self.deliveries if delivery.taken)


@dataclass(frozen=True, slots=True)
class Answer:
    """`reply` is None where none came, or the peer did not take what was written."""

    to: Contact
    reply: kad.Reply | None


@dataclass(frozen=True, slots=True)
class Asked:
    """An inquiry ended. Peers whose answer was not waited for are not among `answers`."""

    operation: OperationId
    answers: tuple[Answer, ...]

    @property
    def good(self) -> tuple[Answer, ...]:
        """Those with a reply."""
        return tuple(each for each in self.answers if each.reply is not None)


@dataclass(slots=True)
class _Inquiry:
    """It ends with `enough` replies. `pending` are the numbers of the requests in flight."""

    operation: OperationId
    enough: int
    pending: dict[int, kad.Request] = field(default_factory=dict)
    answers: list[Answer] = field(default_factory=list)
    replies: int = 0

    def add(self, to: Contact, request: kad.Request, reply: kad.Reply | None) -> None:
        if isinstance(request, kad.PutValue) and reply != kad.Stored(request.name, request.value):
            reply = None
        self.answers.append(Answer(to, reply))
        self.replies += reply is not None

    @property
    def is_over(self) -> bool:
        return not self.pending or self.replies >= self.enough


@dataclass(slots=True)
class _Search(Generic[R]):
    operation: OperationId
    lookup: Lookup
    request: kad.Query
    cause: str
    found: dict[Hashable, R] = field(default_factory=dict)
    counts: dict[PeerId, kad.ShardCount] = field(default_factory=dict)
    values: dict[PeerId, R | None] = field(default_factory=dict)  # what each answered with


@dataclass(slots=True)
class _Publish:
    """`pending` are the writes in flight, by the number of the request."""

    operation: OperationId
    pending: dict[int, tuple[Contact, kad.Write]] = field(default_factory=dict)
    deliveries: list[Delivery] = field(default_factory=list)


class Operations(Generic[R]):
    """Those in flight. `send` sends a request for an operation and returns its number; pass its
    outcome to `settle`, and take what has `ended` out of that list. `reply` answers as others do
    that are asked."""

    def __init__(
        self,
        own: PeerId,
        records: Records[R],
        send: Callable[[Contact, kad.Request, OperationId, str], int],
        reply: Callable[[Contact, kad.Request, Moment], kad.Reply | None],
        parameters: DhtParameters = DhtParameters(),
    ) -> None:
        self._own = Contact(own)
        self._records = records
        self._send = send
        self._reply = reply
        self._parameters = parameters
        self._operations: dict[OperationId, _Search[R] | _Publish | _Inquiry] = {}
        self._count = 0
        self.ended: list[Searched[R] | Published | Asked] = []

    def search(self, lookup: Lookup, request: kad.Query, now: Moment, cause: str) -> OperationId:
        """Ends as Searched."""
        search: _Search[R] = _Search(self._next_id(), lookup, request, cause)
        self._operations[search.operation] = search
        match request:
            case kad.GetProviders():
                self._gather(search, self._records.providers(request, now), now)
            case kad.GetValue(name):
                self._gather(search, kad.Value(self._records.value(name, now), ()), now)
        self._drive(search)
        return search.operation

    def deliver(
        self, writes: Iterable[tuple[Contact, kad.Write]], now: Moment, cause: str
    ) -> OperationId:
        """Ends as Published."""
        publish = _Publish(self._next_id())
        self._operations[publish.operation] = publish
        for to, write in writes:
            if to.peer_id == self._own.peer_id:
                kept = self._records.keep(self._own, write, now)
                publish.deliveries.append(Delivery(self._own, write, kept))
            else:
                number = self._send(to, write, publish.operation, cause)
                publish.pending[number] = (to, write)
        if not publish.pending:
            self._finish(publish)
        return publish.operation

    def ask(
        self,
        requests: Iterable[tuple[Contact, kad.GetProviders | kad.GetValue | kad.PutValue]],
        now: Moment,
        cause: str,
        enough: int,
    ) -> OperationId:
        """Ends as Asked, with so many replies, or when there can be no more."""
        inquiry = _Inquiry(self._next_id(), enough)
        self._operations[inquiry.operation] = inquiry
        for to, request in requests:
            if to.peer_id == self._own.peer_id:
                inquiry.add(to, request, self._reply(self._own, request, now))
            else:
                number = self._send(to, request, inquiry.operation, cause)
                inquiry.pending[number] = request
        if inquiry.is_over:
            self._finish(inquiry)
        return inquiry.operation

    def abandon(self, operation: OperationId) -> tuple[Contact, ...]:
        """End a publish at once, without Published. Returns the peers that have, or may have,
        taken it."""
        match self._operations.pop(operation, None):
            case _Publish(deliveries=deliveries, pending=pending):
                taken = (delivery.to for delivery in deliveries if delivery.taken)
                return (*taken, *(to for to, _ in pending.values()))
        return ()

    def stuck(self, known: Set[PeerId]) -> set[OperationId]:
        """The searches that have asked none of those known."""
        return {
            running.operation
            for running in self._operations.values()
            if isinstance(running, _Search) and known.isdisjoint(running.lookup)
        }

    def begin_again(self, searches: Iterable[OperationId], seeds: Iterable[Contact]) -> None:
        """Ask through other peers. No answer to what was asked may be passed to `settle`."""
        for operation in searches:
            search = self._operations[operation]
            assert isinstance(search, _Search), "a publish is never stuck"
            search.lookup = search.lookup.through(seeds)
            self._drive(search)

    def settle(
        self,
        operation: OperationId,
        number: int,
        to: Contact,
        answered: bool,
        reply: kad.Reply | None,
        now: Moment,
    ) -> Lookup | None:
        """How a request went. Returns the lookup that goes on with an answer."""
        match running := self._operations.get(operation):
            case _Publish(pending=pending):
                _, write = pending.pop(number)
                # A value is echoed, and a provider record has no reply, or `Added`.
                if isinstance(write, kad.PutValue):
                    answered = reply == kad.Stored(write.name, write.value)
                added = reply if isinstance(reply, kad.Added) else None
                running.deliveries.append(Delivery(to, write, answered, added))
                if not pending:
                    self._finish(running)
            case _Inquiry(pending=asked):
                running.add(to, asked.pop(number), reply if answered else None)
                if running.is_over:
                    self._finish(running)
            case _Search(lookup=lookup):
                if isinstance(reply, kad.Nodes | kad.Providers | kad.Value):
                    lookup.answered(to.peer_id, reply.closer)
                else:
                    lookup.failed(to.peer_id)
                if isinstance(reply, kad.Providers | kad.Value):
                    records = self._gather(running, reply, now)
                    if isinstance(reply, kad.Value):
                        running.values[to.peer_id] = records[0] if records else None
                if isinstance(reply, kad.Providers) and reply.count is not None:
                    running.counts[to.peer_id] = reply.count
                self._drive(running)
                return lookup if answered else None
        return None  # or it has ended since

    def _next_id(self) -> OperationId:
        if len(self._operations) >= self._parameters.max_operations:
            self._finish(next(iter(self._operations.values())))
        self._count += 1
        return OperationId(self._count)

    def _drive(self, search: _Search[R]) -> None:
        for contact in search.lookup.next_peers():
            self._send(contact, search.request, search.operation, search.cause)
        if search.lookup.finished:
            self._finish(search)

    def _gather(self, search: _Search[R], reply: kad.Providers | kad.Value, now: Moment) -> list[R]:
        """Returns what may be believed of the reply."""
        found, most = search.found, self._parameters.max_found
        records = []
        for author, record in self._records.verified(search.request.name, reply, now):
            records.append(record)
            known = found.get(author)
            if len(found) < most if known is None else self._records.supersedes(record, known):
                found[author] = record
        return records

    def _correct(self, search: _Search[R], closest: Iterable[Contact]) -> None:
        """Give the best value to those of the nearest that have none, or a worse one.

        Source: libp2p kad-dht specification, "Entry correction".
        """
        for best in search.found.values():
            write = self._records.put(search.request.name, best)
            for contact in closest:
                held = search.values.get(contact.peer_id)
                if held is None or self._records.supersedes(best, held):
                    self._send(contact, write, _NO_OPERATION, "entry correction")

    def _finish(self, running: _Search[R] | _Publish | _Inquiry) -> None:
        del self._operations[running.operation]
        if isinstance(running, _Inquiry):
            self.ended.append(Asked(running.operation, tuple(running.answers)))
            return
        if isinstance(running, _Publish):
            self.ended.append(Published(running.operation, tuple(running.deliveries)))
            return
        lookup, counts = running.lookup, running.counts
        live = tuple(each for each in running.found.values() if self._records.is_live(each))
        closest = lookup.closest()
        if isinstance(running.request, kad.GetValue):
            self._correct(running, closest)
        said = tuple(counts[each.peer_id] for each in closest if each.peer_id in counts)
        self.ended.append(Searched(running.operation, live, closest, said, lookup.asked))

"""A part of a peer, as a row of the peer's table (formation_p2p/assembly.py).

A part has what it reads from other peers, what it is told by the shell, and when it is due. What
other parts complete is offered to each part in the order of the table; the first part that the
matter belongs to takes it. A part that has no use for a column leaves it out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar, get_args

from formation_p2p.core.effects import Contact, Effect, Moment
from formation_p2p.core.identity import PeerId
from formation_p2p.dht.core.operations import Asked, Published, Searched
from formation_p2p.discovery.core.finder import Found
from formation_p2p.jobs.core.job import Job
from formation_p2p.leases.core.lessee import LesseeEvent
from formation_p2p.leases.core.session import Undelivered
from formation_p2p.peer.core.worker import Worker
from formation_p2p.records.core.profile import SignedProfile

T = TypeVar("T")
Labels = tuple[tuple[str, str], ...]
# An operation of the DHT that has ended.
Completed = Searched[SignedProfile] | Published | Asked
# None for none; of what is offered, None where it belongs to another part.
Effects = Sequence[Effect] | None
Handle = Callable[[Any, Moment], Effects]
Read = Callable[[Contact, Any, Moment], Effects]


@dataclass(frozen=True, slots=True)
class Told:
    """`rows` are for the status, as JSON has them, by the name of their list there; `counts` for
    the metrics, by the name of the counter, what it counts, and the kind of each."""

    rows: Mapping[str, Sequence[Mapping[str, Any]]] = field(default_factory=dict)
    counts: Mapping[tuple[str, str], Mapping[str, int]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """`reads` has the messages of other peers, `handles` the events of the shell.

    `settle` is called after each event, until no operation, lease or search completes anything
    more. Operations of the DHT that have `ended`, searches for workers that have `found`, and what
    was `negotiated` about leases are offered. All parts are told that the node has `joined` its
    network or `moved` to other addresses, that a message was `undelivered`, and that a peer has
    `disconnected`. `check` raises InvalidInput for a job that cannot be. `labels` are those of what
    this node's worker serves as; a part is told of the worker once it is `employed`. What the
    status of the node is to have beside that of the kernel is `told`. `validate` raises
    InvariantBroken.
    """

    reads: Mapping[type, Read] = field(default_factory=dict)
    handles: Mapping[type, Handle] = field(default_factory=dict)
    tick: Callable[[Moment], Effects] | None = None
    next_timeout: Callable[[], float] | None = None
    settle: Callable[[Moment], Effects] | None = None
    ended: Callable[[Completed, Moment], Effects] | None = None
    found: Callable[[Found, Moment], Effects] | None = None
    negotiated: Callable[[LesseeEvent, Moment], Effects] | None = None
    joined: Callable[[Moment], None] | None = None
    moved: Callable[[Moment], None] | None = None
    undelivered: Callable[[Undelivered, Moment], Effects] | None = None
    disconnected: Callable[[PeerId, Moment], Effects] | None = None
    check: Callable[[Job], None] | None = None
    leave: Callable[[Moment], Effects] | None = None
    labels: Callable[[], Labels] | None = None
    employed: Callable[[Worker], None] | None = None
    told: Callable[[], Told] | None = None
    validate: Callable[[], None] | None = None


def on(handle: Callable[[T, Moment], Effects], *events: type[T]) -> dict[type, Handle]:
    """These events are handled so."""
    return dict.fromkeys(events, handle)


def reads(read: Callable[[Contact, T, Moment], Effects], *messages: type[T]) -> dict[type, Read]:
    """These messages are read so."""
    return dict.fromkeys(messages, read)


def types_of(union: object) -> tuple[type[Any], ...]:
    """The members of a closed union."""
    return get_args(union) or (union,)


def claims(takes: Callable[[T, Moment], bool]) -> Callable[[T, Moment], Effects]:
    """Of a function that says whether what is offered belongs to its part."""
    return lambda offered, now: () if takes(offered, now) else None


class Table:
    """All parts of a peer, column by column: empty places are left out. Each message and each event
    is for exactly one part."""

    def __init__(self, parts: Sequence[Part]) -> None:
        self.reads = _joined(each.reads for each in parts)
        self.handles = _joined(each.handles for each in parts)
        self.ticks = _column(each.tick for each in parts)
        self.timeouts = _column(each.next_timeout for each in parts)
        self.settles = _column(each.settle for each in parts)
        self.ended = _column(each.ended for each in parts)
        self.found = _column(each.found for each in parts)
        self.negotiated = _column(each.negotiated for each in parts)
        self.joined = _column(each.joined for each in parts)
        self.moved = _column(each.moved for each in parts)
        self.undelivered = _column(each.undelivered for each in parts)
        self.disconnected = _column(each.disconnected for each in parts)
        self.checks = _column(each.check for each in parts)
        self.leaves = _column(each.leave for each in parts)
        self.labels = _column(each.labels for each in parts)
        self.employed = _column(each.employed for each in parts)
        self.told = _column(each.told for each in parts)
        self.validates = _column(each.validate for each in parts)


def offered(
    what: T, column: Iterable[Callable[[T, Moment], Effects]], now: Moment
) -> Sequence[Effect]:
    """What the first part says that it belongs to."""
    for take in column:
        effects = take(what, now)
        if effects is not None:
            return effects
    return ()


def told(
    what: T, column: Iterable[Callable[[T, Moment], Effects]], now: Moment
) -> Sequence[Effect]:
    """What all parts say."""
    return [effect for tell in column for effect in tell(what, now) or ()]


def _column(places: Iterable[T | None]) -> tuple[T, ...]:
    return tuple(each for each in places if each is not None)


def _joined(rows: Iterable[Mapping[type, T]]) -> dict[type, T]:
    joined: dict[type, T] = {}
    for row in rows:
        twice = joined.keys() & row.keys()
        assert not twice, f"two parts take {', '.join(each.__name__ for each in twice)}"
        joined |= row
    return joined

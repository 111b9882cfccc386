"""Where a person would like tasks to run, and where not: hints, soft unless said to be required.

| written as | the worker |
| --- | --- |
| `prefer=PEER` | is this one, or another that is preferred |
| `avoid=PEER` | is not this one |
| `region=NAME` | is there, as the charter attests; a label that says so counts half |
| `label.KEY=VALUE` | is labelled so |
| `near=CID`, `near=CID:SIZE` | has this data already |
| `with=TASK` | runs this task of ours, named by id or label |
| `away=TASK` | does not run this task of ours |
| `rtt=50ms` | answers within this time |

`require ` in front makes all hints of that kind conditions: `require region=eu-west`. A PEER is a
peer id, or its end, as tables show it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field, fields, replace
from enum import StrEnum
from typing import Any, Final

from formation_p2p.core.errors import InvalidInput
from formation_p2p.core.identity import PeerId
from formation_p2p.core.units import parse_bytes
from formation_p2p.machine.core.bounds import brief, check_amount, shown, sorted_labels
from formation_p2p.workload.core.blob import CHUNK_BYTES, RAW, Blob, Cid

# Each is compared with each candidate; a person names a handful.
MAX_NAMED: Final = 16
# They travel with every request for an offer, at 36 bytes each.
MAX_NEAR: Final = 16
# A minute: no connection that is slower is kept (net/transport/yamux.py).
MAX_RTT_MS: Final = 60_000
# As ids of tasks (workload/core/work.py).
MAX_TASK_NAME_CHARS: Final = 100
# As tables show of a peer id: 47 bits, which two peers do not share by chance.
MIN_PEER_CHARS: Final = 8
MAX_PEER_CHARS: Final = 64

_REQUIRE: Final = "require "
_LABEL: Final = "label."
_PEER: Final = re.compile(r"[1-9A-HJ-NP-Za-km-z]+", re.ASCII)
_RTT: Final = re.compile(r"(\d{1,9})(?:ms)?", re.ASCII)
_FORMS: Final = (
    "prefer=PEER, avoid=PEER, region=NAME, label.KEY=VALUE, near=CID, near=CID:SIZE, with=TASK, "
    "away=TASK or rtt=50ms, with `require ` in front of what has to be so"
)


class Kind(StrEnum):
    """The kinds of hints, as they are written."""

    PREFER = "prefer"
    AVOID = "avoid"
    REGION = "region"
    LABEL = "label"
    NEAR = "near"
    WITH = "with"
    AWAY = "away"
    RTT = "rtt"


# How a value is written.
_WRITTEN: Final = {kind: f"{kind}={{}}" for kind in Kind} | {
    Kind.LABEL: "label.{0[0]}={0[1]}",
    Kind.NEAR: "near={0.cid}:{0.size_bytes}",
    Kind.RTT: "rtt={}ms",
}
_KINDS: Final = {_LABEL if kind is Kind.LABEL else str(kind): kind for kind in Kind}
# The others are lists.
_SINGLE: Final = (Kind.REGION, Kind.RTT)


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Hints:
    """Each field is a kind of hint, as the module says, in the order of `Kind`. `required` names
    the kinds that are conditions: `Hints(region="eu-west", required={"region"})`. Raises
    InvalidInput.

    One of several preferred peers is enough; of labels, data and tasks each counts. Soft hints
    order the workers, those to be avoided last. A stranger can make a key whose peer id has a
    certain end, at some cost: where that matters, write the whole id.
    """

    prefer: tuple[str, ...] = ()
    avoid: tuple[str, ...] = ()
    region: str = ""
    labels: tuple[tuple[str, str], ...] = ()
    near: tuple[Blob, ...] = ()
    with_tasks: tuple[str, ...] = ()
    away_from: tuple[str, ...] = ()
    max_rtt_ms: int | None = None
    required: Collection[str] = frozenset()
    kinds: tuple[Kind, ...] = field(init=False, repr=False, compare=False)
    """The kinds given. They are read with every candidate, and so computed once."""

    __repr__ = brief

    def __post_init__(self) -> None:
        _check_each(Kind.PREFER, self.prefer, _check_peer)
        _check_each(Kind.AVOID, self.avoid, _check_peer)
        _check_each(Kind.WITH, self.with_tasks, _check_task)
        _check_each(Kind.AWAY, self.away_from, _check_task)
        if self.region:
            sorted_labels((("region", self.region),))
        object.__setattr__(self, "labels", sorted_labels(self.labels))
        _check_count(Kind.NEAR, self.near, MAX_NEAR)
        if len({blob.cid for blob in self.near}) < len(self.near):
            raise InvalidInput(Kind.NEAR, "the same data is named twice; name it once")
        if self.max_rtt_ms is not None:
            check_amount(Kind.RTT, self.max_rtt_ms, 1, MAX_RTT_MS)
        if isinstance(self.required, str) or not isinstance(self.required, Collection):
            problem = "is not a set; write {'region'}, or whichever kinds of hint are conditions"
            raise InvalidInput("required", f"{shown(self.required)} {problem}")
        object.__setattr__(self, "required", frozenset(self.required))
        kinds = tuple(kind for kind, name in _FIELDS.items() if getattr(self, name))
        object.__setattr__(self, "kinds", kinds)
        for name in sorted(self.required, key=str):
            if name not in self.kinds:
                given = ", ".join(self.kinds) or "nothing"
                raise InvalidInput("required", f"{shown(name)} is not among what is given: {given}")

    def prefers(self, peer_id: PeerId) -> bool:
        return peer_id.endswith(self.prefer)

    def avoids(self, peer_id: PeerId) -> bool:
        return peer_id.endswith(self.avoid)

    @property
    def data_bytes(self) -> int:
        """The size of all data that the tasks are to be near."""
        return sum(map(_weight, self.near))

    def bytes_of(self, places: Collection[int]) -> int:
        """The size of the data at these places in `near`; other places count for nothing."""
        return sum(_weight(blob) for place, blob in enumerate(self.near) if place in places)

    def bytes_at(self, peer_id: PeerId) -> int:
        """The size of the data that a peer had, as its references say."""
        there = (b for b in self.near if any(each.peer_id == peer_id for each in b.sources))
        return sum(map(_weight, there))

    def pack(self) -> list[Any]:
        """For CBOR: as text, and the data with who had it."""
        return [list(format_hints(self)), [blob.pack() for blob in self.near]]

    @classmethod
    def unpack(cls, value: object) -> Hints:
        """Raises InvalidInput."""
        match value:
            case [[*texts], [*blobs]] if all(isinstance(text, str) for text in texts):
                return replace(parse_hints(map(str, texts)), near=tuple(map(Blob.unpack, blobs)))
            case _:
                raise InvalidInput("hints", "are no [texts, blobs]")


def parse_hints(items: Iterable[str]) -> Hints:
    """Raises InvalidInput, which says what to write."""
    given: dict[Kind, list[Any]] = {}
    required: dict[Kind, bool] = {}
    for item in items:
        if not isinstance(item, str):
            raise InvalidInput("hint", f"{shown(item)} is not a hint; write {_FORMS}")
        is_required = item.strip().startswith(_REQUIRE)
        key, _, value = map(str.strip, item.strip().removeprefix(_REQUIRE).partition("="))
        name = _LABEL if key.startswith(_LABEL) else key.removesuffix("<")  # rtt<=50ms
        kind = _KINDS.get(name)
        if kind is None or not value:
            raise InvalidInput("hint", f"{shown(item)} is not a hint; write {_FORMS}")
        if required.setdefault(kind, is_required) is not is_required:
            why = f"some are required and some are not; write `{_REQUIRE.strip()}` with all or none"
            raise InvalidInput(kind, why)
        if kind in _SINGLE and kind in given:
            raise InvalidInput(kind, "is given twice; give it once")
        given.setdefault(kind, []).append(_parse(kind, key, value))
    words: dict[str, Any] = {
        _FIELDS[kind]: values[0] if kind in _SINGLE else tuple(values)
        for kind, values in given.items()
    }
    return Hints(**words, required={kind for kind, is_required in required.items() if is_required})


def format_hints(hints: Hints) -> tuple[str, ...]:
    """The inverse of `parse_hints`, without the peers that have the data."""
    return tuple(
        (_REQUIRE if kind in hints.required else "") + _WRITTEN[kind].format(value)
        for kind in hints.kinds
        for given in (getattr(hints, _FIELDS[kind]),)
        for value in ((given,) if kind in _SINGLE else given)
    )


def _parse(kind: Kind, key: str, value: str) -> Any:
    match kind:
        case Kind.PREFER | Kind.AVOID:
            return value.removeprefix("…").removeprefix("...")  # as tables show it: `…9HsQ2xPd`
        case Kind.LABEL:
            return key.removeprefix(_LABEL), value
        case Kind.NEAR:
            return _parse_blob(value)
        case Kind.RTT:
            if (match := _RTT.fullmatch(value)) is None:
                why = f"{shown(value)} is not a time; write milliseconds, like 50ms"
                raise InvalidInput(Kind.RTT, why)
            return int(match[1])
        case _:
            return value


def _parse_blob(text: str) -> Blob:
    """Without a size it has the least that content with such a name may have."""
    name, colon, size = text.partition(":")
    try:
        cid = Cid.parse(name)
        least = CHUNK_BYTES if cid.codec == RAW else CHUNK_BYTES + 1
        return Blob(cid, parse_bytes(size) if colon else least)
    except ValueError as problem:
        raise InvalidInput(Kind.NEAR, f"{shown(text)}: {problem}") from None


def _weight(blob: Blob) -> int:
    """In bytes; empty data weighs something, too."""
    return max(blob.size_bytes, 1)


def _check_each(kind: Kind, given: tuple[str, ...], check: Callable[[Kind, object], None]) -> None:
    _check_count(kind, given, MAX_NAMED)
    for each in given:
        check(kind, each)


def _check_count(kind: Kind, given: object, most: int) -> None:
    if not isinstance(given, tuple):
        raise InvalidInput(kind, f"{shown(given)} is not a tuple")
    if len(given) > most:
        raise InvalidInput(kind, f"there are more than {most}; leave some out")


def _check_peer(kind: Kind, peer: object) -> None:
    if not isinstance(peer, str) or _PEER.fullmatch(peer) is None:
        raise InvalidInput(kind, f"{shown(peer)} is not a peer id, nor the end of one")
    if not MIN_PEER_CHARS <= len(peer) <= MAX_PEER_CHARS:
        why = f"write the last {MIN_PEER_CHARS} characters of a peer id at the least, or all of it"
        raise InvalidInput(kind, f"{shown(peer)} is too short or too long; {why}")


def _check_task(kind: Kind, name: object) -> None:
    # What is read of a text has no spaces at its ends.
    plain = isinstance(name, str) and name.isprintable() and name == name.strip()
    if not plain or not 1 <= len(str(name)) <= MAX_TASK_NAME_CHARS:
        why = f"of up to {MAX_TASK_NAME_CHARS} characters and with no space at its ends"
        named = f"{shown(name)} names no task; write the id or the label of a task"
        raise InvalidInput(kind, f"{named}, {why}")


_FIELDS: Final = {kind: each.name for kind, each in zip(Kind, fields(Hints), strict=False)}
NO_HINTS: Final = Hints()

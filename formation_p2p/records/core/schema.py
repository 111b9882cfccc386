"""Messages declared once: a dataclass says what its fields are; reading and writing follow.

    protocol: Schema[Message] = Schema("work protocol", MAX_FRAME_BYTES)

    @protocol.message(7, urgent=True)
    @dataclass(frozen=True, slots=True)
    class Renew:
        lease_id: Annotated[str, text(128)]
        fence: Annotated[int, integer(0, MAX_INT)]

    protocol.parse(protocol.pack(Renew("lease", 3)))

A frame is a CBOR array: the message's number, then its fields in order. The `Kind` that annotates
a field says how it is read and packed. Reading is strict: another type, a value past its bound, an
item too few or too many is Malformed; a bool is not an integer, and text holds only characters that
print.

What a row of fields needs is known when it is declared, so that its two functions are generated
then, as `dataclass` generates `__init__`. For Renew they are

    def read(value):
        if type(value) is not list or len(value) != 3:
            raise Malformed(field, "is not a list of 3 items")
        _, x1, x2 = value
        return make(
            x1 if type(x1) is str and len(x1) <= 128 and x1.isprintable() else read1(x1),
            x2 if type(x2) is int and 0 <= x2 <= 9223372036854775807 else read2(x2),
        )

    def pack(noun):
        return [7, noun.lease_id, noun.fence]

where `read1` and `read2` are the readers of the kinds, which say what is wrong. Closures in place
of generated code take 80 % longer to read a Dispatch of a hundred assignments.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass, fields, replace
from typing import Any, Generic, TypeVar, get_type_hints

from formation_p2p.core.errors import InvalidInput, ProtocolViolation
from formation_p2p.records.core import codec
from formation_p2p.records.core.codec import Malformed, take_list

_T = TypeVar("_T")
_M = TypeVar("_M")
Read = Callable[[Any], Any]
Pack = Callable[[Any], Any]
_Row = tuple[Read, Pack]


@dataclass(frozen=True, slots=True)
class Kind:
    """`reader` makes, of a field's name, what returns the field for an item of a frame. `pack`
    None: CBOR writes the field as it is. `trailing`: left out at the end of a list where None.
    `good` is an expression that is true only of items that are the field as they are."""

    reader: Callable[[str], Read]
    pack: Pack | None = None
    trailing: bool = False
    good: str = "False"


def integer(low: int, high: int, *, trailing: bool = False) -> Kind:
    return Kind(
        lambda field: lambda value: codec.take_int(value, field, low, high),
        trailing=trailing,
        good=f"type({{x}}) is int and {low} <= {{x}} <= {high}",
    )


def text(max_chars: int) -> Kind:
    return Kind(
        lambda field: lambda value: codec.take_text(value, field, max_chars),
        good=f"type({{x}}) is str and len({{x}}) <= {max_chars} and {{x}}.isprintable()",
    )


def octets(max_bytes: int, *, trailing: bool = False) -> Kind:
    return Kind(
        lambda field: lambda value: codec.take_bytes(value, field, max_bytes),
        trailing=trailing,
        good=f"type({{x}}) is bytes and len({{x}}) <= {max_bytes}",
    )


def flag() -> Kind:
    """A bool, written as 0 or 1."""
    return Kind(lambda field: lambda value: codec.take_int(value, field, 0, 1) == 1, int)


def boolean() -> Kind:
    """A bool of CBOR's own."""
    return Kind(lambda field: lambda value: codec.take_bool(value, field))


def custom(read: Read, pack: Pack | None = None) -> Kind:
    """What has a reader of its own, which raises Malformed or InvalidInput."""
    return Kind(lambda field: read, pack)


def optional(kind: Kind) -> Kind:
    """The kind, or None."""
    pack = kind.pack

    def reader(field: str) -> Read:
        read = kind.reader(field)
        return lambda value: None if value is None else read(value)

    return Kind(reader, pack and (lambda value: None if value is None else pack(value)))


def items(kind: Kind, max_items: int) -> Kind:
    """A tuple of at most so many of the kind."""
    pack = kind.pack

    def reader(field: str) -> Read:
        read = kind.reader(field)
        return lambda value: tuple([read(item) for item in take_list(value, field, max_items)])

    return Kind(reader, None if pack is None else lambda values: [pack(each) for each in values])


class Slot:
    """Room in a message for what one feature says beside it: a list, empty where that is nothing.

    `kind` annotates the field. A program without the feature has the items of the list as CBOR has
    them, of `max_bytes` at most, and hands them on.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._filled: Kind | None = None
        self._read: Read | None = None
        self.kind = Kind(lambda field: self._reader(field), self._pack)

    def fill(self, kind: Kind) -> None:
        """The feature is there: its items are read and packed so."""
        assert self._filled is None, "two features say something in one place"
        self._filled, self._read = kind, kind.reader("extension")

    def _reader(self, field: str) -> Read:
        def read(value: Any) -> Any:
            if self._read is not None:
                return self._read(value)
            if type(value) is not list or len(codec.encode(value)) > self._max_bytes:
                raise Malformed(field, f"is not a list of at most {self._max_bytes} bytes")
            return tuple(value)

        return read

    def _pack(self, said: Any) -> Any:
        pack = None if self._filled is None else self._filled.pack
        return list(said) if pack is None else pack(said)


def pair(first: Kind, second: Kind) -> Kind:
    """A tuple of two, of kinds without packers."""
    return custom(_row(lambda *both: both, {"first": first, "second": second})[0])


def record(make: Callable[..., object], kinds: Mapping[str, Kind] | None = None) -> Kind:
    """A list of the fields of a dataclass, in order, of the kinds that annotate them; `kinds` are
    those of one from a layer that knows no wire. A name with a dot is a field of a field."""
    return custom(*_row(make, _kinds_of(make) if kinds is None else kinds))


def tagged(nouns: Mapping[str, tuple[type, Mapping[str, Kind]]]) -> Kind:
    """One of several dataclasses: a list of its tag, then its fields."""
    rows = {tag: _row(noun, kinds, tag) for tag, (noun, kinds) in nouns.items()}
    readers = {tag: read for tag, (read, _) in rows.items()}
    packers = {noun: rows[tag][1] for tag, (noun, _) in nouns.items()}
    return Kind(lambda field: _chosen(field, str, readers), lambda noun: packers[type(noun)](noun))


class Schema(Generic[_M]):
    """The messages of one protocol, or of one direction of it."""

    def __init__(self, protocol: str, max_bytes: int) -> None:
        self.urgent: set[type] = set()
        self._protocol = protocol
        self._max_bytes = max_bytes
        self._packers: dict[type, Pack] = {}
        self._readers: dict[int, Read] = {}
        self._read = _chosen("message", int, self._readers)

    def message(self, number: int, *, urgent: bool = False) -> Callable[[type[_T]], type[_T]]:
        """Declare a dataclass as the message of this number. An urgent one does not wait behind
        large ones: what it says does not depend on what was dispatched, or has ended, before."""

        def declare(noun: type[_T]) -> type[_T]:
            assert number not in self._readers, f"two messages have the number {number}"
            self._readers[number], self._packers[noun] = _row(noun, _kinds_of(noun), number)
            if urgent:
                self.urgent.add(noun)
            return noun

        return declare

    @property
    def messages(self) -> Set[type]:
        """All that are declared."""
        return self._packers.keys()

    def pack(self, message: _M) -> bytes:
        """The frame of a message that this side made; its bounds are not checked."""
        return codec.encode(self._packers[type(message)](message))

    def parse(self, raw: bytes) -> _M:
        """Raises ProtocolViolation, and nothing else, on any bytes."""
        try:
            message: _M = self._read(codec.decode(raw, self._max_bytes))
        except (Malformed, InvalidInput) as error:
            raise ProtocolViolation(f"not a message of the {self._protocol}: {error}") from error
        return message


def _chosen(field: str, kind: type, readers: Mapping[Any, Read]) -> Read:
    """Reads a list with the reader that its first item chooses."""

    def read(value: Any) -> Any:
        chosen = None
        if type(value) is list and value and type(value[0]) is kind:
            chosen = readers.get(value[0])
        if chosen is None:
            raise Malformed(field, "its kind is not known")
        return chosen(value)

    return read


def _kinds_of(noun: Any) -> dict[str, Kind]:
    hints = get_type_hints(noun, include_extras=True)
    return {each.name: hints[each.name].__metadata__[0] for each in fields(noun)}


def _row(make: Callable[..., object], kinds: Mapping[str, Kind], *head: object) -> _Row:
    """`head` is what the list begins with: the reader was chosen by it."""
    if any(kind.trailing for kind in kinds.values()):
        return _shortened(make, kinds, *head)
    known: dict[str, Any] = {"make": make, "Malformed": Malformed}
    items, read, packed = ["_" for _ in head], [], [repr(each) for each in head]
    for n, (name, kind) in enumerate(kinds.items(), 1):
        known[f"read{n}"], known[f"pack{n}"] = kind.reader(name), kind.pack
        items.append(f"x{n}")
        read.append(f"x{n} if {kind.good.format(x=f'x{n}')} else read{n}(x{n})")
        packed.append(f"noun.{name}" if kind.pack is None else f"pack{n}(noun.{name})")
    source = f"""
def read(value):
    if type(value) is not list or len(value) != {len(items)}:
        raise Malformed({make.__name__!r}, "is not a list of {len(items)} items")
    [{", ".join(items)}] = value
    return make({", ".join(read)})

def pack(noun):
    return [{", ".join(packed)}]
"""
    exec(source, known)
    return known["read"], known["pack"]


def _shortened(make: Callable[..., object], kinds: Mapping[str, Kind], *head: object) -> _Row:
    """Of a row whose last field is left out where it is None; then the one before may be, too. One
    that is None before another that is not has to be read as such by its kind."""
    *others, last = kinds
    whole = {name: replace(kind, trailing=False) for name, kind in kinds.items()}
    read_short, pack_short = _row(make, {name: kinds[name] for name in others}, *head)
    read_long, pack_long = _row(make, whole, *head)
    short_items = len(head) + len(others)

    def read(value: Any) -> Any:
        is_short = type(value) is list and len(value) <= short_items
        return read_short(value) if is_short else read_long(value)

    def pack(noun: Any) -> Any:
        return pack_short(noun) if getattr(noun, last) is None else pack_long(noun)

    return read, pack

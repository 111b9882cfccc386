"""Messages of multicast DNS: those parts that finding peers needs.

Sources: RFC 1035, section 4 (messages, names, compression); RFC 6762, section 18 (what multicast
DNS makes of the header, and of the class's top bit); RFC 6763, section 6 (TXT records).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from formation_p2p.core.errors import ProtocolViolation

# RFC 6762, section 17: no message is larger, with all headers.
MAX_MESSAGE_BYTES: Final = 9000
# A message with more questions or records than this is not from a peer that tells of itself.
MAX_ENTRIES: Final = 64
MAX_LABEL_BYTES: Final = 63
MAX_NAME_BYTES: Final = 255
# Of a name: those of peers have four, those of other services a few more.
MAX_LABELS: Final = 32

PTR: Final = 12
TXT: Final = 16
ANY: Final = 255
_IN: Final = 1
# Of a class: "answer by unicast" in a question, "this replaces what you knew" in a record.
_TOP_BIT: Final = 0x8000
_RESPONSE: Final = 0x8000
# What must be zero (OPCODE, RCODE), or the message is to be ignored.
_MUST_BE_ZERO: Final = 0x780F
# "Authoritative answer", which each response has.
_AUTHORITATIVE: Final = 0x0400
_HEADER: Final = struct.Struct("!6H")
_QUESTION: Final = struct.Struct("!2H")
_RECORD: Final = struct.Struct("!2HIH")

# Labels, from the left, in lower case: names are the same whatever their case.
Name = tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class Question:
    name: Name
    kind: int


@dataclass(frozen=True, slots=True)
class Record:
    """A PTR record has a `target`, a TXT record `texts`; of others only the name is kept.

    `is_unique`: only one node has a record of this name and kind, so that it replaces what was
    known.
    """

    name: Name
    kind: int
    ttl_s: int
    target: Name = ()
    texts: tuple[bytes, ...] = ()
    is_unique: bool = False


@dataclass(frozen=True, slots=True)
class Message:
    """`records` are those of all sections of a response; of a query, what the asker knows."""

    is_response: bool
    questions: tuple[Question, ...] = ()
    records: tuple[Record, ...] = ()


def parse(raw: bytes) -> Message:
    """Raises ProtocolViolation."""
    if not _HEADER.size <= len(raw) <= MAX_MESSAGE_BYTES:
        raise ProtocolViolation(f"a DNS message of {len(raw)} bytes")
    _, flags, questions, answers, authorities, additional = _HEADER.unpack_from(raw)
    records = answers + authorities + additional
    if flags & _MUST_BE_ZERO or questions + records > MAX_ENTRIES:
        raise ProtocolViolation("a DNS message that tells of no peer")
    reader = _Reader(raw)
    return Message(
        bool(flags & _RESPONSE),
        tuple(reader.questions(questions)),
        tuple(reader.records(records)),
    )


def encode(message: Message) -> bytes:
    """Without compression; all of the records of a response are answers."""
    flags = _RESPONSE | _AUTHORITATIVE if message.is_response else 0
    parts = [_HEADER.pack(0, flags, len(message.questions), len(message.records), 0, 0)]
    for question in message.questions:
        parts += (_name(question.name), _QUESTION.pack(question.kind, _IN))
    for record in message.records:
        data = _name(record.target) if record.kind == PTR else _texts(record.texts)
        of_class = _IN | (_TOP_BIT if record.is_unique else 0)
        head = _RECORD.pack(record.kind, of_class, record.ttl_s, len(data))
        parts += (_name(record.name), head, data)
    return b"".join(parts)


def _name(labels: Name) -> bytes:
    return b"".join(bytes((len(label),)) + label for label in labels) + b"\x00"


def _texts(texts: tuple[bytes, ...]) -> bytes:
    """RFC 6763, section 6.1: one empty text where there is none."""
    return b"".join(bytes((len(text),)) + text for text in texts or (b"",))


class _Reader:
    """Goes through a message once. Raises ProtocolViolation."""

    def __init__(self, raw: bytes) -> None:
        self._raw = raw
        self._at = _HEADER.size

    def questions(self, count: int) -> Iterator[Question]:
        for _ in range(count):
            name = self._take_name(len(self._raw))
            kind, of_class = self._take(_QUESTION)
            if _is_internet(of_class):
                yield Question(name, kind)

    def records(self, count: int) -> Iterator[Record]:
        for _ in range(count):
            name = self._take_name(len(self._raw))
            kind, of_class, ttl_s, size = self._take(_RECORD)
            end = self._at + size
            if end > len(self._raw):
                raise ProtocolViolation("a DNS record that is cut short")
            target: Name = ()
            texts: tuple[bytes, ...] = ()
            if kind == PTR:
                target = self._take_name(end)
                if self._at != end:
                    raise ProtocolViolation("a PTR record that is not one name")
            elif kind == TXT:
                texts = tuple(_split(self._raw[self._at : end]))
            self._at = end
            if _is_internet(of_class):
                yield Record(name, kind, ttl_s, target, texts, bool(of_class & _TOP_BIT))

    def _take(self, form: struct.Struct) -> tuple[int, ...]:
        if self._at + form.size > len(self._raw):
            raise ProtocolViolation("a DNS message that is cut short")
        values = form.unpack_from(self._raw, self._at)
        self._at += form.size
        return values

    def _take_name(self, end: int) -> Name:
        """Compression: a name may go on where an earlier one stands. Each jump leads further back
        than the one before, so that there is an end."""
        labels: list[bytes] = []
        at, furthest, size, after = self._at, self._at, 0, 0
        while True:
            if at >= end:
                raise ProtocolViolation("a DNS name that is cut short")
            length = self._raw[at]
            if length == 0:
                self._at = after or at + 1
                return tuple(labels)
            if length > MAX_LABEL_BYTES:
                if length < 0xC0 or at + 2 > end:
                    raise ProtocolViolation("a DNS label of no known kind")
                after = after or at + 2
                at = int.from_bytes(self._raw[at : at + 2], "big") & 0x3FFF
                if not _HEADER.size <= at < furthest:
                    raise ProtocolViolation("a DNS name that does not lead back")
                furthest, end = at, len(self._raw)
                continue
            label = self._raw[at + 1 : at + 1 + length]
            at += 1 + length
            size += 1 + length
            labels.append(label.lower())
            if at > end or size >= MAX_NAME_BYTES or len(labels) > MAX_LABELS:
                raise ProtocolViolation("a DNS name that is cut short, or too long")


def _split(data: bytes) -> Iterator[bytes]:
    at = 0
    while at < len(data):
        text = data[at + 1 : at + 1 + data[at]]
        if len(text) < data[at]:
            raise ProtocolViolation("a TXT record that is cut short")
        yield text
        at += 1 + data[at]


def _is_internet(of_class: int) -> bool:
    return of_class & ~_TOP_BIT in (_IN, ANY)

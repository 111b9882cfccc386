"""The protocol `/formation/replica/1.0.0`: what a peer asks of replicas that run elsewhere, beside
what they serve.

A stream begins with one question, which is answered `Tended` or `Untended`. After `Tended` to
`ReadLog` comes what the replica has printed; after that to `RunBeside` the program's input one way,
and the other way pieces of a byte that says what it is (`STDOUT`, `STDERR`, `EXIT`), four with its
length, and the bytes; that of `EXIT` is the program's exit code. A frame is a CBOR array: the
message's number, then its fields in order.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Final

from formation_p2p.features.services.core.messages import SERVICE_NAME, WHY, read_name
from formation_p2p.features.services.core.spec import MAX_ARGUMENTS
from formation_p2p.records.core import schema
from formation_p2p.records.core.codec import MAX_INT
from formation_p2p.records.core.profile import MAX_GRANT_BYTES
from formation_p2p.records.core.schema import Schema
from formation_p2p.workload.core.blob import Cid
from formation_p2p.workload.core.process import MAX_SECRET_BYTES

# A command line that a person types. With the grant it is within what a stranger may send.
MAX_ARGUMENT_CHARS: Final = 1024
MAX_MESSAGE_BYTES: Final = MAX_GRANT_BYTES + 8 * 1024
# All that a replica keeps of what it has printed has fewer lines.
MAX_LINES: Final = 10_000_000
STDOUT, STDERR, EXIT = 1, 2, 3


_NAME_OR_NONE: Final = schema.custom(lambda value: "" if value == "" else read_name(value))
_PROTOCOL: Final[Schema[TendingMessage]] = Schema("replica protocol", MAX_MESSAGE_BYTES)


@_PROTOCOL.message(1)
@dataclass(frozen=True, slots=True)
class ReadLog:
    """What the replica of `service` here has printed: the last `tail` lines, of those since a time;
    with `follows` also what comes, until the stream ends. For who may publish services."""

    service: Annotated[str, SERVICE_NAME]
    grant: Annotated[bytes, schema.octets(MAX_GRANT_BYTES)] = field(repr=False)
    tail: Annotated[int, schema.integer(0, MAX_LINES)]
    since_unix_s: Annotated[int, schema.integer(0, MAX_INT)]
    follows: Annotated[bool, schema.boolean()]


@_PROTOCOL.message(2)
@dataclass(frozen=True, slots=True)
class RunBeside:
    """Run `argv` where the replica of `service` here runs. For the owner of the machine, and for
    the publisher where the worker allows that."""

    service: Annotated[str, SERVICE_NAME]
    grant: Annotated[bytes, schema.octets(MAX_GRANT_BYTES)] = field(repr=False)
    argv: Annotated[tuple[str, ...], schema.items(schema.text(MAX_ARGUMENT_CHARS), MAX_ARGUMENTS)]


@_PROTOCOL.message(5)
@dataclass(frozen=True, slots=True)
class AskSecret:
    """The secret of that name, which is one of `service`, or of a task where that is empty. For
    workers: of a task for who knows its name, of a service for who runs it."""

    service: Annotated[str, _NAME_OR_NONE]
    grant: Annotated[bytes, schema.octets(MAX_GRANT_BYTES)] = field(repr=False)
    cid: Annotated[Cid, schema.custom(Cid.from_bytes, Cid.to_bytes)]


@_PROTOCOL.message(6)
@dataclass(frozen=True, slots=True)
class SecretBox:
    """Sealed for who asked (secrets/store.py). Nothing follows."""

    box: Annotated[bytes, schema.octets(MAX_SECRET_BYTES + 64)] = field(repr=False)


@_PROTOCOL.message(3)
@dataclass(frozen=True, slots=True)
class Tended:
    """What was asked for follows."""


@_PROTOCOL.message(4)
@dataclass(frozen=True, slots=True)
class Untended:
    """Nothing follows."""

    why: Annotated[str, WHY]


Question = ReadLog | RunBeside
TendingMessage = Question | AskSecret | SecretBox | Tended | Untended

pack = _PROTOCOL.pack
parse = _PROTOCOL.parse

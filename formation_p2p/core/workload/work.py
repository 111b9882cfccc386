"""What can be submitted, and the encoding of its payloads and results."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Final, Protocol

import cbor2

from formation_p2p.core import cbor
from formation_p2p.core.errors import InvalidInput
from formation_p2p.core.units import MIB, format_bytes
from formation_p2p.core.workload.task import MAX_PAYLOAD_BYTES

# As a payload (workload/task.py): a result travels in one work frame of at most 16 MiB, and half
# of it leaves room for the rest of the message.
MAX_RESULT_BYTES: Final = 8 * MIB


class Work(Protocol):
    """ProcessSpec, PythonCall, or a class for a custom driver. `driver` names what runs it,
    `encode` gives the payload that the driver reads. Optional are `shared`, bytes in common with
    other pieces, which travel to a worker once; `kind`, a name in common with pieces that need
    about as much memory; and `filled(text)`, which returns the piece with each of its texts given
    to `text`, so that the parameters of a stage get into it.
    """

    @property
    def driver(self) -> str: ...

    def encode(self) -> bytes: ...


@dataclass(frozen=True, slots=True)
class PythonCall:
    """One call of one function, both pickled: the `python` driver runs it.

    A pickle runs code when it is read: only the process that runs the call reads the caller's, and
    only the caller reads the result. `function`, pickled with cloudpickle, is shared by any number
    of calls: it travels to a worker once, and is read there once. `arguments` is the pickle of
    `(args, kwargs)`. `kind` is the function's qualified name, under which its memory is learnt.
    """

    driver: ClassVar[str] = "python"

    function: bytes
    arguments: bytes
    kind: str = ""

    @property
    def shared(self) -> bytes:
        return self.function

    def encode(self) -> bytes:
        """The payload. Raises InvalidInput where it is more than one message carries."""
        return check_size("payload", self.arguments, MAX_PAYLOAD_BYTES - len(self.function))


def encode_fields(field: str, values: Mapping[str, object], max_bytes: int) -> bytes:
    """What `decode_fields` reads. Raises InvalidInput where it has more than `max_bytes`."""
    return check_size(field, cbor2.dumps(values), max_bytes)


def decode_fields(
    field: str, encoded: bytes, max_bytes: int, names: Collection[str]
) -> dict[str, Any]:
    """A map with exactly these names, of plain values, as core/cbor.py has them. Raises
    InvalidInput that names `field`, whatever the bytes are."""
    check_size(field, encoded, max_bytes)
    try:
        value = cbor.decode(encoded)
    except ValueError as problem:
        raise InvalidInput(field, f"is not plain CBOR: {problem}") from problem
    if type(value) is not dict or value.keys() != set(names):
        raise InvalidInput(field, f"must have exactly {', '.join(sorted(names))}")
    return value


def check_size(field: str, encoded: bytes, max_bytes: int) -> bytes:
    """`encoded` itself. Raises InvalidInput where it has more than `max_bytes`."""
    if len(encoded) > max_bytes:
        sizes = f"has {format_bytes(len(encoded))}, of at most {format_bytes(max_bytes)}"
        raise InvalidInput(field, f"{sizes}; put large data on storage that the workers can reach")
    return encoded

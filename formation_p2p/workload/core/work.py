"""What can be submitted: work, its encoding, and the tasks that run it once each."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Final, Protocol

import cbor2

from formation_p2p.core import cbor
from formation_p2p.core.errors import InvalidInput
from formation_p2p.core.keyspace import Key, key_of
from formation_p2p.core.units import MIB, format_bytes
from formation_p2p.machine.core.bounds import MAX_MEMORY_BYTES, check_amount
from formation_p2p.workload.core.code_bundle import NO_MODULES, ModuleNames

if TYPE_CHECKING:
    from formation_p2p.machine.core.requirements import Requirements

# A task's payload travels in one frame to the worker (leases/core/messages.py).
MAX_PAYLOAD_BYTES: Final = 8 * 1024 * 1024
# All are held in memory until the job ends, at about 1 KiB each without their payloads.
MAX_TASKS: Final = 100_000
# A reference to content that is not known yet: its CID, and one source with its addresses.
MAX_INPUT_FROM_BYTES: Final = 4096
MAX_PRIORITY: Final = 100
# Ids travel, a task's with the number of the attempt behind it; 128 characters are allowed there
# (leases/core/messages.py). Our own are `<16 hex digits>/<index>`.
MAX_TASK_ID_CHARS: Final = 100
# Of the name under which its memory is learnt: the longest name of a program's file, and its
# driver.
MAX_KIND_CHARS: Final = 300
# The least that a task has, whatever it asks for: an interpreter that imports little needs 20 MiB.
MIN_MEMORY_BYTES: Final = 64 * MIB
# As a payload: a result travels in one work frame of at most 16 MiB, and half of it leaves room for
# the rest of the message.
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
class FunctionPickle:
    """A pickle that is too large for a message, or has numbers for `references` in it."""

    pickled: bytes
    references: tuple[object, ...] = ()


@dataclass(frozen=True, slots=True)
class PythonCall:
    """One call of one function, both pickled: the `python` driver runs it.

    A pickle runs code when it is read: only the process that runs the call reads the caller's, and
    only the caller reads the result. `function`, an encoded CallContext, is shared by any number
    of calls: it travels to a worker once, and is read there once. `arguments` is the pickle of
    `(args, kwargs)`. `kind` is the function's qualified name, under which its memory is learnt.
    `python` and `cloudpickle` are the versions that pickled it, as in `Requirements`, `modules`
    what the two pickles refer to: `Node.submit` has those of the caller's own go along.

    `references` are what the arguments have numbers for, as `Node.put` returns them; where there is
    a `large_function`, the context has none. `Node.submit` puts both, and large arguments, where
    workers fetch them.
    """

    driver: ClassVar[str] = "python"

    function: bytes
    arguments: bytes
    kind: str = ""
    python: str = ""
    cloudpickle: int = 0
    modules: ModuleNames = NO_MODULES
    references: tuple[object, ...] = ()
    large_function: FunctionPickle | None = None

    @property
    def shared(self) -> bytes:
        return self.function

    def encode(self) -> bytes:
        """The payload. Raises InvalidInput where it is more than one message carries."""
        if self.references or self.large_function is not None:
            raise InvalidInput("call", "what it refers to is with its node; submit it there")
        return check_size("payload", self.arguments, MAX_PAYLOAD_BYTES - len(self.function))


def encode_fields(field: str, values: Mapping[str, object], max_bytes: int) -> bytes:
    """What `decode_fields` reads. Raises InvalidInput where it has more than `max_bytes`."""
    return check_size(field, cbor2.dumps(values), max_bytes)


def decode_fields(
    field: str,
    encoded: bytes,
    max_bytes: int,
    names: Collection[str],
    optional: Collection[str] = (),
) -> dict[str, Any]:
    """A map with exactly these names, and perhaps the optional ones, of plain values, as
    core/cbor.py has them. Raises InvalidInput that names `field`, whatever the bytes are."""
    check_size(field, encoded, max_bytes)
    value = decode_plain(field, encoded)
    if type(value) is not dict or value.keys() - set(optional) != set(names):
        raise InvalidInput(field, f"must have exactly {', '.join(sorted(names))}")
    return value


def decode_plain(field: str, encoded: bytes) -> object:
    """Of a size that the caller has checked. Raises InvalidInput that names `field`."""
    try:
        return cbor.decode(encoded)
    except ValueError as problem:
        raise InvalidInput(field, f"is not plain CBOR: {problem}") from problem


def check_size(field: str, encoded: bytes, max_bytes: int) -> bytes:
    """`encoded` itself. Raises InvalidInput where it has more than `max_bytes`."""
    if len(encoded) > max_bytes:
        sizes = f"has {format_bytes(len(encoded))}, of at most {format_bytes(max_bytes)}"
        raise InvalidInput(field, f"{sizes}; put large data on storage that the workers can reach")
    return encoded


@dataclass(frozen=True, slots=True)
class InputFrom:
    """The input `name` of a task is the output `output` of another task of its job."""

    name: str
    task_id: str
    output: str


@dataclass(frozen=True, slots=True)
class Task:
    """One thing to run once. `needs.driver` runs it and alone reads `shared` and `payload`; `label`
    names it for people.

    `shared` is what it has in common with others, and travels to a worker once for all of them.
    It waits until the tasks of its job that `after` names have succeeded; `inputs_from` are files
    of some of these, which it finds among its inputs. What it uses is recorded under `kind`; where
    its memory was estimated, `more_memory_bytes` is what it is tried again with after it was
    stopped at its memory limit. `member` is the gang and the rank that alone is to run it.
    It begins from the newest checkpoint that is held of the task `goes_on_from`, which has not
    ended when it is submitted.
    """

    task_id: str
    needs: Requirements
    payload: bytes
    label: str = ""
    shared: bytes = b""
    after: tuple[str, ...] = ()
    kind: str = ""
    more_memory_bytes: int = 0
    inputs_from: tuple[InputFrom, ...] = ()
    member: tuple[str, int] | None = None
    goes_on_from: str = ""

    def __post_init__(self) -> None:
        if not 1 <= len(self.task_id) <= MAX_TASK_ID_CHARS or not self.task_id.isprintable():
            problem = f"it is not 1 to {MAX_TASK_ID_CHARS} characters that print; shorten it"
            raise InvalidInput("task id", problem)
        if self.needs.driver == "":
            raise InvalidInput("driver", "a task names the driver that runs it, such as process")
        size = len(self.payload) + len(self.shared) + len(self.inputs_from) * MAX_INPUT_FROM_BYTES
        if size > MAX_PAYLOAD_BYTES:
            limit = f"{MAX_PAYLOAD_BYTES >> 20} MiB travel in one message"
            raise InvalidInput("payload", f"{size} bytes, where at most {limit}; split the input")
        if len(self.kind) > MAX_KIND_CHARS or not self.kind.isprintable():
            problem = f"it is not up to {MAX_KIND_CHARS} characters that print; shorten it"
            raise InvalidInput("kind", problem)
        check_amount("memory", self.more_memory_bytes, 0, MAX_MEMORY_BYTES)

    @property
    def names(self) -> tuple[str, ...]:
        """What hints may call it."""
        return (self.task_id, self.label) if self.label else (self.task_id,)

    @property
    def key(self) -> Key:
        """Its place in the key space: the workers nearest to it are asked first."""
        return key_of(self.task_id.encode())


def task_id(job_id: str, index: int) -> str:
    """The id of a job's task, the same on every node that knows the job."""
    return f"{job_id}/{index}"

"""What a node and the programs of its user on the same machine say to each other, through the
node's socket `node-0.sock` in the home: frames of a length and one value of CBOR. Of few modules,
since a command imports them before it asks.

| who | says |
| --- | --- |
| program | `{"formation": VERSION, "ask": method}`, once for each connection |
| node | `{"formation": VERSION, "has": ...}`: whether it answers that, to this version |
| program | `{name: value, ...}`: the parameters of the method, as its handler declares them |
| node | `{"is": answer}`, of some methods several times, or `{"error": [kind, words]}` |

The node of the home that takes commands is also `control.sock`. Types of this package are told
between equal versions alone (values.py); a document, such as a status, to every version.
"""

from __future__ import annotations

import socket
import struct
from pathlib import Path
from typing import Any, Final

import cbor2

from formation_p2p.core import cbor
from formation_p2p.core import errors as tree
from formation_p2p.core.errors import FormationError, InvalidInput, LocalError
from formation_p2p.core.units import KIB, MIB
from formation_p2p.core.version import RELEASE
from formation_p2p.machine.unix_socket import reachable

# Both sides have the same types: the package's version, and one of what is said above.
VERSION: Final = f"{RELEASE}/3"

# A greeting; and a plan with the files that travel in it, or the result of a task (work.py).
MAX_GREETING_BYTES: Final = KIB
MAX_FRAME_BYTES: Final = 32 * MIB
# A decision has workers with a capability with GPUs with their models, and policies with terms.
MAX_DEPTH: Final = 16
# For a greeting and for a question to arrive, and for an answer that is no event to be taken.
EXCHANGE_S: Final = 10.0

LENGTH: Final = struct.Struct(">I")

# Errors that cross the socket as themselves; others as the nearest class above them.
_KINDS: Final = {
    each.__name__: each
    for each in (
        FormationError,
        LocalError,
        tree.NodeClosed,
        tree.StateError,
        tree.TaskFailed,
        tree.RemoteError,
        tree.Unreachable,
        tree.Unplaceable,
        tree.Unauthorized,
    )
}

Message = dict[str, Any]


def socket_of(home: Path) -> Path:
    """Of the node that takes commands."""
    return home / "control.sock"


def encoded(message: Message) -> bytes:
    """A frame. Raises InvalidInput for more than fits in one."""
    try:
        body = cbor2.dumps(message)
    except UnicodeEncodeError as error:
        raise InvalidInput("message", f"{error.object[:80]!r} is no text in UTF-8") from None
    if len(body) > MAX_FRAME_BYTES:
        raise InvalidInput("message", f"{len(body)} bytes are more than the socket takes at once")
    return LENGTH.pack(len(body)) + body


def length_of(head: bytes, max_bytes: int = MAX_FRAME_BYTES) -> int:
    """Of what follows the first bytes of a frame. Raises InvalidInput for too much."""
    length: int = LENGTH.unpack(head)[0]
    if length > max_bytes:
        raise InvalidInput("message", f"{length} bytes are more than {max_bytes}")
    return length


def decoded(body: bytes) -> Message:
    """Raises InvalidInput."""
    try:
        message = cbor.decode(body, MAX_DEPTH)
    except ValueError as error:
        raise InvalidInput("message", str(error)) from None
    if not isinstance(message, dict) or not all(isinstance(key, str) for key in message):
        raise InvalidInput("message", "it is not a map with text keys")
    return message


def error_to_wire(error: FormationError) -> list[str]:
    if isinstance(error, InvalidInput):
        return ["InvalidInput", error.field, error.problem]
    name = next(kind.__name__ for kind in type(error).__mro__ if kind.__name__ in _KINDS)
    return [name, str(error)]


def error_from_wire(packed: object) -> FormationError:
    match packed:
        case ["InvalidInput", str(field), str(problem)]:
            return InvalidInput(field, problem)
        case [str(name), str(words)] if name in _KINDS:
            return _KINDS[name](words)
        case _:
            return LocalError("the node of this machine gave no answer; see its log")


# -- programs that wait for each answer -----------------------------------------------------------


def asked(
    path: Path, method: str, question: Message, *, greets_s: float, answers_s: float | None
) -> socket.socket:
    """A connection on which the question is asked. Raises OSError, InvalidInput where nobody
    answers who could be understood, LocalError where the node does not answer that."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connection.settimeout(greets_s)
        with reachable(path) as name:
            connection.connect(name)
        connection.sendall(encoded({"formation": VERSION, "ask": method}))
        try:
            greeting = told(connection, MAX_GREETING_BYTES)
        except EOFError:
            raise ConnectionResetError("it hangs up") from None
        if not greeting.get("has"):
            raise LocalError(f"the node at {path} {lacks_in_words(greeting, method)}")
        connection.settimeout(answers_s)
        connection.sendall(encoded(question))
    except BaseException:
        connection.close()
        raise
    return connection


def lacks_in_words(greeting: Message, method: str) -> str:
    """Why a node that greets so does not answer."""
    version = greeting.get("formation")
    if version == VERSION:
        return f"does not tell {method}"
    return f"is of another version ({str(version)[:40]}, and this is {VERSION})"


def told(connection: socket.socket, max_bytes: int = MAX_FRAME_BYTES) -> Message:
    """The next message. Raises EOFError at the end, OSError at one amid a message, InvalidInput for
    other bytes."""
    if not (first := connection.recv(1)):
        raise EOFError
    head = first + _exactly(connection, LENGTH.size - 1)
    return decoded(_exactly(connection, length_of(head, max_bytes)))


def _exactly(connection: socket.socket, size: int) -> bytes:
    data = bytearray()
    while len(data) < size:
        if not (more := connection.recv(size - len(data))):
            raise OSError("the node of this machine has left")
        data += more
    return bytes(data)

"""What a command and the node of its machine say to each other, through the socket `control.sock`
in the home: frames of a length and one value of CBOR.

| who | says |
| --- | --- |
| both | first `{"formation": VERSION}`; of another version, a command uses a node of its own |
| command | `{"ask": what, ...}`, once for each connection |
| node | `{"is": answer}` or `{"error": [kind, words]}`; of a job, then `{"event": ...}` for each |
| command | of a job, `{"cancel": true}`; when it closes the connection, its job is cancelled too |
"""

from __future__ import annotations

import asyncio
import contextlib
import struct
from pathlib import Path
from typing import Any, Final

import cbor2

from formation_p2p import __version__
from formation_p2p.core import cbor
from formation_p2p.core import errors as tree
from formation_p2p.core.errors import FormationError, InvalidInput, LocalError
from formation_p2p.core.units import KIB, MIB

# Both sides have the same types: the package's version, and one of what this file says.
VERSION: Final = f"{__version__}/1"

SOCKET: Final = "control.sock"
LOCK: Final = "control.lock"

# A greeting; and a plan with the files that travel in it, or the result of a task (work.py).
MAX_GREETING_BYTES: Final = KIB
MAX_FRAME_BYTES: Final = 32 * MIB
# Questions up to here are held without waiting for a turn.
SMALL_BYTES: Final = 64 * KIB
# A decision has workers with a capability with GPUs with their models, and policies with terms.
MAX_DEPTH: Final = 16
# For a greeting and for a question to arrive, and for an answer that is no event to be taken.
EXCHANGE_S: Final = 10.0

_LENGTH: Final = struct.Struct(">I")
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


def encoded(message: dict[str, Any]) -> bytes:
    """A frame. Raises InvalidInput for more than fits in one."""
    body = cbor2.dumps(message)
    if len(body) > MAX_FRAME_BYTES:
        raise InvalidInput("message", f"{len(body)} bytes are more than the socket takes at once")
    return _LENGTH.pack(len(body)) + body


async def receive(
    reader: asyncio.StreamReader, max_bytes: int, large: asyncio.Semaphore | None = None
) -> dict[str, Any]:
    """The next message; `large` ones wait for their turn to be read. Raises EOFError where the
    other side has left, InvalidInput for what is no message."""
    try:
        (length,) = _LENGTH.unpack(await reader.readexactly(_LENGTH.size))
        if length > max_bytes:
            raise InvalidInput("message", f"{length} bytes are more than {max_bytes}")
        turn = contextlib.nullcontext() if large is None or length <= SMALL_BYTES else large
        async with turn:
            message = cbor.decode(await reader.readexactly(length), MAX_DEPTH)
    except (asyncio.IncompleteReadError, ConnectionError) as error:
        raise EOFError from error
    except InvalidInput:
        raise
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


def socket_of(home: Path) -> Path:
    return home / SOCKET

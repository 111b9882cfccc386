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
from typing import Any, Final

from formation_p2p.command.local.wire import LENGTH, MAX_DEPTH
from formation_p2p.core import cbor
from formation_p2p.core import errors as tree
from formation_p2p.core.errors import FormationError, InvalidInput, LocalError
from formation_p2p.core.units import KIB

LOCK: Final = "control.lock"

# Questions up to here are held without waiting for a turn.
SMALL_BYTES: Final = 64 * KIB
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


async def receive(
    reader: asyncio.StreamReader, max_bytes: int, large: asyncio.Semaphore | None = None
) -> dict[str, Any]:
    """The next message; `large` ones wait for their turn to be read. Raises EOFError where the
    other side has left, InvalidInput for other bytes."""
    try:
        (length,) = LENGTH.unpack(await reader.readexactly(LENGTH.size))
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

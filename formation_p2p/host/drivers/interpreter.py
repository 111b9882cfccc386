"""A warm interpreter: runs the calls of one lease, one after the other, and is their process.

Run as a file, `python -I -u interpreter.py <calls fd> <max result bytes> <path>…`, under
`supervisor.py`. It imports little, and nothing of this package. `python.py` is its other end.
The paths are added to where modules are looked for.

Once it is ready it writes READY. Then, for each call, it reads a header of CALL and the three
parts that it gives the lengths of (the folder to run in, the function's pickle, the arguments'
pickle), and writes a header of REPLY and its two parts (a message for people, a pickle).
"""

from __future__ import annotations

import os
import pickle
import struct
import sys
import traceback
from collections import OrderedDict
from contextlib import suppress

import cloudpickle

TYPE_CHECKING = False  # as in supervisor.py
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

READY = b"+"
CALL = struct.Struct("!III")
REPLY = struct.Struct("!cII")
RETURNED, RAISED, OUT_OF_MEMORY, TOO_LARGE = b"R", b"E", b"M", b"L"

# A job has a few functions and many items. Kept by their pickles, of at most 8 MiB each.
MAX_FUNCTIONS = 16
# The end of a traceback, where it says what went wrong.
MAX_MESSAGE_BYTES = 4096


def main() -> None:
    calls, max_result_bytes = int(sys.argv[1]), int(sys.argv[2])
    sys.path += [path for path in sys.argv[3:] if path not in sys.path]
    sys.argv[1:] = []
    # The calls are not for what the task starts, nor for what it forks.
    os.set_inheritable(calls, False)
    os.register_at_fork(after_in_child=lambda: forget(calls))
    functions: OrderedDict[bytes, Callable[..., Any]] = OrderedDict()
    write(calls, READY)
    while header := read(calls, CALL.size):
        folder, function, arguments = (read(calls, size) for size in CALL.unpack(header))
        os.chdir(bytes(folder))
        kind, message, value = answer(functions, bytes(function), arguments, max_result_bytes)
        write(calls, REPLY.pack(kind, len(message), len(value)) + message + value)


def answer(
    functions: OrderedDict[bytes, Callable[..., Any]],
    function: bytes,
    arguments: bytearray,
    max_result_bytes: int,
) -> tuple[bytes, bytes, bytes]:
    """What to reply to one call: its kind, a message for people, and a pickle."""
    try:
        if function not in functions:
            functions[function] = pickle.loads(function)
        functions.move_to_end(function)
        call = functions[function]
        if len(functions) > MAX_FUNCTIONS:
            functions.popitem(last=False)
        args, kwargs = pickle.loads(arguments)
        value = cloudpickle.dumps(call(*args, **kwargs), protocol=5)
    except MemoryError as error:
        return OUT_OF_MEMORY, explained(error), b""
    except BaseException as error:  # noqa: BLE001 - whatever the task raises is its outcome
        return RAISED, explained(error), pickled(error, max_result_bytes)
    if len(value) > max_result_bytes:
        problem = f"the result's pickle has {len(value)} bytes, of at most {max_result_bytes}"
        return TOO_LARGE, problem.encode(), b""
    return RETURNED, b"", value


def explained(error: BaseException) -> bytes:
    # The first frame is the one above, which is no part of the task.
    below = error.__traceback__ and error.__traceback__.tb_next
    text = "".join(traceback.format_exception(type(error), error, below))
    return text.encode(errors="replace")[-MAX_MESSAGE_BYTES:]


def pickled(error: BaseException, max_bytes: int) -> bytes:
    try:
        value = cloudpickle.dumps(error, protocol=5)
    except BaseException:  # noqa: BLE001 - anything can hide in it; its traceback is told anyway
        return b""
    return value if len(value) <= max_bytes else b""


def forget(calls: int) -> None:
    with suppress(OSError):  # a fork of a fork
        os.close(calls)


def read(fd: int, size: int) -> bytearray:
    """`size` bytes. Empty at the end of the socket: the node is gone, or wants no more."""
    data = bytearray(size)
    view = memoryview(data)
    while view:
        got = os.readv(fd, [view])
        if not got:
            return bytearray()
        view = view[got:]
    return data


def write(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


if __name__ == "__main__":
    main()

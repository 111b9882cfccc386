"""What members say went wrong, without running it: exceptions and warnings.

Dask pickles both. Exceptions of the language come as themselves, with plain arguments; all others
as RemoteError, which says what they were called.
"""

from __future__ import annotations

import builtins
import pickle
from typing import Any, Final

from formation_p2p.core.errors import NotPlain, RemoteError
from formation_p2p.core.units import KIB
from formation_p2p.results.load import load_result
from formation_p2p.results.opcodes import check_opcodes_of_objects, in_one_frame

# Dask shortens an exception to a tenth of it.
MAX_ERROR_BYTES: Final = 128 * KIB
# Of a tuple or list among an exception's arguments: lists that hold each other many times would be
# printed for ever.
_MAX_ITEMS: Final = 64


def error_of(exception: object, text: object) -> BaseException | None:
    """`text` is what Dask says of it."""
    if exception is None:
        return None
    if isinstance(exception, BaseException):
        return exception
    try:
        found = _loaded(exception)
        if not isinstance(found, Exception):
            raise NotPlain("it is none")
        kind, args = type(found), type(found).__reduce__(found)[1]
        if getattr(builtins, kind.__name__, None) is kind and all(map(_is_short, args)):
            again: Exception = kind(*args)
            return again
        shown = ", ".join(str(each) if _is_short(each) else "…" for each in args)
        problem = f"{kind.__name__}: {shown}"
    except Exception as error:  # noqa: BLE001 - what a peer sends fails as it likes
        problem = f"a task failed; its error cannot be read: {error}"
    return RemoteError(str(text or problem)[:MAX_ERROR_BYTES])


def answer_of(data: bytes | bytearray) -> bytes | memoryview:
    """Bytes in a message. Dask's client unpickles those that it finds in the place of a worker's
    answer: an error comes in a pickle of this side's own, all else as what it does not unpickle."""
    if data[:1] != pickle.PROTO:
        return memoryview(data)
    try:
        found = _loaded(data)
    except Exception:  # noqa: BLE001 - as above
        return memoryview(data)
    # Dask's own, such as CommClosedError, or the language's; others do not come here.
    is_error = type(found).__module__.partition(".")[0] in ("builtins", "distributed")
    if is_error and isinstance(found, Exception):
        return pickle.dumps(error_of(data, None))
    return memoryview(data)


def warning_of(event: Any) -> tuple[Any, dict[str, bytes]]:
    """An event of `distributed.worker.warn`, with pickles of this side's own."""
    stamp, said = event
    category = _loaded(said["category"]) if "category" in said else UserWarning
    if not (isinstance(category, type) and issubclass(category, Warning)):
        category = UserWarning
    text = str(load_result(bytes(said["message"])))[:MAX_ERROR_BYTES]
    return stamp, {"message": pickle.dumps(text), "category": pickle.dumps(category)}


def _is_short(value: object) -> bool:
    if isinstance(value, tuple | list):
        return len(value) <= _MAX_ITEMS and all(isinstance(each, _SHORT) for each in value)
    return isinstance(value, _SHORT)


_SHORT: Final = str | bytes | int | float | None


def _loaded(pickled: Any) -> Any:
    data = bytes(pickled)
    if len(data) > MAX_ERROR_BYTES:
        raise NotPlain(f"it has more than {MAX_ERROR_BYTES} bytes")
    check_opcodes_of_objects(data)
    return _Errors(in_one_frame(data)).load()


class _Errors(pickle.Unpickler):
    """Finds the language's own exceptions, and stand-ins for all else. Those are made for each
    pickle, since a pickle may give what it finds another state."""

    def find_class(self, module: str, name: str) -> Any:
        kind = getattr(builtins, name, None) if module == "builtins" else None
        if isinstance(kind, type) and issubclass(kind, Exception):
            return kind
        if module == "tblib.pickling_support" and name.startswith("unpickle_exception"):
            return lambda kind, has, *more: _made(kind, has, more)
        # An exception of another module, or a part of a traceback.
        return type(name, (Exception,), {"__module__": module, "__setstate__": _stateless})


def _made(kind: Any, has: Any, more: tuple[Any, ...]) -> Any:
    """As tblib has it: from its arguments, or from a dict of all that it has, where the arguments
    come last."""
    if isinstance(has, dict):
        args = has.get("args") or (more[5] if len(more) > 5 else ())
        has = args if has.get("filename") is None else (*args, has["filename"])
    return kind(*has)


def _stateless(self: Exception, state: object) -> None:
    """What it has besides its arguments is not told."""

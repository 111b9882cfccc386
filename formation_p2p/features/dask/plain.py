"""Reading what a cluster's members send, without running what it says.

Dask pickles: a client of Dask's own runs what a worker's pickle says. The owner of a cluster that
does not trust results reads them here instead: Dask's envelope with msgpack alone, and pickles as
those of any result (results/load.py), which the owner's requests ask members for. What is more
than that is `NotPlain`, and raised where it is asked for.

Dask's client unpickles some fields of messages by itself, and bytes where it expects a dict
(distributed/client.py, `clean_exception` in distributed/core.py). So a message has nothing that was
pickled but where values belong, and no `bytes` that are not a value or an error pickled here.
"""

from __future__ import annotations

import builtins
import pickle
from typing import Any, Final

import dask
import msgpack
from distributed.protocol.compression import decompress
from distributed.protocol.serialize import Pickled, Serialized
from distributed.protocol.utils import merge_memoryviews, msgpack_opts

from formation_p2p.core.errors import NotPlain, RemoteError
from formation_p2p.core.units import KIB
from formation_p2p.features.dask import comm
from formation_p2p.results.load import load_result
from formation_p2p.results.opcodes import check_opcodes_of_objects, in_one_frame

# What members say went wrong, without running it: exceptions and warnings.
#
# Dask pickles both. Exceptions of the language come as themselves, with plain arguments; all others
# as RemoteError, which says what they were called.

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


# The fields of Dask's answers that a client hands on as they are, and does not look into. `data`
# may have values by their keys.
_VALUES: Final = ("data", "result")
# Where it expects a pickle.
_ERRORS: Final = ("exception", "traceback")


class _Made:
    """What a serialized part of a message has become, up to where it is seen what it is for."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value


def loads(frames: list[Any], deserialize: bool = True) -> Any:
    """As Dask's own; without `deserialize`, what is serialized or pickled stays as it came. Raises
    NotPlain where it cannot be read, and for results that are more than data."""

    def decoded(value: dict[Any, Any]) -> Any:
        if offset := value.get("__Serialized__", 0):
            header, data = _part(frames, offset)
            return _Made(_value(header, data)) if deserialize else Serialized(header, data)
        if offset := value.get("__Pickled__", 0):
            header, data = _part(frames, offset)
            return _Made(_pickled(header, data)) if deserialize else Pickled(header, data)
        if "__Set__" in value:
            return set(value["as-list"])
        if "__Enum__" in value:
            return value["name"]
        return value

    try:
        message = msgpack.loads(frames[0], object_hook=decoded, use_list=False, **msgpack_opts)
        return _harmless(message, "") if deserialize else message
    except NotPlain:
        raise
    except Exception as error:
        # What a peer sends fails as it likes.
        problem = f"a member's message cannot be read: {type(error).__name__}: {error}"
        raise NotPlain(problem) from error


def _part(frames: list[Any], offset: int) -> tuple[dict[str, Any], list[Any]]:
    header = msgpack.loads(frames[offset], use_list=False, **msgpack_opts)
    return header, frames[offset + 1 : offset + 1 + header["num-sub-frames"]]


# What a message says, from the outside in.


def _harmless(part: Any, field: Any) -> Any:
    """With nothing that Dask's client would unpickle. `field` is where it stands."""
    match part:
        case dict():
            return _fields(part, field)
        case tuple() | list():
            return type(part)(_harmless(each, "") for each in part)
        case _Made():
            return _placed(part.value, field)
        case bytes() | bytearray():
            return part if field in _ERRORS else answer_of(part)
        case _:
            return part


def _fields(message: dict[Any, Any], field: Any) -> dict[Any, Any]:
    """Raises NotPlain for results that are asked for, one of which is more than data."""
    values = field in _VALUES
    said = {
        name: _placed(each.value, "result")
        if values and isinstance(each, _Made)
        else _harmless(each, name)
        for name, each in message.items()
    }
    if isinstance(said.get("type"), bytes | memoryview):
        said["type"] = None
    if "traceback" in said:
        said["traceback"] = None
    if "exception" in said:
        said["exception"] = error_of(said["exception"], said.get("exception_text"))
    if said.get("op") == "event" and said.get("topic") == "warn":
        said["event"] = warning_of(said.get("event"))
    return said


def _placed(value: Any, field: Any) -> Any:
    """A value, where one belongs. Elsewhere Dask would take a dict for a message."""
    if field in _VALUES:
        if isinstance(value, NotPlain):
            raise value
        return value
    if field in _ERRORS or isinstance(value, str | int | float | None):
        return value
    raise NotPlain(f"a member's message has a {type(value).__name__} that is not a result")


# Values.


def _value(header: dict[str, Any], frames: list[Any]) -> Any:
    """Or NotPlain, which is not raised: the rest of the message is read all the same."""
    try:
        if "compression" in header:
            frames = _decompressed(header, frames)
        if "split-num-sub-frames" in header:
            cuts = zip(header["split-num-sub-frames"], header["split-offsets"], strict=True)
            frames = [_merged(frames[start : start + count]) for count, start in cuts]
        return _read(header, frames)
    except NotPlain as refusal:
        return refusal
    except Exception as error:  # noqa: BLE001 - what a peer sends fails as it likes
        return NotPlain(f"a result could not be read: {type(error).__name__}: {error}")


def _pickled(header: dict[str, Any], frames: list[Any]) -> Any:
    """As `_value`."""
    try:
        if "compression" in header:
            frames = _decompressed(header, frames)
        return load_result(bytes(header["pickled-obj"]), buffers=frames)
    except NotPlain as refusal:
        return refusal


def _decompressed(header: dict[str, Any], frames: list[Any]) -> list[Any]:
    """What is compressed may become a thousand times as large; members do that where this side's
    configuration says so, too."""
    if any(header["compression"]) and not dask.config.get("distributed.comm.compression"):
        raise NotPlain("a result is compressed, which this side has not agreed to")
    return list(decompress(header, frames))


def _merged(frames: list[Any]) -> Any:
    try:
        return merge_memoryviews(frames)
    except (ValueError, TypeError):
        return bytearray().join(frames)


def _read(header: dict[str, Any], frames: list[Any]) -> Any:
    if "is-collection" in header:
        return _collection(header, frames)
    match header["serializer"]:
        case "pickle" | comm.MARKED:
            return load_result(bytes(frames[0]), buffers=frames[1:])
        case "dask" if header["type"] in ("builtins.bytes", "bytes", "builtins.bytearray"):
            return b"".join(frames)
        case "error":
            raise NotPlain(b": ".join(map(bytes, frames)).decode(errors="replace"))
        case other:
            raise NotPlain(f"a result of {header.get('type', other)} is more than data; {_TRUST}")


_TRUST: Final = "return plain values and arrays, or make the cluster with trust_results=True"


def _collection(header: dict[str, Any], frames: list[Any]) -> Any:
    kind = {"tuple": tuple, "list": list, "set": set, "dict": dict}[header["type-serialized"]]
    values, keys, start = [], [], 0
    for each, length in zip(header["sub-headers"], header["frame-lengths"], strict=True):
        values.append(_read(each, frames[start : start + length]))
        keys.append(each.get("key"))
        start += length
    return dict(zip(keys, values, strict=True)) if kind is dict else kind(values)

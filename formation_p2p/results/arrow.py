"""Arrow's tables and arrays, from their buffers.

Not by Arrow's IPC format: that may be compressed, and may name extension types, which are code of
this program. What is made is validated in full, as Arrow asks for data that is not trusted.
"""

from __future__ import annotations

from typing import Any, Final

from formation_p2p.core.errors import NotPlain
from formation_p2p.results.values import ZONE, Reading, library, text_of

_ARRAY_BYTES: Final = 2048
_MAX_DEPTH: Final = 16
_SIMPLE: Final = frozenset(
    {
        *("null", "bool_", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32"),
        *("uint64", "float16", "float32", "float64", "string", "large_string", "binary"),
        *("large_binary", "date32", "date64"),
    }
)
_WITH_NUMBERS: Final = frozenset({"binary", "decimal32", "decimal64", "decimal128", "decimal256"})
_WITH_UNIT: Final = frozenset({"time32", "time64", "duration"})


def table(
    reading: Reading,
    names: tuple[str, ...],
    nullable: tuple[bool, ...],
    columns: list[Any],
    metadata: dict[bytes, bytes],
    is_batch: bool,
) -> Any:
    """A table or a record batch. What extension types say of a field is left out."""
    pa = library("pyarrow")
    made = [chunked(reading, *each) for each in columns]
    fields = [
        pa.field(name, each.type, nullable=bool(may_be_null))
        for name, each, may_be_null in zip(names, made, nullable, strict=True)
    ]
    whole = pa.table(made, schema=pa.schema(fields, metadata or None))
    whole.validate(full=True)
    if not is_batch:
        return whole
    arrays = [each.combine_chunks() for each in made]
    if any(each.num_chunks != 1 for each in made):
        raise _unfit()
    return pa.RecordBatch.from_arrays(arrays, schema=whole.schema)


def chunked(reading: Reading, kind: Any, chunks: list[Any]) -> Any:
    pa = library("pyarrow")
    dtype = _type(kind, 0)
    return pa.chunked_array([_array(reading, kind, dtype, each) for each in chunks], type=dtype)


def array(reading: Reading, kind: Any, chunks: list[Any]) -> Any:
    (chunk,) = chunks
    return _array(reading, kind, _type(kind, 0), chunk)


def _array(reading: Reading, kind: Any, dtype: Any, parts: Any) -> Any:
    made = _made(reading, kind, dtype, parts)
    made.validate(full=True)
    return made


def _made(reading: Reading, kind: Any, dtype: Any, parts: Any) -> Any:
    pa = library("pyarrow")
    length, buffers, children = parts
    if type(length) is not int or length < 0:
        raise _unfit()
    reading.budget.spend(_ARRAY_BYTES)
    if kind[0] == "dictionary":
        indices, values = children
        return pa.DictionaryArray.from_arrays(
            _array(reading, kind[1], dtype.index_type, indices),
            _array(reading, kind[2], dtype.value_type, values),
            ordered=dtype.ordered,
            safe=True,
        )
    kinds = [field[1] for field in kind[1:] if type(field) is tuple]
    if len(kinds) != len(children) or len(buffers) != dtype.num_buffers:
        raise _unfit()
    if not any(each is not None and len(each) for each in buffers):
        reading.budget.spend(length)  # which nothing else bounds
    made = [
        _made(reading, each, dtype.field(at).type, child)
        for at, (each, child) in enumerate(zip(kinds, children, strict=True))
    ]
    if kind[0] == "struct" and any(len(each) != length for each in made):
        raise _unfit()
    if kind[0] == "fixed_size_list" and len(made[0]) != length * kind[2]:
        raise _unfit()
    held = [None if each is None else pa.py_buffer(each) for each in buffers]
    return pa.Array.from_buffers(dtype, length, held, children=made or None)


def _type(kind: Any, depth: int) -> Any:
    pa = library("pyarrow")
    if type(kind) is not tuple or not kind or depth > _MAX_DEPTH:
        raise _unfit()
    name, *parts = kind
    text_of(name)
    if name in _SIMPLE and not parts:
        return getattr(pa, name)()
    if name in _WITH_NUMBERS and all(type(each) is int and each >= 0 for each in parts):
        return getattr(pa, name)(*parts)
    if name in _WITH_UNIT:
        return getattr(pa, name)(*parts)
    if name == "timestamp":
        unit, zone = parts
        if zone is not None and not ZONE.fullmatch(zone):
            raise _unfit()
        return pa.timestamp(unit, zone)
    if name == "dictionary":
        index, value, ordered = parts
        return pa.dictionary(_type(index, depth + 1), _type(value, depth + 1), bool(ordered))
    if name == "struct":
        return pa.struct([_field(each, depth) for each in parts])
    if name in ("list", "large_list"):
        (inner,) = parts
        return getattr(pa, f"{name}_" if name == "list" else name)(_field(inner, depth))
    if name == "fixed_size_list":
        inner, size = parts
        if type(size) is not int or size < 0:
            raise _unfit()
        return pa.list_(_field(inner, depth), size)
    raise _unfit()


def _field(described: Any, depth: int) -> Any:
    name, kind, nullable = described
    return library("pyarrow").field(name, _type(kind, depth + 1), nullable=bool(nullable))


def _unfit() -> NotPlain:
    return NotPlain("a result holds an Arrow array whose parts do not fit; do not trust its worker")

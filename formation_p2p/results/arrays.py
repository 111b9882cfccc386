"""numpy's arrays, scalars and dtypes, from their bytes."""

from __future__ import annotations

import math
import re
import sys
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

from formation_p2p.core.errors import NotPlain
from formation_p2p.results.budget import OBJECT_BYTES
from formation_p2p.results.values import Reading, library, text_of

if TYPE_CHECKING:
    import numpy as np

Bytes = bytes | bytearray | memoryview
# A dtype, as result_pickler.py describes it: a name; a base and a shape; or the names, dtypes,
# offsets and titles of fields, the size of all, and "record" where the scalars are numpy's records.
Spec = str | tuple[Any, ...]

_LEAF: Final = re.compile(
    r"[<>|](?:b1|[iu][1248]|f(?:2|4|8|12|16)|c(?:8|16|24|32)|[SUV][0-9]{1,9}"
    r"|[mM]8(?:\[[0-9]{0,9}(?:[YMWDhms]|[munpfa]s|generic)\])?)"
)
# No program of a person nests deeper, or has more fields.
_MAX_DEPTH: Final = 8
_MAX_FIELDS: Final = 4096
_FIELD_BYTES: Final = 512
_ARRAY_BYTES: Final = 176
_DIMENSION_BYTES: Final = 16
# Of one among texts of any length, and of each letter: as UTF-8, with room to grow.
_TEXT_BYTES: Final = 64
_LETTER_BYTES: Final = 6


def dtype(reading: Reading, spec: Spec) -> np.dtype[Any]:
    """Itself, which may be that of objects."""
    if type(spec) is str and spec == "|O":
        return library("numpy").dtype(object)  # type: ignore[no-any-return]  # it tells no types
    return _dtype(reading, spec, 0)


def scalar_type(_: Reading, name: str) -> type:
    """The class of a numpy scalar, itself."""
    np = library("numpy")
    found = vars(np).get(text_of(name))
    if not isinstance(found, type) or not issubclass(found, np.generic):
        raise NotPlain(
            f"a result holds a type {name[:100]!r} of numpy, which is not one of scalars"
        )
    return found


def scalar(reading: Reading, spec: Spec, data: bytes) -> Any:
    kind = _leaf(spec) if type(spec) is str else _dtype(reading, spec, 0)
    if type(data) is not bytes:
        raise NotPlain("a result holds a scalar without bytes")
    if len(data) != kind.itemsize:
        raise _wrong_size(kind, (), data)
    reading.budget.spend(128 + 2 * len(data))
    array = library("numpy").ndarray((), kind, data)
    if kind.kind in "bUV":
        _check_values(array)
    value = array[()]
    return value.copy() if kind.kind == "V" else value


def ndarray(
    reading: Reading, data: Bytes, spec: Spec, shape: tuple[int, ...], fortran: bool
) -> np.ndarray[Any, Any]:
    """A view of `data`: nothing is copied."""
    np = library("numpy")
    kind = _dtype(reading, spec, 0)
    view = _flat(data)
    count = _count(shape)
    if count * kind.itemsize != view.nbytes:
        raise _wrong_size(kind, shape, view)
    reading.budget.spend(_ARRAY_BYTES + _DIMENSION_BYTES * len(shape))
    order = "F" if fortran else "C"
    if view.nbytes:
        array = np.ndarray(shape, kind, data, order=order)
        _check_values(array)
        return array  # type: ignore[no-any-return]  # `library` tells no types
    # Nothing but the budget bounds what has no bytes.
    reading.budget.spend(math.prod(n for n in shape if n))
    return np.empty(shape, kind, order=order)  # type: ignore[no-any-return]


def objects(reading: Reading, values: list[Any]) -> np.ndarray[Any, Any]:
    """One after the other: numpy looks into none of them."""
    if type(values) is not list:
        raise NotPlain("a result holds an array of objects without them")
    reading.budget.spend(OBJECT_BYTES + 8 * len(values))
    of_them = library("numpy").fromiter
    return of_them(values, object, len(values))  # type: ignore[no-any-return]  # as above


def shaped_objects(
    reading: Reading, values: list[Any], shape: tuple[int, ...]
) -> np.ndarray[Any, Any]:
    flat = objects(reading, values)
    if _count(shape) != len(flat):
        raise NotPlain("a result holds an array of objects that are not as many as its shape has")
    return flat.reshape(shape)


def records(reading: Reading, *described: Any) -> np.recarray[Any, Any]:
    array = ndarray(reading, *described)
    return array.view(library("numpy").recarray)  # type: ignore[no-any-return]  # as above


def masked(
    reading: Reading, data: Any, mask: Any, filling: Any, hard: bool
) -> np.ma.MaskedArray[Any, Any]:
    """Views of both. Not of a structure: its mask has as many fields."""
    np = library("numpy")
    arrays = [each for each in (data, mask, filling) if each is not None]
    fits = all(type(each) is np.ndarray for each in arrays) and (
        data.dtype.names is None
        and data.dtype.kind != "T"
        and (mask is None or (mask.dtype.str, mask.shape) == ("|b1", data.shape))
        and (filling.dtype, filling.shape) == (data.dtype, ())
    )
    if not fits:
        raise NotPlain("a result holds a masked array whose parts do not fit")
    reading.budget.spend(2 * OBJECT_BYTES + 2 * filling.nbytes)
    options = {"fill_value": filling, "hard_mask": hard is True}
    if mask is not None:
        options["mask"] = mask
    return np.ma.MaskedArray(data, **options)  # type: ignore[no-any-return]  # as above


def texts(
    reading: Reading, values: list[Any], shape: tuple[int, ...], missing: str, coerce: bool
) -> np.ndarray[Any, Any]:
    """Of any length. `missing` is what stands for those that are None: "None", "nan", or nothing,
    where there are none."""
    absent = {"": None, "None": None, "nan": math.nan}[text_of(missing)]
    kinds = {str, type(None)} if missing else {str}
    if type(values) is not list or not kinds.issuperset(map(type, values)):
        raise NotPlain("a result holds an array of texts that are none")
    if _count(shape) != len(values):
        raise NotPlain("a result holds an array of texts that are not as many as its shape has")
    letters = sum(len(each) for each in values if each is not None)
    reading.budget.spend(OBJECT_BYTES + _TEXT_BYTES * len(values) + _LETTER_BYTES * letters)
    np = library("numpy")
    options = {"na_object": absent} if missing else {}
    kind = np.dtypes.StringDType(coerce=coerce is True, **options)
    found = [absent if each is None else each for each in values]
    return np.array(found, kind).reshape(shape)  # type: ignore[no-any-return]  # as above


def _count(shape: tuple[int, ...]) -> int:
    """How many values an array of this shape has. Raises NotPlain."""
    if type(shape) is not tuple or not all(type(n) is int and n >= 0 for n in shape):
        raise NotPlain("a result holds an array whose shape is none")
    return math.prod(shape)


def _dtype(reading: Reading, spec: Spec, depth: int) -> np.dtype[Any]:
    if type(spec) is str:
        return _leaf(spec)
    np = library("numpy")
    if depth > _MAX_DEPTH or type(spec) is not tuple:
        raise _no_dtype(spec)
    if len(spec) == 2:
        base, shape = spec
        if type(shape) is not tuple or not all(type(n) is int and n >= 0 for n in shape):
            raise _no_dtype(spec)
        return np.dtype((_dtype(reading, base, depth + 1), shape))  # type: ignore[no-any-return]
    names, formats, offsets, titles, itemsize, *record = spec
    if any(text_of(each) != "record" for each in record):
        raise _no_dtype(spec)
    if len(names) > _MAX_FIELDS or len({len(names), len(formats), len(offsets), len(titles)}) > 1:
        raise _no_dtype(spec)
    if not all(type(n) is int and n >= 0 for n in (*offsets, itemsize)):
        raise _no_dtype(spec)
    if not all(type(name) is str for name in names):
        raise _no_dtype(spec)
    if not all(title is None or type(title) is str for title in titles):
        raise _no_dtype(spec)
    reading.budget.spend(OBJECT_BYTES + _FIELD_BYTES * len(names))
    kinds = [_dtype(reading, each, depth + 1) for each in formats]
    fields = {"names": list(names), "formats": kinds, "offsets": list(offsets)}
    if any(title is not None for title in titles):
        fields["titles"] = list(titles)
    made = np.dtype({**fields, "itemsize": itemsize})
    return np.dtype((np.record, made)) if record else made  # type: ignore[no-any-return]


@lru_cache(maxsize=256)
def _leaf(spec: str) -> np.dtype[Any]:
    if not _LEAF.fullmatch(spec):
        raise _no_dtype(spec)
    found: np.dtype[Any] = library("numpy").dtype(spec)
    return found


def _flat(data: object) -> memoryview:
    if type(data) not in (bytes, bytearray, memoryview):
        raise NotPlain("a result holds an array without bytes")
    view = memoryview(data)  # type: ignore[arg-type]  # it is one of these
    if not view.contiguous or view.format != "B":
        raise NotPlain("a result holds an array whose bytes do not lie one after the other")
    return view


def _check_values(array: np.ndarray[Any, Any]) -> None:
    """numpy counts on it that a boolean is 0 or 1, and Python that a letter is one."""
    kind = array.dtype
    if kind.kind == "b" and array.view("u1").max(initial=0) > 1:
        raise NotPlain("a result holds an array of booleans that are neither true nor false")
    if kind.kind == "U" and kind.itemsize:
        np = library("numpy")
        letters = np.ascontiguousarray(array).view(np.dtype("u4").newbyteorder(kind.byteorder))
        if letters.max(initial=0) > sys.maxunicode:
            raise NotPlain("a result holds an array of texts with letters that are none")
    for name in kind.names or ():
        _check_values(array[name])


def _wrong_size(kind: np.dtype[Any], shape: tuple[int, ...], data: Any) -> NotPlain:
    return NotPlain(
        f"a result holds an array of {kind.str} and shape {shape} in {len(data)} bytes, which is"
        " not their size; do not trust its worker"
    )


def _no_dtype(spec: object) -> NotPlain:
    what = f" {spec[:100]}" if type(spec) is str else ""  # the text of others may be their code
    return NotPlain(f"a result holds an array of the dtype{what}, which is none")

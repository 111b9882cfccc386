"""Pickles what a call returned or raised, so that its caller can read it as data.

`python_child.py` loads this file in the interpreter that runs the calls; it imports cloudpickle,
nothing of this package, and no library that the task has not imported. What the pickle of a value
would have its reader run becomes the call of a *marker* instead: a name in a module that does not
exist, with plain arguments. `results/` is the other end and makes the value from them.

What has no such description is pickled as ever; only a caller that trusts its workers reads that.
"""

from __future__ import annotations

import builtins
import collections
import copyreg
import dataclasses
import enum
import importlib.util
import io
import sys
import threading
import types
import uuid
import weakref
from pathlib import Path
from pickle import PickleBuffer, PicklingError

import cloudpickle
from cloudpickle import cloudpickle as by_value

TYPE_CHECKING = False  # as in supervisor.py
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    Reduced = tuple[Any, ...] | None
    Reducer = Callable[[Any], Reduced]

MARKERS = "formation_p2p_result"
# Classes and dtypes whose description is remembered. A task may make new ones without end.
MAX_KNOWN = 1024
# Classes that C code defines are not made on the heap (CPython's Py_TPFLAGS_HEAPTYPE).
HEAP = 1 << 9
CURES = {
    types.CoroutineType: "have the function await it, as by asyncio.run",
    types.GeneratorType: "return a list of what it yields",
}
# Whose instances pickle as calls with plain arguments (results/load.py).
PLAIN_MODULES = frozenset(
    {"collections", "datetime", "decimal", "fractions", "pathlib", "pathlib._local"}
)
PLAIN = frozenset({complex, range, slice})
LEAVES = frozenset({bool, bytes, float, int, str, type(None)})
# Built-in functions and classes that a result may hold themselves. None of them runs what its
# arguments say, or reads or writes anything; and no pickle is a call of one.
BUILTINS = {
    **{
        getattr(builtins, name): name
        for name in (
            *("abs", "all", "any", "ascii", "bin", "bool", "bytearray", "bytes", "chr", "complex"),
            *(
                "dict",
                "divmod",
                "float",
                "format",
                "frozenset",
                "hash",
                "hex",
                "int",
                "len",
                "list",
            ),
            *("max", "memoryview", "min", "oct", "ord", "pow", "range", "repr", "round", "set"),
            *("slice", "sorted", "str", "sum", "tuple"),
        )
    },
    **{
        kind: name
        for name, kind in vars(builtins).items()
        if isinstance(kind, type) and issubclass(kind, Exception) and kind.__name__ == name
    },
    type(None): "NoneType",
    Ellipsis: "Ellipsis",
    NotImplemented: "NotImplemented",
}
# Tuples of the standard library whose parts have names, by their own.
STRUCTURES = frozenset(
    {
        *("time.struct_time", "os.stat_result", "os.statvfs_result", "os.terminal_size"),
        *("posix.times_result", "posix.uname_result", "resource.struct_rusage"),
    }
)
# Ordinary classes of the standard library that have data alone.
STANDARD = frozenset({"argparse.Namespace", "subprocess.CompletedProcess"})
FACTORIES = frozenset({bool, bytes, dict, float, int, list, set, str, tuple})


def dumps(value: object, buffer_callback: Callable[[PickleBuffer], Any] | None = None) -> bytes:
    """Raises whatever a value that cannot be pickled raises: where Python itself refuses, with what
    to do."""
    file = io.BytesIO()
    try:
        ResultPickler(file, 5, buffer_callback).dump(value)
    except (TypeError, PicklingError) as error:
        cure = CURES.get(type(value), "return plain data")
        problem = f"the call returned a {type(value).__qualname__}, which cannot be sent: {error}"
        kind = TypeError if isinstance(error, TypeError) else PicklingError
        raise kind(f"{problem}; {cure}") from error
    return file.getvalue()


class ResultPickler(cloudpickle.Pickler):  # type: ignore[misc]  # it is not typed
    def reducer_override(self, value: Any) -> Any:
        kind = type(value)
        known = kind in REDUCERS
        reduce = REDUCERS[kind] if known else remember(REDUCERS, kind, reducer_of(kind))
        reduced = None if reduce is None else reduce(value)
        return super().reducer_override(value) if reduced is None else reduced


class Marked(types.ModuleType):
    """The module that does not exist, as the pickler needs it to write a name."""

    def __getattr__(self, name: str) -> Callable[..., None]:
        if name.startswith("_"):
            raise AttributeError(name)

        def marker(*_: object) -> None:
            raise TypeError("this is the pickle of a result; formation_p2p.value_of reads it")

        marker.__module__, marker.__name__, marker.__qualname__ = MARKERS, name, name
        setattr(self, name, marker)
        return marker


# The one that there is, where a call has imported this file by another name.
MARKED: Any = sys.modules.setdefault(MARKERS, Marked(MARKERS))
REDUCERS: dict[type, Reducer | None] = {}
# The same objects again and again, which a pickle then names by their number.
NAMES: dict[type, tuple[str, str, str]] = {}
FIELDS: dict[tuple[str, ...], tuple[str, ...]] = {}
SPECS: dict[Any, Any] = {}
# Classes that this process has made, not its caller. cloudpickle does not tell them apart.
MADE_HERE: weakref.WeakSet[type] = weakref.WeakSet()


def remember(known: dict[Any, Any], key: object, value: Any) -> Any:
    if len(known) >= MAX_KNOWN:
        known.clear()
    known[key] = value
    return value


def reducer_of(kind: type) -> Reducer | None:
    """What describes instances of this class, None where nothing does."""
    library = LIBRARIES.get(kind.__module__.partition(".")[0])
    described = library(kind) if library is not None else None
    if described is not None:
        return described
    if kind in VALUES:
        return VALUES[kind]
    if f"{kind.__module__}.{kind.__qualname__}" in STRUCTURES:
        return reduce_structure
    if issubclass(kind, BaseException):
        return exception_reducer(kind)
    if issubclass(kind, enum.Enum):
        return reduce_member
    if issubclass(kind, tuple) and isinstance(getattr(kind, "_fields", None), tuple):
        return reduce_namedtuple if is_default(kind, tuple) else None
    base = c_base(kind)
    has_args = any(
        getattr(kind, name, None) is not getattr(base, name, None)
        for name in ("__getnewargs_ex__", "__getnewargs__")
    )
    if has_args or not is_default(kind, base) or kind in copyreg.dispatch_table:
        return None
    if base in CONTENTS:
        return reduce_subclass if is_own(kind.__module__) else None
    if base is not object:
        return None
    if dataclasses.is_dataclass(kind):
        return reduce_dataclass
    is_plain = is_own(kind.__module__) or f"{kind.__module__}.{kind.__qualname__}" in STANDARD
    return reduce_instance if is_plain else None


def is_own(module: str) -> bool:
    """Whether it may be its caller's: neither the standard library's nor an installed package's
    (results/own_classes.py)."""
    top = module.partition(".")[0]
    file = getattr(sys.modules.get(module), "__file__", None) or ""
    installed = any(f"/{folder}/" in file for folder in ("site-packages", "dist-packages"))
    return top == "__main__" or not (installed or top in sys.stdlib_module_names)


def is_default(kind: type, base: type) -> bool:
    """Whether instances are pickled as any other of `base` is, and so by what they hold."""
    hooks = ("__reduce_ex__", "__reduce__")
    if any(getattr(kind, name) is not getattr(object, name) for name in hooks):
        return False
    state = getattr(kind, "__getstate__", None), getattr(kind, "__setstate__", None)
    plain = getattr(object, "__getstate__", None), None
    slotted = getattr(dataclasses, "_dataclass_getstate", None)
    return c_base(kind) is base and (state == plain or state[0] is slotted is not None)


def c_base(kind: type) -> type:
    """The class in C that its instances are made of."""
    return next(base for base in kind.__mro__ if not base.__flags__ & HEAP)


def name_of(kind: type) -> tuple[str, str, str] | None:
    """By which the caller finds its own class of that name: module, qualified name, and the id
    under which cloudpickle sent it where it has no place in a module. None where the caller cannot
    have it."""
    if kind in NAMES:
        return NAMES[kind]
    sent = ""
    if not by_value._should_pickle_by_reference(kind):
        sent = by_value._DYNAMIC_CLASS_TRACKER_BY_CLASS.get(kind, "")
        if not sent or kind in MADE_HERE:
            MADE_HERE.add(kind)
            return None
    name = (kind.__module__, kind.__qualname__, sent)
    remember(NAMES, kind, name)
    return name


class DataPickler(ResultPickler):
    """Raises PicklingError for all but data."""

    def reducer_override(self, value: Any) -> Any:
        reduced = super().reducer_override(value)
        kind = value if isinstance(value, type) else type(value)
        makes = value if reduced is NotImplemented else reduced[0]
        is_described = getattr(makes, "__module__", "") == MARKERS
        if makes is UNDESCRIBED or not (
            is_described or kind in PLAIN or kind.__module__ in PLAIN_MODULES
        ):
            raise PicklingError(f"{kind.__qualname__} is not data")
        return reduced


class Nowhere:
    def write(self, _: object) -> None:
        """What is tried only is not kept."""


def is_data(values: list[Any]) -> bool:
    """Whether their reader makes all of these without running any code of theirs."""
    if LEAVES.issuperset(map(type, values)) or getattr(TRYING, "now", False):
        return True  # the trial comes to what is in them by itself
    TRYING.now = True
    try:
        DataPickler(Nowhere(), 5, lambda _: False).dump(values)
    except BaseException:  # noqa: BLE001 - they raise what they like
        return False
    finally:
        TRYING.now = False
    return True


TRYING = threading.local()


MARKED._is_data = is_data
UNDESCRIBED = MARKED.pandas_undescribed


# Values of the language and its library.


def reduce_dataclass(value: Any) -> Reduced:
    held = dict(getattr(value, "__dict__", ()))
    for field in dataclasses.fields(value):
        if field.name not in held and hasattr(value, field.name):
            held[field.name] = getattr(value, field.name)
    return with_attributes(MARKED.dataclass, value, held)


def reduce_instance(value: Any) -> Reduced:
    state = object.__reduce_ex__(value, 2)[2]  # which raises TypeError for what C code has made
    both = state if isinstance(state, tuple) else (state, None)
    return with_attributes(MARKED.instance, value, {**(both[0] or {}), **(both[1] or {})})


def reduce_subclass(value: Any) -> Reduced:
    """Of a list, a text or the like."""
    base, name = c_base(type(value)), name_of(type(value))
    state = object.__reduce_ex__(value, 2)[2]
    if name is None or not (state is None or type(state) is dict):
        return None
    made = MARKED.subclass, (name, CONTENTS[base](value))
    return (*made, filling(state), None, None, MARKED.fill) if state else made


# What makes the same of the built-in class itself, whatever a subclass says.
CONTENTS: dict[type, Callable[[Any], Any]] = {
    dict: dict.copy,
    float: float.__float__,
    int: int.__int__,
    list: list.copy,
    str: str.__str__,
}


def with_attributes(make: Callable[..., None], value: Any, held: dict[str, Any]) -> Reduced:
    name = name_of(type(value))
    held.pop("__orig_class__", None)  # of a generic class, what it was called with
    return None if name is None else (make, (name,), filling(held), None, None, MARKED.fill)


def reduce_namedtuple(value: Any) -> Reduced:
    name = name_of(type(value))
    if name is None or getattr(value, "__dict__", None):
        return None
    return MARKED.namedtuple, (name, value._fields, tuple(value))


def reduce_member(value: Any) -> Reduced:
    name = name_of(type(value))
    if name is None:
        return None
    if value._name_ in type(value).__members__:
        return MARKED.enum, (name, value._name_)
    # Of flags together, each version of Python makes a pickle of its own.
    is_flags = isinstance(value, enum.Flag) and type(value._value_) is int
    return (MARKED.flags, (name, value._value_)) if is_flags else None


def exception_reducer(kind: type) -> Reducer | None:
    """By its arguments and attributes, which is all that one without C code of its own has: so its
    constructor may take what it likes."""
    base: Any = c_base(kind)
    if base.__module__ != "builtins":
        return None
    # What the language's own keep beside their arguments.
    beside = [
        name
        for name in ("name", "path", "name_from")
        if isinstance(getattr(base, name, None), types.MemberDescriptorType)
    ]

    def reduce(value: Any) -> Reduced:
        name = name_of(kind)
        if name is None:
            return None
        held = {**value.__dict__, **{each: getattr(value, each) for each in beside}}
        held = {each: held[each] for each in held if each not in beside or held[each] is not None}
        args: tuple[Any, ...] = name, base.__reduce__(value)[1]
        if isinstance(value, BaseExceptionGroup):  # its arguments may be other ones
            args = (*args, (value.message, value.exceptions))
        made = MARKED.error, args
        return (*made, filling(held), None, None, MARKED.fill) if held else made

    return reduce


def filling(held: dict[str, Any]) -> tuple[tuple[str, ...], tuple[Any, ...]]:
    names = tuple(held)
    if names not in FIELDS:
        remember(FIELDS, names, names)
    return FIELDS[names], tuple(held.values())


def reduce_defaultdict(value: Any) -> Reduced:
    factory = value.default_factory
    if factory is not None and not (isinstance(factory, type) and factory in FACTORIES):
        return None
    name = "" if factory is None else factory.__name__
    return MARKED.defaultdict, (name,), None, None, iter(value.items())


def reduce_uuid(value: uuid.UUID) -> Reduced:
    return MARKED.uuid, (value.int,)


def reduce_zone(value: Any) -> Reduced:
    return (MARKED.zone, (value.key,)) if value.key else None


def reduce_builtin(value: Any) -> Reduced:
    return (MARKED.builtin, (BUILTINS[value],)) if value in BUILTINS else None


def reduce_class(value: type) -> Reduced:
    """A built-in one, one of numpy's scalars, or one of exceptions."""
    scalar = getattr(sys.modules.get("numpy"), "generic", ())
    if issubclass(value, scalar) and vars(sys.modules["numpy"]).get(value.__name__) is value:
        return MARKED.numpy_type, (value.__name__,)
    if value in BUILTINS or not issubclass(value, Exception):
        return reduce_builtin(value)
    name = name_of(value)
    return None if name is None else (MARKED.error_class, (name,))


def reduce_view(value: memoryview) -> Reduced:
    return MARKED.view, (value.tobytes(), value.format, value.shape)


def reduce_namespace(value: types.SimpleNamespace) -> Reduced:
    return MARKED.namespace, (), filling(vars(value)), None, None, MARKED.fill


def reduce_structure(value: Any) -> Reduced:
    kind = type(value)
    _, (parts, rest) = value.__reduce__()
    return MARKED.structure, (f"{kind.__module__}.{kind.__qualname__}", parts, rest)


def reduce_alias(value: types.GenericAlias) -> Reduced:
    """Of other origins a reader makes none: who trusts its workers reads what pickle makes of it,
    as in the annotations of a class that goes by value."""
    is_read = value.__origin__ in (dict, frozenset, list, set, tuple)
    make = MARKED.alias if is_read else types.GenericAlias
    return make, (value.__origin__, value.__args__)


VIEWS: dict[type, str] = {
    type({}.keys()): "keys",
    type({}.values()): "values",
    type({}.items()): "items",
}
# A class that is called by what else a pickle says is none that BUILTINS may stand for.
VALUES: dict[type, Reducer] = {
    collections.ChainMap: lambda value: (MARKED.chain_map, tuple(value.maps)),
    collections.defaultdict: reduce_defaultdict,
    complex: lambda value: (MARKED.called, ("complex", value.real, value.imag)),
    range: lambda value: (MARKED.called, ("range", value.start, value.stop, value.step)),
    slice: lambda value: (MARKED.called, ("slice", value.start, value.stop, value.step)),
    types.GenericAlias: reduce_alias,
    types.SimpleNamespace: reduce_namespace,
    memoryview: reduce_view,
    **dict.fromkeys(
        VIEWS, lambda view: (MARKED.dict_view, (VIEWS[type(view)], dict(view.mapping)))
    ),
    type: reduce_class,
    uuid.UUID: reduce_uuid,
    **dict.fromkeys(
        (types.BuiltinFunctionType, type(Ellipsis), type(NotImplemented)), reduce_builtin
    ),
}


def address_reducer(kind: type) -> Reducer | None:
    is_one = kind.__name__ in ADDRESSES and kind.__module__ == "ipaddress"
    return (lambda value: (MARKED.address, (kind.__name__, str(value)))) if is_one else None


ADDRESSES = frozenset(
    f"IPv{version}{what}" for version in (4, 6) for what in ("Address", "Interface", "Network")
)


def array_reducer(kind: type) -> Reducer | None:
    return reduce_machine_array if kind is sys.modules["array"].array else None


def reduce_machine_array(value: Any) -> Reduced:
    code = value.typecode
    data = value.tounicode() if code in "uw" else PickleBuffer(memoryview(value).cast("B"))
    return MARKED.machine_array, (code, value.itemsize, sys.byteorder, data)


def pattern_reducer(kind: type) -> Reducer | None:
    pattern = sys.modules["re"].Pattern
    return (lambda each: (MARKED.pattern, (each.pattern, each.flags))) if kind is pattern else None


def zone_reducer(kind: type) -> Reducer | None:
    return reduce_zone if kind is sys.modules["zoneinfo"].ZoneInfo else None


# numpy


def numpy_reducer(kind: type) -> Reducer | None:
    numpy = sys.modules["numpy"]
    if kind in (numpy.ndarray, numpy.memmap):
        return reduce_array
    if kind is numpy.recarray:
        return reduce_records
    if kind is numpy.ma.MaskedArray:
        return reduce_masked
    if issubclass(kind, numpy.dtype):
        return reduce_dtype
    return reduce_scalar if issubclass(kind, numpy.generic) else None


def reduce_array(value: Any) -> Reduced:
    numpy = sys.modules["numpy"]
    if value.dtype.kind == "T":
        return reduce_texts(value)
    if value.dtype.kind == "O":
        objects = list(value.flat)
        return (MARKED.numpy_objects, (objects, value.shape)) if is_data(objects) else None
    kind = spec(value.dtype)
    if kind is None:
        return None
    value = value.view(numpy.ndarray)
    fortran = value.flags.f_contiguous and not value.flags.c_contiguous
    if not fortran and not value.flags.c_contiguous:
        value = value.copy(order="C")
    data: bytes | PickleBuffer = b""
    if value.nbytes:
        flat = value.reshape(-1, order="F" if fortran else "C")
        data = PickleBuffer(flat.view(numpy.uint8))
    return MARKED.numpy_array, (data, kind, value.shape, fortran)


def reduce_records(value: Any) -> Reduced:
    described = reduce_array(value)
    return None if described is None else (MARKED.numpy_records, described[1])


def reduce_masked(value: Any) -> Reduced:
    numpy = sys.modules["numpy"]
    data = numpy.ma.getdata(value, subok=False)
    if data.dtype.names is not None or spec(data.dtype) is None:
        return None
    mask = None if value.mask is numpy.ma.nomask else value.mask
    filling = numpy.array(value.fill_value, data.dtype)
    return MARKED.numpy_masked, (data, mask, filling, bool(value.hardmask))


def reduce_texts(value: Any) -> Reduced:
    """Of numpy's texts of any length, with None where one is missing."""
    dtype = value.dtype
    missing = repr(getattr(dtype, "na_object", ""))
    if missing not in ("''", "None", "nan"):
        return None
    texts = [text if type(text) is str else None for text in value.ravel().tolist()]
    return MARKED.numpy_texts, (texts, value.shape, missing.strip("'"), bool(dtype.coerce))


def reduce_scalar(value: Any) -> Reduced:
    kind = spec(value.dtype)
    return None if kind is None else (MARKED.numpy_scalar, (kind, value.tobytes()))


def reduce_dtype(value: Any) -> Reduced:
    kind = "|O" if value.char == "O" else spec(value)
    return None if kind is None else (MARKED.numpy_dtype, (kind,))


def spec(dtype: Any) -> Any:
    """A dtype as a text, or as the parts of it; None for one that has no such description."""
    if dtype.kind == "V":  # equal ones may differ in the class of their scalars
        found = spec_of(dtype)
        return SPECS[found] if found in SPECS else remember(SPECS, found, found)
    if dtype not in SPECS:
        remember(SPECS, dtype, spec_of(dtype))
    return SPECS[dtype]


def spec_of(dtype: Any) -> Any:
    numpy = sys.modules["numpy"]
    if dtype.hasobject or dtype.kind == "T":
        return None
    if dtype.subdtype is not None:
        base, shape = dtype.subdtype
        inner = spec(base)
        return None if inner is None else (inner, tuple(shape))
    if dtype.names is None:
        return dtype.str if numpy.dtype(dtype.str) == dtype else None
    fields = [dtype.fields[name] for name in dtype.names]
    inner = tuple(spec(field[0]) for field in fields)
    if None in inner or dtype.type not in (numpy.void, numpy.record):
        return None
    titles = tuple(field[2] if len(field) > 2 else None for field in fields)
    parts = dtype.names, inner, tuple(field[1] for field in fields), titles, dtype.itemsize
    return parts if dtype.type is numpy.void else (*parts, "record")


def frames(reducer: str) -> Callable[[type], Reducer | None]:
    """A function of `frame_pickler.py`, which is loaded when it is asked first."""

    def reducer_of(kind: type) -> Reducer | None:
        name = f"{MARKERS}_frames"
        module: Any = sys.modules.get(name)
        if module is None:
            file = Path(__file__).with_name("frame_pickler.py")
            spec = importlib.util.spec_from_file_location(name, file)
            assert spec is not None
            assert spec.loader is not None
            module = sys.modules[name] = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(module)
        return getattr(module, reducer)(kind)  # type: ignore[no-any-return]  # by its name

    return reducer_of


LIBRARIES: dict[str, Callable[[type], Reducer | None]] = {
    "array": array_reducer,
    "ipaddress": address_reducer,
    "numpy": numpy_reducer,
    "pandas": frames("pandas_reducer"),
    "polars": frames("polars_reducer"),
    "pyarrow": frames("arrow_reducer"),
    "re": pattern_reducer,
    "zoneinfo": zone_reducer,
}

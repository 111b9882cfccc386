"""Reading a result that another machine pickled, without running what it says.

A pickle is a program. The result of a worker may hold nothing but data: plain values of the
language and its library, what `drivers/result_pickler.py` describes as data, which is made
here from its bytes, and instances of the caller's own classes, whose code does not run. A caller
that trusts its workers with its own machine reads any pickle.
"""

from __future__ import annotations

import collections
import datetime
import decimal
import fractions
import io
import pathlib
import pickle
import re
import time
import weakref
import zoneinfo
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from itertools import islice
from types import MappingProxyType
from typing import Any, Final

from formation_p2p.core.errors import NotPlain
from formation_p2p.drivers.result_pickler import MARKERS
from formation_p2p.results import arrays, arrow, frames, objects, polars_frames, values
from formation_p2p.results.budget import ITEM_BYTES, Budget, Unlimited
from formation_p2p.results.hashing import check_hashed, inserts, weight_of
from formation_p2p.results.inserting import SHORT_BYTES, InsertingUnpickler, of_items
from formation_p2p.results.opcodes import check_calls, check_opcodes
from formation_p2p.results.own_classes import ClassFinder, found_here, imported
from formation_p2p.results.values import Reading

# Each builds a value from plain arguments and does nothing else. It takes so many bytes (in CPython
# 3.11 to 3.14), and so many for each item or letter of its arguments.
_SIZES: Final[dict[type, tuple[int, int]]] = {
    bytearray: (64, 1),
    complex: (48, 0),
    frozenset: (216, ITEM_BYTES),
    range: (112, 0),
    set: (216, ITEM_BYTES),
    slice: (80, 0),
    collections.Counter: (80, ITEM_BYTES),
    collections.OrderedDict: (136, ITEM_BYTES),
    collections.deque: (760, 16),
    datetime.date: (48, 0),
    datetime.datetime: (64, 0),
    datetime.time: (48, 0),
    datetime.timedelta: (48, 0),
    datetime.timezone: (64, 1),
    decimal.Decimal: (104, 1),
    fractions.Fraction: (96, 1),
    **dict.fromkeys((pathlib.PosixPath, pathlib.PurePosixPath, pathlib.PureWindowsPath), (256, 8)),
}
_PLAIN: Final = {
    (module, kind.__name__): kind
    for kind in _SIZES
    # Python 3.13 alone has paths elsewhere.
    for module in (("pathlib", "pathlib._local") if "Path" in kind.__name__ else (kind.__module__,))
}
# All that their arguments are: of anything else they might ask its class.
_ARGUMENTS: Final = frozenset(
    {
        *(bool, int, float, str, bytes, bytearray, list, tuple, dict, set, frozenset, type(None)),
        *(datetime.timedelta, datetime.timezone, zoneinfo.ZoneInfo),
    }
)
# Those of `builtins` whose classes may be values themselves.
_CALLED: Final = {kind.__name__: kind for kind in (complex, range, slice)}
# What the calls of a pickle may add items to, as opcodes.py names it.
_CONTAINERS: Final = MappingProxyType(
    {
        ("collections", "Counter"): "dict",
        ("collections", "OrderedDict"): "dict",
        ("collections", "deque"): "list",
        (MARKERS, "defaultdict"): "dict",
    }
)
# What is not there to be called, changed or hashed by the rest of the pickle: it needs no look at
# the calls, which costs four times what reading does.
_INERT: Final[dict[str, Callable[..., Any]]] = {
    "numpy_dtype": arrays.dtype,
    "numpy_scalar": arrays.scalar,
    "pandas_missing": frames.missing,
    "pandas_timedelta": frames.timedelta,
    "pandas_timestamp": frames.timestamp,
    "uuid": values.uuid_of,
    "zone": values.zone,
}
_MARKED: Final[dict[str, Callable[..., Any]]] = {
    **_INERT,
    "address": values.address,
    "alias": values.alias,
    "arrow_array": arrow.array,
    "arrow_chunked": arrow.chunked,
    "arrow_table": arrow.table,
    "builtin": values.builtin,
    "called": lambda reading, name, *args: _Frugal(_CALLED[name], reading)(*args),
    "chain_map": values.chain_map,
    "dataclass": objects.dataclass,
    "defaultdict": values.defaultdict,
    "dict_view": values.dict_view,
    "enum": objects.member,
    "error": objects.error,
    "error_class": objects.error_class,
    "fill": objects.fill,
    "flags": objects.flags,
    "instance": objects.instance,
    "machine_array": values.machine_array,
    "namedtuple": objects.namedtuple,
    "namespace": objects.namespace,
    "numpy_array": arrays.ndarray,
    "numpy_masked": arrays.masked,
    "numpy_objects": arrays.shaped_objects,
    "numpy_records": arrays.records,
    "numpy_texts": arrays.texts,
    "numpy_type": arrays.scalar_type,
    "pandas_dtype": frames.dtype,
    "pandas_frame": frames.frame,
    "pandas_index": frames.index,
    "pandas_interval": frames.interval,
    "pandas_multi_index": frames.multi_index,
    "pandas_period": frames.period,
    "pandas_range": frames.range_index,
    "pandas_series": frames.series,
    "pattern": values.pattern,
    "polars_frame": polars_frames.frame,
    "polars_series": polars_frames.series,
    "structure": values.structure,
    "subclass": objects.subclass,
    "view": values.view,
}

# These look into none of the values among their arguments.
_TAKE_VALUES: Final = frozenset(
    {"chain_map", "dict_view", "error", "fill", "namedtuple", "numpy_objects"}
    | {"structure", "subclass"}
)

# What comes back to a caller that trusts its workers alone.
UNDESCRIBED: Final = "pandas_undescribed"
TRUST: Final = (
    "pass trust_results=True where the workers may run code on this machine: there "
    "error.load_trusted() reads this one"
)
_TRUSTED: Final = {**_MARKED, UNDESCRIBED: lambda _, what, value: value}

Buffer = bytes | bytearray | memoryview

_STACK_GLOBAL: Final = b"\x93"

# The whole pickle of None, a truth value, a float or an integer of up to 32 bits.
_SCALAR: Final = re.compile(
    rb"\x80[\x04\x05](\x95.{8})?(N|\x88|\x89|K.|M..|J....|G.{8})\.", re.DOTALL
).fullmatch

_SIZED: Final = frozenset({str, bytes, bytearray, list, tuple, dict, set, frozenset})
# These hash the items of their argument.
_HASHING: Final = (set, frozenset, dict)

# Of an argument of the above. Division and decimal digits take time by the square of it.
MAX_INT_BITS: Final = 16_384


def load_result(
    pickled: bytes,
    *,
    buffers: Sequence[Buffer] = (),
    trust: bool = False,
    classes: ClassFinder = found_here,
    budget: Budget | None = None,
) -> Any:
    """The value that a worker pickled, with what it left beside the pickle (PEP 574), in order.
    Arrays are views of `buffers`: writable where those are. Raises NotPlain, which keeps both.

    `classes` finds those of the caller's own classes that a result may have instances of. Its size
    says what reading it may take, where no `budget` does.
    With `trust` the worker may run any code here: unpickling is running.
    """
    try:
        if _SCALAR(pickled):  # most results of small calls: nothing else is in it
            return pickle.loads(pickled)
        if trust:
            return _load_trusted(pickled, buffers)
        if not buffers and _STACK_GLOBAL not in pickled:  # which nothing but names needs
            budget = budget or Budget(len(pickled))
            if not _checked(pickled, budget):
                return pickle.loads(pickled)
            return InsertingUnpickler(pickled, budget).load()
        if budget is None:
            budget = Budget(len(pickled), sum(memoryview(each).nbytes for each in buffers))
        unpickler = _PlainUnpickler(pickled, buffers, Reading(budget, classes))
        value = unpickler.load()
        unpickler.check_none_is_left()
        return value
    except NotPlain as refusal:
        _keep(refusal, pickled, buffers)
        raise
    except Exception as error:
        # A pickle raises what it likes while it is read.
        unread = NotPlain(f"a result could not be read: {type(error).__name__}: {error}")
        _keep(unread, pickled, buffers)
        raise unread from error


def _checked(pickled: bytes, budget: Budget) -> bool:
    """Whether it inserts enough for an InsertingUnpickler. Raises NotPlain."""
    opcodes = check_opcodes(pickled, budget, partial(_made_by, pickled))
    check_hashed(pickled, opcodes, budget)
    return len(pickled) > SHORT_BYTES and inserts(opcodes)


def _keep(refusal: NotPlain, pickled: bytes, buffers: Sequence[Buffer]) -> None:
    kept = tuple(buffers)
    refusal.keep(pickled, kept, partial(_load_trusted, pickled, kept))


def _load_trusted(pickled: bytes, buffers: Sequence[Buffer]) -> Any:
    if MARKERS.encode() in pickled:
        return _TrustingUnpickler(pickled, buffers).load()
    return pickle.loads(pickled, buffers=buffers)


class _TrustingUnpickler(pickle.Unpickler):
    def __init__(self, pickled: bytes, buffers: Sequence[Buffer]) -> None:
        super().__init__(io.BytesIO(pickled), buffers=buffers)
        self._reading = Reading(Unlimited(), imported, trust=True)

    def find_class(self, module: str, name: str) -> Any:
        if module == MARKERS:
            return partial(_TRUSTED[name], self._reading)
        return super().find_class(module, name)


class _PlainUnpickler(InsertingUnpickler):
    def __init__(self, pickled: bytes, buffers: Sequence[Buffer], reading: Reading) -> None:
        self._pickled = pickled
        self._reading = reading
        self._has_checked_calls = False
        self._found: list[tuple[str, weakref.ref[Callable[..., Any]]]] = []
        budget = reading.budget
        super().__init__(pickled, budget, buffers, inserts=_checked(pickled, budget))

    def find_class(self, module: str, name: str) -> Any:
        called = self._called(module, name)
        self._found.append((f"{module}.{name}", weakref.ref(called)))
        return called

    def check_none_is_left(self) -> None:
        """What makes values is none: it is gone with the pickle. Raises NotPlain."""
        self.memo.clear()
        for name, called in self._found:
            if called() is not None:
                raise NotPlain(f"a result holds {name} itself, which is not plain data; {TRUST}")

    def _called(self, module: str, name: str) -> Callable[..., Any]:
        found = _PLAIN.get((module, name))
        if found is not None:
            return _Frugal(found, self._reading)
        _made_by(self._pickled, module, name)
        if name not in _INERT and not self._has_checked_calls:
            self._has_checked_calls = True
            check_calls(self._pickled, partial(_made_by, self._pickled))
        if name in _TAKE_VALUES:
            return partial(_MARKED[name], self._reading)
        return partial(_described, _MARKED[name], self._reading)


def _described(make: Callable[..., Any], reading: Reading, *parts: Any) -> Any:
    objects.check_parts(reading, parts)
    return make(reading, *parts)


def _made_by(pickled: bytes, module: str, name: str) -> str:
    """What the call of a name in this pickle makes, as opcodes.py names it. Raises NotPlain."""
    if (module, name) in _PLAIN or (module == MARKERS and name in _MARKED):
        return _CONTAINERS.get((module, name), "")
    raise refused_name(pickled, module, name)


class _Frugal:
    """Makes values no larger than what they are made of: forty bytes of a pickle can ask for
    `bytearray(10**12)`, `set(range(10**12))` or `Fraction("1e999999999")`. And all of them together
    take no more than the budget: one argument may be named any number of times."""

    def __init__(self, kind: type, reading: Reading) -> None:
        self._kind = kind
        self._reading = reading
        self._bytes, self._item_bytes = _SIZES[kind]

    def __call__(self, *arguments: Any) -> Any:
        for argument in arguments:
            large = type(argument) is int and argument.bit_length() > MAX_INT_BITS
            if large or (type(argument) not in _ARGUMENTS and self._kind is not slice):
                raise self._refusal
        if self._kind is bytearray and any(type(each) is int for each in arguments):
            raise self._refusal
        if self._kind is fractions.Fraction and not all(map(_is_whole, arguments)):
            raise self._refusal
        items = sum(len(each) for each in arguments if type(each) in _SIZED)
        budget = self._reading.budget
        budget.spend(self._bytes + items * self._item_bytes)
        if issubclass(self._kind, _HASHING):
            return self._hashed(*arguments)
        return self._kind(*arguments)

    def _hashed(self, *arguments: Any) -> Any:
        """Pickles have a Counter made of a dict, and an OrderedDict of nothing."""
        if self._kind is collections.Counter:
            refused = any(type(each) is not dict for each in arguments)
        else:
            refused = issubclass(self._kind, dict) and bool(arguments)
        if refused:
            raise self._refusal
        budget = self._reading.budget
        for argument in arguments:
            for key in argument:
                budget.hash(*weight_of(key, self._reading.hashed))
        if not issubclass(self._kind, dict):
            return self._kind(*(of_items(each, budget) for each in arguments))
        began_s = time.thread_time()
        made = self._kind(*arguments)
        budget.inserted(time.thread_time() - began_s)
        return made

    @property
    def _refusal(self) -> NotPlain:
        return NotPlain(
            f"a result holds a {self._kind.__name__} that would take far more memory or time "
            "than it has bytes; return it as a text or as bytes"
        )


def _is_whole(argument: object) -> bool:
    """A number, or the text that a fraction is pickled as: `-1/3`."""
    return type(argument) is int or (
        type(argument) is str and re.fullmatch("-?[0-9]+(/[0-9]+)?", argument) is not None
    )


# What to tell a person of a name in a result's pickle that is not read.

# What to do with what does not travel of them.
_TABLES: Final = {
    "numpy": "give it another dtype",
    "pandas": "give its columns types, as by astype or convert_dtypes",
    "polars": "collect it, and cast its columns",
    "pyarrow": "cast its columns",
}
# As which iterators are pickled.
_ITERATORS: Final = frozenset({"iter", "zip", "map", "filter", "enumerate", "reversed"})
_CLASS_NAME: Final = re.compile(r"[\w.]{1,200}").fullmatch


def refused_name(pickled: bytes, module: str, name: str) -> NotPlain:
    if module == MARKERS and name != UNDESCRIBED:
        return NotPlain(f"a result holds a {name}, which this version does not know; update it")
    package = module.partition(".")[0]
    what = f"a {module}.{name}"
    if module == MARKERS:
        what = _text_behind(pickled, name)
        why = "which does not travel; give it another type, as by astype, or return its text"
    elif package in _TABLES and not module.startswith("numpy.random"):
        if name.startswith("_"):
            what = f"a value of {package} ({module}.{name})"
        why = f"with objects in it, or of a kind that does not travel; {_TABLES[package]}"
    elif package == "cloudpickle":
        what = "a function, a class or the like"
        why = f"which travels as code ({module}.{name}); return plain data"
        if kind := _class_made_by(pickled, name):
            what = f"an instance of {kind}, or that class"
            why = "which is not data; return plain data"
    else:
        cure = "plain data, such as a dataclass"
        if name.startswith("_"):
            what = f"a value of {package.lstrip('_')} ({module}.{name})"
        elif module == "builtins":
            what = f"the built-in {name} itself"
        if module == "builtins" and name in _ITERATORS:
            what, cure = f"an iterator ({name})", "a list of what it yields"
        why = f"which is not plain data; return {cure}"
    return NotPlain(f"a result holds {what}, {why}, or {TRUST}")


def _text_behind(pickled: bytes, name: str) -> str:
    """The first text, for a person to read."""
    import pickletools  # a refusal alone needs it

    at = pickled.find(name.encode()) + len(name)
    with suppress(ValueError):  # it is cut short
        for _, argument, _ in islice(pickletools.genops(pickled[at : at + 4096]), 8):
            if isinstance(argument, str):
                return "".join(filter(str.isprintable, argument[:200]))
    return "a value"


def _class_made_by(pickled: bytes, name: str) -> str:
    """Which class a function of cloudpickle makes first, as far as its arguments tell: for a person
    to read. Empty where it makes none."""
    if name not in ("_make_skeleton_class", "_builtin_type"):
        return ""
    import pickletools  # a refusal alone needs it

    at = pickled.find(name.encode()) + len(name)
    found, module, arguments = "", "", [""]
    with suppress(ValueError):  # it is cut short
        for opcode, argument, _ in islice(pickletools.genops(pickled[at : at + 4096]), 64):
            if isinstance(argument, str):
                if arguments[-1] == "__module__":
                    module = module or argument
                arguments.append(argument)
            elif "BINGET" in opcode.name:
                arguments.append("")
            elif opcode.name == "STACK_GLOBAL":
                arguments[-2:] = [""]
            elif "TUPLE" in opcode.name:
                found = found or next(filter(None, arguments), "")
    kind = f"{'types' if name == '_builtin_type' else module}.{found}".strip(".")
    return kind if _CLASS_NAME(kind) else ""

"""The code that calls need: what their pickles refer to, and the bundle that goes along with them.

One bundle serves all calls of a node, and grows with what they refer to: a worker's interpreter,
which is one bundle's, then runs them all. It is made anew when a file in it changes.
"""

from __future__ import annotations

import functools
import io
import logging
import sys
import threading
import time
import typing
from collections import ChainMap
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from inspect import getclosurevars, iscoroutine, signature
from itertools import islice
from pathlib import Path
from pickle import PickleBuffer
from types import BuiltinFunctionType, CodeType, FunctionType, MethodType, ModuleType
from typing import IO, Any, ClassVar, Final, Literal, NoReturn
from weakref import WeakKeyDictionary, WeakSet

import cloudpickle

from formation_p2p.api.reference import OnlyInCalls, Reference
from formation_p2p.api.tracebacks import told_file
from formation_p2p.code.collect import Collected, collect, collect_listed
from formation_p2p.code.imports import imported_in
from formation_p2p.code.modules import Search, is_installed, search_folders
from formation_p2p.core.errors import FormationError, InvalidInput
from formation_p2p.machine.pythons import own_name
from formation_p2p.workload.core.blob import Blob, digest_of
from formation_p2p.workload.core.code_bundle import NO_MODULES, Code, ModuleNames

# As cloudpickle names the file of all code that travels.
_NO_FILE: Final = "<dynamic-code>"
# Modules that workers find by their names: each call asks, and the answer takes several looks at
# the disk.
_WITH_FILE: Final[WeakSet[ModuleType]] = WeakSet()


def is_sent(module: str) -> bool:
    """Whether functions and classes of this module travel by value: of `__main__`, of modules that
    were registered with cloudpickle, and of those that have no file which could go along."""
    if module == "__main__":
        return True
    registered = cloudpickle.list_registry_pickle_by_value()
    if any(parent in registered for parent in _with_parents(module)):
        return True
    found = sys.modules.get(module)
    if found is None or not (_is_orphan(module) or _is_homeless(module)):
        return False
    cloudpickle.register_pickle_by_value(found)
    return True


def _with_parents(module: str) -> list[str]:
    parts = module.split(".")
    return [".".join(parts[:count]) for count in range(len(parts), 0, -1)]


def _is_homeless(module: str) -> bool:
    """Whether neither it nor a package that it is in has a file that could go along, or that
    workers may have installed: it comes out of a zip, or a program made it."""
    if (found := sys.modules[module]) in _WITH_FILE:
        return False
    names = _with_parents(module)
    if names[-1] not in sys.stdlib_module_names and not any(
        _has_file(sys.modules.get(name)) for name in names
    ):
        return True
    _WITH_FILE.add(found)
    return False


def _has_file(module: ModuleType | None) -> bool:
    spec = getattr(module, "__spec__", None)
    found = [getattr(module, "__file__", None), getattr(spec, "origin", None)]
    found += getattr(spec, "submodule_search_locations", None) or ()
    places = [Path(each) for each in found if isinstance(each, str)]
    return any(each.exists() or is_installed(each) for each in places)


def _is_orphan(module: str) -> bool:
    """Whether the package that its name says is not there, so that pickle does not find it."""
    package = module.rpartition(".")[0]
    return bool(package) and package not in sys.modules


class _Maker:
    """Pickles as what this call returns, which makes something of further arguments."""

    def __init__(self, make: Callable[..., Any], *args: Any) -> None:
        self._made = make, args

    def __reduce__(self) -> tuple[Any, ...]:
        return self._made

    def __call__(self, *args: Any) -> Any:
        """pickle asks whether it can be called."""
        return self._made[0](*self._made[1])(*args)


def _cached(wrapper: Any) -> tuple[Any, ...]:
    """Its cache stays here."""
    options = wrapper.cache_parameters()
    maker = _Maker(functools.lru_cache, options["maxsize"], options["typed"])
    return maker, (wrapper.__wrapped__,)


# What pickle refers to by name, or not at all, and how to make another one.
_REDUCERS: Final[dict[type, Callable[[Any], tuple[Any, ...]]]] = {
    functools._lru_cache_wrapper: _cached,
    # Before Python 3.12 it has a lock.
    functools.cached_property: lambda it: (type(it), (it.func,), {"attrname": it.attrname}),
    WeakKeyDictionary: lambda keys: (WeakKeyDictionary, (dict(keys),)),
    typing.NewType: lambda new: (typing.NewType, (new.__name__, new.__supertype__)),
    typing.ParamSpec: lambda spec: (typing.ParamSpec, (spec.__name__,)),
    typing.TypeVarTuple: lambda spec: (typing.TypeVarTuple, (spec.__name__,)),
}
if sys.version_info >= (3, 12):
    _REDUCERS[typing.TypeAliasType] = lambda it: (typing.TypeAliasType, (it.__name__, it.__value__))


def reduced(value: Any) -> tuple[Any, ...] | None:
    """How to pickle what has a name that no worker finds; None for all else."""
    reducer = _REDUCERS.get(type(value))
    if reducer is None:
        return None
    if isinstance(value, WeakKeyDictionary):  # of `functools.singledispatch`
        return reducer(value)
    named = getattr(value, "func", value)
    name = getattr(named, "__qualname__", "") or named.__name__
    return reducer(value) if "<" in name or is_sent(named.__module__) else None


def reduced_code(code: CodeType) -> tuple[Any, ...]:
    """As cloudpickle, with the name of its file, for tracebacks."""
    make, args = cloudpickle.Pickler.dispatch_table[CodeType](code)
    name = told_file(code.co_filename)
    return make, tuple(name if each == _NO_FILE else each for each in args)


# Which part of a value cannot be pickled, as the person who wrote it knows it.

# How far it is looked for what cannot be pickled, in functions that use others.
_DEEPEST: Final = 8
# Of a list; each is pickled by itself.
_MAX_ITEMS: Final = 1000


def name_part(error: Exception, value: object, is_sent: Callable[[object], bool]) -> None:
    """Have an error say which part of a value cannot be pickled: pickle names a type alone."""
    if isinstance(error, FormationError):
        return  # it says what to do
    note = name = ""
    for _ in range(_DEEPEST):
        parts = _parts(value, name or "the object")
        found = next(((name, each) for name, each in parts if not is_sent(each)), None)
        if found is None:
            break
        name, value = found
        cure = "await it first" if iscoroutine(value) else "make it where the call runs"
        note = f"{name} is a {type(value).__qualname__}, which cannot be sent; {cure}"
    if note and error.args == (str(error),):
        error.args = (f"{note} ({error})",)
    elif note:
        error.add_note(note)


def _parts(value: object, name: str) -> list[tuple[str, object]]:
    """Of a function what it uses, functions last, for these may use it in turn; of a call each
    argument; of a container of this name its first items; of an instance what it has, and its
    class. As people name them."""
    match value:
        case MethodType():
            return [(f"the object of {value.__qualname__}", value.__self__)]
        case partial():
            called = getattr(value.func, "__qualname__", type(value.func).__qualname__)
            of_call = _parts((value.args, dict(value.keywords)), "")
            return [
                *((f"{part} of {called}", each) for part, each in of_call),
                (called, value.func),
            ]
        case FunctionType():
            try:
                used = getclosurevars(value)
            except ValueError:  # a name that has no value yet
                return []
            named = {**used.globals, **used.nonlocals}
            names = sorted(named, key=lambda name: isinstance(named[name], FunctionType))
            in_use = [
                (f"{name!r}, which {value.__qualname__} uses,", named[name]) for name in names
            ]
            defaults = [
                (f"the default of {name!r} of {value.__qualname__}", each.default)
                for name, each in signature(value).parameters.items()
                if each.default is not each.empty
            ]
            return [*defaults, *in_use]
        case (tuple(args), dict(kwargs)):
            numbered = ((f"argument {number}", each) for number, each in enumerate(args, 1))
            return [*numbered, *((f"the argument {key!r}", kwargs[key]) for key in kwargs)]
        case (function, tuple() as args, dict() as kwargs) if callable(function):  # one of joblib's
            called = getattr(function, "__qualname__", type(function).__qualname__)
            of_call = [(f"{part} of {called}", each) for part, each in _parts((args, kwargs), "")]
            return [*of_call, (called, function)]
        case list() | tuple() | set() | frozenset():
            items = enumerate(islice(value, _MAX_ITEMS), 1)
            return [(f"item {number} of {name}", each) for number, each in items]
        case dict():
            return [(f"{key!r} of {name}", value[key]) for key in islice(value, _MAX_ITEMS)]
        case type():
            held = {key: each for key, each in vars(value).items() if not key.startswith("__")}
            return [(f"{key!r} of {name}", each) for key, each in held.items()]
        case _:
            kind = type(value)
            if kind.__reduce_ex__ is not object.__reduce_ex__ or (
                kind.__reduce__ is not object.__reduce__
            ):
                return []
            slots = {key: getattr(value, key, None) for key in getattr(kind, "__slots__", ())}
            held = {**slots, **getattr(value, "__dict__", {})}
            parts = [(f"{key!r} of {name}", each) for key, each in held.items()]
            return [*parts, (f"the class {kind.__qualname__}", kind)]


log = logging.getLogger(__name__)

# `auto`: the modules of the caller's own that calls refer to, and what those import. `main`: none;
# only what `__main__` defines goes, inside the pickles. Or these files and folders, and no others.
CodeChoice = Literal["auto", "main"] | Sequence[Path | str]
CodePaths = Literal["auto", "main"] | tuple[Path, ...]

# Files are looked at with each hand-over, which takes 0.2 ms for a hundred: a quarter of a call.
# Where there are more, not again for this long: an edit is seen that much later at most. The rest
# depends on no measured time, which a busy machine stretches.
_MANY: Final = 100
_REST_S: Final = 0.2
# Bundles that are served at the same time: calls with an earlier one may still be in flight.
_KEPT: Final = 16


def code_paths(choice: CodeChoice) -> CodePaths:
    """Raises InvalidInput."""
    if choice == "auto" or choice == "main":
        return choice
    if isinstance(choice, str | Path):
        problem = f"{str(choice)!r} is neither 'auto' nor 'main'; write a list of paths"
        raise InvalidInput("code", problem)
    return tuple(Path(path).expanduser().absolute() for path in choice)


# Whether a buffer goes into the pickle (PEP 574).
TakesBuffer = Callable[[PickleBuffer], bool]
# What stands for an object in the pickle, by its persistent id; None for the object itself.
NumberOf = Callable[[object], int | None]


class CodePickler(cloudpickle.Pickler):  # type: ignore[misc]  # it has no types
    """Notes which modules its pickles refer to."""

    def __init__(self, file: IO[bytes], takes: TakesBuffer | None = None) -> None:
        super().__init__(file, 5, buffer_callback=takes)
        self._referred: set[str] = set()
        self._imported: set[str] = set()

    @property
    def modules(self) -> ModuleNames:
        """Of all that it has pickled."""
        return ModuleNames(frozenset(self._referred), frozenset(self._imported))

    @property
    def count(self) -> int:
        """How many these are; they only become more."""
        return len(self._referred) + len(self._imported)

    def reducer_override(self, obj: Any) -> Any:
        """Of pickle: it is called for every class, function, module and instance of a class."""
        kind = type(obj)
        if kind is FunctionType:
            self._function(obj)
        elif kind is ModuleType:
            self._refer(obj.__name__)
        elif kind is BuiltinFunctionType or issubclass(kind, type):
            self._refer(_module_of(obj))
        elif kind is Reference:
            raise OnlyInCalls
        elif (by_value := reduced(obj)) is not None:
            return by_value
        else:
            self._refer(_module_of(kind))
        return super().reducer_override(obj)

    def _refer(self, module: str) -> None:
        if module not in self._referred and not is_sent(module):
            self._referred.add(module)

    def _function(self, function: FunctionType) -> None:
        module = _module_of(function)
        named = "<" not in function.__qualname__  # else it goes by value, whatever its module
        if named:
            self._refer(module)
        if not named or is_sent(module):
            if module != "__main__":
                self._imported.add(module)
            package = function.__globals__.get("__package__")
            self._imported |= imported_in(function.__code__, package or "")

    dispatch_table: ClassVar = ChainMap(
        {CodeType: reduced_code}, cloudpickle.Pickler.dispatch_table
    )


class _WithoutCode(CodePickler):
    """For any version of Python: each has bytecode of its own."""

    @staticmethod
    def _refuse(code: CodeType) -> NoReturn:
        raise InvalidInput(
            "python",
            f"{code.co_name} travels as code of {own_name()}, which no other version can run; "
            "leave python= out, or put it into a module of your own",
        )

    dispatch_table: ClassVar = ChainMap({CodeType: _refuse}, cloudpickle.Pickler.dispatch_table)


class _Referring:
    """Asks of every object what stands for it, which takes as long as pickling a number does: of
    use once there are references."""

    number_of: NumberOf

    def persistent_id(self, value: object) -> int | None:
        return self.number_of(value)


class _ReferringWithCode(_Referring, CodePickler):
    pass


class _ReferringWithoutCode(_Referring, _WithoutCode):
    pass


def pickler_for(
    buffer: IO[bytes],
    python: str,
    takes: TakesBuffer | None = None,
    number_of: NumberOf | None = None,
) -> CodePickler:
    """`python` is the version that reads it; empty for this one. `number_of` says what stands for
    references; without it they raise OnlyInCalls."""
    with_code = python in ("", own_name())
    if number_of is None:
        return (CodePickler if with_code else _WithoutCode)(buffer, takes)
    pickler = (_ReferringWithCode if with_code else _ReferringWithoutCode)(buffer, takes)
    pickler.number_of = number_of
    return pickler


def pickled(
    value: object,
    python: str = "",
    takes: TakesBuffer | None = None,
    number_of: NumberOf | None = None,
) -> tuple[bytes, ModuleNames]:
    """A pickle for this version of Python or another, and what it refers to. Raises whatever a
    value that cannot be pickled raises; InvalidInput where `python` cannot run its code, and
    OnlyInCalls for references without `number_of`."""
    buffer = io.BytesIO()
    pickler = pickler_for(buffer, python, takes, number_of)
    try:
        pickler.dump(value)
    except Exception as error:
        note_part(error, value)
        raise
    return buffer.getvalue(), pickler.modules


def note_part(error: Exception, value: object) -> None:
    """Have an error say which part of a value cannot be pickled."""
    name_part(error, value, _is_sent)


def _is_sent(part: object) -> bool:
    try:
        CodePickler(io.BytesIO()).dump(part)
    except OnlyInCalls:
        return True
    except Exception:  # noqa: BLE001 - what cannot be pickled raises what it likes
        return False
    return True


class CallCode:
    """`serve(content, holder)` has the node serve a bundle, and returns the reference to it;
    `release(holder)` ends that. For all threads; methods may block on the disk."""

    def __init__(
        self,
        choice: CodePaths,
        serve: Callable[[bytes, str], Blob],
        release: Callable[[str], None],
    ) -> None:
        self._choice = choice
        self._serve = serve
        self._release = release
        self._lock = threading.Lock()
        self._names = NO_MODULES  # all that were asked for
        self._missing: frozenset[str] = frozenset()  # those of them that are found nowhere
        self._collected: Collected | None = None
        self._code: Code | None = None
        self._digest = b""
        self._made = 0
        self._loaded: dict[str, object] = {}  # the specs of the modules that went along
        self._imported = 0  # how many modules there were then
        self._searched: object = None  # the folders in which `missing` were not found
        self._rests_until_s = float("-inf")

    def is_current(self, modules: ModuleNames) -> bool:
        """Whether `of` has its answer at once."""
        with self._lock:
            return self._is_current(modules)

    def of(self, modules: ModuleNames) -> Code | None:
        """What goes along with calls that refer to these modules; None where nothing needs to.

        Raises InvalidInput where git does not track a module, and where it is too much; LocalError
        where it cannot be kept.
        """
        with self._lock:
            if not self._is_current(modules):
                self._make(modules)
            return self._code

    @property
    def left_out(self) -> tuple[str, ...]:
        """Of the bundle that was made last: see Code."""
        code = self._code
        return () if code is None else code.left_out

    def _is_current(self, modules: ModuleNames) -> bool:
        if self._choice == "main":
            return True
        if self._choice == "auto" and modules - self._names:
            return False
        return self._is_fresh()

    def _is_fresh(self) -> bool:
        if not self._is_loaded():
            return False
        now_s = time.perf_counter()
        if now_s < self._rests_until_s:
            return True
        if not self._looks_fresh():
            return False
        if self._collected is not None and len(self._collected.watched) > _MANY:
            self._rests_until_s = now_s + _REST_S
        if len(sys.modules) != self._imported:
            self._see_loaded()
        return True

    def _is_loaded(self) -> bool:
        """Whether the modules that went along are those that were imported then."""
        modules = sys.modules
        for name, spec in self._loaded.items():  # a hundred, with each call: a plain loop
            if getattr(modules.get(name), "__spec__", None) is not spec:
                return False
        return True

    def _looks_fresh(self) -> bool:
        if self._collected is None and self._choice != "auto":
            return False  # it is not made yet
        if self._collected is not None and not self._collected.is_fresh:
            return False
        if not self._missing or (folders := search_folders()) == self._searched:
            return True
        search = Search()  # a notebook may have written a module since
        if any(map(search.finds, self._missing)):
            return False
        self._searched = folders
        return True

    def _make(self, modules: ModuleNames) -> None:
        names = self._names | modules
        self._rests_until_s = float("-inf")
        if self._choice == "auto":
            self._searched, search = search_folders(), Search()
            collected = collect(names.referred, names.imported, search)
            asked = names.referred | names.imported
            self._missing = frozenset(name for name in asked if not search.finds(name))
        else:
            assert self._choice != "main"
            collected = collect_listed(self._choice)
        if collected is None:
            self._code, self._digest = None, b""
        elif (digest := digest_of(collected.bundle)) != self._digest:
            self._code, self._digest = self._served(collected), digest
            collected = replace(collected, bundle=b"")  # it is in the cache by now
        elif self._code is not None:
            self._code = replace(self._code, left_out=collected.left_out)
        self._collected, self._names = collected, names
        self._see_loaded()

    def _see_loaded(self) -> None:
        """The specs of the modules whose files went along. Importing one anew makes another."""
        self._imported = len(sys.modules)
        files = () if self._collected is None else set(map(str, self._collected.watched))
        modules = [(name, getattr(each, "__file__", None)) for name, each in [*sys.modules.items()]]
        self._loaded = {name: _spec_of(name) for name, file in modules if file in files}

    def _served(self, collected: Collected) -> Code:
        holder = f"code-{self._made % _KEPT}"
        self._made += 1
        self._release(holder)
        code = Code(
            self._serve(collected.bundle, holder),
            collected.names,
            collected.files,
            collected.size_bytes,
            collected.left_out,
        )
        log.info("code for calls: %s", code)
        return code


def _spec_of(name: str) -> object:
    return getattr(sys.modules.get(name), "__spec__", None)


def _module_of(thing: Any) -> str:
    name = getattr(thing, "__module__", None)
    return name if isinstance(name, str) else "builtins"

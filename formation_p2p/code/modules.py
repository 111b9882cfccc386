"""Which modules are the user's own, and where their files lie.

Own is what is neither in the standard library nor installed (`site-packages`, `dist-packages`), nor
this package: scripts and packages beside them, `src` layouts, editable installs. A package goes as
a whole, with its data files. Of a namespace package, which may spread over unrelated folders, the
first package inside goes, or else the folder that holds the module.
"""

from __future__ import annotations

import importlib.util
import logging
import pkgutil
import sys
import sysconfig
from collections.abc import Iterable
from dataclasses import dataclass
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Final

from formation_p2p.code.looks import looks
from formation_p2p.core.errors import InvalidInput

log = logging.getLogger(__name__)

_INSTALLED: Final = frozenset({"site-packages", "dist-packages"})
_STANDARD: Final = tuple(
    {Path(sysconfig.get_path(name)).resolve() for name in ("stdlib", "platstdlib")}
)
# The worker has its own.
_PROVIDED: Final = frozenset({"formation_p2p", "__main__", "builtins"})


@dataclass(frozen=True, slots=True, order=True)
class Unit:
    """Files that go together: one file, or all of a folder. `name` is where they are imported from,
    with `/` between its parts: `package`, `namespace/package`, or `module.py`."""

    name: str
    path: Path
    is_folder: bool

    @property
    def module(self) -> str:
        """As people write it."""
        *parts, last = self.name.split("/")
        return ".".join(filter(None, [*parts, last if self.is_folder else last.split(".")[0]]))


class Search:
    """Looks for modules where this interpreter does, without importing any. For one moment: what it
    found it remembers."""

    def __init__(self) -> None:
        # The finders' own lists of folders may lack a file that was written a moment ago.
        importlib.invalidate_caches()
        self._tops: dict[str, ModuleSpec | None] = {}
        self._units: dict[str, tuple[Unit, ...]] = {}

    def units_of(self, module: str) -> tuple[Unit, ...]:
        """What has to go along for a module of this name to be imported elsewhere: nothing for one
        that is not the user's own, or is not found."""
        if module not in self._units:
            found = self._looked_for(module)
            beside = _put_there(module)  # which a package does not hold
            found += tuple(
                x for x in beside if not any(x.path.is_relative_to(y.path) for y in found)
            )
            self._units[module] = found
        return self._units[module]

    def _looked_for(self, module: str) -> tuple[Unit, ...]:
        top, *rest = module.split(".")
        spec, name = self._top(top), top
        for part in (*rest, None):
            if spec is None:
                return ()
            if spec.submodule_search_locations is None:
                return _file(name, spec)
            if spec.has_location:
                return _folders(name, spec.submodule_search_locations)
            if part is None:
                return ()  # a namespace by itself has no files
            locations = [each for each in spec.submodule_search_locations if Path(each).is_dir()]
            below = _in_namespace(f"{name}.{part}", locations)
            if below is not None and below.submodule_search_locations is None:
                # A module right in a namespace: the folder with its siblings and data.
                found = _file(f"{name}.{part}", below)
                return _folders(name, [str(each.path.parent) for each in found])
            spec, name = below, f"{name}.{part}"
        return ()

    def is_namespace(self, top: str) -> bool:
        spec = self._top(top)
        return (
            spec is not None
            and spec.submodule_search_locations is not None
            and not spec.has_location
        )

    def finds(self, module: str) -> bool:
        """Whether there is a module of this name, wherever it comes from."""
        top = module.partition(".")[0]
        return top in _PROVIDED or self._top(top) is not None

    def _top(self, name: str) -> ModuleSpec | None:
        if name in _PROVIDED:
            return None
        if name not in self._tops:
            self._tops[name] = _top_spec(name)
        return self._tops[name]


def unit_at(path: Path) -> Unit:
    """A file or folder that a person named, under the name by which it is imported here; where it
    is not, under its own. A folder in which modules are looked for goes by its content. Raises
    InvalidInput where it is not there."""
    path = path.expanduser().absolute()
    if not path.exists():
        raise InvalidInput("code", f"{path} is not there; name files and folders of modules")
    above = [entry for entry in _search_path() if path.is_relative_to(entry)]
    deepest = max(above, key=lambda entry: len(entry.parts), default=path.parent)
    return Unit(path.relative_to(deepest).as_posix().removeprefix("."), path, path.is_dir())


def search_folders() -> object:
    """What differs where a module may be found that was not before."""
    return tuple(sys.path), looks(_search_path()), len(sys.meta_path)


def _search_path() -> tuple[Path, ...]:
    return tuple(Path(entry or ".").absolute() for entry in sys.path)


def _top_spec(name: str) -> ModuleSpec | None:
    loaded = sys.modules.get(name)
    spec = getattr(loaded, "__spec__", None)
    if isinstance(spec, ModuleSpec):
        return spec
    if loaded is not None:
        file = getattr(loaded, "__file__", None)
        return importlib.util.spec_from_file_location(name, file) if file else None
    try:
        return importlib.util.find_spec(name)
    except Exception:  # of the finders of others, which may raise anything
        log.debug("%s cannot be looked for", name, exc_info=True)
        return None


def _in_namespace(name: str, locations: Iterable[str]) -> ModuleSpec | None:
    """As PathFinder, which wants the namespaces above to be imported."""
    portions: list[str] = []
    for location in locations:
        finder = pkgutil.get_importer(location)
        spec = finder.find_spec(name) if finder is not None else None
        if spec is not None and spec.loader is not None:
            return spec
        portions += (spec and spec.submodule_search_locations) or ()
    if not portions:
        return None
    namespace = ModuleSpec(name, None)
    namespace.submodule_search_locations = portions
    return namespace


def _file(module: str, spec: ModuleSpec) -> tuple[Unit, ...]:
    if not spec.has_location or spec.origin is None:
        return ()  # built in, frozen, made in memory
    path = Path(spec.origin).absolute()
    if not path.is_file() or not is_own(path):
        return ()
    *folders, last = module.split(".")
    # A program may have loaded it under another name.
    name = path.name if path.name.startswith(f"{last}.") else last + path.suffix
    return (Unit("/".join((*folders, name)), path, is_folder=False),)


def _put_there(module: str) -> tuple[Unit, ...]:
    """The file of a module that a program has put where no finder finds it."""
    spec = getattr(sys.modules.get(module), "__spec__", None)
    if not isinstance(spec, ModuleSpec) or module.partition(".")[0] in _PROVIDED:
        return ()
    if spec.has_location and spec.submodule_search_locations is not None:
        return _folders(module, spec.submodule_search_locations)
    return _file(module, spec)


def _folders(module: str, locations: Iterable[str]) -> tuple[Unit, ...]:
    paths = [Path(each).absolute() for each in locations]
    name = module.replace(".", "/")
    return tuple(
        Unit(name, path, is_folder=True) for path in paths if path.is_dir() and is_own(path)
    )


def is_own(path: Path) -> bool:
    """Whether a file or folder of modules is the user's own. A folder that is linked into
    `site-packages` is: some tools install a project for development that way."""
    if path.is_dir() and path.is_symlink():
        path = path.resolve()
    if is_installed(path):
        return False
    if any(path.parent.glob("*.dist-info")):
        return False  # `pip install --target`
    real = path.resolve()
    return not any(real.is_relative_to(folder) for folder in _STANDARD)


def is_installed(path: Path) -> bool:
    return bool(_INSTALLED.intersection(path.parts))

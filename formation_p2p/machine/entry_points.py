"""What packages offer under a name in one of our groups of entry points.

    [options.entry_points]
    formation_p2p.policies =
        greenest = solar.policies:Greenest

Names are read from the metadata of installed packages; code is imported when its name is used.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Iterator, Mapping
from functools import cache
from typing import TYPE_CHECKING, Final, TypeVar

from formation_p2p.core.errors import InvalidInput

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

log = logging.getLogger(__name__)

# Of other packages, in one group. Help and error messages list them all.
MAX_NAMES: Final = 64

_T = TypeVar("_T")


class Offered(Mapping[str, _T]):
    """The built-in objects of a group and those of installed packages, by name. A built-in one is
    never replaced.

    Raises InvalidInput where an object cannot be loaded or is of another class than `kind`, where
    two packages use the same name, and where there are more than MAX_NAMES.
    """

    def __init__(
        self, group: str, built_in: Mapping[str, _T], kind: type[_T] | None = None
    ) -> None:
        self._group = group
        self._built_in = built_in
        self._kind = kind

    def __getitem__(self, name: str) -> _T:
        if name in self._built_in:
            return self._built_in[name]
        [first, *others] = _found(self._group)[name]
        if others:
            packages = " and ".join(sorted(map(_package, (first, *others))))
            raise InvalidInput(self._group, f"{packages} both offer {name!r}; uninstall one")
        try:
            loaded: _T = first.load()
        except Exception as error:  # other people's code raises what it likes
            why = f"{type(error).__name__}: {error}"[:256]
            problem = f"{name!r} of {_package(first)} cannot be loaded from {first.value}: {why}"
            raise InvalidInput(self._group, f"{problem}; mend or uninstall it") from error
        if self._kind is not None and not isinstance(loaded, self._kind):
            problem = f"{name!r} of {_package(first)} is no {self._kind.__name__}"
            raise InvalidInput(self._group, f"{problem}; mend or uninstall it")
        return loaded

    def __contains__(self, name: object) -> bool:
        return name in self._built_in or name in _found(self._group)

    def __iter__(self) -> Iterator[str]:
        return iter({**self._built_in, **_found(self._group)})

    def __len__(self) -> int:
        return len(list(iter(self)))

    def package(self, name: str) -> str:
        """That offers the object of this name, with its version."""
        built_in = name in self._built_in
        return "formation_p2p" if built_in else _package(_found(self._group)[name][0])


@cache  # it reads the metadata of all installed packages: 10 ms
def _found(group: str) -> Mapping[str, list[EntryPoint]]:
    from importlib.metadata import distributions  # an email parser, zip files, sockets: 20 ms

    found: defaultdict[str, list[EntryPoint]] = defaultdict(list)
    for distribution in distributions():
        try:
            offered = distribution.entry_points.select(group=group)
        except Exception as error:  # noqa: BLE001 - a damaged package costs nothing but its names
            log.warning("the entry points of %s cannot be read: %r", distribution.name, error)
            continue
        for each in offered:
            if each not in found[each.name]:  # a package may be on the path twice
                found[each.name].append(each)
    if len(found) > MAX_NAMES:
        raise InvalidInput(group, f"packages offer more than {MAX_NAMES} names; uninstall some")
    return dict(sorted(found.items()))


def _package(entry_point: EntryPoint) -> str:
    package = entry_point.dist
    return f"{package.name} {package.version}" if package else "an unnamed package"

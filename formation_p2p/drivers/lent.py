"""Folders of a machine that its worker lends to tasks: shown in the sandbox at the same path."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from formation_p2p.core.errors import InvalidInput
from formation_p2p.machine.core.bounds import LABEL, shown
from formation_p2p.machine.home_path import home_near

# Each is a label, of which a worker has eight.
MAX_LENT: Final = 8
_PREFIX: Final = "bind"
_WRITABLE: Final = ":rw"


@dataclass(frozen=True, slots=True)
class Lent:
    """`path` has no links. What tasks write there is not counted as their storage, and stays."""

    path: Path
    writable: bool = False

    @property
    def label(self) -> tuple[str, str]:
        """By which tasks ask for it: `bind.mnt.data=ro` is /mnt/data."""
        key = ".".join((_PREFIX, *self.path.parts[1:]))
        return key, "rw" if self.writable else "ro"


def lent_folders(given: Iterable[str]) -> tuple[Lent, ...]:
    """As a person writes them: `/data`, or `/data:rw`. Raises InvalidInput for what is no folder,
    the root folder, one that is there twice, a path that makes no label, and what shows a node's
    home."""
    found: dict[Path, Lent] = {}
    for text in given:
        path = Path(text.removesuffix(_WRITABLE))
        if not path.is_absolute() or not path.is_dir() or path.resolve() == Path("/"):
            problem = f"{shown(text)} is not a folder below /; write its whole path"
            raise InvalidInput(_PREFIX, problem)
        path = path.resolve()
        lent = Lent(path, text.endswith(_WRITABLE))
        if path in found:
            raise InvalidInput(_PREFIX, f"{path} is there twice; write it once")
        if (home := home_near(path)) is not None:
            problem = f"{path} would show tasks the keys of a node, which has its home in {home}"
            raise InvalidInput(_PREFIX, f"{problem}; lend a folder apart from it")
        if LABEL.fullmatch(lent.label[0]) is None:
            wanted = "up to 58 letters, digits, dots, _ and -, with a letter or digit at the end"
            raise InvalidInput(_PREFIX, f"{path} makes no label; lend a folder with {wanted}")
        found[path] = lent
    if len(found) > MAX_LENT:
        raise InvalidInput(_PREFIX, f"there are more than {MAX_LENT}; lend a folder above them")
    return tuple(found.values())


def labels_of(lent: Iterable[Lent]) -> dict[str, str]:
    """What a worker says of them."""
    return dict(each.label for each in lent)

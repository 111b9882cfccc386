"""An object that a node keeps for its calls: made once, named by any number of them."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Final, Generic, NoReturn, TypeVar

from formation_p2p.api.parcels import Packer
from formation_p2p.core.errors import InvalidInput
from formation_p2p.core.units import format_bytes
from formation_p2p.workload.core.code_bundle import NO_MODULES, ModuleNames
from formation_p2p.workload.core.parcel import MAX_REFERENCES, Parcel

T_co = TypeVar("T_co", covariant=True)


class OnlyInCalls(InvalidInput):
    """A reference is in a pickle that does not go along with a call."""

    def __init__(self) -> None:
        problem = "it is good for calls of its node alone; pass it to one, or pickle the object"
        super().__init__("reference", problem)


class Reference(Generic[T_co]):
    """An object that `Node.put` has made a copy of, for calls of that node.

    Pass it as an argument, within one (in lists, dicts, …), or let the function enclose it: the
    function receives the object itself, and each worker fetches it once. It is kept until
    `release`, until this is collected, or until the node is closed; calls that were handed over
    before have it to their end.
    """

    def __init__(self, parcel: Parcel, modules: ModuleNames, packer: Packer, kind: str) -> None:
        """For `Node.put`. The parcel is released once."""
        self.parcel: Final = parcel
        self.modules: Final = modules
        self._packer = packer
        self._kind = kind
        self._process = os.getpid()
        self._is_released = False

    @property
    def size_bytes(self) -> int:
        """How much memory its node has it in."""
        return sum(blob.size_bytes for blob in self.parcel.blobs)

    def release(self) -> None:
        """Calls that come later cannot use it. Does nothing the second time, and in a process that
        was forked from the node's."""
        if not self._is_released and self._process == os.getpid():
            self._is_released = True
            self._packer.release(self.parcel)

    def check(self, packer: Packer) -> None:
        """Raises InvalidInput where it is not for calls of the node with this packer."""
        if self._packer is not packer.node:
            problem = "it is another node's; put the object with the node that makes the call"
            raise InvalidInput("reference", problem)
        if self._is_released:
            raise InvalidInput("reference", "it was released; put the object again")

    def __del__(self) -> None:
        # From any thread, and in the middle of anything: a lock may be held.
        if not self._is_released and self._process == os.getpid():
            self._packer.release_soon(self.parcel)

    def __reduce__(self) -> NoReturn:
        raise OnlyInCalls

    def __repr__(self) -> str:
        state = ", released" if self._is_released else ""
        return f"<Reference to {self._kind}, {format_bytes(self.size_bytes)}{state}>"


class Referred:
    """The references in one pickle, by the numbers that stand for them there."""

    def __init__(self) -> None:
        self._numbers: dict[int, int] = {}  # by identity: the pickled value has them meanwhile
        self._found: list[Reference[object]] = []
        self.modules = NO_MODULES  # of all that were ever found

    def number_of(self, value: object) -> int | None:
        """What stands for it in the pickle, None for other objects. Raises InvalidInput."""
        if type(value) is not Reference:
            return None
        number = self._numbers.get(id(value))
        if number is None:
            number = self._numbers[id(value)] = len(self._found)
            if number == MAX_REFERENCES:
                problem = f"a call takes {MAX_REFERENCES} references; put a list of the objects"
                raise InvalidInput("arguments", problem)
            self._found.append(value)
            self.modules |= value.modules
        return number

    def take(self) -> tuple[Reference[object], ...]:
        """Those of the pickle that is complete now; the next begins."""
        found = tuple(self._found)
        self._found.clear()
        self._numbers.clear()
        return found


def good_for(packer: Packer, references: Iterable[object]) -> list[Parcel]:
    """Their parcels. Raises InvalidInput where one is not for calls of the node with this packer,
    or was released."""
    found = [each for each in references if isinstance(each, Reference)]
    for each in found:
        each.check(packer)
    return [each.parcel for each in found]

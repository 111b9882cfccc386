"""How many workers are to agree on a result, as a person asks for it.

Quorum(2, of=3)                            two of at most three answers are to be the same
Quorum(2, of=3, at_once=True)              the two are asked at the same time
Quorum.adaptive(2, of=5, check=0.02)       one answer is enough of a worker that has proved
                                           itself, but for some that are checked
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Self, TypeAlias, cast

from formation_p2p.core.errors import InvalidInput
from formation_p2p.machine.core.bounds import check_amount, shown
from formation_p2p.workload.core.comparers import BYTES, Comparer, Own, comparer_of

# Each copy is paid for, and each pair of answers compared.
MAX_COPIES: Final = 9
# What two copies of a task are not to have in common: an operator may have any number of peers.
APART: Final = ("org", "grant", "subnet")
# What all copies of a task may be asked to have in common: a label is written as `label.site`.
ALIKE: Final = ("arch", "os", "gpu", "python")
# Or a text, as workload/core/comparers.py reads it.
Same: TypeAlias = Comparer | Callable[[Any, Any], object] | str
_LABEL: Final = re.compile(r"label\.[a-z0-9_.-]{1,64}")
DEFAULT_CHECK: Final = 0.02

_TEXT: Final = re.compile(r"(\d{1,3})\s*(?:of|/)\s*(\d{1,3})((?:[\s,]+[a-z_]+=\S+)*)")
_WORDS: Final = {"yes": True, "no": False}


@dataclass(frozen=True, slots=True)
class Quorum:
    """`need` of up to `of` answers are to be the `same`; copies of the task go out one after the
    other, or so many `at_once` as are still needed, to workers drawn at random.

    No two of these have the same organisation, invitation or subnet, as `apart` says; `alike` names
    what they have in common, such as `arch` where results are floats. With a `check`, the answer of
    a worker that has proved itself counts alone, but for this share of them or more: see
    docs/explanation/trust.md. Raises InvalidInput.
    """

    need: int
    of: int
    same: Same = BYTES
    alike: tuple[str, ...] = ()
    apart: tuple[str, ...] = APART
    check: float | None = None
    at_once: bool = False

    def __post_init__(self) -> None:
        check_amount("quorum.of", self.of, 2, MAX_COPIES)
        check_amount("quorum.need", self.need, 2, self.of)
        object.__setattr__(self, "same", comparer_of(self.same))
        object.__setattr__(self, "alike", _names("alike", self.alike))
        object.__setattr__(self, "apart", _names("apart", self.apart))
        for each in self.alike:
            if each not in ALIKE and not _LABEL.fullmatch(each):
                hint = f"write {', '.join(ALIKE)} or label.<key>"
                raise InvalidInput("quorum.alike", f"{shown(each)} is not known; {hint}")
        for each in self.apart:
            if each not in APART:
                hint = f"write some of {', '.join(APART)}"
                raise InvalidInput("quorum.apart", f"{shown(each)} is not known; {hint}")
        check: object = self.check
        is_number = isinstance(check, int | float) and not isinstance(check, bool)
        if check is not None and not (is_number and 0 < cast("float", check) <= 1):
            problem = f"{shown(check)} is not a share; write 0.02 to check one in fifty"
            raise InvalidInput("quorum.check", problem)
        if self.check is not None:
            object.__setattr__(self, "check", float(self.check))
        if not isinstance(cast("object", self.at_once), bool):
            raise InvalidInput("quorum.at_once", f"{shown(self.at_once)} is not yes or no")
        if self.at_once and check is not None:
            problem = (
                "does not go with check, where one answer may be enough; leave one of them out"
            )
            raise InvalidInput("quorum.at_once", problem)

    @property
    def comparer(self) -> Comparer:
        return cast("Comparer", self.same)

    @classmethod
    def adaptive(
        cls,
        need: int,
        of: int,
        check: float = DEFAULT_CHECK,
        same: Same = BYTES,
        alike: Iterable[str] = (),
        apart: Iterable[str] = APART,
    ) -> Self:
        """As `Quorum`, where one answer of a worker that has proved itself may be enough."""
        return cls(need, of, same, tuple(alike), tuple(apart), check)

    def pack(self) -> list[object]:
        """For a record of this node's own. Raises InvalidInput for a function."""
        if isinstance(self.same, Own):
            problem = "a function of your own cannot be kept with a job; write same='numbers(1e-6)'"
            raise InvalidInput("quorum.same", problem)
        packed = [self.need, self.of, str(self.same), [*self.alike], [*self.apart], self.check]
        return [*packed, True] if self.at_once else packed

    @classmethod
    def unpack(cls, packed: object) -> Self:
        """Raises InvalidInput."""
        match packed:
            case [int(need), int(of), str(same), list(alike), list(apart), check, *once] if (
                once in ([], [True]) and (check is None or isinstance(check, float))
            ):
                same_as, at_once = comparer_of(same), bool(once)
                return cls(need, of, same_as, tuple(alike), tuple(apart), check, at_once)
            case _:
                raise InvalidInput("quorum", "is not a list of what it was packed as")

    def __str__(self) -> str:
        parts = [f"{self.need} of {self.of}"]
        if self.check is not None:
            parts.append(f"check={self.check!r}")
        if self.same != BYTES:
            parts.append(f"same={self.same}")
        if self.alike:
            parts.append(f"alike={'+'.join(self.alike)}")
        if self.apart != APART:
            parts.append(f"apart={'+'.join(self.apart) or 'none'}")
        if self.at_once:
            parts.append("at_once=yes")
        return " ".join(parts)


def quorum_of(given: object) -> Quorum | None:
    """What a person wrote: a Quorum, a text such as `2 of 3 same=numbers(1e-6)`, or a mapping with
    the names of its fields. Raises InvalidInput."""
    if given is None or isinstance(given, Quorum):
        return given
    if isinstance(given, str):
        return _parsed(given)
    if isinstance(given, Mapping):
        return _made(dict(given))
    hint = "write Quorum(2, of=3), or '2 of 3'"
    raise InvalidInput("quorum", f"{shown(given)} is not a quorum; {hint}")


def _parsed(text: str) -> Quorum:
    match = _TEXT.fullmatch(text.strip())
    if match is None:
        hint = "write 2 of 3, or 2 of 5 check=0.02 same=numbers(1e-6) alike=arch apart=org"
        raise InvalidInput("quorum", f"{shown(text)} is not a quorum; {hint}")
    fields: dict[str, Any] = {"need": int(match[1]), "of": int(match[2])}
    for part in match[3].split():
        name, _, value = part.strip(",").partition("=")
        if name in fields:
            raise InvalidInput("quorum", f"{name} is given twice; give it once")
        if name in ("alike", "apart"):
            fields[name] = () if value == "none" else tuple(value.split("+"))
        elif name == "check":
            try:
                fields[name] = float(value)
            except ValueError:
                raise InvalidInput("quorum.check", f"{shown(value)} is not a number") from None
        elif name == "at_once":
            fields[name] = _WORDS.get(value, value)
        else:
            fields[name] = value
    return _made(fields)


_FIELDS: Final = ("need", "of", "same", "alike", "apart", "check", "at_once")


def _made(fields: dict[str, Any]) -> Quorum:
    unknown = next((name for name in fields if name not in _FIELDS), None)
    if unknown is not None:
        raise InvalidInput("quorum", f"{shown(unknown)} is not one of {', '.join(_FIELDS)}")
    missing = next((name for name in ("need", "of") if name not in fields), None)
    if missing is not None:
        raise InvalidInput(f"quorum.{missing}", "is missing; write need=2 and of=3")
    return Quorum(**fields)


def _names(field: str, given: object) -> tuple[str, ...]:
    if isinstance(given, str):
        given = (given,)
    names = [*given] if isinstance(given, Iterable) else [None]
    if not all(isinstance(each, str) for each in names):
        raise InvalidInput(f"quorum.{field}", f"{shown(given)} is not a list of texts")
    return tuple(dict.fromkeys(cast("list[str]", names)))

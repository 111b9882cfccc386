"""The packages that tasks need: `Env` as a person writes it, `Environment` as it travels.

    Env(requirements=["scikit-learn==1.7"])
    Env("requirements.txt")      # or pyproject.toml, uv.lock, pylock.toml

Whatever the form, what travels are the lines of a requirements file, with the hashes that a lock
has. A worker gives them to uv. So a line names a package, its versions and hashes, and nothing
else: no option of uv, no path and no address.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, replace
from os import PathLike, fspath
from typing import Any, Final, Literal

import cbor2

from formation_p2p.core.errors import InvalidInput
from formation_p2p.core.units import MIB
from formation_p2p.machine.core.bounds import shown
from formation_p2p.machine.core.environment import ENVIRONMENT_CHARS
from formation_p2p.machine.core.python import python_name
from formation_p2p.workload.core.blob import Blob
from formation_p2p.workload.core.work import decode_plain

Wheels = Literal["index", "ship"]

# A lock of 300 packages, with 30 hashes each. It travels to a worker once.
MAX_ENVIRONMENT_BYTES: Final = 1 * MIB
MAX_REQUIREMENTS: Final = 1000
# One package with the hashes of all its wheels: numpy has 70.
MAX_REQUIREMENT_CHARS: Final = 16_384
MAX_INDEXES: Final = 8
MAX_URL_CHARS: Final = 512
# Each is a blob to fetch.
MAX_WHEELS: Final = 500

# PEP 508 without addresses: name, extras, versions, marker; then the hashes of a requirements file.
# Strangers write such lines, in the specs of services: a run of characters gives back nothing that
# it took (`++`), or a line of spaces could be split among the parts in 10^9 ways. Groups that are
# repeated need not, since each begins with what no other part does. Python before 3.11.5 goes on
# behind one that gives nothing back from where its last attempt failed (CPython gh-106052).
_VERSION: Final = r"(?:===?|[~!]=|[<>]=?)\s*+[A-Za-z0-9.*+!_-]++\s*+"
_REQUIREMENT: Final = re.compile(
    r"(?>[A-Za-z0-9](?:[A-Za-z0-9._-]{0,126}[A-Za-z0-9])?)\s*+"
    r"(?:\[[A-Za-z0-9._,\s-]{0,256}+\]\s*+)?"
    rf"(?:\(?+\s*+{_VERSION}(?:,\s*+{_VERSION})*(?:,\s*+)?\)?+\s*+)?"
    r"(?:;(?>(?:(?!--hash=)[A-Za-z0-9_.<>=!~'\"()\s,+*-]){1,1024})\s*+)?"
    r"(?:(?<=\s)--hash=sha(?:256:[0-9a-f]{64}|384:[0-9a-f]{96}|512:[0-9a-f]{128})"
    r"(?:\s++|\Z))*",
    re.ASCII,
)
_URL: Final = re.compile(r"https?://[!-~]+", re.ASCII)
# PEP 427: name, version, tags; no path.
_WHEEL: Final = re.compile(r"[A-Za-z0-9_.+!-]{1,250}\.whl", re.ASCII)


@dataclass(frozen=True, slots=True)
class Env:
    """Packages that tasks find installed, in a folder that the worker builds once.

    `requirements` are lines of a requirements file, or the path of a requirements.txt,
    pyproject.toml, uv.lock or pylock.toml. `python` is the version that it is for, such as `3.12`:
    by default the one that a file names, or else the one that the task runs with anyway. With
    `wheels="ship"` this node downloads the wheels and the worker has them from here, so that it
    needs no index; they are for machines like this one, or for those of `platform`, such as
    `linux-aarch64-gnu`. `indexes` are addresses of package indexes, to be asked beside the worker's
    own; a worker that does not allow one of them refuses.

    Raises InvalidInput.
    """

    requirements: str | PathLike[str] | Iterable[str] = ()
    python: str = ""
    wheels: Wheels = "index"
    indexes: str | Iterable[str] = ()
    platform: str = ""

    def __post_init__(self) -> None:
        given: object = self.requirements
        if isinstance(given, PathLike):
            object.__setattr__(self, "requirements", str(fspath(given)))
        elif isinstance(given, Iterable) and not isinstance(given, str | bytes):
            object.__setattr__(self, "requirements", requirement_lines(given))
        elif not isinstance(given, str) or not given:
            problem = f"{shown(given)} is neither a list of requirements nor the path of a file"
            raise InvalidInput("env", problem)
        if self.python:
            python_name(self.python)
        if self.wheels not in ("index", "ship"):
            raise InvalidInput("env.wheels", f"{shown(self.wheels)} is neither index nor ship")
        platform: object = self.platform
        if not isinstance(platform, str):
            raise InvalidInput("env.platform", f"{shown(platform)} is not a text")
        if self.platform and self.wheels != "ship":
            problem = f'{shown(self.platform)} is for wheels from here; add wheels="ship"'
            raise InvalidInput("env.platform", problem)
        object.__setattr__(self, "indexes", _checked_indexes(self.indexes))


@dataclass(frozen=True, slots=True)
class Environment:
    """`requirements` are lines, each of one package; `wheels` are what they are to be installed
    from, by their file names: from an index if there are none.

    Raises InvalidInput.
    """

    requirements: tuple[str, ...]
    indexes: tuple[str, ...] = ()
    wheels: tuple[tuple[str, Blob], ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "requirements", requirement_lines(self.requirements))
        object.__setattr__(self, "indexes", _checked_indexes(self.indexes))
        if len(self.wheels) > MAX_WHEELS:
            raise InvalidInput("env.wheels", f"there are more than {MAX_WHEELS}; leave some out")
        for name, _ in self.wheels:
            if not isinstance(name, str) or _WHEEL.fullmatch(name) is None or name[0] in ".-":
                raise InvalidInput("env.wheels", f"{shown(name)} is not the name of a wheel")
        if len({name for name, _ in self.wheels}) < len(self.wheels):
            raise InvalidInput("env.wheels", "one is given twice; give it once")

    def name(self, python: str) -> str:
        """By its content, for tasks whose requirements have this `python`: what workers announce,
        and placement compares. Peers that have the wheels do not count."""
        wheels = [(name, replace(blob, sources=())) for name, blob in self.wheels]
        content = python.encode() + b"\n" + replace(self, wheels=tuple(wheels)).encode()
        return hashlib.sha256(content).hexdigest()[:ENVIRONMENT_CHARS]

    def encode(self) -> bytes:
        """Raises InvalidInput where it is too large."""
        encoded = cbor2.dumps(
            {
                "requirements": list(self.requirements),
                "indexes": list(self.indexes),
                "wheels": [[name, blob.pack()] for name, blob in self.wheels],
            }
        )
        if len(encoded) > MAX_ENVIRONMENT_BYTES:
            problem = f"takes {len(encoded)} bytes of {MAX_ENVIRONMENT_BYTES}; leave packages out"
            raise InvalidInput("env", problem)
        return encoded

    @classmethod
    def decode(cls, encoded: bytes) -> Environment:
        """What a stranger sent. Raises InvalidInput."""
        if len(encoded) > MAX_ENVIRONMENT_BYTES:
            raise InvalidInput("env", f"has more than {MAX_ENVIRONMENT_BYTES} bytes")
        match decode_plain("env", encoded):
            case {
                "requirements": [*requirements],
                "indexes": [*indexes],
                "wheels": [*wheels],
                **rest,
            } if not rest and all(map(_is_pair, wheels)):
                unpacked = tuple((name, Blob.unpack(blob)) for name, blob in wheels)
                return cls(tuple(requirements), tuple(indexes), unpacked)
            case _:
                raise InvalidInput("env", "is no environment")


def env_of(given: Env | str | PathLike[str] | Iterable[str] | Mapping[str, Any]) -> Env:
    """As an option of a job is written: an Env, the path of a file, a list of requirements, or a
    table of its fields. Raises InvalidInput."""
    if isinstance(given, Env):
        return given
    if isinstance(given, Mapping):
        if unknown := given.keys() - {each.name for each in fields(Env)}:
            raise InvalidInput("env", f"{shown(min(unknown, key=str))} is not a field of it")
        return Env(**given)
    return Env(given)


def requirement_lines(given: Iterable[object]) -> tuple[str, ...]:
    """Each as a requirement of one package, without the space around it. Raises InvalidInput."""
    lines = tuple(given)
    if len(lines) > MAX_REQUIREMENTS:
        raise InvalidInput("env", f"has {len(lines)} requirements, of {MAX_REQUIREMENTS} at most")
    return tuple(map(_checked_line, lines))


def _checked_line(line: object) -> str:
    if not isinstance(line, str) or len(line) > MAX_REQUIREMENT_CHARS:
        raise InvalidInput("env", f"{shown(line)} is not a requirement such as numpy>=2")
    stripped = line.strip()
    if _REQUIREMENT.fullmatch(stripped) is None or "\n" in stripped or "\r" in stripped:
        hint = "write a name and versions, such as numpy==2.1: no option, path or address"
        raise InvalidInput("env", f"{shown(stripped)} is not a requirement; {hint}")
    return stripped


def _checked_indexes(given: Iterable[object]) -> tuple[str, ...]:
    if isinstance(given, str):
        given = (given,)
    indexes = tuple(given)
    if len(indexes) > MAX_INDEXES:
        raise InvalidInput("env.indexes", f"there are more than {MAX_INDEXES}; leave some out")
    for url in indexes:
        if not isinstance(url, str) or len(url) > MAX_URL_CHARS or _URL.fullmatch(url) is None:
            raise InvalidInput("env.indexes", f"{shown(url)} is not an https address of an index")
    return indexes  # type: ignore[return-value]  # all are texts


def _is_pair(value: object) -> bool:
    return isinstance(value, list) and len(value) == 2

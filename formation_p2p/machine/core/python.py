"""The Pythons that a machine offers for calls.

What cloudpickle writes holds the bytecode of one minor version, and reading it with another can end
the process. So a worker announces the versions that it offers, and a call asks for its own.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from formation_p2p.core.errors import InvalidInput
from formation_p2p.machine.core.bounds import check_amount, check_name, shown

# Each is a bucket that the worker announces itself in.
MAX_PYTHONS: Final = 8
# What a call asks for whose function each version can read, since it is imported there.
ANY_PYTHON: Final = "any"
MAX_CLOUDPICKLE: Final = 1000

_NAME: Final = re.compile(r"(?:([a-z]{1,16})-)?(\d{1,2}\.\d{1,3})", re.ASCII)


@dataclass(frozen=True, slots=True, order=True)
class Python:
    """`name` is its implementation and minor version, `cpython-3.11`; `platform` is as uv names
    it, `linux-x86_64-gnu`; `cloudpickle` is the major version that it reads calls with.

    Raises InvalidInput.
    """

    name: str
    platform: str
    cloudpickle: int

    def __post_init__(self) -> None:
        if python_name(self.name) != self.name:
            raise InvalidInput("python", f"{shown(self.name)} is not a name such as cpython-3.11")
        check_name("python.platform", self.platform)
        check_amount("cloudpickle", self.cloudpickle, 0, MAX_CLOUDPICKLE)


def check_python(asked: object) -> None:
    """Refuses all but a name, `any`, and the empty text. Raises InvalidInput."""
    if asked not in ("", ANY_PYTHON) and python_name(asked) != asked:
        raise InvalidInput("python", f"{shown(asked)} is not a name such as cpython-3.11")


def parse_python(text: object) -> str:
    """What a call may ask for: `any`, or the name of a version. Raises InvalidInput."""
    return ANY_PYTHON if text == ANY_PYTHON else python_name(text)


def python_name(text: object) -> str:
    """`cpython-3.11` of `3.11` or of itself. Raises InvalidInput."""
    match = _NAME.fullmatch(text) if isinstance(text, str) else None
    if match is None:
        problem = f"{shown(text)} is not a version; write one such as 3.12 or pypy-3.11"
        raise InvalidInput("python", problem)
    return f"{match[1] or 'cpython'}-{match[2]}"

"""The names of what tasks are prepared with: workers announce them, and tasks ask for them.

`4f1c0a9b7d2e` is an environment of packages (workload/core/environment.py). What else tells
interpreters apart follows after a point: `4f1c0a9b7d2e.09ab`, or `.09ab` without packages. Tasks
with different ones share no lease.
"""

from __future__ import annotations

import re
from typing import Final

from formation_p2p.core.errors import InvalidInput
from formation_p2p.machine.core.bounds import shown

# 48 bits: two of one worker's are not the same by chance.
ENVIRONMENT_CHARS: Final = 12
# Of one worker, the latest used. They take 7 bytes each in its profile.
MAX_WARM: Final = 32

_NAME: Final = re.compile(rf"[0-9a-f]{{{ENVIRONMENT_CHARS}}}", re.ASCII)
_PREPARED: Final = re.compile(rf"({_NAME.pattern})?(\.[0-9a-f]{{1,16}})?", re.ASCII)


def check_environment(name: object) -> None:
    """Raises InvalidInput for anything but the name of an environment."""
    if not isinstance(name, str) or _NAME.fullmatch(name) is None:
        problem = f"{shown(name)} is not {ENVIRONMENT_CHARS} hexadecimal digits"
        raise InvalidInput("environment", problem)


def check_prepared(name: object) -> None:
    """As `check_environment`, of what a task asks for: also for nothing, and for more."""
    if not isinstance(name, str) or _PREPARED.fullmatch(name) is None:
        raise InvalidInput("environment", f"{shown(name)} is not a name such as 4f1c0a9b7d2e")


def packages_of(prepared: str) -> str:
    """The environment that a task asks for; empty for none."""
    return prepared.partition(".")[0]

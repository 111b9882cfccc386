"""The program that resolves, downloads and installs packages: uv, from its package of that name."""

from __future__ import annotations

import shutil
import sysconfig
from typing import Final

from formation_p2p.core.errors import LocalError

INSTALL_UV: Final = "pip install 'formation_p2p[environments]'"


class EnvironmentFailed(LocalError):
    """This machine cannot have an environment. The message says why, with the end of uv's log."""


def can_install() -> bool:
    """Whether this machine has uv."""
    return _found() is not None


def uv_program() -> str:
    """Where it is: beside this interpreter, or on PATH. Raises EnvironmentFailed."""
    found = _found()
    if found is None:
        problem = "this machine has no uv, which builds environments"
        raise EnvironmentFailed(f"{problem}; install it there with {INSTALL_UV}")
    return found


def _found() -> str | None:
    return shutil.which("uv", path=sysconfig.get_path("scripts")) or shutil.which("uv")

"""Tests of what bubblewrap holds: on a machine that has none they are skipped, and say why."""

import os
import subprocess
from typing import Final

import pytest

REQUIRED: Final = "FORMATION_REQUIRES_SANDBOX"
"""Where it is set, as in CI, they run and fail."""


def _why_none() -> str:
    """Why bubblewrap cannot be used here, whatever the drivers make of it; empty where it can."""
    plain = ("bwrap", "--unshare-all", "--ro-bind", "/", "/", "--proc", "/proc", "true")
    try:
        return subprocess.run(plain, capture_output=True, text=True, timeout=60).stderr.strip()
    except OSError as problem:
        return str(problem)


WHY_NONE: Final = _why_none()
needs_sandbox = pytest.mark.skipif(
    bool(WHY_NONE) and not os.environ.get(REQUIRED), reason=f"no sandbox: {WHY_NONE}"
)

_WARNING: Final = "tasks run without a sandbox"


def besides_warning(said: str) -> str:
    """What a program said, but for what a worker without a sandbox says first."""
    lines = said.splitlines(keepends=True)
    return "".join(line for line in lines if not line.startswith(_WARNING))

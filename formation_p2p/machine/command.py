"""Commands of this machine that answer at once."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping

from formation_p2p.core.errors import LocalError


def printed_by(
    argv: tuple[str, ...],
    timeout_s: float,
    environment: Mapping[str, str] | None = None,
    *,
    last_lines: int = 1,
) -> str:
    """What a command printed. Raises LocalError, with its last words, where it failed."""
    try:
        done = subprocess.run(
            argv,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            env=environment,
            timeout=timeout_s,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise LocalError(f"{argv[0]} does not answer within {timeout_s:.0f} s") from None
    except (OSError, ValueError) as problem:
        why = getattr(problem, "strerror", None) or problem
        raise LocalError(f"{argv[0]} cannot be run: {why}") from problem
    if done.returncode != 0:
        said = done.stderr.decode(errors="replace").strip().splitlines()
        words = "\n".join(said[-last_lines:])
        raise LocalError(words or f"{argv[0]} ended with {done.returncode}")
    return done.stdout.decode(errors="replace")

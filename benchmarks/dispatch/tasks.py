"""What the sides run. At the top of a module, which every side's workers import by its name."""

from __future__ import annotations

import time

# Longer than any measurement, and then it ends by itself.
BLOCK_S = 600.0


def noop(number: int) -> int:
    return number


def nap(seconds: float) -> float:
    time.sleep(seconds)
    return seconds


def block(number: int) -> int:
    """Keeps a worker busy, so that what is submitted next has to wait."""
    time.sleep(BLOCK_S)
    return number

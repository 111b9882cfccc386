"""Work, counted where a clock would say more about the machine."""

import sys
import time
from collections.abc import Callable
from types import FrameType


def calls_of(act: Callable[[], object]) -> int:
    """How many functions of Python and of C it calls."""
    calls = 0

    def note(frame: FrameType, event: str, argument: object) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        act()
    finally:
        sys.setprofile(before)
    return calls


def compute(seconds: float) -> None:
    """Keep the processor busy for so long, whoever else wants it."""
    until_s = time.thread_time() + seconds
    while time.thread_time() < until_s:
        pass

"""Both clocks of this machine, read at once."""

from __future__ import annotations

import ctypes
import time
from dataclasses import dataclass
from typing import Final

from formation_p2p.core.effects import Moment

# Whether the kernel's clock is set by NTP.
#
# Source: adjtimex(2); with no modes set it changes nothing, and needs no right.

# The state of a clock that is not synchronised, as the call returns it.
_TIME_ERROR: Final = 5


@dataclass(frozen=True, slots=True)
class KernelClock:
    """`max_error_s` is the kernel's own bound, of a clock that is synchronised."""

    synchronised: bool
    max_error_s: float


class _Timex(ctypes.Structure):
    _fields_ = (
        ("modes", ctypes.c_uint),
        ("offset", ctypes.c_long),
        ("frequency", ctypes.c_long),
        ("max_error_us", ctypes.c_long),
        ("rest", ctypes.c_char * 256),
    )


def read_clock() -> KernelClock | None:
    """None where the kernel does not tell: another system, or a container that forbids it."""
    read = getattr(ctypes.CDLL(None), "adjtimex", None)
    if read is None:
        return None
    found = _Timex()
    state = read(ctypes.byref(found))
    if state < 0:
        return None
    return KernelClock(state != _TIME_ERROR, found.max_error_us / 1_000_000)


# Goes on while the machine sleeps, so that a lease which ran out meanwhile has run out.
_MONO = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def moment() -> Moment:
    return Moment(time.clock_gettime(_MONO), time.time())

"""Both clocks of this machine, read at once."""

from __future__ import annotations

import time

from formation_p2p.core.effects import Moment

# Goes on while the machine sleeps, so that a lease which ran out meanwhile has run out.
_MONO = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def moment() -> Moment:
    return Moment(time.clock_gettime(_MONO), time.time())

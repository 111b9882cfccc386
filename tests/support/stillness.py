"""What a lease promises holds for as long as the machine runs its two sides: tests of that say so
where it stood still."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from formation_p2p.leases.core.parameters import LEASE_DEFAULTS

# A lease that is not renewed any more lives on for so long at the least.
LEFT_S: Final = (1 - LEASE_DEFAULTS.renew_at) * LEASE_DEFAULTS.lease_s - 0.3
BEAT_S: Final = 0.05


@contextmanager
def standing_still() -> Iterator[Callable[[], bool]]:
    """Tells whether the machine stood still within the block for as long as a lease may live on."""
    over = threading.Event()
    beat_s, longest_s = time.monotonic(), 0.0

    def beat() -> None:
        nonlocal beat_s, longest_s
        while not over.wait(BEAT_S):
            now_s = time.monotonic()
            beat_s, longest_s = now_s, max(longest_s, now_s - beat_s)

    beating = threading.Thread(target=beat)
    beating.start()
    try:
        yield lambda: longest_s > LEFT_S
    finally:
        over.set()
        beating.join()
        longest_s = max(longest_s, time.monotonic() - beat_s)

"""What the frames of the work protocol cost to write and to read.

python -m benchmarks.messages
"""

from __future__ import annotations

import timeit

from formation_p2p.leases.core import messages
from formation_p2p.leases.core.held import HeldResources
from formation_p2p.workload.core.outcome import Ended, Succeeded, Usage

LEASE = "f" * 16
IDS = [f"job-abcdef/{n}#1" for n in range(100)]
MESSAGES: tuple[messages.WorkMessage, ...] = (
    messages.Dispatch(
        LEASE,
        7,
        ((1, b"x" * 100),),
        tuple(messages.Assignment(each, 1, b"p" * 40, 0) for each in IDS),
    ),
    messages.TasksEnded(
        LEASE, 7, tuple(Ended(each, Succeeded(b"r" * 20), 1234, Usage(10**7, 12)) for each in IDS)
    ),
    messages.Renew(LEASE, 7),
    messages.Offer(
        1, LEASE, HeldResources(4000, 2**32, 0, 0, ("GPU-0",), 1000, 2**30), 50_000, 1500, (0,)
    ),
)


def main() -> None:
    print(f"{'microseconds, the least of 200':32}{'pack':>9}{'parse':>9}")
    for message in MESSAGES:
        frame = messages.pack(message)
        number = max(5, 30_000 // len(frame))
        pack_us, parse_us = (
            min(timeit.repeat(work, number=number, repeat=200)) / number * 1e6
            for work in (lambda m=message: messages.pack(m), lambda f=frame: messages.parse(f))
        )
        name = f"{type(message).__name__}, {len(frame)} bytes"
        print(f"{name:32}{pack_us:9.2f}{parse_us:9.2f}")


if __name__ == "__main__":
    main()

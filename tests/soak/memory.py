"""How much each process of the soak has grown since it settled.

What serves is weighed from outside, at its peaks. Submitters hold the results of several large jobs
at once, more or fewer of them by chance: these weigh themselves while no job is under way, when
what they still have is what they keep.
"""

import ctypes
import gc
import math
import threading
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

import psutil

from simulations.node_process import NodeProcess

EVERY_S: Final = 0.25
# A node has settled so long after it was up: it has done some of each kind of work.
SETTLED_S: Final = 15.0


def kept_bytes() -> int:
    """What this process has, without what Python and the allocator hold ready for it."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    return int(psutil.Process().memory_info().rss)


def growth_of(incarnations: Iterable[Sequence[int]]) -> int:
    """Of a process that weighs itself: the most that one incarnation had over its first time."""
    return max((max(weights) - weights[0] for weights in incarnations if weights), default=0)


@dataclass
class Incarnation:
    """Of a node: the most that it had before it settled and since, in bytes."""

    name: str
    up_s: float = math.inf
    settled: int = 0
    since: int = 0

    @property
    def growth(self) -> int:
        return max(0, self.since - self.settled)


class Scales(threading.Thread):
    """Weighs processes until it is stopped. All of them are settling until the storm."""

    def __init__(
        self,
        nodes: Sequence[NodeProcess],
        up: Sequence[str] = ("ready", "goes on"),
        settled_s: float = SETTLED_S,
    ) -> None:
        """`up` are the events by which nodes say that they are."""
        super().__init__(daemon=True)
        self._nodes = nodes
        self._up = up
        self._settled_s = settled_s
        self._over = threading.Event()
        self._stormy = threading.Event()
        self.incarnations: dict[int, Incarnation] = {}

    def storm(self) -> None:
        """From now on what is older than `settled_s` is not to grow."""
        self._stormy.set()

    def stop(self) -> None:
        self._over.set()
        self.join()

    def run(self) -> None:
        while not self._over.wait(EVERY_S):
            for node in self._nodes:
                if node.process is not None:
                    with suppress(psutil.Error):
                        self._weigh(node, psutil.Process(node.process.pid))

    def _weigh(self, node: NodeProcess, process: psutil.Process) -> None:
        rss, now_s = process.memory_info().rss, time.monotonic()
        each = self.incarnations.setdefault(process.pid, Incarnation(node.name))
        if each.up_s == math.inf and any(node.said(event) for event in self._up):
            each.up_s = now_s
        if self._stormy.is_set() and now_s - each.up_s > self._settled_s:
            each.since = max(each.since, rss)
        else:
            each.settled = max(each.settled, rss)

    def growth(self) -> dict[str, int]:
        """Of each node, the incarnation that grew most, in bytes."""
        most: dict[str, int] = {}
        for each in self.incarnations.values():
            most[each.name] = max(most.get(each.name, 0), each.growth)
        return most

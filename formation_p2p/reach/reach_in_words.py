"""How others reach this node, in words for people, and what they can do about it."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import Any, Final

import trio

from formation_p2p.dht.core.reachability import Reach
from formation_p2p.machine.names import named
from formation_p2p.reach.core.own_addresses import Reached, Way

# Of its own, for a program that says by itself how it is reached, and turns this off.
log = logging.getLogger("formation_p2p.reach")

# What has another way to say so, such as the lines of a command, leaves this out.
ADVICE: Final = (
    "start a gate where others can reach it, allow the port in the firewall, or forward a port of "
    "the router to it and name that by --announce"
)


def reach_in_words(reached: Reached) -> str:
    at = ", ".join(reached.at)
    match reached.way:
        case Way.DIRECT:
            return f"others dial it at {at}"
        case Way.RELAYED:
            gates = " and ".join(f"the gate {named(relay)}" for relay in reached.relays)
            near = f". On its own network it is at {at}" if at else ""
            return f"others reach it through {gates}, or directly where routers let them{near}"
        case Way.LOCAL if reached.is_shut:
            return f"only those on its own network dial it, at {at}; for others, {ADVICE}"
        case Way.LOCAL:
            return f"those on its own network dial it at {at}"
        case Way.NOWHERE:
            return f"others cannot dial it at {at}, and no gate relays for it; {ADVICE}"
        case Way.SILENT:
            return "it does not listen, and asks others only"
        case Way.UNKNOWN:
            return "not known yet: no other node has tried"


def reach_in_json(reached: Reached) -> dict[str, Any]:
    return {
        "way": reached.way.value,
        "at": list(reached.at),
        "relays": list(reached.relays),
        "is_shut": reached.is_shut,
        "words": reach_in_words(reached),
    }


# Warns a person who lends a machine, once, that others cannot reach it.

# A gate has so long to relay for a worker that others cannot dial, before the person is warned.
WARN_AFTER_S: Final = 2.0


class ShutWarning:
    """`reached` says by which ways others reach this node; `do` runs a task of the node's."""

    def __init__(
        self,
        reached: Callable[[], Reached],
        do: Callable[[Callable[[], Awaitable[None]]], None],
    ) -> None:
        self._reached = reached
        self._do = do
        self._warned = False

    def look(self, reach: Reach, serving: bool) -> None:
        if reach is Reach.CLIENT and serving and not self._warned:
            self._warned = True
            self._do(self._warn_if_shut)

    async def _warn_if_shut(self) -> None:
        await trio.sleep(WARN_AFTER_S)
        reached = self._reached()
        self._warned = reached.is_shut or reached.way is Way.SILENT
        if self._warned:
            hears = "hears of work from there alone" if reached.at else "gets no work from others"
            log.warning("%s. Until then this worker %s", reach_in_words(reached), hears)

"""A node takes up a new grant that is put in its home while it runs."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Final, assert_never

import trio

from formation_p2p.assembly import Peer
from formation_p2p.core.errors import FormationError
from formation_p2p.machine.home import Home
from formation_p2p.peer.core.events import Issue
from formation_p2p.trust.core.network import Network
from formation_p2p.trust.core.renewal import GrantEffect, GrantEnds, GrantOver, GrantTaken

# What a node logs of its own grant: that it ends soon, has ended, was replaced or is banned.

_NEXT: Final = (
    "ask for an invite and run `formation network join -` here; the node takes it up as it runs"
)

_LIFT: Final = (
    "To be let in again, ask those who sign the charter for a version without the ban "
    "(`formation charter propose --no-ban PEER|INVITATION`)"
)


def tell(effect: GrantEffect, *, serving: bool) -> None:
    """`serving` where the node is a worker."""
    when = time.strftime("%Y-%m-%d %H:%M", time.localtime(effect.expires_unix_s))
    match effect:
        case GrantEnds(left_s=left_s):
            log.warning("this node's grant ends in %s, on %s: %s", _in_words(left_s), when, _NEXT)
        case GrantOver():
            lost = "its leases have ended and it takes no work" if serving else "it may do nothing"
            log.warning("this node's grant ended on %s, so that %s: %s", when, lost, _NEXT)
        case GrantTaken(was_over=was_over):
            level = logging.WARNING if was_over else logging.INFO
            log.log(level, "this node has a new grant, until %s", when)
        case _:
            assert_never(effect)


def tell_charter(version: int, banned: str) -> None:
    """`banned` says why this node is banned by it; empty where it is not."""
    log.info("version %d of the network's charter counts from now on", version)
    if banned:
        log.warning("%s: others end its leases and refuse it. %s", banned, _LIFT)


def _in_words(left_s: float) -> str:
    """Seconds in the largest unit of which there are two.

    >>> _in_words(23.5 * 3600)
    '23 h'
    """
    for unit, unit_s in (("days", 86_400), ("h", 3600), ("min", 60)):
        if left_s >= 2 * unit_s:
            return f"{int(left_s // unit_s)} {unit}"
    return f"{int(left_s)} s"


log = logging.getLogger(__name__)

# To look takes two calls of the system; a person who joined again does not wait for long.
LOOK_EVERY_S: Final = 2.0


class GrantWatch:
    """Of the node that runs from a home as its identity `index`, in this `network`. Where it
    `issues`, and the root's key is there, it renews the grants of others."""

    def __init__(self, home: Home, index: int, network: Network, *, issues: bool) -> None:
        self._home = home
        self._index = index
        self._network = network
        self._issues = issues
        self._stamp = home.stamp(index)

    async def watch(
        self, peer: Peer, feed: Callable[[Issue], None], renewed: Callable[[Network], None]
    ) -> None:
        """Until cancelled; again with each new peer. `renewed` is told of a new grant."""
        if peer.network.grant != self._network.grant:  # it crashed since there was a new one
            renewed(self._network)
        await self._issue(feed)
        while True:
            await trio.sleep(LOOK_EVERY_S)
            stamp = self._home.stamp(self._index)
            if stamp == self._stamp:
                continue
            self._stamp = stamp
            try:
                await self._issue(feed)
                network = await trio.to_thread.run_sync(self._home.network, self._index)
            except FormationError as error:
                log.warning("a change in %s is of no use: %s", self._home.path, error)
                continue
            if network is None or network.network_id != self._network.network_id:
                log.warning(
                    "%s is in another network, or in none: start this node again to follow",
                    self._home.path,
                )
            elif network.terms != self._network.terms:  # each time it is bound it is another token
                self._network = network
                renewed(network)

    async def keep(self, network: Network) -> None:
        """Put a renewed grant in the home, where `watch` finds it."""
        try:
            await trio.to_thread.run_sync(self._home.renewed, self._index, network)
        except FormationError as error:
            log.warning("this node's new grant cannot be kept: %s", error)

    async def _issue(self, feed: Callable[[Issue], None]) -> None:
        if not self._issues:
            return
        try:
            found = await trio.to_thread.run_sync(self._home.issuer)
        except FormationError as error:
            log.warning("this node renews no grants: %s", error)
            return
        if found is not None:
            root, withdrawn = found
            feed(Issue(root, withdrawn))

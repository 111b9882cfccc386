"""A node takes up a new grant that is put in its home while it runs."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

import trio

from formation_p2p.assembly import Peer
from formation_p2p.core.errors import FormationError
from formation_p2p.machine.home import Home
from formation_p2p.peer.core.events import Issue
from formation_p2p.trust.core.grants import GrantTerms, read_grant
from formation_p2p.trust.core.network import Network

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
            elif _terms(network) != _terms(self._network):
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


def _terms(network: Network) -> GrantTerms:
    """Of its grant: each time that it is bound it is another token."""
    return read_grant(network.grant, network.root_public_key)

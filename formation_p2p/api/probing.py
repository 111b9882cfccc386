"""Measuring the way to a peer that a person means."""

from __future__ import annotations

import asyncio

from formation_p2p.api.bridge import Bridge
from formation_p2p.core.effects import Contact
from formation_p2p.core.errors import InvalidInput, Unreachable
from formation_p2p.core.identity import PeerId
from formation_p2p.machine.claim import peers_of
from formation_p2p.machine.home import Home
from formation_p2p.machine.names import learn_name, named, named_peers, peer_meant


async def contact_of(bridge: Bridge, text: str, own: PeerId, home: Home) -> Contact:
    """Where the peer is that `text` means: a worker, a gate, a neighbour, or one whose name is
    known; nodes of `home` are meant only where no other has the name. Raises InvalidInput,
    AmbiguousPeer; Unreachable for one that is not found."""
    if not isinstance(text, str):
        raise InvalidInput("peer", f"{text!r} is not a text")
    ours = {own, *await asyncio.to_thread(peers_of, home)}
    met = await bridge.look(lambda shell: shell.met)
    meant = peer_meant(text, (named_peers() | met) - ours)
    seen = None if meant is None else await _seen(bridge, meant)
    if seen is None and meant != own:
        # Of those that announce themselves, which takes a lookup or two.
        found = await bridge.explain(None, "any worker")
        profiles = {ranked.profile.peer_id: ranked.profile for ranked in found.decision.ranked}
        for profile in profiles.values():
            learn_name(profile.peer_id, profile.name)
        meant = meant or peer_meant(text, profiles.keys() - ours)
        meant = meant or peer_meant(text, {own}) or peer_meant(text, ours)
        if meant is not None and meant in profiles:
            seen = Contact(meant, profiles[meant].addresses)
    if meant == own:
        raise InvalidInput("peer", f"{named(own)} is this node itself; name another")
    if seen is not None:
        return seen
    if not await bridge.look(lambda shell: shell.neighbours):
        raise Unreachable(
            f"{text} is not found, since no peer of this network answers: its gates are down, or "
            "this machine is offline; `formation doctor` says which"
        )
    if meant is None:
        what = "neither a peer id nor the name or the end of the id of one that is known"
        raise InvalidInput("peer", f"{text!r} is {what}; `formation workers` shows the workers")
    raise Unreachable(
        f"{named(meant)} is not found: no neighbour of this node knows it, and it does not "
        "announce itself as a worker; run `formation status` on that machine"
    )


async def _seen(bridge: Bridge, peer: PeerId) -> Contact | None:
    return await bridge.look(lambda shell: shell.contact_of(peer))

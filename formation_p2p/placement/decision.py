"""Who could run a task, in what order to ask them, and why not the others.

    authorised -> capable -> fresh -> rank by XOR distance

Same candidates, same answer, on every node: the rank is Kademlia's own metric between the
task's key and the worker's, and no two peers are at the same distance from a key.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from formation_p2p.effects import Contact
from formation_p2p.identity import PeerId, key_of_peer
from formation_p2p.keyspace import Key, distance
from formation_p2p.records.profile import Profile
from formation_p2p.refusals import Denied, Gone, Refusal, TooDear
from formation_p2p.resources.fits import fits
from formation_p2p.resources.requirements import Requirements


@dataclass(frozen=True, slots=True)
class Ranked:
    """A worker that is capable. `distance` is between its key and the task's."""

    profile: Profile
    distance: int

    @property
    def contact(self) -> Contact:
        return Contact(self.profile.peer_id, self.profile.addresses)


@dataclass(frozen=True, slots=True)
class Decision:
    """`ranked`: nearest first. `rejected`: every other candidate, with the first reason."""

    target: Key
    ranked: tuple[Ranked, ...]
    rejected: tuple[tuple[PeerId, Refusal], ...]


def decide(
    target: Key,
    needs: Requirements,
    candidates: Iterable[Profile],
    *,
    authorised: Callable[[Profile], Denied | None],
    now_unix_s: float,
    max_price_micro: int | None = None,
) -> Decision:
    """`authorised` says whether a worker may work in this network; None takes any price."""
    ranked: list[Ranked] = []
    rejected: list[tuple[PeerId, Refusal]] = []
    for profile in candidates:
        refusal = (
            authorised(profile)
            or fits(needs, profile.capability, dict(profile.labels), profile.drivers)
            or _stale(profile, now_unix_s)
            or _dear(profile, max_price_micro)
        )
        if refusal is None:
            ranked.append(Ranked(profile, distance(key_of_peer(profile.peer_id), target)))
        else:
            rejected.append((profile.peer_id, refusal))
    ranked.sort(key=lambda each: each.distance)
    return Decision(target, tuple(ranked), tuple(rejected))


def _stale(profile: Profile, now_unix_s: float) -> Gone | None:
    if profile.expires_unix_s > now_unix_s:
        return None
    return Gone("its profile", "it expired and was not published again")


def _dear(profile: Profile, max_price_micro: int | None) -> TooDear | None:
    if max_price_micro is None or profile.price_micro <= max_price_micro:
        return None
    return TooDear(profile.price_micro, max_price_micro)

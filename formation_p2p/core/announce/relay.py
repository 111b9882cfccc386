"""Passing on the wants that are spread: to one peer of each bucket, and to another where one is
gone."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from formation_p2p.core.announce.parameters import AnnounceParameters
from formation_p2p.core.announce.tree import Branch, branches
from formation_p2p.core.effects import Contact, Moment
from formation_p2p.core.identity import PeerId, key_of_peer


@dataclass(slots=True)
class _Sent:
    """A branch of a want; `tried` are the peers that it was sent to."""

    raw: bytes
    branch: Branch
    until_s: float
    tried: set[PeerId] = field(default_factory=set)


class Relay:
    """`contacts` are the peers of this node's buckets, which hold at most `k` each. Call `spread`
    for a want, one's own or one that was taken, and `undelivered` for each peer that was not
    reached."""

    def __init__(
        self,
        own: PeerId,
        contacts: Callable[[], Iterable[Contact]],
        k: int,
        rng: random.Random,
        parameters: AnnounceParameters,
    ) -> None:
        self._key = key_of_peer(own)
        self._contacts = contacts
        self._k = k
        self._rng = rng
        self._parameters = parameters
        self._sent: list[_Sent] = []  # the one sent longest ago first

    def spread(self, raw: bytes, depth: int, reach: int, now: Moment) -> Sequence[Branch]:
        """Whom to pass a want on to, of those that share `depth` bits of their keys with ours."""
        found = branches(self._key, self._contacts(), depth, reach, self._k, self._rng)
        until_s = now.mono_s + self._parameters.branch_s
        for branch in found:
            self._sent.append(_Sent(raw, branch, until_s, {branch.to.peer_id}))
        del self._sent[: -self._parameters.max_branches]
        return found

    def undelivered(self, to: PeerId, now: Moment) -> list[tuple[bytes, Branch]]:
        """What was on its way to a peer goes to another of its bucket. One that has room for no
        other try is left."""
        self._sent = [each for each in self._sent if each.until_s > now.mono_s]
        again = []
        for sent in [each for each in self._sent if each.branch.to.peer_id == to]:
            self._sent.remove(sent)
            depth = sent.branch.depth - 1
            near = branches(
                self._key, self._contacts(), depth, 2, self._k, self._rng, gone=sent.tried
            )
            for branch in near:
                if branch.depth == sent.branch.depth and branch.to.peer_id not in sent.tried:
                    other = Branch(branch.to, branch.depth, sent.branch.reach)
                    tried = sent.tried | {branch.to.peer_id}
                    self._sent.append(_Sent(sent.raw, other, sent.until_s, tried))
                    again.append((sent.raw, other))
        return again

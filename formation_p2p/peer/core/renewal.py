"""Having this node's grant renewed, and renewing those of others where the root's key is here.

A member asks one peer after the other: who renewed its grant before, the gates, then others that it
knows, first of them the inviters of the charter. Where none renews it, it looks up the inviters and
asks those that it had not known. A home that created a network has the root's key, and mostly a
gate runs from it.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from typing import Final, assert_never

from formation_p2p.core.effects import Contact, Moment
from formation_p2p.core.identity import Identity, PeerId, peer_id_to_bytes
from formation_p2p.core.refusals import Busy, Denied, Gone, PeerRefusal
from formation_p2p.dht.core import messages as kad
from formation_p2p.dht.core.kademlia import Kademlia
from formation_p2p.dht.core.operations import Asked, OperationId, Published, Searched
from formation_p2p.leases.core.messages import AskGrant, GrantIssued, GrantRefused
from formation_p2p.leases.core.session import Send
from formation_p2p.peer.core.reputation_gossip import Lately
from formation_p2p.records.core.profile import SignedProfile
from formation_p2p.trust.core.charter import Charter
from formation_p2p.trust.core.grants import read_grant
from formation_p2p.trust.core.membership import Membership, charter_name
from formation_p2p.trust.core.network import Network
from formation_p2p.trust.core.renewal import (
    RENEW,
    KeepGrant,
    RenewalFailed,
    extended,
    renewed,
    taken,
    why_not_renewed,
)
from formation_p2p.trust.core.reputation import Reputation


# Which peers may renew a grant by the charter, and where they are. A node that has just joined
# knows neither the charter nor any peer but its gates. A search reads the charter at the peers
# nearest to its name, and then looks up each inviter that is not in the routing table.
class Inviters:
    """`search` for them; hand in every operation that ends."""

    def __init__(
        self, dht: Kademlia[SignedProfile], membership: Membership, network_id: bytes
    ) -> None:
        self._dht = dht
        self._membership = membership
        self._charter_name = charter_name(network_id)
        self._reading: OperationId | None = None
        # By the search for each: at most MAX_INVITERS of the charter.
        self._finding: dict[OperationId, PeerId] = {}
        self._found: list[Contact] = []

    @property
    def charter(self) -> Charter | None:
        return self._membership.charter

    def known(self) -> list[Contact]:
        """All peers of the routing table, the inviters first."""
        named = self._named()
        return sorted(self._dht.table, key=lambda each: each.peer_id not in named)

    def search(self, now: Moment) -> None:
        """Ends with the inviters that answered."""
        self._finding, self._found = {}, []
        request = kad.GetValue(self._charter_name)
        self._reading = self._dht.search(request, now, "the charter names inviters")

    def ended(
        self, completed: Searched[SignedProfile] | Published | Asked, now: Moment
    ) -> list[Contact] | None:
        """The inviters that were found, once the last operation of a search has ended."""
        operation = completed.operation
        if operation == self._reading:
            self._reading = None
            for peer_id in sorted(self._named()):
                request = kad.FindNode(peer_id_to_bytes(peer_id))
                self._finding[self._dht.search(request, now, "find an inviter")] = peer_id
        elif operation in self._finding and isinstance(completed, Searched):
            peer_id = self._finding.pop(operation)
            self._found += (each for each in completed.closest if each.peer_id == peer_id)
        else:
            return None
        return None if self._finding else self._found

    def _named(self) -> frozenset[PeerId]:
        charter = self.charter
        return frozenset() if charter is None else charter.inviters


# A grant is renewed with this much of its life left, more or less by a fifth: not all members of
# one invite at once.
LEFT: Final = 1 / 3
JITTER: Final = 0.4
# Peers asked in a row. One with the root's key is a gate as a rule, or not far.
MAX_ASKED: Final = 16
# An answer takes a dial and a signature.
ANSWER_S: Final = 5.0
# Two searches in a row, through peers of which some do not answer.
SEARCH_S: Final = 20.0
# Between two tries, doubled each time; and never more than a part of what is left.
FIRST_WAIT_S: Final = 60.0
LAST_WAIT_S: Final = 6 * 3600.0
LEAST_WAIT_S: Final = 1.0
WAIT_SHARE: Final = 0.25
# A calendar that was set right counts within this time.
LOOK_EVERY_S: Final = 3600.0
# Of one with the root's key. A signature takes 0.3 ms: with all the peers that are remembered at
# once it is busy for a quarter of its time.
ISSUE_EVERY_S: Final = 5.0
MAX_ISSUED: Final = 4096

_NOT_HERE: Final = Gone("the root key", "it is not on this machine; ask another peer")


def _no_charter() -> Charter | None:
    return None


class Issuer:
    """Where the root's key is. `withdrawn` are not renewed: peers, and invitations."""

    def __init__(
        self,
        root: Identity,
        withdrawn: frozenset[str],
        reputation: Reputation,
        least_milli: int,
        charter: Callable[[], Charter | None] = _no_charter,
        max_issued: int = MAX_ISSUED,
    ) -> None:
        self.withdrawn = withdrawn
        self._key = root
        self._root_id = root.public_key
        self._reputation = reputation
        self._least_milli = least_milli
        self._charter = charter
        self._full = Busy("the table of renewed grants", max_issued)
        self._lately = Lately(max_issued, ISSUE_EVERY_S)

    def asked(self, peer_id: PeerId, grant: bytes, now: Moment) -> GrantIssued | GrantRefused:
        if self._reputation.score_milli(peer_id, now) < self._least_milli:
            return GrantRefused(Denied(RENEW, "this node has had bad experience with you"))
        # To make a grant, and check it, takes a millisecond; to say why there is none, little.
        if self._lately.has(peer_id, now.mono_s):
            charter = self._charter()
            why = why_not_renewed(self._root_id, self.withdrawn, grant, peer_id, now, charter)
            return GrantRefused(why or self._full)
        made = self._made(peer_id, grant, now)
        if not isinstance(made, bytes):
            return GrantRefused(made)
        # The holder of a bearer grant can bind it to ids without end.
        invitation = read_grant(grant, self._root_id).invitation
        if not self._lately.admits(peer_id, now.mono_s, invitation):
            return GrantRefused(self._full)
        return GrantIssued(made)

    def _made(self, peer_id: PeerId, grant: bytes, now: Moment) -> bytes | PeerRefusal:
        return renewed(self._key, self.withdrawn, grant, peer_id, now, self._charter())


class Inviter(Issuer):
    """Of a node that the charter lets renew grants, while it does."""

    def __init__(
        self,
        identity: Identity,
        root_id: bytes,
        reputation: Reputation,
        least_milli: int,
        charter: Callable[[], Charter | None],
    ) -> None:
        super().__init__(identity, frozenset(), reputation, least_milli, charter)
        self._root_id = root_id

    def _made(self, peer_id: PeerId, grant: bytes, now: Moment) -> bytes | PeerRefusal:
        charter = self._charter()
        if charter is None or not charter.lets_renew(self._key.peer_id, now.unix_s):
            return _NOT_HERE
        return extended(self._key, self._root_id, grant, peer_id, now, charter)


class Renewal:
    """Of this node's own grant. `inviters` are asked when no gate can. `tried` counts the tries
    that have ended, and `failed` says why the last one did; empty where it did not."""

    def __init__(
        self,
        own: PeerId,
        network: Network,
        rng: random.Random,
        inviters: Inviters,
        automatic: bool,
    ) -> None:
        self.tried = 0
        self.failed = ""
        self._own = own
        self.network = network
        self._rng = rng
        self._inviters = inviters
        self._automatic = automatic
        self._issuer: Contact | None = None
        self._order: list[Contact] = []
        self._asked: Contact | None = None
        # Of this try: who was asked, and whether the inviters are looked up, or were.
        self._were_asked: set[PeerId] = set()
        self._is_searching = self._has_searched = False
        self._why = ""
        self._wait_s = FIRST_WAIT_S
        self._due_unix_s = self._due_s = float("inf")

    def next_timeout(self) -> float:
        return self._due_s

    def granted(self, network: Network, now: Moment) -> None:
        """This is the node's grant from now on."""
        self.network, self._wait_s = network, FIRST_WAIT_S
        self._asked, self._is_searching = None, False
        life = network.rights.life if self._automatic else None
        self._due_unix_s = float("inf")
        expires_unix_s = network.rights.expires_unix_s
        if life is not None and life.renewed_until_unix_s > expires_unix_s > now.unix_s:
            left_s = life.life_s * LEFT * (1 + JITTER * (self._rng.random() - 0.5))
            self._due_unix_s = expires_unix_s - left_s
        self._sleep(now)

    def judged(self, now: Moment) -> None:
        """There is a new charter. Where it does not let who renewed this grant do so, another one
        is asked now."""
        if self._due_unix_s == float("inf") or self._asked is not None or self._is_searching:
            return  # none is asked for, or one is by now
        own = self.network.terms
        if own.ends_unix_s(self._inviters.charter, now.unix_s) < own.rights.expires_unix_s:
            self._issuer = None
            self._due_unix_s, self._due_s = now.unix_s, now.mono_s

    def begin(self, now: Moment) -> list[Send | RenewalFailed]:
        """Ask one peer after the other."""
        first = [] if self._issuer is None else [self._issuer]
        known = self._inviters.known()[:MAX_ASKED]
        self._were_asked, self._is_searching, self._has_searched = set(), False, False
        self._why = "no peer is known that could; see that a gate runs"
        return self._ask([*first, *self.network.contacts(), *known], now)

    def ended(
        self, completed: Searched[SignedProfile] | Published | Asked, now: Moment
    ) -> list[Send | RenewalFailed] | None:
        """An operation of the DHT, if it was the last one of a search for the inviters."""
        found = self._inviters.ended(completed, now)
        return None if found is None else self.found(found, now)

    def found(self, inviters: Iterable[Contact], now: Moment) -> list[Send | RenewalFailed]:
        """A search for the inviters has ended: ask those that were not asked before it."""
        if not self._is_searching:
            return []
        self._is_searching = False
        return self._ask(inviters, now)

    def tick(self, now: Moment) -> list[Send | RenewalFailed]:
        if now.mono_s < self._due_s:
            return []
        if self._asked is not None:
            return self._refused("it did not answer", now)
        if self._is_searching:
            return self.found((), now)
        if now.unix_s < self._due_unix_s:
            self._sleep(now)
            return []
        return self.begin(now)

    def undelivered(self, peer_id: PeerId, why: str, now: Moment) -> list[Send | RenewalFailed]:
        is_asked = self._asked is not None and self._asked.peer_id == peer_id
        return self._refused(why, now) if is_asked else []

    def answered(
        self, sender: Contact, message: GrantIssued | GrantRefused, now: Moment
    ) -> list[Send | KeepGrant | RenewalFailed]:
        """An answer counts from the peer that was asked, and once."""
        if self._asked is None or self._asked.peer_id != sender.peer_id:
            return []
        match message:
            case GrantRefused(refusal):
                return [*self._refused(_in_words(refusal), now)]
            case GrantIssued(grant):
                network = taken(self.network, grant, self._own, now.unix_s, self._inviters.charter)
                if isinstance(network, str):
                    return [*self._refused(f"it sent a grant that is refused: {network}", now)]
                self._issuer, self._asked, self._order = sender, None, []
                self._end("", now)
                return [KeepGrant(network, cause=f"{sender.peer_id} renewed the grant")]
            case _:
                assert_never(message)

    def _refused(self, why: str, now: Moment) -> list[Send | RenewalFailed]:
        if why:
            self._why = why
        return self._next(now)

    def _ask(self, peers: Iterable[Contact], now: Moment) -> list[Send | RenewalFailed]:
        """Ask these one after the other, each once in a try."""
        ordered = {x.peer_id: x for x in peers if x.peer_id not in {self._own, *self._were_asked}}
        self._order = list(ordered.values())[:MAX_ASKED]
        return self._next(now)

    def _next(self, now: Moment) -> list[Send | RenewalFailed]:
        if self._order:
            self._asked = self._order.pop(0)
            self._were_asked.add(self._asked.peer_id)
            self._due_s = now.mono_s + ANSWER_S
            return [Send(self._asked, AskGrant(self.network.grant), cause="the grant ends")]
        self._asked = None
        if not self._has_searched:
            self._is_searching = self._has_searched = True
            self._due_s = now.mono_s + SEARCH_S
            self._inviters.search(now)
            return []
        self._end(self._why, now)
        return [RenewalFailed(self._why, cause="all were asked")]

    def _end(self, failed: str, now: Moment) -> None:
        """A try has ended. The next one, if the new grant is not in place by then, is later."""
        self.tried, self.failed = self.tried + 1, failed
        left_s = self.network.rights.expires_unix_s - now.unix_s
        if not self._automatic or left_s <= 0 or self._due_unix_s == float("inf"):
            self._due_s = self._due_unix_s = float("inf")
            return
        wait_s = self._wait_s * (0.5 + self._rng.random())
        self._due_s = now.mono_s + max(min(wait_s, left_s * WAIT_SHARE), LEAST_WAIT_S)
        self._wait_s = min(self._wait_s * 2, LAST_WAIT_S)

    def _sleep(self, now: Moment) -> None:
        never = self._due_unix_s == float("inf")
        wait_s = min(max(self._due_unix_s - now.unix_s, 0.01), LOOK_EVERY_S)
        self._due_s = float("inf") if never else now.mono_s + wait_s


def answer(
    issuer: Issuer | None, sender: Contact, asked: AskGrant, now: Moment
) -> GrantIssued | GrantRefused:
    if issuer is None:
        return GrantRefused(_NOT_HERE)
    return issuer.asked(sender.peer_id, asked.grant, now)


def _in_words(refusal: PeerRefusal) -> str:
    """Nothing where the peer has no root key: that says nothing of the grant."""
    return "" if isinstance(refusal, Gone) else str(refusal)

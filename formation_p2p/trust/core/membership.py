"""Who belongs to the network: the one place that admits a peer, for workers, holders and gates.

Deny by default: a grant of the network's root has to allow it, and the charter that this node has
adopted must not ban the peer or its invitation. One object is shared by all parts of a node, so
that a new charter counts in all of them at once.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from formation_p2p.core.effects import Moment
from formation_p2p.core.errors import BadRecord, InvalidInput
from formation_p2p.core.identity import PeerId
from formation_p2p.core.refusals import Denied
from formation_p2p.dht.core import messages as kad
from formation_p2p.machine.core.requirements import Requirements
from formation_p2p.records.core.profile import Profile
from formation_p2p.trust.core.charter import EVEN_SHARE, Charter
from formation_p2p.trust.core.grants import GrantTerms, Right, check, read_grant
from formation_p2p.trust.core.network import network_id_of
from formation_p2p.trust.core.signed_charter import MAX_CHARTER_BYTES, SignedCharter, open_charter
from formation_p2p.workload.core.data_rule import DataRule
from formation_p2p.workload.core.scope import Place, Scope

# How many identities came of one invitation, as far as this node has seen. The holder of a bearer
# grant can bind it to any number of ids, offline. So each node admits as many of them as the
# invitation says, and refuses more: whatever one invitation is used for, no node has to do with
# more of its ids than that. Nodes need not agree which those are. One that was not seen for a day
# makes room.
# A machine that is on now and then is still one of them tomorrow.
KEPT_S: Final = 24 * 3600.0
# At 150 bytes each, 10 MiB. Past it the invitation that was used longest ago is forgotten.
MAX_IDENTITIES: Final = 65_536


class Identities:
    def __init__(self, max_identities: int = MAX_IDENTITIES) -> None:
        self._max_identities = max_identities
        self._seen_s: dict[str, dict[PeerId, float]] = {}  # each with the latest at the end
        self._count = 0

    def admits(self, invitation: str, peer_id: PeerId, most: int, now_s: float) -> bool:
        """Whether a peer is one of the first `most` that came of an invitation."""
        seen_s = self._seen_s.pop(invitation, {})
        self._seen_s[invitation] = seen_s
        if seen_s.pop(peer_id, None) is None:
            while seen_s and next(iter(seen_s.values())) + KEPT_S <= now_s:
                del seen_s[next(iter(seen_s))]
                self._count -= 1
            if len(seen_s) >= most:
                return False
            self._count += 1
        seen_s[peer_id] = now_s
        while self._count > self._max_identities and len(self._seen_s) > 1:
            self._count -= len(self._seen_s.pop(next(iter(self._seen_s))))
        return True

    def __len__(self) -> int:
        return self._count


class Membership:
    """`signed` is the charter that this node had adopted before."""

    def __init__(self, root_public_key: bytes, signed: SignedCharter | None = None) -> None:
        self.root_public_key = root_public_key
        self.network_id = network_id_of(root_public_key)
        self.signed = signed
        self._identities = Identities()

    @property
    def charter(self) -> Charter | None:
        """What counts now; it may have expired."""
        return None if self.signed is None else self.signed.charter

    @property
    def version(self) -> int:
        """Of the charter; 0 without one."""
        return 0 if self.signed is None else self.signed.version

    def adopt(self, raw: bytes, now: Moment) -> SignedCharter:
        """A charter from anywhere that counts more than the one here: it counts from now on. Raises
        BadRecord."""
        key, network_id = self.root_public_key, self.network_id
        self.signed = open_charter(raw, key, network_id, self.signed, now.unix_s)
        return self.signed

    def share_of(self, org: str) -> int:
        """What an organisation is due, in proportion to others."""
        charter = self.charter
        return EVEN_SHARE if charter is None else charter.share_of(org)

    def bans(self, peer_id: PeerId) -> Denied | None:
        """Why a peer itself is banned, whatever its grant."""
        why = None if self.charter is None else self.charter.bans(peer_id, "")
        return None if why is None else Denied("belong", why)

    def terms(self, grant: bytes) -> GrantTerms:
        """Raises InvalidInput for a grant of another network."""
        return read_grant(grant, self.root_public_key)

    def terms_if_any(self, grant: bytes) -> GrantTerms | None:
        """None where it is none of this network."""
        try:
            return self.terms(grant)
        except InvalidInput:
            return None

    def bans_bearer(self, peer_id: PeerId, grant: bytes) -> str | None:
        """Why a peer that shows this grant is banned, by itself or with its invitation."""
        if self.charter is None:
            return None
        terms = self.terms_if_any(grant)
        return self.charter.bans(peer_id, "" if terms is None else terms.invitation)

    def region_of(self, grant: bytes, peer_id: PeerId, now: Moment) -> str | None:
        """Where the charter has a peer, which showed this grant: empty for nowhere. None where it
        has no regions, so that what workers say counts."""
        charter = self.charter
        if charter is None or not charter.regions:
            return None
        terms = self.terms_if_any(grant)
        if terms is None:
            return ""
        return charter.region_of(peer_id, terms.invitation, terms.rights.place.org, now.unix_s)

    def common_rule(self, place: Place) -> tuple[DataRule, ...]:
        """What holds for data without a rule of an owner at this place: the charter's scope."""
        charter = self.charter
        if charter is None or charter.scope == Scope.COMMONS:
            return ()
        return (DataRule(charter.scope, place),)

    def denies_read(
        self, rules: Iterable[DataRule], grant: bytes, peer_id: PeerId, now: Moment, *, party: bool
    ) -> str | None:
        """Why a member may not read data under these rules: one that lets it is enough, for each
        is of an owner who has the data. None without rules."""
        region = self.region_of(grant, peer_id, now) or ""
        place = self.terms(grant).rights.place
        why = None
        for rule in rules:
            why = rule.refuses(place, region, is_party=party)
            if why is None:
                return None
        return why

    def denies(
        self,
        grant: bytes,
        peer_id: PeerId,
        right: Right | None,
        now: Moment,
        *,
        driver: str | None = None,
        priority: int = 0,
    ) -> Denied | None:
        """Why a peer, which showed `grant`, may not do this; `right` None is anything at all."""
        # Once: to read a foreign grant costs a millisecond, and any stranger can ask.
        denied = check(
            grant,
            self.root_public_key,
            peer_id,
            right,
            now.unix_s,
            driver=driver,
            priority=priority,
            charter=self.charter,
        )
        return self._one_too_many(grant, peer_id, now) if denied is None else denied

    def _one_too_many(self, grant: bytes, peer_id: PeerId, now: Moment) -> Denied | None:
        """Whether there are as many others of its invitation as may be. Of a grant that is good."""
        terms = self.terms(grant)
        most = terms.rights.identities
        if most is None and self.charter is not None:
            most = self.charter.identities
        if most is None or self._identities.admits(terms.invitation, peer_id, most, now.mono_s):
            return None
        why = f"the invitation is for {most} identities, and as many others use it; ask for another"
        return Denied("belong", why)

    def denies_work(self, profile: Profile, now: Moment) -> Denied | None:
        """Why the author of a profile may not work here. The profile's signature is checked."""
        return self.denies(profile.grant, profile.peer_id, Right.WORK, now)

    def denies_claim(self, grant: bytes, peer_id: PeerId, now: Moment) -> Denied | None:
        """Why a peer, which showed `grant`, may not run replicas here."""
        return self.denies(grant, peer_id, Right.WORK, now)

    def denies_publish(self, grant: bytes, peer_id: PeerId, now: Moment) -> Denied | None:
        """Why a peer, which showed `grant`, may not publish services here."""
        return self.denies(grant, peer_id, Right.SERVICES, now)

    def denies_submit(
        self, grant: bytes, peer_id: PeerId, needs: Requirements, priority: int, now: Moment
    ) -> Denied | None:
        """Why a peer, which showed `grant`, may not have such a task run."""
        driver = needs.driver
        return self.denies(grant, peer_id, Right.SUBMIT, now, driver=driver, priority=priority)

    def denies_membership(self, grant: bytes, peer_id: PeerId, now: Moment) -> Denied | None:
        """Why a peer, which showed `grant`, may do nothing here at all."""
        return self.denies(grant, peer_id, None, now)


# The charter in the DHT: a value record under one name, which every node of the network keeps. A
# node that is handed a charter judges it, and adopts it where it counts more than its own. What it
# has adopted it hands to all who ask. So a new version is with everyone soon, and peers that
# withhold it only withhold it from those who ask no others.
assert kad.MAX_CHARTER_BYTES == MAX_CHARTER_BYTES


def charter_name(network_id: bytes) -> bytes:
    """The DHT name of a network's charter."""
    return kad.CHARTER_PREFIX + network_id.hex().encode()


class CharterShelf:
    """See `Shelf` of dht/core/store.py. `adopted` is what counts since the last look; `refused`
    says why the last one that came did not."""

    def __init__(self, membership: Membership) -> None:
        self.name = charter_name(membership.network_id)
        self.adopted: SignedCharter | None = None
        self.refused = ""
        self.untimely = 0  # a charter holds until the next one
        self._membership = membership

    def holds(self, name: bytes) -> bool:
        return name.startswith(kad.CHARTER_PREFIX)

    def keep(self, name: bytes, raw: bytes, now: Moment) -> bool:
        """Whether it is the charter here by now, or was already."""
        if name != self.name:
            return False
        known = self._membership.signed
        if known is not None and known.raw == raw:
            return True
        try:
            self.adopted = self._membership.adopt(raw, now)
        except BadRecord as error:
            self.refused = str(error)
            return False
        return True

    def heard(self, name: bytes, raw: bytes, now: Moment) -> None:
        """A peer answered with it."""
        self.keep(name, raw, now)

    def providers(self, request: kad.GetProviders, now: Moment) -> kad.Providers:
        return kad.Providers(())

    def value(self, name: bytes, now: Moment) -> bytes | None:
        signed = self._membership.signed
        return signed.raw if signed is not None and name == self.name else None

    def expire(self, now: Moment) -> None:
        """Nothing: the bans of one that has expired go on."""

"""Where a person works on a charter: his home, with its keys, and the charter that counts there."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Final

from formation_p2p.command.charter_edit import SIGNING_S, Edits
from formation_p2p.command.flags import read_pasted
from formation_p2p.command.members import invitation_of, peer_or_invitation
from formation_p2p.command.words import counted, printable, put, say
from formation_p2p.core.errors import BadRecord, InvalidInput, LocalError
from formation_p2p.core.identity import Identity, PeerId
from formation_p2p.machine.home import Home, joined_network
from formation_p2p.machine.names import named
from formation_p2p.state.charter_file import CharterFile
from formation_p2p.trust.core.charter import Charter, changes, is_invitation, is_peer
from formation_p2p.trust.core.charter_text import charter_text, parse_charter_text
from formation_p2p.trust.core.grants import read_grant
from formation_p2p.trust.core.network import Network
from formation_p2p.trust.core.root_keys import KeySet
from formation_p2p.trust.core.signed_charter import (
    SignedCharter,
    draft,
    missing,
    open_charter,
    sign,
)
from formation_p2p.trust.core.split_root import root_of

# A proposal with all signatures takes 20 KiB as text.
_MAX_CHARS: Final = 64 * 1024
# Of those that an invitation brought, as fit a line.
MAX_LISTED: Final = 8
NO_CHARTER: Final = (
    "no charter is known in this home: a node that runs from it learns of one within minutes; "
    "where the network has none yet, make one: formation charter init"
)


class Place:
    """A home, its network, and the charter that counts there. Raises LocalError."""

    def __init__(self, home: Path | None) -> None:
        self.home = Home(home)
        self.network: Network = joined_network(self.home)
        self.file = CharterFile(self.home.path, self.network)
        self.known = self.file.load()

    @property
    def root(self) -> KeySet:
        return root_of(self.network.grant, self.network.root_public_key)

    @property
    def charter(self) -> Charter | None:
        return None if self.known is None else self.known.charter

    @property
    def trusted(self) -> KeySet:
        """Who has to sign the next version."""
        return self.root if self.known is None else self.known.charter.keys

    def own_keys(self) -> list[Identity]:
        """Those that are here."""
        return [self.home.identity(), *self.home.root_keys()]

    def meant(self, names: Iterable[str] | None, field: str) -> tuple[str, ...]:
        """Peers and invitations, which may be those that are banned already."""
        banned = frozenset[str]() if self.charter is None else self.charter.banned_invitations
        return tuple(peer_or_invitation(self.home, name, field, banned) for name in names or ())

    def with_invitation(self, name: str) -> tuple[str, ...]:
        """A peer and the invitation by which it came, but for what is banned. Raises
        InvalidInput."""
        [peer] = self.meant((name,), "ban")
        if is_invitation(peer):
            raise InvalidInput("with-invitation", f"{name} is an invitation; ban it alone")
        came = invitation_of(self.home, peer)
        if came is None:
            problem = f"no node of {self.home.path} has met {named(peer)}"
            cure = "ban the invitation by its digits, where one has (`formation members`)"
            raise InvalidInput("with-invitation", f"{problem}; {cure}")
        invitation, others = came
        if others:
            listed = ", ".join(named(each) for each in others[:MAX_LISTED])
            more = " and more" if len(others) > MAX_LISTED else ""
            say(f"mind that by the same invitation came {printable(listed)}{more}: banned as well")
        known = self.charter
        banned = frozenset[str]() if known is None else known.banned_keys | known.banned_invitations
        return tuple(each for each in (peer, invitation) if each not in banned)

    def end_of_a_ban_unix_s(self) -> int:
        """As of the charter that counts: a ban is no vote for a longer one. A day at least."""
        if self.known is None:
            raise InvalidInput("charter", NO_CHARTER)
        return max(self.known.charter.expires_unix_s, int(time.time()) + SIGNING_S)

    def next_version(self, edits: Edits) -> SignedCharter:
        if self.known is None:
            raise InvalidInput("charter", NO_CHARTER)
        version = self.known.version + 1
        made = edits.apply(replace(self.known.charter, version=version))
        if not changes(self.known.charter, made):
            hint = "say what it is to change; `formation charter propose --help` lists the options"
            raise InvalidInput("charter", f"this changes nothing of version {version - 1}; {hint}")
        return draft(made, self.root, self.known)

    def proposal(self, given: str) -> SignedCharter:
        """Raises InvalidInput."""
        proposal = parse_charter_text(read_pasted("charter", given, _MAX_CHARS))
        if proposal.charter.network != self.network.network_id:
            raise InvalidInput("charter", "it is of another network than this home; see --home")
        if self.known is not None and proposal.version < self.known.version:
            problem = f"it is version {proposal.version}, and {self.known.version} counts"
            raise InvalidInput("charter", f"{problem}; propose it again")
        return proposal

    def doubts(self, new: Charter) -> Iterator[str]:
        """What is new in it, and may not be meant: for those who sign it."""
        terms = read_grant(self.network.grant, self.network.root_public_key)
        me = self.home.identity().peer_id, terms.invitation
        if new.bans(*me) and (self.charter is None or not self.charter.bans(*me)):
            yield "this bans the node of this home: all others refuse it once it counts"
        banned = frozenset[PeerId]() if self.charter is None else self.charter.banned_keys
        for peer in sorted(new.banned_keys - banned):
            came = invitation_of(self.home, peer)
            if came is None or came[0] not in new.banned_invitations:
                cure = f"formation charter ban {peer} --with-invitation"
                who = f"{named(peer)} may come back as another peer while it has its invite"
                yield f"{who}; ban that too: {cure}"
        before = () if self.charter is None else self.charter.regions
        known = {holder for region in before for holder in region.holders}
        known |= {member.org for member in new.members}
        for region in new.regions if new.members else ():
            for each in sorted(region.holders - known):
                if not is_invitation(each) and not is_peer(each):
                    yield f"{each}, in the region {region.name}, is an organisation without a share"

    def missing(self, proposal: SignedCharter) -> dict[str, int]:
        return missing(proposal, self.trusted)


def go_on(place: Place, proposal: SignedCharter, *, as_json: bool) -> None:
    """Sign with the keys that are here; then hand it to the network, or to the next signer."""
    wanted = {*place.trusted.keys, *proposal.charter.keys.keys}
    signed, used = proposal, 0
    for key in place.own_keys():
        if key.public_key in wanted:
            signed, used = sign(signed, key), used + 1
    lacking = place.missing(signed)
    if used == 0:
        named = ", ".join(sorted(place.trusted.signers()))
        problem = f"no key of {place.home.path} may sign it"
        raise InvalidInput("charter", f"{problem}; do this where one of these is: {named}")
    if not as_json:
        for line in changes(place.charter, proposal.charter):
            say(printable(line))
    for doubt in place.doubts(proposal.charter):
        say(f"mind that {printable(doubt)}")
    text = charter_text(signed)
    if lacking:
        if as_json:
            put({"version": signed.version, "missing": lacking, "charter": text})
            return
        print(text)
        left = " and ".join(f"{count} {of}" for of, count in lacking.items())
        say(f"it lacks signatures: {left}; have another signer run: formation charter sign -")
        return
    _adopt(place, signed)
    holders = asyncio.run(_hand_on(place, signed))
    if as_json:
        put({"version": signed.version, "missing": {}, "holders": holders, "charter": text})
        return
    print(
        f"version {signed.version} of the charter counts; {counted(holders, 'peer')} had it at once"
    )
    if holders == 0:
        say("no peer took it yet: it goes out as soon as a node of this home reaches one")


def _adopt(place: Place, signed: SignedCharter) -> None:
    """Raises InvalidInput; LocalError."""
    root, network_id = place.network.root_public_key, place.network.network_id
    try:
        known = place.known
        if known is None or known.digest != signed.digest:
            open_charter(signed.raw, root, network_id, known, time.time())
    except BadRecord as error:
        raise InvalidInput("charter", f"it is refused: {error}") from error
    place.file.write(signed)


async def _hand_on(place: Place, signed: SignedCharter) -> int:
    from formation_p2p.command.local.client import reach

    try:
        async with reach(place.home.path) as node:
            return await node.offer_charter(signed.raw)
    except LocalError as error:
        say(f"it is not handed on: {error}")
        return 0

"""`formation charter`: the rules that the members of a network make together."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Final, TypeVar

from formation_p2p.command import flags
from formation_p2p.command.command import CommandGroup, chosen
from formation_p2p.command.flags import (
    argument,
    option,
    parse_duration_s,
    quota_of,
    read_pasted,
    switch,
)
from formation_p2p.command.members import invitation_of, peer_or_invitation
from formation_p2p.command.words import Json, counted, printable, put, say
from formation_p2p.core.errors import BadRecord, InvalidInput, LocalError
from formation_p2p.core.identity import Identity, PeerId, parse_peer_id, public_key_of
from formation_p2p.machine.home import Home, joined_network
from formation_p2p.machine.names import named
from formation_p2p.state.charter_file import CharterFile
from formation_p2p.trust.core.charter import (
    Charter,
    Member,
    Region,
    changes,
    is_invitation,
    is_peer,
    lines,
)
from formation_p2p.trust.core.network import Network
from formation_p2p.trust.core.quota import Quota
from formation_p2p.trust.core.root_keys import KeySet
from formation_p2p.trust.core.signed_charter import (
    SignedCharter,
    charter_text,
    draft,
    missing,
    open_charter,
    parse_charter_text,
    sign,
)
from formation_p2p.trust.core.split_root import root_of
from formation_p2p.workload.core.scope import parse_scope

# -- what a person changes of a charter ------------------------------------------------------------

_T = TypeVar("_T")

# Until then a board has met again.
LIFE: Final = "365d"
# So long its signers have for the next version: one that has less left when it is made gets a new
# life, as most would have signed it too late.
SIGNING_S: Final = 86_400
# The ids of all nodes begin so: an Ed25519 key, in base58.
_PEER_BEGINS: Final = "12D3KooW"


@dataclass(frozen=True, slots=True, kw_only=True)
class Edits:
    """What a person asks for, as text. `expires_unix_s` counts in place of `expires`."""

    members: list[str] | None = option(
        "--member", "ORG=SHARE", "An organisation, and its share. Repeatable."
    )
    regions: list[str] | None = option(
        "--region", "NAME=WHO,…", "Organisations, invitations and peers in a region. Repeatable."
    )
    signers: list[str] | None = option(
        "--signer", "PEER", "The id of a node that signs charters. Repeatable."
    )
    threshold: int | None = option("--threshold", "N", "How many signers make the next version.")
    inviters: list[str] | None = option(
        "--inviter", "PEER", "The id of a node that may renew grants. Repeatable."
    )
    expires: str | None = option(
        "--expires",
        "TIME",
        "For how long it holds: 90d, 52w. 365d at first, and where less than a day is left.",
    )
    cpu_hours: str | None = option(
        "--cpu-hours", "N", "Core-hours a month, for grants without a quota."
    )
    gpu_hours: str | None = option(
        "--gpu-hours", "N", "GPU-hours a month, for grants without a quota."
    )
    concurrent: int | None = option("--concurrent", "N", "Tasks at once, likewise.")
    identities: int | None = option(
        "--identities", "N", "Nodes for each invitation without a bound."
    )
    scope: str | None = option(
        "--scope", "SCOPE", "Who may read data without a rule of its own: org, …"
    )
    no_members: list[str] | None = None
    no_regions: list[str] | None = None
    no_signers: list[str] | None = None
    no_inviters: list[str] | None = None
    bans: Sequence[str] | None = None
    no_bans: Sequence[str] | None = None
    expires_unix_s: int | None = None

    def apply(self, charter: Charter) -> Charter:
        """The charter with these changes. Raises InvalidInput."""
        issued = int(time.time())
        peers, invitations = set[PeerId](), set[str]()
        for each in self.bans or ():
            peer = _peer_or_none(each)
            if peer is not None:
                peers.add(peer)
            elif is_invitation(each):
                invitations.add(each)
            else:
                hint = "write a peer id, or an invitation's 32 digits (`formation members --json`)"
                raise InvalidInput("ban", f"{each!r} is neither; {hint}")
        allowed, banned = (
            frozenset(self.no_bans or ()),
            charter.banned_keys | charter.banned_invitations,
        )
        if again := (peers | invitations) & banned:
            raise InvalidInput("ban", f"{min(again)} is banned already; leave it out")
        if unknown := allowed - banned:
            raise InvalidInput("no-ban", f"{min(unknown)} is not banned; see `show`")
        return replace(
            charter,
            issued_unix_s=issued,
            expires_unix_s=self._end_unix_s(charter, issued),
            keys=self._keys(charter.keys),
            members=self._members(charter),
            regions=self._regions(charter),
            quotas=self._quotas(charter.quotas),
            inviters=self._inviters(charter.inviters),
            banned_keys=(charter.banned_keys | peers) - allowed,
            banned_invitations=(charter.banned_invitations | invitations) - allowed,
            identities=charter.identities if self.identities is None else self.identities,
            scope=charter.scope if self.scope is None else parse_scope(self.scope),
        )

    def keys_alone(self) -> KeySet:
        """The signers that are named, and no others. Raises InvalidInput."""
        return KeySet(
            self.threshold or 1, tuple(sorted({_key(each) for each in self.signers or ()}))
        )

    def _end_unix_s(self, charter: Charter, issued_unix_s: int) -> int:
        """That of the charter, where none is named and its signers have the time."""
        if self.expires_unix_s is not None:
            return self.expires_unix_s
        if self.expires is None and charter.expires_unix_s >= issued_unix_s + SIGNING_S:
            return charter.expires_unix_s
        return issued_unix_s + int(parse_duration_s(self.expires or LIFE, "expires"))

    def _keys(self, keys: KeySet) -> KeySet:
        added = {_key(each) for each in self.signers or ()}
        gone = {_key(each) for each in self.no_signers or ()}
        if unknown := gone - set(keys.keys):
            raise InvalidInput("no-signer", f"{len(unknown)} of them does not sign; see `show`")
        left = tuple(sorted((set(keys.keys) | added) - gone))
        threshold = keys.threshold if self.threshold is None else self.threshold
        return KeySet(threshold, left)

    def _inviters(self, inviters: frozenset[PeerId]) -> frozenset[PeerId]:
        gone = {_peer(each) for each in self.no_inviters or ()}
        if unknown := gone - inviters:
            raise InvalidInput("no-inviter", f"{len(unknown)} of them does not invite; see `show`")
        return (inviters | {_peer(each) for each in self.inviters or ()}) - gone

    def _members(self, charter: Charter) -> tuple[Member, ...]:
        members = {each.org: each for each in charter.members}
        for each in self.members or ():
            org, _, share = each.partition("=")
            members[org] = Member(org, _share(share or "1"))
        return _without("no-member", members, self.no_members or ())

    def _regions(self, charter: Charter) -> tuple[Region, ...]:
        regions = {each.name: each for each in charter.regions}
        for each in self.regions or ():
            name, _, holders = each.partition("=")
            if not holders:
                problem = f"{each!r} says not who is in it; write it like eu=acme,beta"
                raise InvalidInput("region", problem)
            for holder in (found := frozenset(holders.split(","))):
                if holder.startswith(_PEER_BEGINS):
                    _peer(holder)  # raises, where a digit is missing: it would be an organisation
            regions[name] = Region(name, found)
        return _without("no-region", regions, self.no_regions or ())

    def _quotas(self, quotas: Quota) -> Quota:
        given = asdict(quota_of(self.cpu_hours, self.gpu_hours, self.concurrent))
        return replace(quotas, **{name: x for name, x in given.items() if x is not None})


@dataclass(frozen=True, slots=True, kw_only=True)
class NextEdits(Edits):
    """Those of a charter that there is."""

    no_members: list[str] | None = option("--no-member", "ORG", "Take one out. Repeatable.")
    no_regions: list[str] | None = option("--no-region", "NAME", "Take one out. Repeatable.")
    no_signers: list[str] | None = option("--no-signer", "PEER", "Take one out. Repeatable.")
    no_inviters: list[str] | None = option("--no-inviter", "PEER", "Take one out. Repeatable.")
    bans: list[str] | None = option(
        "--ban", "PEER|INVITATION", "Ban this peer or invitation. Repeatable."
    )
    no_bans: list[str] | None = option(
        "--no-ban", "PEER|INVITATION", "Allow this peer or invitation again. Repeatable."
    )


def _without(field: str, known: Mapping[str, _T], names: Collection[str]) -> tuple[_T, ...]:
    for name in names:
        if name not in known:
            raise InvalidInput(field, f"the charter has no {name!r}; see `formation charter show`")
    return tuple(each for name, each in sorted(known.items()) if name not in names)


def _share(text: str) -> int:
    if not (text.isascii() and text.isdigit()) or len(text) > 9 or int(text) == 0:
        raise InvalidInput("member", f"{text!r} is not a share; write a whole number, from 1 on")
    return int(text)


def _peer_or_none(text: str) -> PeerId | None:
    try:
        return parse_peer_id(text)
    except ValueError:
        return None


def _peer(text: str) -> PeerId:
    peer_id = _peer_or_none(text)
    if peer_id is None:
        hint = "`formation network show` prints the id of a node"
        raise InvalidInput("peer", f"{text!r} is not a peer id; {hint}")
    return peer_id


def _key(text: str) -> bytes:
    key = public_key_of(_peer(text))
    if key is None:
        raise InvalidInput("signer", f"{text!r} does not hold an Ed25519 key; use another")
    return key


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
        me = self.home.identity().peer_id, self.network.terms.invitation
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


app: Final = CommandGroup(
    "charter", help="The rules that the members of a network make.", no_args_is_help=True
)

INIT_EPILOG: Final = """
\b
Examples:
  formation charter init --member acme=2 --member beta=1
  formation charter init --signer 12D3KooW… --signer 12D3KooW… --threshold 2
"""
SIGN_EPILOG: Final = """
\b
Examples:
  formation charter ban 12D3KooW… > ban.txt      where the first signer is
  formation charter sign ban.txt                 where the second one is

A charter counts once the keys of the version before it, and its own, have signed it as often as
their thresholds say. Who signs last hands it to the network.
"""


@app.command(epilog=INIT_EPILOG)
def init(edits: Edits, home: Path | None = flags.HOME, as_json: bool = flags.JSON) -> None:
    """Make the first charter of a network, where its root key is.

    Without --signer the root key signs later versions too. With some, they do, as many together as
    --threshold says; the root key signs this one.
    """
    place = Place(home)
    if place.known is not None:
        problem = f"version {place.known.version} counts already"
        raise InvalidInput("charter", f"{problem}; change it: formation charter propose")
    root = place.root
    if not edits.signers and edits.threshold is not None:
        raise InvalidInput("threshold", "it counts signers; name them: --signer PEER, for each")
    now = int(time.time())
    blank = Charter(
        version=1,
        network=place.network.network_id,
        keys=edits.keys_alone() if edits.signers else root,
        issued_unix_s=now,
        expires_unix_s=now + 1,
    )
    made = replace(edits, signers=None, threshold=None).apply(blank)
    go_on(place, draft(made, root), as_json=as_json)


@app.command()
def propose(edits: NextEdits, home: Path | None = flags.HOME, as_json: bool = flags.JSON) -> None:
    """Make the next version: what is not named stays as it is.

    Signs it with the keys that are here, and prints it for the other signers, or hands it to the
    network where that is enough.
    """
    place = Place(home)
    bans, allowed = place.meant(edits.bans, "ban"), place.meant(edits.no_bans, "no-ban")
    edits = replace(edits, bans=[*bans], no_bans=[*allowed])
    go_on(place, place.next_version(edits), as_json=as_json)


@app.command()
def ban(
    name: str = argument("PEER|INVITATION", "As `formation members` shows it.", default=...),
    with_invitation: bool = switch(
        "--with-invitation",
        "Ban as well all that was made of the invitation by which the peer came.",
    ),
    home: Path | None = flags.HOME,
    as_json: bool = flags.JSON,
) -> None:
    """Ban a peer, or all that was made of an invitation.

    Every worker, gate and holder of records refuses it once the charter counts, and its leases end
    at their next renewal. Who still has the invite comes back as another peer, unless that is
    banned too. As `propose --ban`.
    """
    place = Place(home)
    bans = place.with_invitation(name) if with_invitation else place.meant((name,), "ban")
    edits = chosen(Edits, bans=bans, expires_unix_s=place.end_of_a_ban_unix_s())
    go_on(place, place.next_version(edits), as_json=as_json)


@app.command("sign", epilog=SIGN_EPILOG)
def sign_it(
    given: str = argument(
        "FILE|-", "A proposal that a signer printed, or - for stdin.", default=...
    ),
    home: Path | None = flags.HOME,
    as_json: bool = flags.JSON,
) -> None:
    """Sign a proposal with the keys that are here, after it has shown what that changes."""
    place = Place(home)
    go_on(place, place.proposal(given), as_json=as_json)


@app.command()
def show(
    given: str = argument("FILE|-", "A proposal; else the charter that counts.", default=""),
    home: Path | None = flags.HOME,
    as_json: bool = flags.JSON,
) -> None:
    """Show the charter of the network, or a proposal."""
    place = Place(home)
    shown = place.proposal(given) if given else place.known
    if shown is None:
        raise InvalidInput("charter", NO_CHARTER)
    if as_json:
        put(_document(shown))
        return
    print(f"version {shown.version} of the charter of {shown.charter.network.hex()[:12]}")
    for line in lines(shown.charter):
        print(f"  {printable(line)}")
    if shown.charter.is_over(time.time()):
        say("it has expired: its bans go on, its regions and shares do not; propose the next one")


@app.command()
def diff(
    given: str = argument("FILE|-", "A proposal, or - for stdin.", default=...),
    home: Path | None = flags.HOME,
    as_json: bool = flags.JSON,
) -> None:
    """Show what a proposal changes."""
    place = Place(home)
    proposal = place.proposal(given)
    found = changes(place.charter, proposal.charter)
    if as_json:
        put({"version": proposal.version, "changes": found, "missing": place.missing(proposal)})
        return
    for line in found:
        print(printable(line))


def _document(signed: SignedCharter) -> Json:
    charter = signed.charter
    return {
        "version": charter.version,
        "network_id": charter.network.hex(),
        "issued_unix_s": charter.issued_unix_s,
        "expires_unix_s": charter.expires_unix_s,
        "threshold": charter.threshold,
        "signers": list(charter.signers),
        "members": {each.org: each.share for each in charter.members},
        "regions": {each.name: sorted(each.holders) for each in charter.regions},
        "banned_peers": sorted(charter.banned_keys),
        "banned_invitations": sorted(charter.banned_invitations),
        "inviters": sorted(charter.inviters),
        "identities": charter.identities,
        "scope": str(charter.scope),
    }

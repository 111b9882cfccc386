"""`formation members`: who is in the network, as far as the nodes of this home have met them."""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Final, NamedTuple

from formation_p2p.command import flags
from formation_p2p.command.node_socket import online
from formation_p2p.command.rights import may_in_words
from formation_p2p.command.status import running
from formation_p2p.command.words import Json, ago, date, for_long, put, say
from formation_p2p.core.errors import InvalidInput
from formation_p2p.core.identity import parse_peer_id
from formation_p2p.machine.claim import peers_of
from formation_p2p.machine.home import Home, joined_network
from formation_p2p.machine.names import learn_name, named, peer_meant
from formation_p2p.state.member_file import FILE, Member, learn_names, read_members
from formation_p2p.trust.core.charter import Charter, is_invitation
from formation_p2p.trust.core.grant_form import MAX_EXPIRY_UNIX_S
from formation_p2p.trust.core.grants import GrantTerms, read_grant
from formation_p2p.trust.core.network import Network
from formation_p2p.trust.core.quota import GRANT_DIGITS

MEMBERS_EPILOG: Final = """
\b
Examples:
  formation members
  formation members --json | jq -r '.members[] | select(.expired) | .peer_id'

A gate meets the workers whose profiles it stores, a worker those who ask it for a lease, and a
submitter the workers that it finds: to see most members, run this where a gate or a worker runs.
The invitation is what all grants that were made of one invite have in common: `formation usage`
shows the same digits, and --json has all of them. Needs no network; what a running node meets is
here within two seconds.
"""
# Of an invitation's hexadecimal digits, as `formation usage` shows them.
SHOWN_DIGITS: Final = 8


class _Seen(NamedTuple):
    """A member, what its grant says, how many others have the same name, whether its grant is not
    renewed any more, as far as that is decided here, and whether the charter bans it."""

    member: Member
    terms: GrantTerms
    namesakes: int
    is_own: bool
    is_withdrawn: bool
    is_banned: bool

    @property
    def has_expired(self) -> bool:
        return self.terms.rights.expires_unix_s <= time.time()


def members(home: Path | None = flags.HOME, as_json: bool = flags.JSON) -> None:
    """Show the members of the network that this machine has met: what they may do, until when,
    when they were last seen, and by which invitation they came.

    A name proves nothing, and others may have the same, which is noted: the end of the peer id,
    which stands beside it, tells members apart.
    """
    place = Home(home)
    network = joined_network(place)
    charter = flags.kept_charter(place, network)
    found = _seen(place, network, charter)
    nodes = running(place.path)
    there = online(place.path, nodes)
    banned = _banned(charter)
    if as_json:
        since = there if nodes else None
        gates = [
            {**asdict(gate), **_online_in_json(gate.peer_id, since)} for gate in network.contacts()
        ]
        rows = [{**_document(x), **_online_in_json(x.member.peer_id, since)} for x in found]
        document = {"network_id": network.network_id.hex(), "members": rows}
        put(document | {"gates": gates, "banned": banned})
        return
    if found:
        _show(found, there)
    else:
        say(f"formation: no node of {place.path} has met a member yet; start one, such as a worker")
    for gate in network.contacts():
        is_there = there.get(gate.peer_id)
        state = "offline" if is_there is None else f"online {for_long(is_there)}"
        known = f"; {state}" if nodes else ""
        print(f"gate {named(gate.peer_id)} at {', '.join(gate.addresses)}{known}")
    if found and not nodes:
        say("formation: no node of this home runs, which would know who is online")
    for each in banned:
        print(f"banned {each['kind']} {each['id']}, by version {each['version']} of the charter")


def _banned(charter: Charter | None) -> list[Json]:
    """Whom the charter that counts bans: peers, and invitations."""
    if charter is None:
        return []
    banned = {"peer": charter.banned_keys, "invitation": charter.banned_invitations}
    return [
        {"kind": kind, "id": each, "version": charter.version}
        for kind, ids in banned.items()
        for each in sorted(ids)
    ]


def invitations(home: Home, begin: str) -> list[str]:
    """Those by which members came that were met here, of all that begin so."""
    network = home.network()
    found = () if network is None else _seen(home, network)
    known = {each.terms.invitation for each in found}
    return sorted(each for each in known if each.startswith(begin))


def invitation_of(home: Home, peer_id: str) -> tuple[str, list[str]] | None:
    """That by which a member came, and the other members that came by it; None where that one was
    never met here."""
    network = home.network()
    found = () if network is None else _seen(home, network)
    of = {each.member.peer_id: each.terms.invitation for each in found}
    if (invitation := of.pop(parse_peer_id(peer_id), None)) is None:
        return None
    return invitation, sorted(peer for peer, its in of.items() if its == invitation)


def _seen(home: Home, network: Network, charter: Charter | None = None) -> list[_Seen]:
    """Those with a grant of the network that names its holder; the one seen last comes first."""
    read: list[tuple[Member, GrantTerms]] = []
    for member in read_members(home.path, network.network_id):
        try:
            terms = read_grant(member.grant, network.root_public_key)
        except InvalidInput as error:
            say(f"formation: {named(member.peer_id)} in {home.path / FILE} is left out: {error}")
            continue
        if terms.bound_to == member.peer_id:
            learn_name(member.peer_id, member.name)
            read.append((member, terms))
    names = Counter(member.name for member, _ in read if member.name)
    own = peers_of(home)
    issuer = home.issuer()
    withdrawn = frozenset[str]() if issuer is None else issuer[1]
    return [
        _Seen(
            member,
            terms,
            max(names[member.name] - 1, 0),
            member.peer_id in own,
            not withdrawn.isdisjoint((member.peer_id, terms.invitation)),
            charter is not None and charter.bans(member.peer_id, terms.invitation) is not None,
        )
        for member, terms in reversed(read)
    ]


def _online_in_json(peer_id: str, there: Mapping[str, int] | None) -> Json:
    """None where no node runs that would know."""
    if there is None:
        return {"online": None, "since_unix_s": None}
    return {"online": peer_id in there, "since_unix_s": there.get(peer_id)}


def _show(found: list[_Seen], there: Mapping[str, int]) -> None:
    from formation_p2p.command.tables import Columns, console, table_of

    columns: Columns[_Seen] = {
        "member": lambda each: named(each.member.peer_id),
        "may": lambda each: may_in_words(each.terms.rights),
        "until": lambda each: _until(each.terms.rights.expires_unix_s),
        "online": lambda each: (
            for_long(since)
            if (since := there.get(each.member.peer_id)) is not None
            else f"seen {ago(each.member.seen_unix_s)}"
        ),
        "invitation": lambda each: each.terms.invitation[:SHOWN_DIGITS],
        "note": _note,
    }
    console().print(table_of(columns, found))


def _until(unix_s: int) -> str:
    return "for ever" if unix_s == MAX_EXPIRY_UNIX_S else date(unix_s)


def _note(each: _Seen) -> str:
    others = "1 other has" if each.namesakes == 1 else f"{each.namesakes} others have"
    notes = (
        "this machine" if each.is_own else "",
        "banned" if each.is_banned else "",
        "its grant has ended" if each.has_expired else "",
        "not renewed" if each.is_withdrawn else "",
        f"{others} the same name" if each.namesakes else "",
    )
    return ", ".join(filter(None, notes))


def _document(each: _Seen) -> Json:
    rights = each.terms.rights
    return {
        "peer_id": each.member.peer_id,
        "name": each.member.name or None,
        "same_name": each.namesakes,
        "own": each.is_own,
        "may": sorted(rights.may),
        "drivers": None if rights.drivers is None else sorted(rights.drivers),
        "max_priority": rights.max_priority,
        "place": asdict(rights.place),
        "expires_unix_s": rights.expires_unix_s,
        "expired": each.has_expired,
        "withdrawn": each.is_withdrawn,
        "banned": each.is_banned,
        "seen_unix_s": each.member.seen_unix_s,
        "invitation": each.terms.invitation,
    }


# As `formation members` shows an invitation, or more of it.
_BEGIN: Final = re.compile(rf"[0-9a-f]{{{SHOWN_DIGITS},{GRANT_DIGITS - 1}}}")


def peer_or_invitation(home: Home, text: str, field: str, others: Iterable[str] = ()) -> str:
    """One that the nodes of this home have met, or one of the invitations `others`. Raises
    InvalidInput unless exactly one is meant."""
    if is_invitation(text):
        return text
    found: list[str] = []
    if _BEGIN.fullmatch(text):
        begun = (each for each in others if each.startswith(text))
        found = sorted({*invitations(home, text), *begun})
    learn_names(home.path)
    if (peer_id := peer_meant(text, field=field)) is not None:
        found.append(peer_id)
    if not found:
        hint = "write a peer id, or an invitation's 32 hexadecimal digits"
        problem = f"no member known here is {text!r}; {hint} (`formation members --json`)"
        raise InvalidInput(field, problem)
    if len(found) > 1:
        listed = ", ".join(found[:8]) + (" and more" if len(found) > 8 else "")
        problem = f"{text!r} may be any of {len(found)}: {listed}; write the one that is meant"
        raise InvalidInput(field, problem)
    return found[0]

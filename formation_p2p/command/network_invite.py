"""`formation network invite`, and what the holders of a split root do together."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import click

from formation_p2p.command import flags
from formation_p2p.command.flags import (
    MAX_INVITE_CHARS,
    argument,
    option,
    parse_duration_s,
    read_pasted,
)
from formation_p2p.command.rights import in_json, in_words
from formation_p2p.command.words import counted, put, say
from formation_p2p.core.errors import InvalidInput
from formation_p2p.core.units import parse_milli
from formation_p2p.machine.home import Home, joined_network
from formation_p2p.machine.names import peer_meant
from formation_p2p.state.member_file import learn_names, read_members
from formation_p2p.trust.core.grant_form import MAX_EXPIRY_UNIX_S, Life
from formation_p2p.trust.core.grants import MAX_PRIORITY, Right, Rights
from formation_p2p.trust.core.hours import parse_hours
from formation_p2p.trust.core.split_root import GrantRequest, is_request, parse_request
from formation_p2p.workload.core.scope import Place

# Ten machines, which work and submit.
IDENTITIES: Final = 32
_RIGHTS: Final = click.Choice([str(each) for each in Right])

INVITE_EPILOG: Final = """
\b
Examples:
  formation network invite > join.txt
  formation network invite --may work --expires 365d
  formation network invite --may submit --driver process --priority 10 --expires 12h
  formation network invite --cpu-hours 100 --concurrent 4 --hours "mon-fri 18:00-08:00"
  formation network invite --org acme --cell kitchen --label site=lab

Quotas of hours are of the whole network; each worker counts for itself how many tasks run at once.
All holders of one invite share its quotas.

A grant without --expires lasts 30 days, and is renewed for as long as a node of this home runs and
the invite is not withdrawn (`formation network withdraw`). One with --expires ends then, unless
--renew says for how long it is renewed.
"""
COSIGN_EPILOG: Final = """
\b
Examples:
  formation network invite > request.txt      where the first key is
  formation network cosign request.txt        where the second one is
"""

CELL: Final = option("--cell", "NAME", "The cell inside the organisation.", default="")
ORG: Final = option("--org", "NAME", "The organisation that it belongs to.", default="")
FEDERATION: Final = option(
    "--federation", "NAME", "The federation of organisations that it belongs to.", default=""
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Invitation:
    """As a person wrote it."""

    may: list[str] | None = option(
        "--may",
        "submit|work",
        "What the holder may do; both by default. Repeatable.",
        type=_RIGHTS,
    )
    drivers: list[str] | None = option(
        "--driver", "NAME", "Submit for this driver only, such as wasm. Repeatable."
    )
    expires: str | None = option(
        "--expires", "TIME", "For how long: 12h, 30d, 52w. 30d and renewed by default; see below."
    )
    renew: str | None = option(
        "--renew", "TIME", "Renew its grants for so long: 1d, 52w; ever or never."
    )
    priority: int = option(
        "--priority", "N", "The highest priority of a job.", show_default=True, default=MAX_PRIORITY
    )
    weight: str = option(
        "--priority-weight",
        "N",
        "Workers multiply priorities by this.",
        show_default=True,
        default="1",
    )
    cpu_hours: str | None = option("--cpu-hours", "N", "Core-hours a month, on all workers.")
    gpu_hours: str | None = option("--gpu-hours", "N", "GPU-hours a month, on all workers.")
    concurrent: int | None = option("--concurrent", "N", "Tasks at the same time, on each worker.")
    hours: str | None = option(
        "--hours", "HOURS", 'Submit only at these hours, in UTC: "mon-fri 18:00-08:00".'
    )
    labels: list[str] | None = option(
        "--label", "KEY=VALUE", "Submit only to workers with this label. Repeatable."
    )
    identities: int = option(
        "--identities",
        "N",
        "How many nodes may use the invite; a machine that works and submits has two or three.",
        show_default=True,
        default=IDENTITIES,
    )
    cell: str = CELL
    org: str = ORG
    federation: str = FEDERATION
    peer: str | None = option(
        "--peer", "PEER", "Only the node with this peer id, or of this name, can use the invite."
    )

    def rights(self) -> Rights:
        """Raises InvalidInput."""
        life = _life(self.expires, self.renew)
        return Rights(
            min(int(time.time()) + life.life_s, MAX_EXPIRY_UNIX_S),
            frozenset(map(Right, self.may or Right)),
            frozenset(self.drivers) if self.drivers else None,
            self.priority,
            flags.quota_of(self.cpu_hours, self.gpu_hours, self.concurrent),
            None if self.hours is None else parse_hours(self.hours),
            frozenset(flags.pairs_of("label", self.labels or ()).items()),
            Place(cell=self.cell, org=self.org, federation=self.federation),
            flags.parsed("priority-weight", self.weight, parse_milli) or 0,
            life,
            self.identities,
        )


def invite(
    invitation: Invitation, home: Path | None = flags.HOME, as_json: bool = flags.JSON
) -> None:
    """Print an invite: one line of text with which another machine joins the network.

    An invite is a password: send it like one, or bind it to one peer id with --peer
    (`formation network show` prints the id of a node). Works where the network was created. Where
    the root is split it prints a request, which others sign: `formation network cosign`.
    """
    rights, peer, peer_id = invitation.rights(), invitation.peer, None
    if peer is not None:
        learn_names(Home(home).path)
        peer_id = peer_meant(peer)
        if peer_id is None:
            problem = f"{peer!r} is neither a peer id nor a member known here"
            raise InvalidInput("peer", f"{problem}; copy its id from `formation network show`")
    request = Home(home).request(rights, peer_id)
    _hand_out(request, as_json=as_json)
    if not request.gates and not request.lacks:
        say(
            "no gate is known here, so a new node finds others on its own LAN only: for others "
            "run `formation gate`, or name one with `formation network add-gate`, and invite again"
        )


def cosign(
    given: str = argument(
        "REQUEST|FILE|-", "What `invite` printed elsewhere, a file with it, or -.", default=...
    ),
    look: bool = option("--look", "", "Only show what it asks for.", default=False),
    home: Path | None = flags.HOME,
    as_json: bool = flags.JSON,
) -> None:
    """Sign a request for an invite, with the keys of the network's root that are here.

    Shows what the invite would allow, then prints the invite, or the request for the next holder.
    """
    place = Home(home)
    network = joined_network(place)
    request = parse_request(
        given if is_request(given) else read_pasted("request", given, MAX_INVITE_CHARS)
    )
    if request.root_id != network.root_public_key:
        raise InvalidInput("request", "it is of another network than this home; see --home")
    if look:
        _show(request, as_json=as_json)
        return
    signed = request
    for key in place.root_keys():
        signed = signed.signed(key)
    if signed is request and request.lacks:
        problem = f"no key of {place.path} may sign it, or it has signed already"
        raise InvalidInput("request", f"{problem}; pass it on to another holder of the root")
    _hand_out(signed, as_json=as_json)


def reissue(
    name: str = argument("PEER", "As `formation members` shows it.", default=...),
    home: Path | None = flags.HOME,
    as_json: bool = flags.JSON,
) -> None:
    """Renew the grant of a member that is not online with a holder of the root key.

    Prints an invite for that member alone, or a request for it where the root is split. The member
    runs `formation network join -` with it; what it may do, and its quotas, stay as they are.
    """
    place = Home(home)
    network = joined_network(place)
    learn_names(place.path)
    peer_id = peer_meant(name)
    met = {each.peer_id: each.grant for each in read_members(place.path, network.network_id)}
    if peer_id not in met:
        problem = f"no member known here is {name!r}"
        raise InvalidInput("peer", f"{problem}; copy its id from `formation members --json`")
    _hand_out(place.request_again(met[peer_id]), as_json=as_json)


def hold(
    given: str = argument("FILE|-", "The file with the key, or - for stdin.", default=...),
    home: Path | None = flags.HOME,
    as_json: bool = flags.JSON,
) -> None:
    """Keep one key of the network's split root in this home, to sign invites with.

    Join the network first. Who created the network has the file; it is deleted there afterwards.
    """
    place = Home(home)
    key = place.hold(read_pasted("root key", given, MAX_INVITE_CHARS))
    if as_json:
        put({"root_key": key.peer_id, "home": str(place.path)})
    else:
        print(f"this home holds the key {key.peer_id} of the network's root")


def _hand_out(request: GrantRequest, *, as_json: bool) -> None:
    """Print the invite, or what is to become one."""
    if not request.lacks:
        join = request.network().invite()
        if as_json:
            put({"join": join, **_document(request)})
        else:
            print(join)
        _say_what(request, "it lets")
        return
    if as_json:
        put({"request": request.text(), "missing": request.lacks, **_document(request)})
    else:
        print(request.text())
    _say_what(request, "it would let")
    left = counted(request.lacks, "signature")
    say(f"it lacks {left}: have another holder of the root run: formation network cosign -")


def _show(request: GrantRequest, *, as_json: bool) -> None:
    if as_json:
        put({"missing": request.lacks, **_document(request)})
        return
    _say_what(request, "it would let")


def _say_what(request: GrantRequest, lets: str) -> None:
    terms = request.terms
    is_open = terms.bound_to is None
    holder = "its holder" if is_open else f"{terms.bound_to} only"
    secret = "a secret: " if is_open else ""
    say(f"{secret}{lets} {holder} {in_words(terms.rights)}")


def _document(request: GrantRequest) -> dict[str, object]:
    terms = request.terms
    of_it = {"gates": list(request.gates), "peer_id": terms.bound_to}
    return {**of_it, **in_json(terms.rights)}


def _life(expires: str | None, renew: str | None) -> Life:
    """Raises InvalidInput."""
    life_s = min(int(parse_duration_s(expires or "30d", "expires")) or 1, MAX_EXPIRY_UNIX_S)
    match renew or ("ever" if expires is None else "never"):
        case "ever":
            until_unix_s = MAX_EXPIRY_UNIX_S
        case "never":
            until_unix_s = int(time.time()) + life_s
        case duration:
            until_unix_s = int(time.time() + parse_duration_s(duration, "renew"))
    return Life(life_s, min(until_unix_s, MAX_EXPIRY_UNIX_S))

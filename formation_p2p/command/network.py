"""`formation network`: create a network, invite other machines, join."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import click

from formation_p2p.command import flags
from formation_p2p.command.command import CommandGroup
from formation_p2p.command.flags import (
    MAX_INVITE_CHARS,
    argument,
    option,
    parse_duration_s,
    read_pasted,
    switch,
)
from formation_p2p.command.members import peer_or_invitation
from formation_p2p.command.node_socket import any_runs
from formation_p2p.command.rights import in_json, in_words
from formation_p2p.command.status import running
from formation_p2p.command.words import Json, counted, date, put, say
from formation_p2p.core.errors import InvalidInput, LocalError
from formation_p2p.core.units import parse_milli
from formation_p2p.machine.home import Home, joined_network
from formation_p2p.machine.names import named, peer_meant
from formation_p2p.state.member_file import learn_names, read_members
from formation_p2p.trust.core.grant_form import MAX_EXPIRY_UNIX_S, Life
from formation_p2p.trust.core.grants import MAX_PRIORITY, Right, Rights
from formation_p2p.trust.core.hours import parse_hours
from formation_p2p.trust.core.network import Network, parse_invite
from formation_p2p.trust.core.split_root import GrantRequest, is_request, parse_request, root_of
from formation_p2p.workload.core.scope import Place

# -- invitations, and what the holders of a split root do together ---------------------------------

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
        "--expires",
        "TIME",
        "How long it is valid: 12h, 30d, 52w. 30d and renewed by default; see below.",
    )
    renew: str | None = option(
        "--renew", "TIME", "How long its grants are renewed: 1d, 52w, ever or never."
    )
    priority: int = option("--priority", "N", "The highest priority of a job.", shown=MAX_PRIORITY)
    weight: str = option(
        "--priority-weight", "N", "Workers multiply priorities by this.", shown="1"
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
        shown=IDENTITIES,
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
    look: bool = switch("--look", "Only show what it asks for."),
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
            put({"join": join, **_in_json(request)})
        else:
            print(join)
        _say_what(request, "it lets")
        return
    if as_json:
        put({"request": request.text(), "missing": request.lacks, **_in_json(request)})
    else:
        print(request.text())
    _say_what(request, "it would let")
    left = counted(request.lacks, "signature")
    say(f"it lacks {left}: have another holder of the root run: formation network cosign -")


def _show(request: GrantRequest, *, as_json: bool) -> None:
    if as_json:
        put({"missing": request.lacks, **_in_json(request)})
        return
    _say_what(request, "it would let")


def _say_what(request: GrantRequest, lets: str) -> None:
    terms = request.terms
    is_open = terms.bound_to is None
    holder = "its holder" if is_open else f"{terms.bound_to} only"
    secret = "a secret: " if is_open else ""
    say(f"{secret}{lets} {holder} {in_words(terms.rights)}")


def _in_json(request: GrantRequest) -> dict[str, object]:
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


LOOK_EVERY_S: Final = 0.1

LEAVE_EPILOG: Final = """
\b
Examples:
  formation network leave
  formation network leave --wait 1h      for tasks that take long to hand on
  formation network leave --purge        and keep nothing of Formation in the home
"""


def leave(
    wait: str = option(
        "--wait",
        "TIME",
        "How long the nodes may take to end; after that the network is kept.",
        shown="10m",
    ),
    purge: bool = switch(
        "--purge",
        "Remove as well all that Formation keeps in this home: its identity, caches and logs.",
    ),
    home: Path | None = flags.HOME,
    as_json: bool = flags.JSON,
) -> None:
    """Leave the network: end the nodes that run from this home, and forget the network.

    Each node ends as with Ctrl-C: a worker hands its tasks on, and tells the others that it goes.
    The node's identity stays, unless --purge removes that too; to come back takes a new invite. A
    root key stays in any case. To uninstall: leave with --purge, then remove the package.
    """
    place = Home(home)
    network = place.network() if purge and place.path.exists() else joined_network(place)
    nodes = [int(each["pid"]) for each in running(place.path)]
    if os.getpid() in nodes:
        raise InvalidInput("network", "this program runs a node of this home; end it first")
    for pid in nodes:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGTERM)
    if nodes and not as_json:
        say(f"waiting for {counted(len(nodes), 'node')} to end")
    until_s = time.monotonic() + parse_duration_s(wait, "wait")
    # One that ends answers no more: it has ended when its socket is closed.
    while any_runs(place.path):
        if time.monotonic() >= until_s:
            end = "it" if not nodes else f"process {' or '.join(map(str, nodes))}"
            problem = f"a node of {place.path} still runs"
            raise LocalError(
                f"{problem}; wait for longer (--wait 1h), or end {end}, and leave again"
            )
        time.sleep(LOOK_EVERY_S)
    held = place.purge() if purge else place.leave()
    if as_json:
        left = None if network is None else network.network_id.hex()
        ended = {"nodes_ended": len(nodes), "root_keys": held}
        put({"left": left, **ended, "purged": purge})
        return
    if network is not None:
        print(f"left network {network.network_id.hex()[:12]}")
    if purge:
        print(f"removed what Formation kept in {place.path}")
    for name in held:
        say(f"{place.path / name} stays: it can invite others to this network")


# Of a peer on the same LAN.
DIAL_S: Final = 2.0

app: Final = CommandGroup(
    "network", help="Create a network, invite others to it, join one.", no_args_is_help=True
)
app.command(epilog=INVITE_EPILOG)(invite)
app.command(epilog=COSIGN_EPILOG)(cosign)
app.command()(reissue)
app.command()(hold)
app.command(epilog=LEAVE_EPILOG)(leave)

CREATE_EPILOG: Final = """
\b
Then, to have others in it:
  formation gate               on a machine that the others can reach
  formation network invite     prints the invite that they need to join
"""
ROOT_SPLIT: Final = """\
its keys are {home}/root.key and root-2.key to root-{last}.key, one for each holder
next: while all are here, invite the holders, and all that is to join before they meet again; then
hand each his file, who runs `formation network hold FILE`; then delete it here"""
JOIN_EPILOG: Final = """
\b
Examples:
  formation network join -             paste the invite, or pipe it from another program
  formation network join join.txt
  ssh gate formation network invite | formation network join -
"""


@app.command(epilog=CREATE_EPILOG)
def create(
    cell: str = CELL,
    org: str = ORG,
    federation: str = FEDERATION,
    threshold: int = option(
        "--threshold", "M", "The number of root keys that sign together.", shown=1
    ),
    of: int = option("--of", "N", "The number of keys that the root is split into.", shown=1),
    home: Path | None = flags.HOME,
    as_json: bool = flags.JSON,
) -> None:
    """Create a network, and put this machine in it with every right.

    The network's root key signs all grants. Keep a copy of it: without the root key no machine
    can be invited. With --threshold 2 --of 3 there are three keys, for three people: two of them
    sign each invite.
    """
    place = Home(home)
    there = Place(cell=cell, org=org, federation=federation)
    network = place.create_network(there, threshold=threshold, of=of)
    if as_json:
        found = {"network_id": network.network_id.hex(), "home": str(place.path)}
        put(found | ({"threshold": threshold, "of": of} if of > 1 else {}))
        return
    if of > 1:
        print(f"created network {_short(network)}; {threshold} of {of} keys are its root")
        say(ROOT_SPLIT.format(home=place.path, last=of))
        return
    print(f"created network {_short(network)}; its root key is {place.path / 'root.key'}")
    say(
        "next: run `formation gate` where others can reach it, then `formation network invite`; "
        "machines on one LAN need no gate"
    )


@app.command(epilog=JOIN_EPILOG)
def join(
    invite: str = argument(
        "INVITE|FILE|-", "The invite, a file with it, or - for stdin.", default=...
    ),
    no_mdns: bool = flags.NO_MDNS,
    name: str | None = flags.NAME,
    home: Path | None = flags.HOME,
    as_json: bool = flags.JSON,
) -> None:
    """Join the network of an invite, or replace this node's grant in its network.

    An invite is a secret, and other users of this machine can see the arguments of programs:
    prefer - or a file.
    """
    place = Home(home)
    network = place.join(parse_invite(flags.read_invite(invite)))
    if name is not None:
        place.rename(name)
    rights = network.rights
    nearby = [] if no_mdns else _nearby(place, network)
    if as_json:
        found = [{"peer_id": peer_id, "address": address} for peer_id, address in nearby]
        put({**_document(place, network), "nearby": found})
        return
    print(f"joined network {_short(network)}; this node may {in_words(rights)}")
    print(f"it goes by the name {place.name()}; --name gives it another")
    for peer_id, address in nearby:
        print(f"found on this LAN: {named(peer_id)} at {address}")
    if not network.gates and not nearby:
        say(
            "the invite names no gate, and no peer answers on this LAN: start one here, or ask "
            "for a newer invite"
        )


@app.command()
def show(
    home: Path | None = flags.HOME,
    as_json: bool = flags.JSON,
) -> None:
    """Show this machine's network, its gates, and what its grant allows."""
    place = Home(home)
    network = joined_network(place)
    if as_json:
        put(_document(place, network))
        return
    rights = network.rights
    gates = network.gates or ("none; see `formation gate`",)
    print(f"network   {network.network_id.hex()}")
    print(f"home      {place.path}")
    print(f"peer id   {place.identity().peer_id}")
    print(f"may       {in_words(rights)}")
    print(f"root key  {_root_in_words(place, network)}")
    for number, gate in enumerate(gates):
        print(f"{'gates' if number == 0 else '':8}  {gate}")


@app.command("add-gate")
def add_gate(
    gate: str = argument(
        "MULTIADDR", "Such as /ip4/203.0.113.7/tcp/4001/p2p/12D3KooW…", default=...
    ),
    home: Path | None = flags.HOME,
    as_json: bool = flags.JSON,
) -> None:
    """Add a gate that runs on another machine to the invites made on this machine.

    `formation gate` prints its address, and adds itself on its own machine.
    """
    network = Home(home).add_gate(gate)
    if as_json:
        put({"gates": list(network.gates)})
    else:
        print("\n".join(network.gates))


@app.command()
def withdraw(
    name: str = argument(
        "PEER|INVITATION", "As `formation members` shows it, or in full.", default=...
    ),
    home: Path | None = flags.HOME,
    as_json: bool = flags.JSON,
) -> None:
    """Have a member's grant, or all grants of an invitation, not renewed any more.

    What was given before is valid until its end: at most the 30 days, or --expires, of the
    invitation. Works where the network was created.
    """
    place = Home(home)
    meant = peer_or_invitation(place, name, "withdraw")
    place.withdraw(meant)
    if as_json:
        put({"withdrawn": meant})
    else:
        print(f"no grant of {meant} is renewed any more")


@app.command()
def renew(
    home: Path | None = flags.HOME,
    as_json: bool = flags.JSON,
) -> None:
    """Have this machine's grant renewed now, in the second half of its life.

    Nodes that run do so by themselves. A node that has the network's root key has to be online,
    mostly a gate, or an inviter whom the charter names. What the grant allows stays as it is.
    """
    from formation_p2p.command.local.client import reach

    place = Home(home)

    async def ask() -> int:
        async with reach(place.path) as node:
            return await node.renew()

    until_unix_s = asyncio.run(ask())
    if as_json:
        put({"expires_unix_s": until_unix_s})
    else:
        print(f"the grant is renewed until {date(until_unix_s)}")


def _nearby(home: Home, network: Network) -> list[tuple[str, str]]:
    """The peers on this LAN that say that they are of the network, and that answer a dial, each
    with its address. Whether they are members is seen once a node of this home runs."""
    from formation_p2p.reach.mdns import is_wanted

    if not is_wanted((), network):
        return []
    import trio

    from formation_p2p.reach.gate_probe import probe_gates
    from formation_p2p.reach.mdns import look_around

    async def look() -> list[tuple[str, str]]:
        found = await look_around(home.identity().peer_id, network)
        said = [f"{address}/p2p/{each.peer_id}" for each in found for address in each.addresses]
        answers = [answer.gate for answer in await probe_gates(said, DIAL_S) if not answer.problem]
        parts = (gate.rpartition("/p2p/") for gate in answers)
        return list({peer_id: address for address, _, peer_id in parts}.items())

    learn_names(home.path)
    return trio.run(look)


def _document(home: Home, network: Network) -> Json:
    return {
        "network_id": network.network_id.hex(),
        "home": str(home.path),
        "peer_id": home.identity().peer_id,
        "gates": list(network.gates),
        "has_root_key": home.has_root_key(),
        **in_json(network.rights),
    }


def _root_in_words(home: Home, network: Network) -> str:
    keys, here = root_of(network.grant, network.root_public_key), len(home.root_keys())
    if len(keys.keys) == 1:
        return "here; this machine can invite" if here else "not here"
    held = f"{here} of them here" if here else "none of them here"
    return f"split: {keys.threshold} of {len(keys.keys)} sign together; {held}"


def _short(network: Network) -> str:
    return network.network_id.hex()[:12]

"""`formation network`: create a network, invite other machines, join."""

from __future__ import annotations

import asyncio
import re
import time
from pathlib import Path
from typing import Final

import click

from formation_p2p.cli import flags
from formation_p2p.cli.command import CommandGroup
from formation_p2p.cli.flags import argument, option, parse_duration_s
from formation_p2p.cli.logs import logged
from formation_p2p.cli.members import SHOWN_DIGITS, invitations
from formation_p2p.cli.rights import in_json, in_words
from formation_p2p.cli.words import Json, date, put, say
from formation_p2p.core.errors import InvalidInput
from formation_p2p.core.trust.grants import MAX_PRIORITY, Right, Rights
from formation_p2p.core.trust.hours import parse_hours
from formation_p2p.core.trust.life import MAX_EXPIRY_UNIX_S, Life
from formation_p2p.core.trust.network import Network, parse_invite
from formation_p2p.core.trust.quota import GRANT_DIGITS, Quota
from formation_p2p.core.units import parse_milli
from formation_p2p.core.workload.scope import Place
from formation_p2p.host.machine.home import Home, joined_network
from formation_p2p.host.names import named, peer_meant
from formation_p2p.host.storage.member_file import learn_names

_INVITATION: Final = re.compile(rf"[0-9a-f]{{{GRANT_DIGITS}}}")
# As `formation members` shows one, or more of it.
_BEGIN: Final = re.compile(rf"[0-9a-f]{{{SHOWN_DIGITS},{GRANT_DIGITS - 1}}}")
# Ten machines, which work and submit.
IDENTITIES: Final = 32
# Of a peer on the same LAN.
DIAL_S: Final = 2.0
_RIGHTS: Final = click.Choice([str(each) for each in Right])

app: Final = CommandGroup(
    "network", help="Create a network, invite others to it, join one.", no_args_is_help=True
)

CREATE_EPILOG: Final = """
\b
Then, to have others in it:
  formation gate               on a machine that the others can reach
  formation network invite     prints the invite that they need to join
"""
INVITE_EPILOG: Final = """
\b
Examples:
  formation network invite > join.txt
  formation network invite --may work --expires 365d
  formation network invite --may submit --driver process --priority 10 --expires 12h
  formation network invite --cpu-hours 100 --concurrent 4 --hours "mon-fri 18:00-08:00"
  formation network invite --org acme --cell kitchen --label site=lab

Each worker counts quotas for itself. All holders of one invite share its quotas.

A grant without --expires lasts 30 days, and is renewed for as long as a node of this home runs and
the invite is not withdrawn (`formation network withdraw`). One with --expires ends then, unless
--renew says for how long it is renewed.
"""
JOIN_EPILOG: Final = """
\b
Examples:
  formation network join -             paste the invite, or pipe it from another program
  formation network join join.txt
  ssh gate formation network invite | formation network join -
"""


CELL: Final = option("--cell", "NAME", "The cell inside the organisation.", default="")
ORG: Final = option("--org", "NAME", "The organisation that it belongs to.", default="")
FEDERATION: Final = option(
    "--federation", "NAME", "The federation of organisations that it belongs to.", default=""
)


@app.command(epilog=CREATE_EPILOG)
@logged
def create(
    cell: str = CELL,
    org: str = ORG,
    federation: str = FEDERATION,
    home: Path | None = flags.HOME,
    as_json: bool = flags.JSON,
) -> None:
    """Create a network, and put this machine in it with every right.

    The network's root key signs all grants. Keep a copy of it: without the root key no machine
    can be invited.
    """
    place = Home(home)
    network = place.create_network(Place(cell=cell, org=org, federation=federation))
    if as_json:
        put({"network_id": network.network_id.hex(), "home": str(place.path)})
        return
    print(f"created network {_short(network)}; its root key is {place.path / 'root.key'}")
    say(
        "next: run `formation gate` where others can reach it, then `formation network invite`; "
        "machines on one LAN need no gate"
    )


@app.command(epilog=INVITE_EPILOG)
@logged
def invite(
    may: list[str] | None = option(
        "--may",
        "submit|work",
        "What the holder may do; both by default. Repeatable.",
        type=_RIGHTS,
    ),
    drivers: list[str] | None = option(
        "--driver", "NAME", "Submit for this driver only, such as wasm. Repeatable."
    ),
    expires: str | None = option(
        "--expires", "TIME", "For how long: 12h, 30d, 52w. 30d and renewed by default; see below."
    ),
    renew: str | None = option(
        "--renew", "TIME", "Renew its grants for so long: 1d, 52w; ever or never."
    ),
    priority: int = option(
        "--priority", "N", "The highest priority of a job.", show_default=True, default=MAX_PRIORITY
    ),
    weight: str = option(
        "--priority-weight",
        "N",
        "Workers multiply priorities by this.",
        show_default=True,
        default="1",
    ),
    cpu_hours: str | None = option("--cpu-hours", "N", "Core-hours a month, on each worker."),
    gpu_hours: str | None = option("--gpu-hours", "N", "GPU-hours a month, on each worker."),
    concurrent: int | None = option("--concurrent", "N", "Tasks at the same time, on each worker."),
    hours: str | None = option(
        "--hours", "HOURS", 'Submit only at these hours, in UTC: "mon-fri 18:00-08:00".'
    ),
    labels: list[str] | None = option(
        "--label", "KEY=VALUE", "Submit only to workers with this label. Repeatable."
    ),
    identities: int = option(
        "--identities",
        "N",
        "How many nodes may use the invite; a machine that works and submits has two or three.",
        show_default=True,
        default=IDENTITIES,
    ),
    cell: str = CELL,
    org: str = ORG,
    federation: str = FEDERATION,
    peer: str | None = option(
        "--peer", "PEER", "Only the node with this peer id, or of this name, can use the invite."
    ),
    home: Path | None = flags.HOME,
    as_json: bool = flags.JSON,
) -> None:
    """Print an invite: one line of text with which another machine joins the network.

    An invite is a password: send it like one, or bind it to one peer id with --peer
    (`formation network show` prints the id of a node). Works where the network was created.
    """
    life = _life(expires, renew)
    quota = Quota(
        flags.parsed("cpu-hours", cpu_hours, parse_milli),
        flags.parsed("gpu-hours", gpu_hours, parse_milli),
        concurrent,
    )
    rights = Rights(
        min(int(time.time()) + life.life_s, MAX_EXPIRY_UNIX_S),
        frozenset(map(Right, may or Right)),
        frozenset(drivers) if drivers else None,
        priority,
        quota,
        None if hours is None else parse_hours(hours),
        frozenset(flags.pairs_of("label", labels or ()).items()),
        Place(cell=cell, org=org, federation=federation),
        flags.parsed("priority-weight", weight, parse_milli) or 0,
        life,
        identities,
    )
    peer_id = None
    if peer is not None:
        learn_names(Home(home).path)
        peer_id = peer_meant(peer)
        if peer_id is None:
            problem = f"{peer!r} is neither a peer id nor a member known here"
            raise InvalidInput("peer", f"{problem}; copy its id from `formation network show`")
    join = Home(home).invite(rights, peer_id)
    gates = parse_invite(join).gates
    if as_json:
        put({"join": join, "gates": list(gates), "peer_id": peer_id, **in_json(rights)})
    else:
        print(join)
    holder = "its holder" if peer is None else "that peer only"
    say(f"a secret: it lets {holder} {in_words(rights)}")
    if not gates:
        say(
            "no gate is known here, so a new node finds others on its own LAN only: for others "
            "run `formation gate`, or name one with `formation network add-gate`, and invite again"
        )


@app.command(epilog=JOIN_EPILOG)
@logged
def join(
    invite: str = argument(
        "INVITE|FILE|-", "The invite, a file with it, or - for stdin.", default=...
    ),
    no_mdns: bool = flags.NO_MDNS,
    home: Path | None = flags.HOME,
    as_json: bool = flags.JSON,
) -> None:
    """Join the network of an invite, or replace this node's grant in its network.

    An invite is a secret, and other users of this machine can see the arguments of programs:
    prefer - or a file.
    """
    place = Home(home)
    network = place.join(parse_invite(flags.read_invite(invite)))
    rights = network.rights
    nearby = [] if no_mdns else _nearby(place, network)
    if as_json:
        found = [{"peer_id": peer_id, "address": address} for peer_id, address in nearby]
        put({**_document(place, network), "nearby": found})
        return
    print(f"joined network {_short(network)}; this node may {in_words(rights)}")
    for peer_id, address in nearby:
        print(f"found on this LAN: {named(peer_id)} at {address}")
    if not network.gates and not nearby:
        say(
            "the invite names no gate, and no peer answers on this LAN: start one here, or ask "
            "for a newer invite"
        )


@app.command()
@logged
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
    print(f"root key  {'here; this machine can invite' if place.has_root_key() else 'not here'}")
    for number, gate in enumerate(gates):
        print(f"{'gates' if number == 0 else '':8}  {gate}")


@app.command("add-gate")
@logged
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


@app.command()
@logged
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
    meant = _withdrawable(place, name)
    place.withdraw(meant)
    if as_json:
        put({"withdrawn": meant})
    else:
        print(f"no grant of {meant} is renewed any more")


@app.command()
@logged
def renew(
    home: Path | None = flags.HOME,
    as_json: bool = flags.JSON,
) -> None:
    """Have this machine's grant renewed now, in the second half of its life.

    Nodes that run do so by themselves. A node that has the network's root key has to be online:
    mostly a gate. What the grant allows stays as it is.
    """
    from formation_p2p.cli.local.link import reach

    place = Home(home)

    async def ask() -> int:
        async with reach(place.path) as node:
            return await node.renew()

    until_unix_s = asyncio.run(ask())
    if as_json:
        put({"expires_unix_s": until_unix_s})
    else:
        print(f"the grant is renewed until {date(until_unix_s)}")


def _withdrawable(home: Home, text: str) -> str:
    """The peer, or the invitation, that a person means. Raises InvalidInput unless it is one."""
    if _INVITATION.fullmatch(text):
        return text
    found = invitations(home, text) if _BEGIN.fullmatch(text) else []
    learn_names(home.path)
    if (peer_id := peer_meant(text, field="withdraw")) is not None:
        found.append(peer_id)
    if not found:
        hint = "write a peer id, or an invitation's 32 hexadecimal digits"
        problem = f"no member known here is {text!r}; {hint} (`formation members --json`)"
        raise InvalidInput("withdraw", problem)
    if len(found) > 1:
        listed = ", ".join(found[:8]) + (" and more" if len(found) > 8 else "")
        problem = f"{text!r} may be any of {len(found)}: {listed}; write the one that is meant"
        raise InvalidInput("withdraw", problem)
    return found[0]


def _nearby(home: Home, network: Network) -> list[tuple[str, str]]:
    """The peers on this LAN that say that they are of the network, and that answer a dial, each
    with its address. Whether they are members is seen once a node of this home runs."""
    from formation_p2p.host.net.mdns import is_wanted

    if not is_wanted((), network):
        return []
    import trio

    from formation_p2p.host.net.gate_probe import probe_gates
    from formation_p2p.host.net.mdns import look_around

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


def _short(network: Network) -> str:
    return network.network_id.hex()[:12]

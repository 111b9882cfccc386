"""`formation network`: create a network, invite other machines, join."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from pathlib import Path
from typing import Final

from formation_p2p.command import flags
from formation_p2p.command.command import CommandGroup
from formation_p2p.command.flags import argument, option, parse_duration_s
from formation_p2p.command.members import peer_or_invitation
from formation_p2p.command.network_invite import (
    CELL,
    COSIGN_EPILOG,
    FEDERATION,
    INVITE_EPILOG,
    ORG,
    cosign,
    hold,
    invite,
    reissue,
)
from formation_p2p.command.node_socket import any_runs
from formation_p2p.command.rights import in_json, in_words
from formation_p2p.command.status import running
from formation_p2p.command.words import Json, counted, date, put, say
from formation_p2p.core.errors import InvalidInput, LocalError
from formation_p2p.machine.home import Home, joined_network
from formation_p2p.machine.names import named
from formation_p2p.state.member_file import learn_names
from formation_p2p.trust.core.network import Network, parse_invite
from formation_p2p.trust.core.split_root import root_of
from formation_p2p.workload.core.scope import Place

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
        "How long its nodes may take to end; then nothing is forgotten.",
        show_default=True,
        default="10m",
    ),
    purge: bool = option(
        "--purge",
        "",
        "Remove as well all that Formation keeps in this home: its identity, caches and logs.",
        default=False,
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
        say(f"{place.path / name} stays: with it this network takes further members")


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
        "--threshold", "M", "So many keys of the root sign together.", show_default=True, default=1
    ),
    of: int = option(
        "--of", "N", "Split the root into so many keys.", show_default=True, default=1
    ),
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

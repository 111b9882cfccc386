"""`formation network`: making a network, inviting others to it, joining it."""

from __future__ import annotations

import time
from dataclasses import asdict
from typing import Annotated, Final

import typer

from formation_p2p.cli.durations import parse_duration_s
from formation_p2p.cli.options import (
    HomeOption,
    JsonOption,
    VerboseOption,
    pairs_of,
    read_join_string,
)
from formation_p2p.cli.words import date, say
from formation_p2p.core.errors import InvalidInput, LocalError
from formation_p2p.core.identity import parse_peer_id
from formation_p2p.core.trust.grants import (
    EVEN_WEIGHT_MILLI,
    MAX_EXPIRY_UNIX_S,
    MAX_PRIORITY,
    Right,
    Rights,
    rights_of,
)
from formation_p2p.core.trust.hours import parse_hours
from formation_p2p.core.trust.network import Network, parse_join_string
from formation_p2p.core.trust.quota import Quota, format_hours
from formation_p2p.core.units import format_milli, parse_milli
from formation_p2p.core.workload.scope import Place
from formation_p2p.host.machine.home import Home

app = typer.Typer(
    help="Create a network, invite others to it, join one.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

CREATE_EPILOG: Final = """
\b
Then, to have others in it:
  formation gate               on a machine that the others can reach
  formation network invite     prints what they need to join
"""
INVITE_EPILOG: Final = """
\b
Examples:
  formation network invite > join.txt
  formation network invite --may work --expires 365d
  formation network invite --may submit --driver process --priority 10 --expires 12h
  formation network invite --cpu-hours 100 --concurrent 4 --hours "mon-fri 18:00-08:00"
  formation network invite --org acme --cell kitchen --label site=lab

Quotas count at each worker by itself, and are shared by all who use the join string.
"""
JOIN_EPILOG: Final = """
\b
Examples:
  formation network join -             paste it, or have another program write it
  formation network join join.txt
  ssh gate formation network invite | formation network join -
"""


CellOption = Annotated[
    str,
    typer.Option(
        "--cell", metavar="NAME", help="The cell, inside the organisation, that it is of."
    ),
]
OrgOption = Annotated[
    str, typer.Option("--org", metavar="NAME", help="The organisation that it is of.")
]
FederationOption = Annotated[
    str,
    typer.Option(
        "--federation", metavar="NAME", help="The federation of organisations that it is of."
    ),
]


@app.command(epilog=CREATE_EPILOG)
def create(
    cell: CellOption = "",
    org: OrgOption = "",
    federation: FederationOption = "",
    home: HomeOption = None,
    as_json: JsonOption = False,
    verbose: VerboseOption = 0,
) -> None:
    """Create a network, and put this machine in it with every right.

    Makes the network's root key, which all its grants come from. Keep a copy of it: without it
    nobody can be invited any more.
    """
    place = Home(home)
    network = place.create_network(Place(cell=cell, org=org, federation=federation))
    if as_json:
        _put({"network_id": network.network_id.hex(), "home": str(place.path)})
        return
    print(f"created network {_short(network)}; its root key is {place.path / 'root.key'}")
    say("next: run `formation gate` where others can reach it, then `formation network invite`")


@app.command(epilog=INVITE_EPILOG)
def invite(
    may: Annotated[
        list[Right] | None,
        typer.Option(
            "--may",
            metavar="submit|work",
            help="What the newcomer may do; both by default. Can be given again.",
            show_default=False,
        ),
    ] = None,
    drivers: Annotated[
        list[str] | None,
        typer.Option(
            "--driver",
            metavar="NAME",
            help="Submit for this driver only, such as process or wasm; all by default. Can be "
            "given again.",
            show_default=False,
        ),
    ] = None,
    expires: Annotated[
        str, typer.Option("--expires", metavar="TIME", help="For how long: 12h, 30d, 52w.")
    ] = "30d",
    priority: Annotated[
        int,
        typer.Option("--priority", metavar="N", help="The highest priority of what is submitted."),
    ] = MAX_PRIORITY,
    weight: Annotated[
        str,
        typer.Option(
            "--priority-weight",
            metavar="N",
            help="Workers multiply the priority of what is submitted by this.",
        ),
    ] = "1",
    cpu_hours: Annotated[
        str | None,
        typer.Option(
            "--cpu-hours",
            metavar="N",
            help="Reserve at most so many core-hours a month on each worker.",
            show_default=False,
        ),
    ] = None,
    gpu_hours: Annotated[
        str | None,
        typer.Option(
            "--gpu-hours",
            metavar="N",
            help="Reserve at most so many GPU-hours a month on each worker.",
            show_default=False,
        ),
    ] = None,
    concurrent: Annotated[
        int | None,
        typer.Option(
            "--concurrent",
            metavar="N",
            help="Run at most so many tasks at once on each worker.",
            show_default=False,
        ),
    ] = None,
    hours: Annotated[
        str | None,
        typer.Option(
            "--hours",
            metavar="HOURS",
            help='Submit at these hours of the week only, in UTC: "mon-fri 18:00-08:00".',
            show_default=False,
        ),
    ] = None,
    labels: Annotated[
        list[str] | None,
        typer.Option(
            "--label",
            metavar="KEY=VALUE",
            help="Submit to workers that have this label only. Can be given again.",
            show_default=False,
        ),
    ] = None,
    cell: CellOption = "",
    org: OrgOption = "",
    federation: FederationOption = "",
    peer: Annotated[
        str | None,
        typer.Option(
            "--peer",
            metavar="ID",
            help="For the node with this peer id alone; worthless to anybody else.",
            show_default=False,
        ),
    ] = None,
    home: HomeOption = None,
    as_json: JsonOption = False,
    verbose: VerboseOption = 0,
) -> None:
    """Print a join string: one line that lets whoever has it join the network.

    It is a password. Send it as you would send one, or bind it to one peer id with --peer
    (`formation network show` prints a node's own). Works where the network was created.
    """
    expires_unix_s = min(int(time.time() + parse_duration_s(expires, "expires")), MAX_EXPIRY_UNIX_S)
    rights = Rights(
        expires_unix_s,
        frozenset(may or Right),
        frozenset(drivers) if drivers else None,
        priority,
        Quota(_milli("cpu-hours", cpu_hours), _milli("gpu-hours", gpu_hours), concurrent),
        None if hours is None else parse_hours(hours),
        frozenset(pairs_of("label", labels or ()).items()),
        Place(cell=cell, org=org, federation=federation),
        _milli("priority-weight", weight) or 0,
    )
    try:
        peer_id = None if peer is None else parse_peer_id(peer)
    except ValueError as error:
        raise InvalidInput("peer", f"{error}; copy it from `formation network show`") from None
    join = Home(home).invite(rights, peer_id)
    gates = parse_join_string(join).gates
    if as_json:
        from formation_p2p.cli.as_json import rights as in_json

        _put({"join": join, "gates": list(gates), "peer_id": peer, **in_json(rights)})
    else:
        print(join)
    who = "whoever has it" if peer is None else "that peer alone"
    say(f"a secret: it lets {who} {_in_words(rights)}")
    if not gates:
        say(
            "no gate is known here, so a newcomer finds nobody: run `formation gate`, or name one "
            "with `formation network add-gate`, and invite again"
        )


@app.command(epilog=JOIN_EPILOG)
def join(
    join_string: Annotated[
        str,
        typer.Argument(
            metavar="STRING|FILE|-", help="The join string, a file that holds it, or - for stdin."
        ),
    ],
    home: HomeOption = None,
    as_json: JsonOption = False,
    verbose: VerboseOption = 0,
) -> None:
    """Join the network of a join string, or replace the grant of the one that this node is in.

    A join string is a secret, and other users of this machine can see the arguments of programs:
    prefer - or a file.
    """
    place = Home(home)
    network = place.join(parse_join_string(read_join_string(join_string)))
    rights = rights_of(network.grant, network.root_public_key)
    if as_json:
        _put(_document(place, network))
        return
    print(f"joined network {_short(network)}; this node may {_in_words(rights)}")
    if not network.gates:
        say("the join string names no gate, so nobody can be found; ask for a newer one")


@app.command()
def show(home: HomeOption = None, as_json: JsonOption = False, verbose: VerboseOption = 0) -> None:
    """Show the network that this machine is in, its gates, and what its grant allows."""
    place = Home(home)
    network = place.network()
    if network is None:
        raise LocalError(
            f"{place.path} is in no network; create one with `formation network create`, or join "
            f"one with `formation network join -`; its peer id is {place.identity().peer_id}"
        )
    if as_json:
        _put(_document(place, network))
        return
    rights = rights_of(network.grant, network.root_public_key)
    gates = network.gates or ("none; see `formation gate`",)
    print(f"network   {network.network_id.hex()}")
    print(f"home      {place.path}")
    print(f"peer id   {place.identity().peer_id}")
    print(f"may       {_in_words(rights)}")
    print(f"root key  {'here; this machine can invite' if place.has_root_key() else 'not here'}")
    for number, gate in enumerate(gates):
        print(f"{'gates' if number == 0 else '':8}  {gate}")


@app.command("add-gate")
def add_gate(
    gate: Annotated[
        str,
        typer.Argument(metavar="MULTIADDR", help="Such as /ip4/203.0.113.7/tcp/4001/p2p/12D3KooW…"),
    ],
    home: HomeOption = None,
    as_json: JsonOption = False,
    verbose: VerboseOption = 0,
) -> None:
    """Name a gate that runs on another machine, for the invitations made on this one.

    `formation gate` prints its address, and does this by itself on its own machine.
    """
    network = Home(home).add_gate(gate)
    if as_json:
        _put({"gates": list(network.gates)})
    else:
        print("\n".join(network.gates))


def _document(home: Home, network: Network) -> dict[str, object]:
    from formation_p2p.cli.as_json import rights as in_json

    return {
        "network_id": network.network_id.hex(),
        "home": str(home.path),
        "peer_id": home.identity().peer_id,
        "gates": list(network.gates),
        "has_root_key": home.has_root_key(),
        **in_json(rights_of(network.grant, network.root_public_key)),
    }


def _put(document: dict[str, object]) -> None:
    from formation_p2p.cli.as_json import put

    put(document)


def _short(network: Network) -> str:
    return network.network_id.hex()[:12]


def _milli(field: str, text: str | None) -> int | None:
    try:
        return None if text is None else parse_milli(text)
    except ValueError as problem:
        raise InvalidInput(field, str(problem)) from None


def _in_words(rights: Rights) -> str:
    quota = rights.quota
    may = " and ".join(sorted(rights.may)) or "do nothing"
    parts = []
    if rights.drivers is not None:
        parts.append(f"for {', '.join(sorted(rights.drivers))}")
    if rights.max_priority != MAX_PRIORITY:
        parts.append(f"up to priority {rights.max_priority}")
    if rights.weight_milli != EVEN_WEIGHT_MILLI:
        parts.append(f"with priorities weighed by {format_milli(rights.weight_milli)}")
    limits = []
    if quota.cpu_milli_hours is not None:
        limits.append(f"{format_hours(quota.cpu_milli_hours)} CPU-hours a month")
    if quota.gpu_milli_hours is not None:
        limits.append(f"{format_hours(quota.gpu_milli_hours)} GPU-hours a month")
    if quota.leases is not None:
        limits.append(f"{quota.leases} {'task' if quota.leases == 1 else 'tasks'} at once")
    if limits:
        parts.append(f"with {', '.join(limits)}")
    if rights.labels:
        labels = (f"{key}={value}" for key, value in sorted(rights.labels))
        parts.append(f"on workers with {', '.join(labels)}")
    if rights.hours is not None:
        parts.append(f"at {rights.hours} UTC")
    of = [f"{circle} {name}" for circle, name in asdict(rights.place).items() if name]
    if of:
        parts.append(f"as one of {', '.join(of)}")
    end = rights.expires_unix_s
    parts.append("for ever" if end == MAX_EXPIRY_UNIX_S else f"until {date(end)}")
    return f"{may} {', '.join(parts)}"

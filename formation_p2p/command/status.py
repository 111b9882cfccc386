"""`formation status`: what this machine is in its network, and until when."""

from __future__ import annotations

import time
from itertools import islice
from pathlib import Path
from typing import Final

from formation_p2p.command import flags
from formation_p2p.command.rights import in_json, in_words
from formation_p2p.command.words import Json, counted, date, printable, put
from formation_p2p.core.identity import shown_peer
from formation_p2p.core.units import format_span
from formation_p2p.machine.home import Home, joined_network
from formation_p2p.machine.names import named
from formation_p2p.state.member_file import learn_names
from formation_p2p.trust.core.grant_form import MAX_EXPIRY_UNIX_S
from formation_p2p.trust.core.network import Network

STATUS_EPILOG: Final = """
\b
Examples:
  formation status
  formation status --json | jq '.nodes[].reached.way'
"""


# Of its connections, what fits a screen; --json has up to 256.
MAX_CONNECTIONS: Final = 16


def status(
    home: Path | None = flags.HOME,
    as_json: bool = flags.JSON,
) -> None:
    """Show what this machine is in its network: its id, what its grant allows and until when, and
    the nodes that run from this home: how others reach each, where it listens, which peers it meets
    and by which way."""
    place = Home(home)
    network = joined_network(place)
    learn_names(place.path)
    nodes = running(place.path)
    banned = banned_by(place, network)
    if as_json:
        what = {"network_id": network.network_id.hex(), "home": str(place.path)}
        who = {"peer_id": place.identity().peer_id, "name": place.name()}
        put({**what, **who, **in_json(network.rights), "banned": banned, "nodes": nodes})
        return
    print(f"network  {network.network_id.hex()[:12]}, from {place.path}")
    print(f"name     {place.name()}")
    print(f"peer id  {place.identity().peer_id}")
    end = network.rights.expires_unix_s
    if banned is not None:
        print(f"may      nothing: {banned}; ask those who sign it to lift that")
    elif end <= time.time():
        print(f"may      {in_words(network.rights)}{_over(end)}")
    else:
        print(f"may      {in_words(network.rights, _over(end))}")
    if not nodes:
        print("nodes    none runs from here")
    for node in nodes:
        print("\n".join(node_in_words(node)))


def banned_by(place: Home, network: Network) -> str | None:
    """Why the charter that is known in a home bans its node."""
    charter = flags.kept_charter(place, network)
    if charter is None:
        return None
    return charter.bans(place.identity().peer_id, network.terms.invitation)


def running(home: Path) -> list[Json]:
    """What the nodes that run from a home tell of themselves."""
    from formation_p2p.command.node_socket import answers_of, any_runs

    return answers_of(home, "status") if any_runs(home) else []


def node_in_words(node: Json) -> list[str]:
    up_s = max(time.time() - node["since_unix_s"], 0.0)
    end = node["grant_expires_unix_s"]
    until = "for ever" if end == MAX_EXPIRY_UNIX_S else f"until {date(end)}{_over(end)}"
    lines = [
        f"node     {printable(named(node['peer_id']))}, process {node['pid']}: {_role(node)}",
        f"  reached  {_reached(node)}",
        *(f"  listens  {printable(address)}" for address in node["listens"]),
        f"  grant    {until}",
        f"  knows    {counted(node['peers'], 'peer')}",
        f"  up       {format_span(up_s)}, version {printable(node['version'])}",
        *_untimely(node.get("untimely_records", 0)),
        *(f"  trouble  {printable(each)}" for each in node.get("troubles", ())),
    ]
    if (relays := node.get("relays")) is not None:
        moved = f"{relays['relayed_bytes'] / 1e6:.1f} MB"
        lines.append(
            f"  relays   for {relays['serves']}: {relays['reservations']} reservations, "
            f"{relays['circuits']} circuits, {moved} so far"
        )
    met = dict.fromkeys(map(_connection, node.get("connections", ())))  # some peers have several
    return [*lines, *(f"  meets    {each}" for each in islice(met, MAX_CONNECTIONS))]


def _untimely(records: int) -> list[str]:
    if not records:
        return []
    of = f"{counted(records, 'record')} so far"
    return [f"  drops    {of}, not of this time by this machine's clock"]


def _role(node: Json) -> str:
    if node["free"] is not None:
        return "worker"
    if node.get("relays") is not None:
        return "gate"
    return "takes no work" if node["listens"] else "submits work, takes none"


def _reached(node: Json) -> str:
    reached = node.get("reached")
    if reached is None:
        return "not told by a node of this version; start it again"
    return printable(reached["words"])


def _connection(each: Json) -> str:
    """`anna-desktop …Zk3nVq7w, relayed by hall …x7Kw2p1d`."""
    via = f" by {printable(named(each['via']))}" if each["via"] else ""
    return f"{printable(shown_peer(each['peer_id'], each['name']))}, {each['path']}{via}"


def _over(expires_unix_s: int) -> str:
    """What a person has to do about an end that has come, or comes soon."""
    left_s = expires_unix_s - time.time()
    if left_s <= 0:
        return ": it has ended; ask for an invite, and run `formation network join -`"
    return f" (in {format_span(left_s)})" if expires_unix_s != MAX_EXPIRY_UNIX_S else ""

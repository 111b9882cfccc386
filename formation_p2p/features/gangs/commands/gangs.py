"""`formation gangs`: the gangs of this machine's nodes, and what their members use."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Final

from formation_p2p.command import flags
from formation_p2p.command.words import Json, counted, date, printable, put, say

if TYPE_CHECKING:
    from rich.table import Table

GANGS_EPILOG: Final = """
\b
Examples:
  formation gangs
  formation gangs --json | jq '.nodes[].gangs[] | {gang_id, state}'
"""


def gangs(
    home: Path | None = flags.HOME,
    as_json: bool = flags.JSON,
) -> None:
    """Show the gangs of this machine's nodes: which worker has each rank and since when, what its
    tasks use, and how many bytes went over streams.

    The node that formed a gang tells of it, while it runs from this home. A worker tells of the
    members of gangs that it is, its own and those of others. Workers measure what tasks use every
    two seconds: cores are the mean of these.
    """
    from formation_p2p.command.node_socket import answers_of
    from formation_p2p.machine.home_path import home_path
    from formation_p2p.machine.names import learn_name
    from formation_p2p.observe.status_json import learn_from

    nodes = answers_of(home_path(home), "gangs")
    if as_json:
        put({"nodes": nodes})
        return
    for node in nodes:
        learn_name(node["peer_id"], node["name"] or "")
        for each in (*node["hosted"], *(x for gang in node["gangs"] for x in gang["members"])):
            learn_from(each)
    if not any(node["gangs"] or node["hosted"] for node in nodes):
        say("formation: no node that runs here has a gang, or is a member of one")
        return
    _show(nodes)


def _show(nodes: Iterable[Json]) -> None:
    from formation_p2p.command import tables
    from formation_p2p.machine.names import named

    console = tables.console()
    for node in nodes:
        for gang in node["gangs"]:
            members = counted(len(gang["members"]), "rank")
            head = f"gang {printable(gang['gang_id'])} of {named(node['peer_id'])}"
            since = date(gang["since_unix_s"])
            console.print(f"{head}: {printable(gang['state'])}, {members}, since {since}")
            console.print(_members(gang["members"]))
            if gang["between"]:
                console.print(_between(gang["between"]))
            console.print()
        if node["hosted"]:
            console.print(tables.hosted(node["hosted"]))
            console.print()


def _members(members: Iterable[Json]) -> Table:
    from formation_p2p.command import tables
    from formation_p2p.machine.names import named

    columns: tables.Columns[Json] = {
        "rank": lambda each: str(each["rank"]),
        "worker": lambda each: "-" if each["worker"] is None else named(each["worker"]),
        "state": lambda each: printable(each["state"]),
        **tables.USED,
    }
    return tables.table_of(columns, members)


def _between(links: Iterable[Json]) -> Table:
    from formation_p2p.command import tables
    from formation_p2p.core.units import format_bytes

    columns: tables.Columns[Json] = {
        "from": lambda link: _party(link["source"]),
        "to": lambda link: _party(link["target"]),
        "sent": lambda link: format_bytes(link["size_bytes"]),
    }
    return tables.table_of(columns, links)


def _party(rank: int) -> str:
    from formation_p2p.features.gangs.core.roster import OWNER

    return "owner" if rank == OWNER else f"rank {rank}"

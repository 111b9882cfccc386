"""The nodes of this machine and what they see of their network, as `formation top` draws them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from typing import Final

from rich.console import Group
from rich.table import Table
from rich.text import Text

from formation_p2p.command.online import for_long
from formation_p2p.command.tables import Columns, gangs, hosted, plain_table, table_of
from formation_p2p.command.words import Json, one_line, printable
from formation_p2p.core.units import format_bytes, format_milli
from formation_p2p.machine.names import named

# Of those that take no work and are online, as fit a line or two.
MAX_ONLINE: Final = 8


def nodes(running: Iterable[Json], workers: Iterable[Json], others: Iterable[Json] = ()) -> Group:
    """The nodes of this machine, the network's workers, and what is online beside these, of what
    the nodes told in JSON."""
    parts: list[Table | Text] = []
    for node in running:
        since = time.strftime("%Y-%m-%d %H:%M", time.localtime(node["since_unix_s"]))
        kind = "node" if node["free"] is None else "worker"
        peers = "1 peer" if node["peers"] == 1 else f"{node['peers']} peers"
        head = f"{kind} {named(node['peer_id'])}  pid {node['pid']}  {peers}"
        parts.append(Text(f"{head}  since {since}", "bold"))
        parts += [table for table in _of_node(node) if table.rows]
        parts.append(Text())
    there = [f"{named(each['peer_id'])} {for_long(each['since_unix_s'])}" for each in others]
    if there:
        more = f" and {len(there) - MAX_ONLINE} more" if len(there) > MAX_ONLINE else ""
        parts.append(Text(f"also online: {', '.join(there[:MAX_ONLINE])}{more}"))
    return Group(*parts, _workers_now(workers))


def _of_node(node: Json) -> Iterator[Table]:
    """Its jobs and gangs, the leases that it holds, those that it has granted, and which of these
    are members of gangs."""
    jobs = plain_table("job", "name", "tasks", "waiting", "in flight", "done", "failed")
    for job in node["jobs"]:
        without = job["failed"] + job["unplaceable"] + job["cancelled"]
        counts = (job["tasks"], job["waiting"], job["in_flight"], job["succeeded"], without)
        jobs.add_row(job["job_id"], one_line(job["name"]) or "-", *map(str, counts))
    yield jobs
    yield gangs(node.get("gangs", ()))
    held = plain_table("lease of", *_OF_LEASE, "")
    for lease in node["held"]:
        held.add_row(*_lease(lease, "worker"), "no answer" if lease["suspect"] else "")
    yield held
    granted = plain_table("leased to", *_OF_LEASE, "expires in")
    for lease in node["granted"]:
        left = "ending" if lease["ending"] else f"{lease['expires_in_s']:.0f} s"
        granted.add_row(*_lease(lease, "owner"), left)
    yield granted
    yield hosted(node.get("hosted", ()))


_OF_LEASE: Final = ("needs", "priority", "in flight")


def _lease(lease: Json, peer: str) -> tuple[str, ...]:
    needs = lease["needs"]
    parts = [f"cpu={format_milli(needs['cpu_milli'])}", format_bytes(needs["memory_bytes"])]
    if needs.get("gpu_count"):
        parts.append(f"gpu={needs['gpu_count']}")
    shown = printable(" ".join([*parts, str(needs.get("driver", ""))]))
    return named(lease[peer]), shown, str(lease["priority"]), str(lease["in_flight"])


def _workers_now(workers: Iterable[Json]) -> Table:
    """As `workers`."""

    def free(of: str, shown: Callable[[int], str]) -> Callable[[Json], str]:
        return lambda each: f"{shown(each['capacity'][of])}/{shown(each['capability'][of])}"

    columns: Columns[Json] = {
        "worker": lambda each: named(each["peer_id"]),
        "cpu free": free("cpu_milli", format_milli),
        "memory free": free("memory_bytes", format_bytes),
        "online": _online,
        "drivers": lambda each: printable(" ".join(each["drivers"])),
    }
    return table_of(columns, workers)


def _online(worker: Json) -> str:
    since = worker.get("online_since_unix_s")
    return "-" if since is None else for_long(since)

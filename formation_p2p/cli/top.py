"""`formation top` and `formation logs`: the state and events of this machine's nodes."""

from __future__ import annotations

import contextlib
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from formation_p2p.cli import flags
from formation_p2p.cli.option import option
from formation_p2p.cli.words import one_line, printable, say, short
from formation_p2p.core.errors import LocalError
from formation_p2p.host.machine.home import Home

if TYPE_CHECKING:
    from rich.console import Group
    from rich.table import Table

Json = dict[str, Any]

# As often as a person looks again.
EVERY_S: Final = 1.0
# The network's workers come from a lookup: that often is enough.
WORKERS_EVERY_S: Final = 5.0

TOP_EPILOG: Final = """
\b
Examples:
  formation top
  formation top --once --json | jq '.nodes[].jobs'
"""
LOGS_EPILOG: Final = """
\b
Examples:
  formation logs -f
  formation logs -f 3f2a      the jobs whose id begins so; `formation top` shows ids
"""


def top(
    once: Annotated[bool, option("--once", "", "Show it once and end.")] = False,
    home: flags.HomeOption = None,
    as_json: flags.JsonOption = False,
    verbose: flags.VerboseOption = 0,
) -> None:
    """Show jobs, leases and workers, live, until Ctrl-C.

    Shows the running nodes of this home: gates, workers, and commands that wait for their work.
    Nodes of other users and other machines are not shown, but all workers of the network are, with
    the free capacity that they last announced, up to a minute ago. With --json, each refresh is a
    line of JSON.
    """
    from formation_p2p.cli.as_json import put

    place = Home(home)
    if as_json:
        while True:
            put(_look(place, with_workers=True))
            if once:
                return
            time.sleep(EVERY_S)
    from rich.live import Live

    from formation_p2p.cli.tables import console

    if once:
        console().print(_shown(_look(place, with_workers=True)))
        return
    seen = _look(place, with_workers=True)
    with Live(_shown(seen), console=console(), screen=True, auto_refresh=False) as live:
        looked_s = time.monotonic()
        while True:
            time.sleep(EVERY_S)
            again = time.monotonic() - looked_s > WORKERS_EVERY_S
            workers = seen["workers"]
            seen = _look(place, with_workers=again)
            if again:
                looked_s = time.monotonic()
            else:
                seen["workers"] = workers
            live.update(_shown(seen), refresh=True)


def logs(
    job: Annotated[
        str,
        typer.Argument(
            metavar="JOB", help="Of this job alone: its id, or how it begins.", show_default=False
        ),
    ] = "",
    follow: Annotated[bool, option("-f --follow", "", "Continue until Ctrl-C.")] = False,
    home: flags.HomeOption = None,
    as_json: flags.JsonOption = False,
    verbose: flags.VerboseOption = 0,
) -> None:
    """Show the events of the jobs of this machine's nodes, and the output of their tasks.

    Begins with the latest events that the nodes still hold. The submitting node reports a job: the
    jobs of a command disappear here when the command ends, and remain in the file of --state. With
    --json, each event is a line of JSON.
    """
    from formation_p2p.cli.as_json import put
    from formation_p2p.cli.node_socket import told_by_all

    question = {"ask": "events", "job": job, "follow": follow}
    event: Json | None = None
    for event in told_by_all(Home(home), question, follow=follow):
        if as_json:
            put(event)
        else:
            for line in _in_words(event):
                print(line, flush=True)
    if event is None:
        which = f" whose id begins with {job}" if job else ""
        say(f"formation: no node that runs here has a job{which}; those of a command end with it")


def _look(home: Home, *, with_workers: bool) -> Json:
    """Raises LocalError where no node runs."""
    from formation_p2p.cli.node_socket import sockets_of

    sockets = sockets_of(home)
    nodes = [told for path in sockets if (told := _ask(path, "status"))]
    workers: list[Json] = []
    if with_workers:
        replies = (_ask(path, "workers") for path in sockets)
        workers = next((reply["workers"] for reply in replies if reply), [])
    return {"nodes": nodes, "workers": workers}


def _ask(path: Path, what: str) -> Json:
    """{} where the node has gone meanwhile, or does not answer."""
    from formation_p2p.cli.node_socket import answer

    with contextlib.suppress(LocalError):
        return answer(path, {"ask": what})
    return {}


def _as_of_now(seen: Json) -> list[Json]:
    """The workers; of those that run here, what is free now and not when they last announced it."""
    free = {node["peer_id"]: node["free"] for node in seen["nodes"] if node["free"] is not None}
    return [
        {**each, "capacity": free.get(each["peer_id"], each["capacity"])}
        for each in seen["workers"]
    ]


# -- in tables ------------------------------------------------------------------------------------


def _shown(seen: Json) -> Group:
    from rich.console import Group
    from rich.text import Text

    from formation_p2p.cli.tables import workers_now

    parts: list[Table | Text] = []
    for node in seen["nodes"]:
        since = time.strftime("%Y-%m-%d %H:%M", time.localtime(node["since_unix_s"]))
        kind = "node" if node["free"] is None else "worker"
        peers = "1 peer" if node["peers"] == 1 else f"{node['peers']} peers"
        head = f"{kind} {short(node['peer_id'])}  pid {node['pid']}  {peers}"
        parts.append(Text(f"{head}  since {since}", "bold"))
        parts += [table for table in (_jobs(node), _held(node), _granted(node)) if table.rows]
        parts.append(Text())
    parts.append(workers_now(_as_of_now(seen)))
    return Group(*parts)


def _jobs(node: Json) -> Table:
    from formation_p2p.cli.tables import plain_table

    jobs = plain_table("job", "name", "tasks", "waiting", "in flight", "done", "failed")
    for job in node["jobs"]:
        without = job["failed"] + job["unplaceable"] + job["cancelled"]
        counts = (job["tasks"], job["waiting"], job["in_flight"], job["succeeded"], without)
        jobs.add_row(job["job_id"], one_line(job["name"]) or "-", *map(str, counts))
    return jobs


def _held(node: Json) -> Table:
    from formation_p2p.cli.tables import plain_table

    held = plain_table("lease of", "needs", "priority", "in flight", "")
    for lease in node["held"]:
        suspect = "no answer" if lease["suspect"] else ""
        what = (_needs(lease["needs"]), str(lease["priority"]), str(lease["in_flight"]), suspect)
        held.add_row(short(lease["worker"]), *what)
    return held


def _granted(node: Json) -> Table:
    from formation_p2p.cli.tables import plain_table

    granted = plain_table("leased to", "needs", "priority", "in flight", "expires in")
    for lease in node["granted"]:
        left = "ending" if lease["ending"] else f"{lease['expires_in_s']:.0f} s"
        what = (_needs(lease["needs"]), str(lease["priority"]), str(lease["in_flight"]), left)
        granted.add_row(short(lease["owner"]), *what)
    return granted


def _needs(needs: Json) -> str:
    from formation_p2p.core.units import format_bytes, format_milli

    parts = [f"cpu={format_milli(needs['cpu_milli'])}", format_bytes(needs["memory_bytes"])]
    if needs.get("gpu_count"):
        parts.append(f"gpu={needs['gpu_count']}")
    return printable(" ".join([*parts, str(needs.get("driver", ""))]))


# -- in lines -------------------------------------------------------------------------------------


def _in_words(event: Json) -> list[str]:
    """A line or more of an event."""
    when = time.strftime("%H:%M:%S", time.localtime(event.get("unix_s", time.time())))
    head = "  ".join(
        part for part in (when, event.get("job", ""), printable(event.get("task", ""))) if part
    )
    if event["event"] == "printed":
        mark = "!" if event["stream"] == "stderr" else "|"
        return [f"{head} {mark} {printable(line)}" for line in event["text"].splitlines()]
    return [f"{head}  {one_line(_what(event))}"]


def _what(event: Json) -> str:
    match event:
        case {"event": "placed", "worker": worker}:
            return f"goes to {short(worker)}"
        case {"event": "began", "worker": worker}:
            return f"began on {short(worker)}"
        case {"event": "succeeded", "worker": worker, "ran_ms": ran_ms}:
            return f"done in {ran_ms / 1000:.1f} s on {short(worker)}"
        case {"event": "retried", "worker": worker, "why": why, "lost": lost}:
            return f"{'lost' if lost else 'failed'} on {short(worker)}: {why}; trying again"
        case {"event": "failed", "attempts": [*_, {"worker": worker, "why": why}]}:
            return f"failed on {short(worker)}: {why}"
        case {"event": "unplaceable", "refusals": refusals}:
            told = "; ".join(f"{short(each['worker'])}: {each['why']}" for each in refusals)
            return f"no worker can run it: {told or 'no worker was found'}"
        case {"event": "worker_lost", "worker": worker, "why": why}:
            return f"worker {short(worker)} is lost: {why}"
        case {"event": "ended", **counts}:
            names = ("succeeded", "failed", "unplaceable", "cancelled")
            return "over: " + ", ".join(f"{counts[n]} {n}" for n in names if counts.get(n))
        case {"event": "missed", "events": number}:
            return f"{number} events came faster than they could be shown"
        case {"event": "gone", "why": why}:
            return str(why)
        case _:
            return str(event["event"])

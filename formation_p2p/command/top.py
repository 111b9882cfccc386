"""What this machine's nodes tell of themselves: `formation top` and `formation logs`, and the way
of one task through its scheduler, `formation story`."""

from __future__ import annotations

import contextlib
import time
from pathlib import Path
from typing import Final

import click

from formation_p2p.command import flags
from formation_p2p.command.exits import FAILED
from formation_p2p.command.flags import switch
from formation_p2p.command.node_socket import online
from formation_p2p.command.words import Json, one_line, printable, put, say
from formation_p2p.core.errors import InvalidInput, LocalError
from formation_p2p.machine.home_path import home_path
from formation_p2p.machine.names import learn_name, named
from formation_p2p.observe.status_json import learn_from

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
    once: bool = switch("--once", "Show it once and end, as where it is not a terminal."),
    home: Path | None = flags.HOME,
    as_json: bool = flags.JSON,
) -> None:
    """Show jobs, gangs, leases and workers, live, until Ctrl-C.

    Shows the running nodes of this home: gates, workers, and commands that wait for their work.
    Nodes of other users and other machines are not shown, but all workers of the network are, with
    the free capacity that they last announced, up to a minute ago. With --json, each refresh is a
    line of JSON.
    """
    place = home_path(home)
    if as_json:
        while True:
            put(_look(place, with_workers=True))
            if once:
                return
            time.sleep(EVERY_S)
    from rich.live import Live

    from formation_p2p.command.tables import console, nodes

    seen = _look(place, with_workers=True)
    shown = nodes(seen["nodes"], _as_of_now(seen), seen["online"])
    if once or not console().is_terminal:  # in a pipe nothing can be drawn over
        console().print(shown)
        return
    with Live(shown, console=console(), screen=True, auto_refresh=False) as live:
        looked_s = time.monotonic()
        while True:
            time.sleep(EVERY_S)
            again = time.monotonic() - looked_s > WORKERS_EVERY_S
            before = seen
            seen = _look(place, with_workers=again)
            if again:
                looked_s = time.monotonic()
            else:
                seen |= {name: before[name] for name in ("workers", "online")}
            live.update(nodes(seen["nodes"], _as_of_now(seen), seen["online"]), refresh=True)


def logs(
    job: str = flags.argument("JOB", "Only this job: its id, or the start of it.", default=""),
    follow: bool = switch("-f --follow", "Continue until Ctrl-C."),
    home: Path | None = flags.HOME,
    as_json: bool = flags.JSON,
) -> None:
    """Show the events of the jobs of this machine's nodes, and the output of their tasks.

    Begins with the latest events that the nodes still hold. The submitting node reports a job: the
    jobs of a command disappear here when the command ends, and remain in the file of --state. With
    --json, each event is a line of JSON.
    """
    from formation_p2p.command.node_socket import events_of_all

    event: Json | None = None
    missed = 0
    for event in events_of_all(home_path(home), job, follow=follow):
        missed += event["events"] if event["event"] == "missed" else 0
        if as_json:
            put(event)
        elif event["event"] == "missed":
            say(f"formation: {_what(event)}")
        else:
            for line in _in_words(event):
                print(line, flush=True)
    if event is None:
        which = f" whose id begins with {job}" if job else ""
        say(f"formation: no node that runs here has a job{which}; those of a command end with it")
    if missed:
        raise click.exceptions.Exit(FAILED)


def _look(home: Path, *, with_workers: bool) -> Json:
    """Raises LocalError where no node runs."""
    from formation_p2p.command.node_socket import sockets_of

    sockets = sockets_of(home)
    nodes = [found for path in sockets if (found := _ask(path, "status"))]
    workers: list[Json] = []
    if with_workers:
        replies = (_ask(path, "known_workers") for path in sockets)
        workers = next((reply["workers"] for reply in replies if reply), [])
    for told in (*nodes, *workers):
        learn_name(told["peer_id"], told["name"] or "")
    for node in nodes:
        for each in (*node["held"], *node["granted"], *node.get("hosted", ())):
            learn_from(each)
    there = online(home, nodes)
    rows = [{**each, "online_since_unix_s": there.get(each["peer_id"])} for each in workers]
    others = {each["peer_id"] for each in workers}
    online_too = [
        {"peer_id": peer_id, "since_unix_s": since}
        for peer_id, since in sorted(there.items(), key=lambda each: each[1])
        if peer_id not in others
    ]
    return {"nodes": nodes, "workers": rows, "online": online_too}


def _ask(path: Path, what: str) -> Json:
    """{} where the node has gone meanwhile, or does not answer."""
    from formation_p2p.command.node_socket import answer

    with contextlib.suppress(LocalError):
        return answer(path, what)
    return {}


def _as_of_now(seen: Json) -> list[Json]:
    """The workers; of those that run here, what is free now and not when they last announced it."""
    free = {node["peer_id"]: node["free"] for node in seen["nodes"] if node["free"] is not None}
    return [
        {**each, "capacity": free.get(each["peer_id"], each["capacity"])}
        for each in seen["workers"]
    ]


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
    for told in (event, *event.get("attempts", ()), *event.get("refusals", ())):
        learn_from(told)
    match event:
        case {"event": "placed", "worker": worker}:
            return f"goes to {named(worker)}"
        case {"event": "began", "worker": worker}:
            return f"began on {named(worker)}"
        case {"event": "succeeded", "worker": worker, "ran_ms": ran_ms}:
            return f"done in {ran_ms / 1000:.1f} s on {named(worker)}"
        case {"event": "retried", "worker": worker, "why": why, "lost": lost, "reason": reason}:
            how = "lost" if lost else "failed"
            again = "" if reason == "denied" else "; trying again"
            return f"{how} on {named(worker)}: {why} ({reason}){again}"
        case {"event": "failed", "attempts": [*_, {"worker": worker, "why": why}]}:
            return f"failed on {named(worker)}: {why}"
        case {"event": "unplaceable", "refusals": refusals}:
            found = "; ".join(f"{named(each['worker'])}: {each['why']}" for each in refusals)
            return f"no worker can run it: {found or 'no worker was found'}"
        case {"event": "code_sent", "names": names, "files": files, "cid": cid}:
            return f"code goes along: {', '.join(names)} ({files} files, {cid})"
        case {"event": "worker_lost", "worker": worker, "why": why}:
            return f"worker {named(worker)} is lost: {why}"
        case {"event": "waits", "awaited": awaited}:
            return f"no worker is in sight; waits for {awaited}"
        case {"event": "ended", **counts}:
            names = ("succeeded", "failed", "unplaceable", "cancelled")
            return "over: " + ", ".join(f"{counts[n]} {n}" for n in names if counts.get(n))
        case {"event": "missed", "events": number}:
            return f"{number} events came faster than they could be shown"
        case {"event": "gone", "why": why}:
            return str(why)
        case _:
            return str(event["event"])


STORY_EPILOG: Final = """
\b
Examples:
  formation story 3f2a/0      the first task of the job whose id begins so
  formation story 3f2a/0 --json | jq -r '.story[].step'
"""


def story(
    task: str = flags.argument(
        "TASK",
        "The id of the task: that of its job, or the start of that, then /NUMBER.",
        default=...,
    ),
    home: Path | None = flags.HOME,
    as_json: bool = flags.JSON,
) -> None:
    """Show the way of one task: who was found, asked and refused, where it ran, and when.

    The node that submitted the task tells it, while it runs from this home. It remembers its last
    tasks, some thousands. Each line says how long after the one before it came.
    """
    from formation_p2p.command.node_socket import answers_of

    answers = answers_of(home_path(home), "story", task=task)
    found = next((each for each in answers if each["story"]), None)
    if found is None:
        problem = f"no node that runs here remembers {task}; `formation logs` shows jobs and tasks"
        raise InvalidInput("task", problem)
    if as_json:
        put(found)
        return
    print("\n".join(in_lines(found["story"])))


def in_lines(entries: list[Json]) -> list[str]:
    """A line for each step, with the time since the one before."""
    width = max(len(entry["step"]) for entry in entries)
    for entry in entries:
        learn_from(entry)
    workers = [named(entry["worker"]) if entry["worker"] else "" for entry in entries]
    wide = max(map(len, workers))
    lines: list[str] = []
    before_s = entries[0]["mono_s"]
    for entry, worker in zip(entries, workers, strict=True):
        clock = time.strftime("%H:%M:%S", time.localtime(entry["unix_s"]))
        step = f"{clock}  {_later(entry['mono_s'] - before_s):>9}  {entry['step']:{width}}"
        lines.append(f"{step}  {worker:{wide}}  {one_line(entry['cause'])}")
        before_s = entry["mono_s"]
    return lines


def _later(seconds: float) -> str:
    return f"+{seconds * 1000:.0f} ms" if seconds < 1 else f"+{seconds:.1f} s"

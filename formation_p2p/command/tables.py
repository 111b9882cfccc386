"""Tables for people. Cells are plain text: markup in a label, or from a peer, stays as it is."""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Final, TypeVar

from rich.console import Console, ConsoleOptions, Group, RenderResult
from rich.table import Table
from rich.text import Text

from formation_p2p.command.words import Json, date, for_long, one_line, printable, refusal_in_words
from formation_p2p.core.units import format_bytes, format_micro, format_milli
from formation_p2p.machine.core.gpu import format_compute_capability
from formation_p2p.machine.names import named
from formation_p2p.workload.core.code_bundle import read_bundle

if TYPE_CHECKING:
    from formation_p2p.api.task_result import TaskResult
    from formation_p2p.code.collect import Collected
    from formation_p2p.core.identity import PeerId
    from formation_p2p.core.refusals import Refusal
    from formation_p2p.discovery.core.trace import Trace
    from formation_p2p.machine.core.capability import Capability
    from formation_p2p.machine.hardware import Hardware
    from formation_p2p.placement.core.decision import Column, Decision, Ranked, TermTable
    from formation_p2p.records.core.profile import Profile
    from formation_p2p.state.memory_samples import KindSeen
    from formation_p2p.state.rows import JobSummary

Row = TypeVar("Row")
# How a row is written below each head.
Columns = dict[str, Callable[[Row], str]]

# Rows of a table of results; a larger job shows those that brought nothing, and counts the rest.
MAX_RESULT_ROWS: Final = 50
# Tasks that failed alike are one row from so many on.
_ALIKE: Final = 3
# What is not shown on a terminal goes to a file or another program, which wraps nothing.
_WIDE: Final = 240


def console(*, stderr: bool = False) -> Console:
    stream = sys.stderr if stderr else sys.stdout
    return Console(
        stderr=stderr,
        width=None if stream.isatty() else _WIDE,
        markup=False,
        emoji=False,
        highlight=False,
    )


def sizes(seen: Iterable[KindSeen]) -> Table:
    columns: Columns[KindSeen] = {
        "kind": lambda each: printable(each.kind),
        "runs": lambda each: str(each.runs),
        "most memory": lambda each: format_bytes(each.most_bytes),
        "given": lambda each: format_bytes(each.learnt.memory_bytes) if each.learnt else "default",
        "cores": lambda each: "-" if each.cpu_milli is None else format_milli(each.cpu_milli),
        "seconds": lambda each: f"{each.ran_ms / 1000:.1f}",
        "last": lambda each: date(each.last_unix_s),
    }
    return table_of(columns, seen)


def workers(profiles: Iterable[Profile]) -> Table:
    shown = list(profiles)
    columns: Columns[Profile] = {
        "worker": lambda each: named(each.peer_id),
        **FREE,
        "python": _pythons_of,
        "price": lambda each: format_micro(each.price_micro),
        "to gates": lambda each: str(each.link) or "-",
        "labels": lambda each: printable(" ".join(f"{k}={v}" for k, v in each.labels)) or "-",
        "drivers": lambda each: printable(" ".join(each.drivers)),
    }
    if not any(str(each.link) for each in shown):
        del columns["to gates"]
    if not any(each.price_micro for each in shown):
        del columns["price"]
    if not any(each.capability.pythons for each in shown):
        del columns["python"]
    return table_of(columns, shown)


def gangs(owned: Iterable[Json]) -> Table:
    columns: Columns[Json] = {
        "gang": lambda gang: printable(gang["gang_id"]),
        "state": lambda gang: printable(gang["state"]),
        "members": lambda gang: f"{len(_with_worker(gang))} of {len(gang['members'])}",
        "since": lambda gang: date(gang["since_unix_s"]),
        "cores": lambda gang: _total(gang, "cpu_milli", format_milli),
        "memory": lambda gang: _total(gang, "memory_bytes", format_bytes),
        "sent": lambda gang: format_bytes(gang["sent_bytes"]),
    }
    return table_of(columns, owned)


def _with_worker(gang: Json) -> list[Json]:
    return [each for each in gang["members"] if each["worker"] is not None]


def _total(gang: Json, key: str, shown: Callable[[int], str]) -> str:
    known = [each[key] for each in gang["members"] if each[key] is not None]
    return shown(sum(known)) if known else "-"


def hosted(members: Iterable[Json]) -> Table:
    columns: Columns[Json] = {
        "member of": lambda each: printable(each["gang_id"]),
        "rank": lambda each: f"{each['rank']} of {each['size']}",
        "owner": lambda each: named(each["owner"]),
        **USED,
    }
    return table_of(columns, members)


def _known(key: str, shown: Callable[[int], str]) -> Callable[[Json], str]:
    return lambda each: "-" if each[key] is None else shown(each[key])


USED: Final[Columns[Json]] = {
    "since": lambda each: "-" if each["since_unix_s"] is None else date(each["since_unix_s"]),
    "cores": _known("cpu_milli", format_milli),
    "memory": _known("memory_bytes", format_bytes),
}


def put_code(out: Console, script: str, code: Collected | None, missing: Sequence[str]) -> None:
    """What calls of a script's functions take along, at most, with a line for each file; and what
    it imports that is not found."""
    if missing:
        listed = printable(", ".join(missing))
        out.print(f"{printable(script)} imports what is not found here: {listed}", soft_wrap=True)
    if code is None or not code.files:
        out.print(f"calls of {printable(script)} take no code of your own along")
    else:
        size = format_bytes(code.size_bytes)
        out.print(f"calls of {printable(script)} take along at most {code.files} files, {size}:")
        for file in read_bundle(code.bundle):
            out.print(
                f"  {printable(file.name)}  {format_bytes(len(file.content))}", soft_wrap=True
            )
    if code is not None and code.left_out:
        out.print(f"left out: {printable(', '.join(code.left_out))}", soft_wrap=True)


def put_ranked(out: Console, decision: Decision) -> None:
    """With what does not decide beside it, where the screen is wide enough."""
    from formation_p2p.placement.core.decision import terms_of

    found = decision.ranked
    terms = terms_of(found)
    table = ranked(found, terms)
    unwrapped = out.options.update(max_width=_WIDE)
    if out.measure(table, options=unwrapped).maximum > out.width:
        table = ranked(found, terms, narrow=True)
    out.print(table)
    for line in (terms.alike, decision.why_first):
        if line:
            out.print(printable(line), soft_wrap=True)


def ranked(found: Sequence[Ranked], terms: TermTable, *, narrow: bool = False) -> Table:
    from formation_p2p.placement.core.decision import DISTANCE_DIGITS

    heads = ["rank", "worker", *map(_head, terms.columns)]
    after: Columns[Ranked] = {}
    if not (narrow and terms.score):
        after["distance"] = lambda each: f"{each.distance:064x}"[:DISTANCE_DIGITS]
    if not narrow:
        after |= {head: _of_profile(cell) for head, cell in FREE.items()}
    if any(each.profile.price_micro for each in found):
        after["asks"] = lambda each: format_micro(each.profile.price_micro)
    if any(each.lacking for each in found):
        after["room"] = lambda each: refusal_in_words(each.lacking) if each.lacking else "yes"
    table = plain_table(*heads, *after)
    for rank, each in enumerate(found):
        decided = (column.cells[rank] for column in terms.columns)
        cells = (cell(each) for cell in after.values())
        table.add_row(str(rank + 1), named(each.profile.peer_id), *decided, *cells)
    return table


def _of_profile(cell: Callable[[Profile], str]) -> Callable[[Ranked], str]:
    return lambda each: cell(each.profile)


def _head(term: Column) -> str:
    """In several lines: names are wider than numbers."""
    words = printable(term.name).split()
    return "\n".join([*words, term.weight] if term.weight else words)


def trace(made: Trace) -> Table:
    heads = ("lookup", "shard", "peers asked", "workers there", "in deeper shards", "found")
    table = plain_table(*heads)
    for number, step in enumerate(made.steps, start=1):
        counts = (step.asked, step.members, step.deeper, step.found)
        table.add_row(str(number), step.shard, *map(str, counts))
    return table


def rejected(refusals: Iterable[tuple[PeerId, Refusal]]) -> Table:
    columns: Columns[tuple[PeerId, Refusal]] = {
        "worker": lambda each: named(each[0]),
        "why not": lambda each: refusal_in_words(each[1]),
    }
    return table_of(columns, refusals)


def hardware(found: Hardware) -> Table:
    can, free = found.capability, found.capacity
    table = plain_table("resource", "offered", "free now")
    table.add_row("cpu", format_milli(can.cpu_milli), format_milli(free.cpu_milli))
    table.add_row("memory", format_bytes(can.memory_bytes), format_bytes(free.memory_bytes))
    table.add_row("storage", format_bytes(can.storage_bytes), format_bytes(free.storage_bytes))
    speed = f"{can.network_mbps} Mbit/s" if can.network_mbps > 1 else "of unknown speed"
    network = speed if can.network_mbps else "none"
    table.add_row("network", network, "")
    busy = dict(found.gpu_utilisation)
    memory_free = {each.device_id: each.memory_bytes for each in free.gpus}
    for gpu in can.gpus:
        idle = f"{100 - busy[gpu.device_id]} % idle, " if gpu.device_id in busy else ""
        left = format_bytes(memory_free.get(gpu.device_id, 0))
        version = format_compute_capability(gpu.compute_capability)
        what = f"{gpu.vendor} {gpu.model}, {format_bytes(gpu.memory_bytes)}, {version}"
        table.add_row("gpu", what, f"{idle}{left}")
    table.add_row("system", f"{can.os} {can.arch}", "")
    return table


def results(
    ended: Sequence[TaskResult], notes: Mapping[str, str], causes: Mapping[str, str]
) -> Table:
    """`notes` explain some of the tasks, by their id. Those with the same of the `causes` are one
    row, where they are many."""
    alike: dict[tuple[str, str], list[TaskResult]] = {}
    for each in ended:
        if each.status != "succeeded":
            alike.setdefault((each.status, causes[each.task_id]), []).append(each)
    groups = {cause: found for cause, found in alike.items() if len(found) >= _ALIKE}
    grouped = {each.task_id for found in groups.values() for each in found}
    shown = [each for each in ended if each.task_id not in grouped]
    if len(shown) > MAX_RESULT_ROWS:
        shown = [each for each in shown if each.status != "succeeded"][:MAX_RESULT_ROWS]
    columns: Columns[TaskResult] = {
        "task": lambda each: printable(each.label),
        "status": lambda each: each.status,
        "worker": lambda each: "-" if each.worker is None else named(each.worker),
        "tries": lambda each: str(each.attempts),
        "seconds": lambda each: f"{each.ran_ms / 1000:.1f}" if each.status == "succeeded" else "-",
        "note": lambda each: one_line(notes.get(each.task_id, "")),
    }
    table = table_of(columns, shown)
    for (status, cause), found in groups.items():
        workers = {named(each.worker) for each in found if each.worker is not None}
        where = f"{len(workers)} workers" if len(workers) > 1 else "".join(workers) or "-"
        tries = str(sum(each.attempts for each in found))
        first, last = printable(found[0].label), printable(found[-1].label)
        table.add_row(f"{first} … {last}", status, where, tries, "-", f"{len(found)} x {cause}")
    return table


def jobs(kept: Sequence[JobSummary]) -> Table:
    columns: Columns[JobSummary] = {
        "job": lambda job: printable(job.job_id),
        "name": lambda job: one_line(job.name),
        "tasks": lambda job: str(job.tasks),
        "done": lambda job: str(job.ended.succeeded),
        "failed": lambda job: str(job.ended.failed + job.ended.unplaceable + job.ended.cancelled),
        "submitted": lambda job: date(job.submitted_unix_s),
        "ended": lambda job: "in progress" if job.ended_unix_s is None else date(job.ended_unix_s),
    }
    return table_of(columns, kept)


def offer_in_words(
    can: Capability, drivers: Sequence[str], labels: Mapping[str, str], price_micro: int
) -> str:
    has = ", ".join((_gpus(can) if can.gpus else "no GPU", *(each.name for each in can.pythons)))
    cores = "core" if can.cpu_milli == 1000 else "cores"
    said = "".join(f", {key}={value}" for key, value in labels.items())
    price = f", at {format_micro(price_micro)} for a core-hour" if price_micro else ""
    return (
        f"{format_milli(can.cpu_milli)} {cores}, {format_bytes(can.memory_bytes)} of memory, "
        f"{format_bytes(can.storage_bytes)} of storage, {has}, for {_listed(drivers)}{said}{price}"
    )


def _listed(names: Sequence[str]) -> str:
    *others, last = names
    return f"{', '.join(others)} and {last}" if others else last


def table_of(columns: Columns[Row], rows: Iterable[Row]) -> Table:
    table = plain_table(*columns)
    for row in rows:
        table.add_row(*(cell(row) for cell in columns.values()))
    return table


class _Rows(Table):
    """Nothing at all where there are none."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        return super().__rich_console__(console, options) if self.row_count else iter(())


def plain_table(*columns: str) -> Table:
    table = _Rows(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for column in columns:
        table.add_column(column.upper(), overflow="fold")
    return table


def _cpu(worker: Profile) -> str:
    return f"{format_milli(worker.capacity.cpu_milli)}/{format_milli(worker.capability.cpu_milli)}"


def _memory(worker: Profile) -> str:
    free, all_ = worker.capacity.memory_bytes, worker.capability.memory_bytes
    return f"{format_bytes(free)}/{format_bytes(all_)}"


def _gpus_of(worker: Profile) -> str:
    if not worker.capability.gpus:
        return "-"
    free_milli = sum(gpu.share_milli for gpu in worker.capacity.gpus)
    return f"{_gpus(worker.capability)}, {format_milli(free_milli)} free"


def _pythons_of(worker: Profile) -> str:
    names = (python.name.removeprefix("cpython-") for python in worker.capability.pythons)
    return printable(" ".join(names)) or "-"


FREE: Final[Columns[Profile]] = {"cpu free": _cpu, "memory free": _memory, "gpus": _gpus_of}


def _gpus(can: Capability) -> str:
    counts = Counter(f"{gpu.model} {format_bytes(gpu.memory_bytes)}" for gpu in can.gpus)
    return printable(" + ".join(f"{n} x {name}" for name, n in counts.items()))


# -- this machine's nodes, as `formation top` draws them -------------------------------------------

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

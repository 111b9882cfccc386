"""Tables for people. Cells are plain text: markup in a label, or from a peer, stays as it is."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from rich.console import Console
from rich.table import Table

from formation_p2p.api.job import TaskResult
from formation_p2p.cli.words import date, one_line, printable, refusal_in_words, short
from formation_p2p.core.discovery.trace import Trace
from formation_p2p.core.identity import PeerId
from formation_p2p.core.placement.as_text import DISTANCE_DIGITS, Column, TermTable, terms_of
from formation_p2p.core.placement.decision import Ranked
from formation_p2p.core.records.profile import Profile
from formation_p2p.core.refusals import Refusal
from formation_p2p.core.resources.capability import Capability
from formation_p2p.core.resources.gpu import format_compute_capability
from formation_p2p.core.units import format_bytes, format_micro, format_milli
from formation_p2p.host.machine.hardware import Hardware
from formation_p2p.host.storage.memory_samples import KindSeen
from formation_p2p.host.storage.rows import JobSummary

# Rows of a table of results; a larger job shows those that brought nothing, and counts the rest.
MAX_RESULT_ROWS: Final = 50
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
    table = plain_table("kind", "runs", "most memory", "given", "cores", "seconds", "last")
    for each in seen:
        learnt = each.learnt
        table.add_row(
            printable(each.kind),
            str(each.runs),
            format_bytes(each.most_bytes),
            "default" if learnt is None else format_bytes(learnt.memory_bytes),
            "-" if each.cpu_milli is None else format_milli(each.cpu_milli),
            f"{each.ran_ms / 1000:.1f}",
            date(each.last_unix_s),
        )
    return table


def workers(profiles: Iterable[Profile]) -> Table:
    shown = list(profiles)
    priced = any(each.price_micro for each in shown)
    prices = ("price",) if priced else ()
    table = plain_table("worker", "cpu free", "memory free", "gpus", *prices, "labels", "drivers")
    for each in shown:
        table.add_row(
            short(each.peer_id),
            _cpu(each),
            _memory(each),
            _gpus_of(each),
            *((format_micro(each.price_micro),) if priced else ()),
            printable(" ".join(f"{key}={value}" for key, value in each.labels)) or "-",
            printable(" ".join(each.drivers)),
        )
    return table


def workers_now(workers: Iterable[dict[str, Any]]) -> Table:
    """As `workers`, of what a node told of them in JSON."""
    rows = plain_table("worker", "cpu free", "memory free", "drivers")
    for each in workers:
        can, free = each["capability"], each["capacity"]
        rows.add_row(
            short(each["peer_id"]),
            f"{format_milli(free['cpu_milli'])}/{format_milli(can['cpu_milli'])}",
            f"{format_bytes(free['memory_bytes'])}/{format_bytes(can['memory_bytes'])}",
            printable(" ".join(each["drivers"])),
        )
    return rows


def put_ranked(out: Console, found: Sequence[Ranked]) -> None:
    """With what does not decide beside it, where the screen is wide enough."""
    terms = terms_of(found)
    table = ranked(found, terms)
    unwrapped = out.options.update(max_width=_WIDE)
    if out.measure(table, options=unwrapped).maximum > out.width:
        table = ranked(found, terms, narrow=True)
    out.print(table)
    if terms.alike:
        out.print(printable(terms.alike))


def ranked(found: Sequence[Ranked], terms: TermTable, *, narrow: bool = False) -> Table:
    has = () if narrow else ("cpu free", "memory free", "gpus")
    distance = () if narrow and terms.score else ("distance",)
    asks = ("asks",) if any(each.profile.price_micro for each in found) else ()
    room = ("room",) if any(each.lacking for each in found) else ()
    decided = map(_head, terms.columns)
    table = plain_table("rank", "worker", *decided, *distance, *has, *asks, *room)
    for rank, each in enumerate(found, start=1):
        worker = each.profile
        table.add_row(
            str(rank),
            short(worker.peer_id),
            *(column.cells[rank - 1] for column in terms.columns),
            *((f"{each.distance:064x}"[:DISTANCE_DIGITS],) if distance else ()),
            *((_cpu(worker), _memory(worker), _gpus_of(worker)) if has else ()),
            *((format_micro(worker.price_micro),) if asks else ()),
            *((refusal_in_words(each.lacking) if each.lacking else "yes",) if room else ()),
        )
    return table


def _head(term: Column) -> str:
    """In several lines: names are wider than numbers."""
    words = printable(term.name).split()
    return "\n".join([*words, term.weight] if term.weight else words)


def trace(made: Trace) -> Table:
    table = plain_table(
        "lookup", "shard", "peers asked", "workers there", "in deeper shards", "found"
    )
    for number, step in enumerate(made.steps, start=1):
        table.add_row(
            str(number),
            step.shard,
            str(step.asked),
            str(step.members),
            str(step.deeper),
            str(step.found),
        )
    return table


def rejected(refusals: Iterable[tuple[PeerId, Refusal]]) -> Table:
    table = plain_table("worker", "why not")
    for peer_id, why in refusals:
        table.add_row(short(peer_id), refusal_in_words(why))
    return table


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


def results(ended: Sequence[TaskResult], notes: dict[str, str]) -> Table:
    """`notes` has something to say of some tasks, by their id."""
    table = plain_table("task", "status", "worker", "tries", "seconds", "note")
    shown = ended
    if len(ended) > MAX_RESULT_ROWS:
        shown = [each for each in ended if each.status != "succeeded"][:MAX_RESULT_ROWS]
    for each in shown:
        table.add_row(
            printable(each.label),
            each.status,
            "-" if each.worker is None else short(each.worker),
            str(each.attempts),
            f"{each.ran_ms / 1000:.1f}" if each.status == "succeeded" else "-",
            one_line(notes.get(each.task_id, "")),
        )
    return table


def jobs(kept: Sequence[JobSummary]) -> Table:
    table = plain_table("job", "name", "tasks", "done", "failed", "submitted", "ended")
    for job in kept:
        without = job.ended.failed + job.ended.unplaceable + job.ended.cancelled
        table.add_row(
            printable(job.job_id),
            one_line(job.name),
            str(job.tasks),
            str(job.ended.succeeded),
            str(without),
            date(job.submitted_unix_s),
            "under way" if job.ended_unix_s is None else date(job.ended_unix_s),
        )
    return table


def offer_in_words(
    can: Capability, drivers: Sequence[str], labels: Mapping[str, str], price_micro: int
) -> str:
    gpus = _gpus(can) if can.gpus else "no GPU"
    cores = "core" if can.cpu_milli == 1000 else "cores"
    said = "".join(f", {key}={value}" for key, value in labels.items())
    price = f", at {format_micro(price_micro)} for a core-hour" if price_micro else ""
    return (
        f"{format_milli(can.cpu_milli)} {cores}, {format_bytes(can.memory_bytes)} of memory, "
        f"{format_bytes(can.storage_bytes)} of storage, {gpus}, for {_listed(drivers)}{said}{price}"
    )


def _listed(names: Sequence[str]) -> str:
    *others, last = names
    return f"{', '.join(others)} and {last}" if others else last


def plain_table(*columns: str) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
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


def _gpus(can: Capability) -> str:
    counts: dict[str, int] = {}
    for gpu in can.gpus:
        name = f"{gpu.model} {format_bytes(gpu.memory_bytes)}"
        counts[name] = counts.get(name, 0) + 1
    return printable(" + ".join(f"{n} x {name}" for name, n in counts.items()))

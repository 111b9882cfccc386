"""`formation resume` and `formation jobs`: continue or list the jobs of a state file."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from formation_p2p.command import flags
from formation_p2p.command.exits import DONE, IN_WORDS
from formation_p2p.command.files import (
    append,
    fetch_outputs,
    make_executable,
    make_folder,
    write_outputs,
    write_tail,
)
from formation_p2p.command.flags import argument, option, parse_duration_s, switch
from formation_p2p.command.interrupt import Interrupt, end_with
from formation_p2p.command.job_file import PRINTED
from formation_p2p.command.owed import Owed, Place
from formation_p2p.command.submit import bar, report
from formation_p2p.command.words import Json, one_line, put, say
from formation_p2p.core.errors import FormationError, InvalidInput, LocalError, TaskFailed
from formation_p2p.core.units import format_bytes, parse_bytes
from formation_p2p.state.state import Retention, State, peek
from formation_p2p.workload.core.inputs_from import process_in, work_of
from formation_p2p.workload.core.matrix import folder_label
from formation_p2p.workload.core.process import MAX_TAIL_BYTES

if TYPE_CHECKING:
    from formation_p2p.api.job import JobHandle
    from formation_p2p.api.node import Node
    from formation_p2p.api.task_result import TaskResult
    from formation_p2p.jobs.core.job_events import JobEvent
    from formation_p2p.state.rows import JobSummary
    from formation_p2p.workload.core.work import Task

    # Of a task: where its outputs go, and whether with what it prints.
    FolderOf = Callable[[str], tuple[Path, bool]]
    _JobFolder = tuple[JobHandle, FolderOf | None]

RESUME_EPILOG: Final = f"""
\b
Examples:
  formation submit job.toml --state jobs.db &
  kill -9 $!
  formation resume --state jobs.db
  formation resume --state jobs.db --cancel 0f3c…

\b
{IN_WORDS}"""
JOBS_EPILOG: Final = """
\b
Examples:
  formation jobs --state jobs.db
  formation jobs --state jobs.db --json | jq -r '.jobs[] | select(.ended_unix_s == null).job'
  formation jobs --state jobs.db --prune --keep-time 7d
"""

_SOME: Final = click.IntRange(min=0)

STATE: Final = option(
    "--state", "FILE", "The file that keeps the jobs. Required.", envvar="FORMATION_STATE"
)


def resume(
    state: Path | None = STATE,
    job_id: str | None = argument(
        "JOB",
        "Wait for this job, or show how it ended: its id, or the start of it. By default all "
        "jobs in progress.",
    ),
    cancel: bool = switch("--cancel", "Cancel waiting and running tasks."),
    out_dir: Path | None = option(
        "--out-dir",
        "DIR",
        "Put the files and the last output of tasks into DIR/LABEL/, and not where `run` or "
        "`submit` was asked to.",
    ),
    home: Path | None = flags.HOME,
    join: str | None = flags.JOIN,
    as_json: bool = flags.JSON,
) -> None:
    """Continue jobs whose program ended, crashed or was killed, and wait for them.

    Finished tasks are not repeated, and tasks that still run on workers are taken over: workers
    keep tasks and results for some seconds after their scheduler falls silent. Ends as `formation
    submit` does, and gives outputs where `run` or `submit` was asked to put them, also those of
    jobs that have ended meanwhile. With --json, each event is a line of JSON, earlier events
    included.
    """
    state = _there(state)
    place = flags.home_of(home, join)

    async def follow_all(interrupt: Interrupt) -> int:
        from formation_p2p.api.node import Node
        from formation_p2p.command.outcomes import exit_code_of

        began_s = time.monotonic()
        async with Node.join(home=place.path, listen=(), state=state) as node:
            owed = Owed(state)
            places = owed.places()
            if job_id is None:
                jobs = [*node.jobs(), *await _ended(node, owed, places)]
            else:
                jobs = [await node.job(await _whole(node, job_id))]
            interrupt.leaves(state)
            if not jobs:
                say(f"formation: no job is in progress in {state}; see `formation jobs`")
                return DONE
            if not as_json:
                await _tell_progress(node, jobs)
            folders = [(job, _folder_of(job, out_dir, places)) for job in jobs]
            await _follow(folders, cancel=cancel, as_json=as_json)
            results, errors = await _fetch_all(node, owed, folders)
            if not as_json:
                report(results, time.monotonic() - began_s, out_dir)
            for each in errors[1:]:
                say(f"formation: {each}")
            if errors:
                raise errors[0]
            return exit_code_of(results)

    end_with(follow_all)


async def _tell_progress(node: Node, jobs: Sequence[JobHandle]) -> None:
    going = {job.job_id for job in jobs}
    for kept in await node.kept():
        if kept.ended_unix_s is None and kept.job_id in going:
            done, name = sum(asdict(kept.ended).values()), one_line(kept.name)
            say(f"formation: going on with {name}: {done} of {kept.tasks} tasks have ended")


async def _follow(folders: Sequence[_JobFolder], *, cancel: bool, as_json: bool) -> None:
    """Show what happens to the jobs, and keep what they print, until all are over."""
    from formation_p2p.command.as_json import lines_of

    total = sum(len(job.tasks) for job, _ in folders)
    with contextlib.nullcontext() if as_json else bar(total) as show:

        async def follow(job: JobHandle, folder_of: FolderOf | None) -> None:
            show_event = show or lines_of(job, job=job.job_id)
            if cancel:
                job.cancel()
            async for event in job.events():
                _keep(event, folder_of)
                await show_event(event)

        await asyncio.gather(*(follow(*each) for each in folders))


async def _fetch_all(
    node: Node, owed: Owed, folders: Sequence[_JobFolder]
) -> tuple[list[TaskResult], list[FormationError]]:
    """How all tasks ended, with their outputs fetched, and what went wrong with that."""
    results: list[TaskResult] = []
    errors: list[FormationError] = []
    for job, folder_of in folders:
        ended = await job
        results += ended
        try:
            await _fetch(node, folder_of, job, ended)
        except FormationError as error:
            errors.append(error)
            if not isinstance(error, TaskFailed):
                continue  # it may come the next time
        owed.given(job.job_id)
    return results, errors


def _there(state: Path | None) -> Path:
    if state is None:
        raise InvalidInput(
            "state",
            "name the file that keeps the jobs, by --state FILE or FORMATION_STATE: the one given "
            "to `formation run` or `submit`, which keep no jobs without it; `formation top` "
            "shows what the nodes that run here do",
        )
    if not state.exists():
        raise LocalError(f"{state} is not there; name the file that --state named before")
    return state


async def _whole(node: Node, job_id: str) -> str:
    """The id that begins so, where one alone does."""
    ids = [kept.job_id for kept in await node.kept() if kept.job_id.startswith(job_id)]
    if len(ids) > 1:
        raise InvalidInput("job", f"{len(ids)} jobs have an id that begins so; write more of it")
    return ids[0] if ids else job_id


async def _ended(node: Node, owed: Owed, places: Mapping[str, Place]) -> list[JobHandle]:
    """The jobs that have ended and not given their outputs."""
    ended = {job.job_id for job in await node.kept() if job.ended_unix_s is not None}
    in_flight = {job.job_id for job in node.jobs()}
    for job_id in places.keys() - ended - in_flight:
        owed.given(job_id)  # the state has deleted it
    return [await node.job(job_id) for job_id in sorted(places.keys() & ended - in_flight)]


def _folder_of(
    job: JobHandle, out_dir: Path | None, places: Mapping[str, Place]
) -> FolderOf | None:
    """For the id of a task: where its outputs go, and whether with what it prints."""
    place = Place(str(out_dir), True) if out_dir is not None else places.get(job.job_id)
    if place is None:
        return None
    folder, names = Path(place.folder), {}
    for index, task in enumerate(job.tasks):
        names[task.task_id] = _folder_name(task, index) if place.by_label else ""
    return lambda task_id: (folder / names[task_id], place.by_label)


def _keep(event: JobEvent, folder_of: FolderOf | None) -> None:
    """What a task prints now, after what it has printed before. Raises LocalError."""
    from formation_p2p.jobs.core.job_events import TaskPrinted, TaskRetried

    if folder_of is None or not isinstance(event, TaskPrinted | TaskRetried):
        return
    folder, with_output = folder_of(event.task_id)
    if with_output and isinstance(event, TaskPrinted):
        make_folder(folder)
        append(folder / PRINTED[event.is_stderr], event.data)
    elif with_output:
        for name in PRINTED:
            (folder / name).unlink(missing_ok=True)


async def _fetch(
    node: Node,
    folder_of: FolderOf | None,
    job: JobHandle,
    results: Sequence[TaskResult],
) -> None:
    from formation_p2p.command.outcomes import process_result

    if folder_of is None:
        return
    cut: list[str] = []
    for task, result in zip(job.tasks, results, strict=True):
        spec = process_in(work_of(task)) if task.payload else None
        if spec is None or not result.result:  # a function; or one that brought nothing
            continue
        brought = process_result(result.result)
        folder, with_output = folder_of(task.task_id)
        if with_output and (brought.stdout_tail or brought.stderr_tail):
            make_folder(folder)
        if with_output:
            write_tail(folder / PRINTED[True], brought.stderr_tail)
            stdout = folder / PRINTED[False]
            if write_tail(stdout, brought.stdout_tail, brought.stdout_sha256):
                cut.append(str(stdout))
        if result.status != "succeeded":
            continue
        write_outputs(folder, spec.files_out, brought.files)
        try:
            await fetch_outputs(node, folder, spec.outputs, brought.outputs)
        except TaskFailed as error:
            raise TaskFailed(f"{task.label or task.task_id}: {error}") from None
        make_executable(folder, (*spec.files_out, *spec.outputs), brought.executable)
    if cut:
        raise TaskFailed(
            f"not all that was printed while no program watched is kept: {', '.join(cut[:3])} "
            + (f"and {len(cut) - 3} more have" if cut[3:] else "has")
            + f" the last {format_bytes(MAX_TAIL_BYTES)}; have long output written to a file"
        )


def _folder_name(task: Task, index: int) -> str:
    """Its label, or its index if the label cannot name a folder."""
    try:
        return folder_label("label", task.label)
    except InvalidInput:
        return str(index)


def jobs(
    state: Path | None = STATE,
    prune: bool = switch("--prune", "First delete ended jobs beyond the --keep options."),
    keep_time: str = option("--keep-time", "TIME", "How long ended jobs are kept.", shown="30d"),
    keep_jobs: int = option(
        "--keep-jobs", "N", "The most ended jobs to keep.", type=_SOME, shown=1_000
    ),
    keep_size: str = option("--keep-size", "SIZE", "The largest size of the file.", shown="1GiB"),
    as_json: bool = flags.JSON,
) -> None:
    """List the jobs of a state file, whether or not a program continues them.

    Jobs in progress are always kept; ended jobs for 30 days, up to the last 1,000, and while the
    file is smaller than 1 GiB, unless --prune deletes more of them. Needs no network.
    """
    from formation_p2p.command.tables import console
    from formation_p2p.command.tables import jobs as table

    size_bytes = flags.parsed("keep-size", keep_size, parse_bytes) or 0
    retention = Retention(parse_duration_s(keep_time, "keep-time"), keep_jobs, size_bytes)
    state = _there(state)
    found = peek(state)
    if prune:
        with contextlib.closing(State(state, retention)) as opened:
            opened.prune()
            found = opened.summaries()
    if as_json:
        put({"jobs": [_document(each) for each in found]})
    elif found:
        console().print(table(found))
    else:
        say(f"formation: {state} keeps no jobs")


def _document(job: JobSummary) -> Json:
    return {
        "job": job.job_id,
        "name": job.name,
        "tasks": job.tasks,
        **asdict(job.ended),
        "submitted_unix_s": job.submitted_unix_s,
        "ended_unix_s": job.ended_unix_s,
    }

"""`formation submit`: the tasks of a job file, each on a worker that can run it."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from formation_p2p.command import flags
from formation_p2p.command.assembly import forms
from formation_p2p.command.exits import IN_WORDS
from formation_p2p.command.files import (
    append,
    fetch_outputs,
    local,
    make_executable,
    make_folder,
    put_secrets,
    write_outputs,
    write_tail,
)
from formation_p2p.command.flags import argument, option
from formation_p2p.command.interrupt import Interrupt, end_with
from formation_p2p.command.job_file import PRINTED, JobFile, TaskLine, read_job_file
from formation_p2p.command.owed import Submitting
from formation_p2p.command.task_flags import PolicyCommand, takes
from formation_p2p.command.words import one_line, say
from formation_p2p.core.errors import InvalidInput, TaskFailed, Unreachable
from formation_p2p.core.units import format_bytes
from formation_p2p.placement.core.task_options import TaskOptionKwargs, TaskOptions
from formation_p2p.placement.policies import options_of
from formation_p2p.workload.core.blob import DIGEST_BYTES, RAW, Blob, Cid

if TYPE_CHECKING:
    from formation_p2p.api.task_result import TaskResult
    from formation_p2p.command.local.client import Link, WatchedJob
    from formation_p2p.jobs.core.job_events import JobEvent

    Show = Callable[[JobEvent], Awaitable[None]]

# Of a file that is put once the node has joined.
NOT_PUT_YET: Final = Blob(Cid(RAW, bytes(DIGEST_BYTES)), 0)

SUBMIT_EPILOG: Final = f"""
\b
A job file:
  name = "thumbnails"
  needs = "cpu=1,memory=256MiB"   # what each task needs; as for run
  priority = 0                    # at most what your grant allows
  attempts = 3                    # of a task that fails
  timeout = "5m"                  # of one attempt; seconds where it is a number
  deadline = "2h"                 # tasks that have not ended by then fail
  speculate = false               # second attempts of slow tasks, on idle workers
  copies = 1                      # how many workers hold the outputs of each task
  rebalance = false               # move tasks that have saved to workers that suit them better
  policy = "xor"                  # how workers are ranked; this, hints and scope as for run
  hints = ["region=eu-west"]
  scope = "commons"
  find = "dht"                    # how workers are looked for
  max_price = "0.05"              # of a core-hour
  learn = true                    # estimate memory from earlier runs
  env = "requirements.txt"        # packages of the tasks; or a list: ["numpy>=2"]
\b
  [[task]]                        # as many of these as you like
  name = "small"                  # for later tasks: after = ["small"]
  each = ["a.png", "b.png"]       # one task for each; {{each}} stands for it below
  label = "small-{{each}}"          # its number or `each` by default; {{index}} is its number
  argv = ["convert", "{{each}}", "-resize", "25%", "small.png"]
  files_in = ["images/{{each}}"]    # from the job file's folder; seen by base name
  files_out = ["small.png"]       # brought back to DIR/LABEL/; outputs = [...] for large ones
  env = {{ LANG = "C" }}
  stdin = ""
  secrets = ["TOKEN=token.txt"]   # as $FORMATION_SECRETS/TOKEN, sealed for the worker
  image = "alpine:3.22"           # in a container; or wasm = "count.wasm" and fuel = 1_000_000
\b
  [[task]]
  after = ["small"]               # once these have succeeded
  matrix = {{ lr = [0.1, 0.01], seed = {{ from = 1, to = 3 }} }}   # one for each combination
  inputs = ["data/*.csv"]         # of each file, which is sent along; {{input}} and {{name}} below
                                  # or files of other tasks: {{ "part.txt" = "small:part.txt" }}
  needs = "cpu=4,gpu=1"           # in place of the job's
  kind = "train"                  # the key of its memory estimate
  argv = ["./train.py", "--lr", "{{lr}}", "--seed", "{{seed}}", "{{name}}"]

Only argv must be there. `each = {{ from = 1, to = 250 }}` counts. An unknown key is an error.

\b
Examples:
  formation submit job.toml
  formation submit job.toml --out-dir results
  formation submit job.toml --json | jq -r 'select(.event == "failed").task'
  formation submit Formfile             # NAME, VCPU, MEM, DISK, GPU, COPY, RUN, ENTRYPOINT ...

\b
{IN_WORDS}"""


SubmitCommand: Final = PolicyCommand


@takes("max_price_micro", "learn", "env", "copies", "policy", "find")
def submit(
    kwargs: TaskOptionKwargs,
    job_file: Path = argument("JOB.toml", "The job file, or a Formfile.", default=...),
    out_dir: Path | None = option(
        "--out-dir", "DIR", "Put the files and the output of each task into DIR/LABEL/."
    ),
    *,
    submitting: Submitting,
) -> None:
    """Run the tasks of a TOML file, or that of a Formfile, and wait for them.

    Each task is a command that runs once, on a worker that meets its needs: the best one by the
    job's policy, or another with room. A task whose worker dies is placed again. Ends with a table
    of the results; with --json, each event is a line of JSON.
    """
    flags.learn_peers(flags.folder_of(submitting.home, None))
    with contextlib.ExitStack() as held:
        form = next((each for each in forms() if each.is_of(job_file)), None)
        file = read_job_file(job_file) if form is None else held.enter_context(form.read(job_file))
        _submit(file, options_of(kwargs, file.options), out_dir, submitting)


def _submit(
    file: JobFile, options: TaskOptions, out_dir: Path | None, submitting: Submitting
) -> None:
    flags.refuse_local(options.scope)
    if out_dir is None and any(task.files_out for task in file.tasks):
        raise InvalidInput("out-dir", "the tasks send files back; say where they go")
    if out_dir is not None:
        make_folder(out_dir)
    contents = file.read()
    large = file.large(contents)
    # What is wrong with it is said before any worker is asked.
    hidden = list(dict.fromkeys(path for task in file.tasks for path in task.secrets.values()))
    plan = file.plan(
        contents, dict.fromkeys(large, NOT_PUT_YET), dict.fromkeys(hidden, NOT_PUT_YET)
    )
    place = submitting.place()

    def may() -> None:
        from formation_p2p.trust.core.grants import Right

        for driver in sorted({task.kind.driver for task in file.tasks}):
            flags.require(place, Right.SUBMIT, driver=driver, priority=options.priority)

    async def place_and_wait(interrupt: Interrupt) -> int:
        from formation_p2p.command.outcomes import exit_code_of, why_empty

        began_s = time.monotonic()
        async with submitting.node(place, may) as node:
            blobs = {path: await node.put(path) for path in large}
            put = await put_secrets(node, hidden)
            work = file.plan(contents, blobs, put) if large or put else plan
            job = await node.submit(work, name=file.name, options=options)
            owed = submitting.begun(job, interrupt, "the job")
            if out_dir is not None:
                owed.note(job.job_id, out_dir, by_label=True)
            kept = Kept(node, job, file.tasks, out_dir)
            await _watch(job, kept, options.quorum, as_json=submitting.as_json)
            results = kept.checked(await job.results())
            if not kept.is_unreachable:
                owed.given(job.job_id)
            for secret in put.values():
                await node.drop_secret(secret)
            if not submitting.as_json:
                report(results, time.monotonic() - began_s, out_dir)
            if interrupt.number is not None and any(each.status == "cancelled" for each in results):
                return interrupt.exit_code
            if all(each.status == "unplaceable" and not each.refusals for each in results):
                say(f"formation: no worker could be asked: {await why_empty(node, place)}")
            return exit_code_of(results)

    end_with(place_and_wait)


async def _watch(job: WatchedJob, kept: Kept, quorum: object, *, as_json: bool) -> None:
    """Show what happens, and keep what comes, until the job is over."""
    from formation_p2p.command.as_json import lines_of
    from formation_p2p.command.outcomes import passed_on

    lines = contextlib.nullcontext(lines_of(job))
    with lines if as_json else bar(len(job.tasks)) as show:
        of_result = passed_on(quorum)
        async for event in job.events():
            for each in of_result(event):
                await kept.take(each)
            await show(event)


class Kept:
    """Writes the files and the output of tasks to --out-dir as they come. `is_unreachable` where
    some did not come from their worker, which may be there later."""

    def __init__(
        self, node: Link, job: WatchedJob, tasks: Sequence[TaskLine], out_dir: Path | None
    ) -> None:
        from formation_p2p.command.outcomes import Whole

        self._node = node
        self._tasks = dict(zip([task.task_id for task in job.tasks], tasks, strict=True))
        self._out_dir = out_dir
        self._broken: dict[str, str] = {}
        self.is_unreachable = False
        self._whole = Whole()

    async def take(self, event: JobEvent) -> None:
        """Raises LocalError where it cannot be kept."""
        from formation_p2p.command.outcomes import process_result
        from formation_p2p.jobs.core.job_events import TaskPlaced, TaskPrinted, TaskSucceeded

        match event:
            case TaskPlaced(task_id) if self._out_dir is not None:
                self._whole.forget(task_id)
                for name in PRINTED:  # by an attempt that failed, or by an earlier job
                    path = self._folder(self._out_dir, task_id) / name
                    with local(path):
                        path.unlink(missing_ok=True)
            case TaskPrinted(task_id, is_stderr, data) if self._out_dir is not None:
                self._whole.lacks(event)
                folder = self._folder(self._out_dir, task_id)
                make_folder(folder)
                append(folder / PRINTED[is_stderr], data)
            case TaskSucceeded(task_id, _, result):
                try:
                    brought = process_result(result)
                    if self._out_dir is not None:
                        folder, line = self._folder(self._out_dir, task_id), self._tasks[task_id]
                        lacks = self._whole.lacks(event)
                        if lacks and not brought.stdout_sha256:  # the result has all of it
                            make_folder(folder)
                            write_tail(folder / PRINTED[False], brought.stdout_tail)
                        elif lacks:
                            self._broken[task_id] = lacks
                        write_outputs(folder, line.sent, brought.files)
                        await fetch_outputs(self._node, folder, line.brought, brought.outputs)
                        names = (*line.sent, *line.brought)
                        make_executable(folder, names, brought.executable)
                except (TaskFailed, Unreachable) as error:
                    self._broken[task_id] = str(error)
                    self.is_unreachable |= isinstance(error, Unreachable)
            case _:
                pass

    def checked(self, results: Sequence[TaskResult]) -> list[TaskResult]:
        """With those as failed that brought something else than was asked for."""
        from formation_p2p.jobs.core.job_events import Attempt

        return [
            replace(each, status="failed", reasons=(Attempt("", each.worker, why, lost=False),))
            if each.worker is not None and (why := self._broken.get(each.task_id))
            else each
            for each in results
        ]

    def _folder(self, out_dir: Path, task_id: str) -> Path:
        """There once something has come."""
        return out_dir / self._tasks[task_id].label


@contextlib.contextmanager
def bar(total: int) -> Iterator[Show]:
    """A progress bar, on a terminal; and what the job waits for, on any stderr."""
    from formation_p2p.api.output import terminal_bar
    from formation_p2p.command.outcomes import waits_in_words
    from formation_p2p.jobs.core.job_events import (
        JobWaits,
        TaskEnd,
        TaskPlaced,
        TaskReopened,
        TaskRetried,
        TaskSucceeded,
    )

    async def tell(event: JobEvent) -> None:
        if isinstance(event, JobWaits):
            say(f"formation: {waits_in_words(event)}")

    if not sys.stderr.isatty():
        yield tell
        return
    in_flight: set[str] = set()
    ended = failed = 0
    with terminal_bar(total, "looking for workers, 0 failed") as advance:

        async def show(event: JobEvent) -> None:
            nonlocal ended, failed
            match event:
                case TaskPlaced(task_id):
                    in_flight.add(task_id)
                case TaskRetried(task_id):
                    in_flight.discard(task_id)
                case TaskReopened():
                    ended -= 1
                case _ if isinstance(event, TaskEnd):
                    in_flight.discard(event.task_id)
                    ended += 1
                    failed += not isinstance(event, TaskSucceeded)
                case _:
                    await tell(event)
                    return
            advance(ended, f"{len(in_flight)} in flight, {failed} failed")

        yield show


def report(results: Sequence[TaskResult], took_s: float, out_dir: Path | None) -> None:
    from formation_p2p.command.outcomes import cause_of
    from formation_p2p.command.tables import console
    from formation_p2p.command.tables import results as table

    notes = {each.task_id: _note(each) for each in results}
    causes = {each.task_id: cause_of(each, notes[each.task_id]) for each in results}
    console().print(table(results, notes, causes))
    counts = {
        status: sum(each.status == status for each in results)
        for status in ("succeeded", "failed", "disagreed", "unplaceable", "cancelled")
    }
    counted = ", ".join(f"{count} {status}" for status, count in counts.items() if count)
    has_files = out_dir is not None and out_dir.is_dir() and any(out_dir.iterdir())
    where = f"; their files are in {out_dir}" if has_files else ""
    say(f"{counted}, in {took_s:.1f} s{where}")


def _note(result: TaskResult) -> str:
    """Why it has no result, or the last line of its output."""
    from formation_p2p.command.outcomes import (
        process_result,
        why_disagreed,
        why_failed,
        why_unplaceable,
    )

    match result.status:
        case "failed":
            return why_failed(result, printed=False)
        case "disagreed":
            return why_disagreed(result)
        case "unplaceable":
            return why_unplaceable(result.refusals)
        case "succeeded":
            try:
                printed = process_result(result.result).stdout_tail.decode(errors="replace")
            except TaskFailed:  # a function's, of a job that a program began
                return f"{format_bytes(len(result.result))} of a result"
            return one_line(next(iter(printed.strip().splitlines()[-1:]), ""))
        case _:
            return ""

"""`formation run`: one command, on a worker, as if it ran here."""

from __future__ import annotations

import asyncio
import fcntl
import io
import os
import stat
import sys
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, TextIO

from formation_p2p.command import flags
from formation_p2p.command.exits import DONE, IN_WORDS
from formation_p2p.command.files import (
    check_outputs,
    fetch_outputs,
    inline,
    make_executable,
    named,
    put_secrets,
    read_input,
    read_stdin,
    secret_files,
)
from formation_p2p.command.flags import argument, option
from formation_p2p.command.interrupt import Interrupt, end_with
from formation_p2p.command.owed import Submitting
from formation_p2p.command.script import script_of, with_header
from formation_p2p.command.start import waiting
from formation_p2p.command.task_flags import FLAGS, FUEL, IMAGE, WASM, Kind, PolicyCommand, takes
from formation_p2p.command.words import one_line, say
from formation_p2p.core.errors import InvalidInput, TaskFailed, Unplaceable
from formation_p2p.workload.core.process import ProcessSpec

if TYPE_CHECKING:
    from formation_p2p.command.local.client import Link, WatchedJob
    from formation_p2p.jobs.core.job_events import JobEvent
    from formation_p2p.placement.core.task_options import TaskOptionKwargs, TaskOptions
    from formation_p2p.workload.core.blob import Blob

    Show = Callable[[JobEvent], Awaitable[None]]

# A person who sees nothing for this long is told that no worker is free yet.
PATIENCE_S: Final = 3.0
# As a command that runs here: what fails is not tried again.
RUN_DEFAULTS: Final = {"attempts": 1}

RUN_EPILOG: Final = f"""
\b
Examples:
  formation run -- uname -a
  formation run --needs cpu=4,memory=8GiB -- make -j4
  formation run --in words.txt --out sorted.txt -- sort words.txt -o sorted.txt
  formation run --needs gpu.memory=24GB --timeout 2h --in train.py -- python3 train.py
  formation run --env requirements.txt --in train.py -- python train.py
  formation run analyse.py 2026
  formation run --wasm count.wasm --in words.txt -- words.txt
  formation run --image python:3.13-slim --needs network=1 -- python3 -V

\b
{IN_WORDS}"""

RunCommand: Final = PolicyCommand


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """What is to run, as a person wrote it."""

    argv: list[str] | None = argument(
        "ARGV", "The command and its arguments, as the worker is to run them."
    )
    files_in: list[Path] | None = option(
        "--in", "FILE", "Send this file to the command's folder. Repeatable."
    )
    files_out: list[str] | None = option(
        "--out", "FILE", "Fetch this file from the command's folder. Repeatable."
    )
    env: list[str] | None = option(
        "--env",
        "KEY=VALUE|FILE",
        "Set a variable for the command; or have the packages of a requirements.txt, "
        "pyproject.toml, uv.lock or pylock.toml installed for it. Repeatable.",
    )
    stdin: str | None = option(
        "--stdin", "FILE|-", "The command's stdin: this file, or our stdin; else empty."
    )
    secrets: list[str] | None = option(
        "--secret",
        "NAME=FILE",
        "Give the command this file's content as $FORMATION_SECRETS/NAME, in memory there and "
        "sealed on the way. Repeatable.",
    )
    wasm: Path | None = WASM
    fuel: int = FUEL
    image: str | None = IMAGE

    def packages(self) -> str | None:
        """The file that lists them. Raises InvalidInput."""
        found = [each for each in self.env or () if "=" not in each]
        if len(found) > 1:
            raise InvalidInput("env", f"{found[0]} and {found[1]} are two; name one file")
        return found[0] if found else None

    def read(self, kwargs: TaskOptionKwargs) -> _Run:
        """With the files that go along. Raises InvalidInput, LocalError."""
        sent, argv, kind = (
            self.files_in or [],
            self.argv or [],
            Kind(self.wasm, self.fuel, self.image),
        )
        if not argv and not kind.program:
            problem = "no program is named; write it last, as in `formation run -- uname -a`"
            raise InvalidInput("run", problem)
        of_script: TaskOptions | None = None
        place = script_of(argv, sent) if kind.driver == ProcessSpec.driver else None
        if place is not None:
            from formation_p2p.placement.policies import options_of

            script = Path(argv[place])
            of_script = with_header(script, options_of(kwargs))
            python = argv[:place] or ["python3"]
            if python == ["python"] and of_script.env is None:
                python = ["python3"]  # as it is called where no environment has its own
            sent, argv = [*sent, script], [*python, script.name, *argv[place + 1 :]]
        small, large = inline(named("in", sent))
        spec = ProcessSpec(
            (*kind.program, *argv),
            flags.pairs_of("env", [each for each in self.env or () if "=" in each]),
            None if self.stdin is None else read_stdin(self.stdin),
            small,
            outputs=tuple(self.files_out or ()),
        )
        hidden = secret_files(self.secrets or (), Path())
        for file in hidden.values():
            read_input(file)  # a file that cannot be read is reported before any worker is asked
        check_outputs(Path(), spec.outputs)
        kind.of(spec)  # errors in it come before any worker is asked
        return _Run(kind, spec, large, hidden, kwargs, of_script)


@dataclass(frozen=True, slots=True)
class _Run:
    """`large` and `hidden` are files by the names that the command sees. `of_script` are the
    options in place of `kwargs` where a script has asked for more."""

    kind: Kind
    spec: ProcessSpec
    large: Mapping[str, Path]
    hidden: Mapping[str, Path]
    kwargs: TaskOptionKwargs
    of_script: TaskOptions | None

    @property
    def name(self) -> str:
        return self.spec.argv[0]

    def require(self, place: Path) -> None:
        from formation_p2p.placement.policies import options_of
        from formation_p2p.trust.core.grants import Right

        options = self.of_script or options_of(self.kwargs)
        flags.require(place, Right.SUBMIT, driver=self.kind.driver, priority=options.priority)

    async def begin(self, node: Link) -> tuple[WatchedJob, Collection[Blob]]:
        """And the secrets that were put for it."""
        inputs = {name: await node.put(path) for name, path in self.large.items()}
        put = await put_secrets(node, self.hidden.values())
        sealed = {name: put[file] for name, file in self.hidden.items()}
        work = self.kind.of(replace(self.spec, inputs=inputs, secrets=sealed))
        begun = partial(node.submit, work, name=self.name, labels=[one_line(self.name)])
        if self.of_script is not None:
            return await begun(options=self.of_script), put.values()
        return await begun(**self.kwargs), put.values()


# Its own --env sets variables as well.
@takes(*(name for name in FLAGS if name != "env"), defaults=RUN_DEFAULTS)
def run(kwargs: TaskOptionKwargs, program: Program, submitting: Submitting) -> None:
    """Run one command on a worker, and wait for it.

    Its output is passed on while it runs, byte for byte. It runs in a new folder with the --in
    files, which is removed afterwards. Options of formation itself go before the command. A Python
    file of this machine is sent along, and has the packages that its header names (PEP 723). With
    --json, each event is a line of JSON.
    """
    if (packages := program.packages()) is not None:
        kwargs["env"] = packages
    flags.learn_peers(flags.folder_of(submitting.home, None), kwargs)
    what = program.read(kwargs)
    flags.refuse_local(kwargs.get("scope"))
    place = submitting.place()
    already = bytes(waiting[0].stdout) if waiting else b""

    async def place_and_wait(interrupt: Interrupt) -> int:
        async with submitting.node(place, lambda: what.require(place)) as node:
            job, secrets = await what.begin(node)
            from formation_p2p.command.outcomes import error_of, process_result, why_empty

            owed = submitting.begun(job, interrupt, "the command")
            if what.spec.outputs:
                owed.note(job.job_id, Path(), by_label=False)
            quorum = None if submitting.as_json else kwargs.get("quorum")
            show = _lines(job) if submitting.as_json else _pass_on(what.name)
            start = None if submitting.as_json else _start_of_file(len(already))
            lacks = await _shown(job, show, quorum, already, start)
            (result,) = await job.results()
            if result.status != "succeeded":
                owed.given(job.job_id)
            for secret in secrets:
                await node.drop_secret(secret)
            if result.status == "cancelled" and interrupt.number is not None:
                return interrupt.exit_code
            if result.status == "unplaceable" and not result.refusals:
                raise Unplaceable(f"no worker runs {what.name}: {await why_empty(node, place)}")
            error = error_of(result, what.name, printed=quorum is None)
            if error is not None:
                raise error
            brought = process_result(result.result)
            await fetch_outputs(node, Path(), what.spec.outputs, brought.outputs)
            make_executable(Path(), what.spec.outputs, brought.executable)
            owed.given(job.job_id)
            if lacks and not sys.stdout.isatty():
                raise TaskFailed(f"{what.name} succeeded, but {lacks}")
            return DONE

    end_with(place_and_wait)


async def _shown(
    job: WatchedJob, show: Show, quorum: object, already: bytes, start: int | None
) -> str | None:
    """What its stdout lacks, once it is over. `already` was shown before; what an attempt has
    printed that does not count is taken back in a file, from `start` on."""
    from formation_p2p.command.outcomes import Whole, begins_anew, passed_on

    shown, whole, lacks = passed_on(quorum), Whole(already), None
    async for event in job.events():
        for each in shown(event):
            await show(each)
            lacks = whole.lacks(each) or lacks
            if start is not None and begins_anew(each):
                os.ftruncate(sys.stdout.fileno(), start)
                os.lseek(sys.stdout.fileno(), start, os.SEEK_SET)
                whole = Whole()
    return lacks


def _start_of_file(already: int) -> int | None:
    """Where in a file our stdout begins, after so many bytes: what an attempt has printed that does
    not count is taken back then. None where it is not a plain file, or also that of stderr."""
    try:
        file, beside = sys.stdout.fileno(), sys.stderr.fileno()
    except io.UnsupportedOperation:
        return None
    status = os.fstat(file)
    if not stat.S_ISREG(status.st_mode) or os.path.sameopenfile(file, beside):
        return None
    appends = fcntl.fcntl(file, fcntl.F_GETFL) & os.O_APPEND
    return (status.st_size if appends else os.lseek(file, 0, os.SEEK_CUR)) - already


def _lines(job: WatchedJob) -> Show:
    from formation_p2p.command.as_json import lines_of

    return lines_of(job)


def _pass_on(what: str) -> Show:
    """Pass the output on as it is, and retries on stderr."""
    from formation_p2p.command.outcomes import retried_in_words, waits_in_words
    from formation_p2p.jobs.core.job_events import JobWaits, TaskPlaced, TaskPrinted, TaskRetried

    note = f"formation: no worker is free for {what} yet; waiting for one"
    impatience = asyncio.get_running_loop().call_later(PATIENCE_S, say, note)

    async def show(event: JobEvent) -> None:
        match event:
            case TaskPlaced():
                impatience.cancel()
            case TaskPrinted(_, is_stderr, data):
                # In a thread, so that a reader who dawdles does not keep Ctrl-C waiting.
                await asyncio.to_thread(write_output, sys.stderr if is_stderr else sys.stdout, data)
            case TaskRetried():
                say(f"formation: {retried_in_words(event)}")
            case JobWaits():
                impatience.cancel()
                say(f"formation: {waits_in_words(event)}")
            case _:
                pass

    return show


def write_output(stream: TextIO, data: bytes) -> None:
    """What a task has printed."""
    stream.buffer.write(data)
    stream.buffer.flush()

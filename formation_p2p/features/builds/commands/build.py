"""`formation build`: what a folder builds, on the workers that are capable and responsible."""

from __future__ import annotations

import asyncio
import contextlib
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from formation_p2p.command import flags
from formation_p2p.command.exits import DONE, IN_WORDS
from formation_p2p.command.files import local, make_folder
from formation_p2p.command.flags import argument, option
from formation_p2p.command.interrupt import Interrupt, end_with
from formation_p2p.command.node_options import Asking
from formation_p2p.command.run import write_output
from formation_p2p.command.task_flags import FLAGS, PolicyCommand, takes
from formation_p2p.command.words import put, say
from formation_p2p.core.errors import InvalidInput, LocalError, RemoteError
from formation_p2p.features.builds.commands.formfile import FORMFILE, read_formfile, tell_left_out
from formation_p2p.features.builds.core.build_plan import (
    CONTEXT,
    Around,
    Target,
    build_plan,
    parse_targets,
    script_run,
    wanted_of,
)
from formation_p2p.features.builds.core.formfile import Formfile, run_of
from formation_p2p.placement.core.task_options import TaskOptions
from formation_p2p.placement.policies import options_of
from formation_p2p.workload.core.matrix import folder_label
from formation_p2p.workload.core.process import ContainerSpec, ImageSpec, ProcessSpec

if TYPE_CHECKING:
    from formation_p2p.api.task_result import TaskResult
    from formation_p2p.command.local.client import Link, WatchedJob
    from formation_p2p.features.builds.context import Context
    from formation_p2p.features.builds.core.task_status import StatusChange
    from formation_p2p.jobs.core.job_events import JobEvent
    from formation_p2p.machine.core.requirements import Requirements
    from formation_p2p.placement.core.task_options import TaskOptionKwargs


TARGETS: Final = "build.toml"
SCRIPT: Final = "build.sh"
CONTAINERFILES: Final = ("Containerfile", "Dockerfile")


@dataclass(frozen=True, slots=True)
class Build:
    """`targets` are those to be built, `wanted` those whose results are brought back. `needs` are
    what the folder itself says, None for nothing."""

    name: str
    context: Context
    targets: Mapping[str, Target]
    wanted: Sequence[str]
    around: Around = Around()  # noqa: RUF009 - it is frozen
    needs: Requirements | None = None

    @property
    def driver(self) -> str:
        if any(each.containerfile for each in self.targets.values()):
            return ImageSpec.driver
        return ContainerSpec.driver if self.around.image else ProcessSpec.driver


def build_of(folder: Path, script: str | None, targets: Sequence[str], result: str | None) -> Build:
    """Raises InvalidInput, LocalError."""
    from formation_p2p.features.builds.context import context_of

    context = context_of(folder)
    name = folder_label("DIR", folder.resolve().name[:60] or "build")
    if script is None and TARGETS in context.files:
        if result is not None:
            raise InvalidInput("--result", f"{TARGETS} says what each target makes; leave it out")
        with local(folder / TARGETS):
            every = parse_targets((folder / TARGETS).read_text(encoding="utf-8", errors="replace"))
        chosen = wanted_of(every, targets)
        read = {x for each in chosen.values() for x in each.after}
        wanted = list(dict.fromkeys(targets)) or [x for x in chosen if x not in read] or [*chosen]
        return Build(name, context, chosen, wanted)
    if targets:
        raise InvalidInput("--target", f"{folder} has no {TARGETS} with targets; write one")
    one = Build(name, context, {}, (name,))
    if script is None and SCRIPT not in context.files and FORMFILE in context.files:
        return _by_formfile(one, read_formfile(folder / FORMFILE), result or "")
    if script is None and SCRIPT not in context.files:
        for file in CONTAINERFILES:
            if file in context.files:
                if result is not None:
                    raise InvalidInput(
                        "--result", f"an image by a {file} is one file; leave it out"
                    )
                return replace(one, targets={name: Target(name, "", containerfile=file)})
    script = script or SCRIPT
    if script not in context.files:
        raise LocalError(_missing(folder, script, context))
    return _by_run(one, script_run(script), result or "")


def _by_run(one: Build, run: str, result: str) -> Build:
    return replace(one, targets={one.name: Target(one.name, run, result)})


def _by_formfile(one: Build, formfile: Formfile, result: str) -> Build:
    """Its RUNs make the result; what an ENTRYPOINT runs is for those who use it. All of the folder
    goes along, so that COPY has nothing left to do."""
    run = run_of(formfile)
    if not run.steps:
        raise InvalidInput(FORMFILE, f"has no RUN that builds anything; write one, or {SCRIPT}")
    name = formfile.name or one.name
    named = replace(one, name=name, wanted=(name,), needs=formfile.needs)
    around = Around(run.env, run.image)
    return _by_run(replace(named, around=around), replace(run, command="").script, result)


def _missing(folder: Path, script: str, context: Context) -> str:
    if (folder / script).exists():
        ignored = "is there, and does not go along: it is ignored, or looks like a secret"
        return f"{folder / script} {ignored}; see .gitignore and .dockerignore"
    if script != SCRIPT:
        return f"{folder} has no {script}; --script names a file from that folder"
    return (
        f"{folder} has nothing that says how it is built; write {SCRIPT}, {TARGETS}, a "
        f"{FORMFILE} or a Containerfile, or name a script with --script"
    )


# As a command that runs here: what fails is not tried again.
BUILD_DEFAULTS: Final = {"attempts": 1}
NO_ENGINE: Final = (
    "an image is built on a worker with Docker or Podman that offers the driver image "
    "(formation worker --driver image); where there is none, write build.sh"
)
# Targets of which the responsible worker is looked up: each is a lookup in the DHT.
MAX_ASSESSED: Final = 16
# Meanwhile the job goes on, and its events wait to be shown.
ASSESS_S: Final = 5.0

BUILD_EPILOG: Final = f"""
\b
What is built: what --script names, or the first of these that DIR has:
  build.toml   targets in an order, each with run or script: see docs/reference/job-files.md
  build.sh     a script, which leaves its results in the folder $OUT
  Formfile     the RUNs of a Formfile, with what it needs; in the image of its FROM, if it has one
  Containerfile, Dockerfile
               an image, as `docker save` writes it, on a worker with the driver image
\b
Examples:
  formation build . --needs cpu=2,memory=1GiB
  formation build . --script ci/build.sh --result app.zip -o app.zip
  formation build . --target app -o app

\b
{IN_WORDS}"""

BuildCommand: Final = PolicyCommand


@takes(*FLAGS, defaults=BUILD_DEFAULTS)
def build(
    kwargs: TaskOptionKwargs,
    folder: Path = argument("DIR", "The folder with the files of the build.", default=...),
    script: str | None = option(
        "--script", "FILE", "Run this script of the folder, in place of build.sh."
    ),
    targets: list[str] | None = option(
        "--target", "NAME", "Build this target of build.toml, and those before it. Repeatable."
    ),
    result: str | None = option(
        "--result", "FILE", "The file that the script makes; else all of $OUT, as a tar."
    ),
    output: Path | None = option(
        "-o", "FILE|DIR/", "Where the result goes; by default under its own name, here."
    ),
    *,
    asking: Asking,
) -> None:
    """Build what a folder holds on a worker, and bring the result back.

    The folder's files go along by content: in a git repository what .gitignore does not name, no
    secrets, and nothing that .dockerignore leaves out. The build runs in the worker's sandbox,
    without a network unless --needs network=1. Of the workers that are capable and have room the
    nearest one by XOR is responsible for it. Each status comes with its reason.
    """
    place = asking.place()
    flags.learn_peers(place, kwargs)
    flags.refuse_local(kwargs.get("scope"))
    made = build_of(folder, script, targets or (), result)
    tell_left_out(made.context.left_out)
    options = options_of(kwargs)
    if made.needs is not None and "needs" not in kwargs:
        options = replace(options, needs=made.needs, memory_given=True)
    places = places_of(made, output)

    def may() -> None:
        from formation_p2p.trust.core.grants import Right

        flags.require(place, Right.SUBMIT, driver=made.driver, priority=options.priority)

    async def place_and_wait(interrupt: Interrupt) -> int:
        from formation_p2p.command.outcomes import error_of, exit_code_of, why_empty

        with packed(made) as tar:
            async with asking.reach(place, may) as node:
                plan = build_plan(made.targets, await node.put(tar), made.around)
                job = await node.submit(plan, name=made.name, options=options)
                interrupt.first(job.cancel, "cancelling the build")
                await Watch(job, as_json=asking.as_json).to_end(node, options, made)
                results = await job.results()
                if interrupt.number is not None and any(x.status == "cancelled" for x in results):
                    return interrupt.exit_code
                if all(each.status == "unplaceable" and not each.refusals for each in results):
                    say(f"formation: no worker could be asked: {await why_empty(node, place)}")
                for each in results:
                    if not each.waited_for and (error := error_of(each, each.label)) is not None:
                        say(f"formation: {error}")
                if made.driver == ImageSpec.driver and results[0].status == "unplaceable":
                    say(f"formation: {NO_ENGINE}")
                if (code := exit_code_of(results)) == DONE:
                    await bring(node, made, places, results)
                return code

    end_with(place_and_wait)


@contextlib.contextmanager
def packed(made: Build) -> Iterator[Path]:
    """The build's files as one tar, which lies here while workers fetch it. Raises LocalError."""
    from formation_p2p.features.builds.context import write_tar

    with tempfile.TemporaryDirectory(prefix="formation-") as scratch:
        tar = Path(scratch, CONTEXT)
        write_tar(made.context.files, tar)
        yield tar


def places_of(made: Build, output: Path | None) -> dict[str, Path]:
    """Where the result of each wanted target goes. Raises InvalidInput, LocalError."""
    into = output is None or output.is_dir() or len(made.wanted) > 1
    given = Path() if output is None else output
    if into and given.exists() and not given.is_dir():
        several = ", ".join(made.wanted)
        raise InvalidInput("-o", f"there are several results ({several}); name a folder")
    places = {x: given / _file_of(made.targets[x]) if into else given for x in made.wanted}
    if len(set(places.values())) < len(places):
        raise InvalidInput("--target", "two of the results have one name; build them one by one")
    for path in places.values():
        if path.is_dir():
            raise LocalError(f"{path} is a folder, where a file of that name is to go; give -o")
    return places


def _file_of(target: Target) -> str:
    return Path(target.result).name or f"{target.name}.tar"


async def bring(
    node: Link, made: Build, places: Mapping[str, Path], results: Sequence[TaskResult]
) -> None:
    """Fetch the results. Raises LocalError, RemoteError, TaskFailed."""
    from formation_p2p.command.outcomes import process_result
    from formation_p2p.core.units import format_bytes

    ended = {each.label: each for each in results}
    for name, path in places.items():
        outputs = process_result(ended[name].result).outputs
        blob = outputs.get(made.targets[name].output)
        if blob is None:
            raise RemoteError(f"the worker did not send the result of {name}; try another worker")
        make_folder(path.parent)
        await node.get(blob, path)
        say(f"formation: {name}: {path} ({format_bytes(blob.size_bytes)})")


class Watch:
    """Shows what happens to a build: each status with its reason, and what it prints."""

    def __init__(self, job: WatchedJob, *, as_json: bool) -> None:
        from formation_p2p.features.builds.core.task_status import Statuses
        from formation_p2p.machine.names import named

        self._job = job
        self._labels = {task.task_id: task.label for task in job.tasks}
        self._statuses = Statuses(self._labels, lambda x: self._labels.get(x) or named(x))
        self._as_json = as_json
        self._lines = None
        if as_json:
            from formation_p2p.command.as_json import lines_of

            self._lines = lines_of(job)

    async def to_end(self, node: Link, options: TaskOptions, made: Build) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(ASSESS_S):
                await self._assess(node, options, made)
        async for event in self._job.events():
            await self._show(event)

    async def _assess(self, node: Link, options: TaskOptions, made: Build) -> None:
        """Which worker is responsible for each target that can begin."""
        from formation_p2p.machine.core.requirements import parse_requirements

        placing = TaskOptions(
            max_price_micro=options.max_price_micro,
            env=options.env,
            policy=options.policy,
            hints=options.hints,
            scope=options.scope,
        )
        ready = [x for x in self._job.tasks if not made.targets[x.label].after][:MAX_ASSESSED]
        for task in ready:
            written = made.targets[task.label].needs
            needs = options.needs if written is None else parse_requirements(written)
            needs = replace(needs, driver=made.driver)
            try:
                found = await node.discover(needs, name=task.task_id, options=placing)
            except RemoteError:
                return  # the job goes on, and its events say how
            self._tell(self._statuses.assessed(task.task_id, found.decision))

    async def _show(self, event: JobEvent) -> None:
        from formation_p2p.jobs.core.job_events import TaskPrinted

        self._tell(self._statuses.observed(event))
        if self._lines is not None:
            await self._lines(event)
        elif isinstance(event, TaskPrinted):
            stream = sys.stderr if event.is_stderr else sys.stdout
            await asyncio.to_thread(write_output, stream, event.data)

    def _tell(self, changes: Sequence[StatusChange]) -> None:
        for each in changes:
            label = self._labels[each.task_id]
            if self._as_json:
                status = {"event": "status", "task": label, "status": each.status.value}
                put({**status, "reason": each.reason})
            else:
                say(f"formation: {label}: {each.status.value} {each.reason}")

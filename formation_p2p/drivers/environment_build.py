"""Environments, built by uv.

Packages are installed from wheels, without running anything of them. Where one has no wheel, it is
built from its sources, which runs foreign code: that has a cache of its own, so that it changes
nothing of what others get. Both run in the sandbox, where they reach the index by way of the node
and no other program (index_relay.py), and see nothing of the node.
What they may write to are mounts there, which cannot be moved or exchanged; where those lie, and
the record that the node keeps beside them, they do not see.

docs/explanation/environments.md says what comes from where.
"""

from __future__ import annotations

import re
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final

import trio

from formation_p2p.content.places import UNKNOWN
from formation_p2p.core.errors import FormationError, LocalError, Unreachable
from formation_p2p.core.identity import PeerId
from formation_p2p.core.units import GIB, KIB, MIB, format_bytes
from formation_p2p.drivers.core.limits import TaskLimits
from formation_p2p.drivers.driver import BlobAccess, Output, Stream
from formation_p2p.drivers.ending import Ending
from formation_p2p.drivers.index_relay import IndexRelay, address_of, named
from formation_p2p.drivers.launch import Launch
from formation_p2p.drivers.machine import Machine, base_environment, interpreter_environment
from formation_p2p.drivers.supervised import Supervised
from formation_p2p.environments import compile_all
from formation_p2p.environments.cache import VENV, EnvironmentCache, Place, key_of, place_of
from formation_p2p.environments.settings import EnvironmentSettings, Source, network_variables
from formation_p2p.environments.uv import EnvironmentFailed, uv_program
from formation_p2p.machine.clock import moment
from formation_p2p.machine.folders import folder_bytes, remove_folder_now
from formation_p2p.machine.pythons import Interpreter
from formation_p2p.workload.core.environment import Environment

# Beside what the worker lends, as other tasks wait for it too. Resolving takes 200 MB, and a
# compiler of C++ up to 1 GiB on each core; uv itself keeps all that a package's code prints.
_CPU_MILLI: Final = 2000
_MEMORY_BYTES: Final = 2 * GIB
# One small package, in whole blocks of a disk.
_LEAST_BYTES: Final = MIB
# What uv and build backends print: hundreds of lines of a compiler.
_MAX_LOG_BYTES: Final = 256 * KIB
# Of the end of it, in the message of a failure, where uv says what went wrong.
_TAIL_BYTES: Final = 2 * KIB
# Of these the last lines, in the message of one that is stopped.
_LAST_LINES: Final = 3
# uv says nothing else while a package's own code tells what that needs; of this part of it, what
# names the package is passed on, as uv says it later.
_RUST_LOG: Final = "uv_distribution::source=debug"
_ASKS: Final = re.compile(rb"(?m)^DEBUG Preparing metadata for: ")
_DEBUG: Final = re.compile(rb"(?m)^DEBUG .*\n")
# uv's own words, where all was found; and where all but a wheel was.
_HAS_ALL: Final = b"Resolved "
_NEEDS_SOURCES: Final = b"building from source is disabled"

_GREETING: Final = re.compile(r"(?m)^Using Python .*\n")

# A shell, so that one sandbox is started for all. $1 is uv, $2 the interpreter, $3 the folder, $4
# compile_all.py, $5 where it keeps what it compiles, if it does, $6 a file that is there once the
# index can be asked; the rest is for `uv pip install`.
# Tasks cannot write bytecode there, and would compile each module each time: 4 s for scikit-learn.
# -S runs no .pth file.
_SCRIPT: Final = """
uv=$1 python=$2 venv=$3 compile=$4 kept=$5 index=$6
shift 6
until [ -z "$index" ] || [ -e "$index" ]; do sleep 0.01; done
"$uv" venv --quiet --python "$python" "$venv" && "$uv" pip install --python "$venv" "$@" || exit
"$python" -I -S "$compile" "$venv/lib" ${kept:+"$kept"} || true
"""

# In the folder of a build, once the index can be asked.
_LISTENS: Final = "index-listens"
# Among the downloads, and removed with them.
_COMPILED: Final = "formation-bytecode"

Log = Callable[[Stream, bytes], None]


@dataclass(frozen=True, slots=True)
class BuiltEnvironment:
    """`python` is its interpreter, `folder` is what a task may read of it."""

    folder: Path
    python: Path

    @property
    def variables(self) -> dict[str, str]:
        """For a process: its programs come first."""
        path = base_environment(self.folder)["PATH"]
        return {"PATH": f"{self.python.parent}:{path}", "VIRTUAL_ENV": str(self.folder)}


@asynccontextmanager
async def environment_for(
    machine: Machine,
    environment: Environment,
    python: str,
    blobs: BlobAccess | None,
    log: Log,
    owner: PeerId = UNKNOWN,
) -> AsyncIterator[BuiltEnvironment]:
    """An environment for a task that asks for `python`, built if it is not here yet; it stays while
    the block runs. One task at a time builds it, to whose `log` goes what uv prints, and the others
    wait, as do others of the same owner. Raises EnvironmentFailed; RemoteError where the wheels
    that are to come along do not."""
    cache = machine.environments
    if cache is None:
        raise EnvironmentFailed("this machine has no place for environments; choose another")
    interpreter = machine.interpreter(python)
    key = key_of(environment, python, interpreter)
    async with cache.in_use(key):
        is_known = cache.find(key) or cache.failures.get(key, moment()) is not None
        if not is_known and blobs is not None:
            # Before its turn, and of no other's: who asks for it names who has them.
            await _fetch_wheels(environment, blobs, owner, cache.settings.build_s)
        if not cache.find(key):
            async with cache.owners.of(owner), cache.turns.of(key):
                if not cache.find(key):
                    if (why := cache.failures.get(key, moment())) is not None:
                        raise EnvironmentFailed(why)
                    async with cache.builds:
                        rest = environment, interpreter, blobs, log, owner
                        await _Build(machine, cache, key, *rest).run()
        folder = cache.folder(key) / VENV
        yield BuiltEnvironment(folder, folder / "bin" / "python")


async def _fetch_wheels(
    environment: Environment, blobs: BlobAccess, owner: PeerId, within_s: float
) -> None:
    """Raises EnvironmentFailed, RemoteError."""
    try:
        with trio.move_on_after(within_s) as time:
            await blobs.fetch_ahead((blob for _, blob in environment.wheels), owner)
    except LocalError as error:
        raise EnvironmentFailed(f"the environment could not be made here: {error}") from error
    if time.cancelled_caught:
        raise Unreachable(f"the wheels did not come within {within_s:g} s")


@dataclass(slots=True)
class _Held:
    """What uv prints when it looks for wheels alone: kept back until it has found all. That a
    package has none is no error where that can be built."""

    log: Log
    _kept: list[tuple[Stream, bytes]] | None = field(default_factory=list)

    def take(self, stream: Stream, data: bytes) -> None:
        if self._kept is None:
            self.log(stream, data)
            return
        self._kept.append((stream, data))
        if _HAS_ALL in data:
            self.release()

    def release(self) -> None:
        kept, self._kept = self._kept or [], None
        for stream, data in kept:
            self.log(stream, data)


@dataclass(slots=True)
class _Build:
    machine: Machine
    cache: EnvironmentCache
    key: str
    environment: Environment
    interpreter: Interpreter
    blobs: BlobAccess | None
    log: Log
    owner: PeerId
    downloads: Path = field(init=False)
    most_bytes: int = field(init=False)
    """On the disk, while it is built."""

    async def run(self) -> None:
        """Raises EnvironmentFailed; nothing is left then, nor where it is cancelled."""
        uv = uv_program()
        folder = self.cache.folder(self.key)
        await self.cache.make_room()
        self.downloads = self.cache.downloads
        # What is downloaded is there a second time once it is installed.
        self.most_bytes = self.cache.download_bytes + 2 * self.cache.left_bytes
        async with self.cache.in_use(self.downloads.name):
            try:
                made = await self._build(uv, folder)
                size_bytes = await trio.to_thread.run_sync(folder_bytes, folder)
                self.cache.add(self.key, size_bytes, made)
            except BaseException as error:
                with trio.CancelScope(shield=True):
                    await trio.to_thread.run_sync(remove_folder_now, folder)
                if not isinstance(error, OSError | FormationError):
                    raise
                why = str(error)
                if not isinstance(error, EnvironmentFailed):
                    why = f"the environment could not be made here: {error}"
                self.cache.failures.learn(self.key, why, moment())
                raise EnvironmentFailed(why) from error
            finally:
                with trio.CancelScope(shield=True):
                    for path in self.cache.leftovers():
                        await trio.to_thread.run_sync(remove_folder_now, path)
                    await trio.to_thread.run_sync(self.cache.measure)

    async def _build(self, uv: str, folder: Path) -> Place:
        """Returns which folder it was built in. All that ran for it is dead then."""
        settings = self.cache.settings
        shipped_bytes = sum(blob.size_bytes for _, blob in self.environment.wheels)
        if self.cache.left_bytes < max(_LEAST_BYTES, shipped_bytes):
            raise EnvironmentFailed(f"the environment has no room here: {self.cache.room}")
        self._note(f"building environment {self.key.partition('-')[0]}\n")
        await trio.to_thread.run_sync(remove_folder_now, folder)
        self.downloads.mkdir(mode=0o700, exist_ok=True)
        work = folder / "build"
        work.mkdir(mode=0o700, parents=True)
        lines = "".join(f"{line}\n" for line in self.environment.requirements)
        (work / "requirements.txt").write_text(lines)
        source = await self._source(settings, work)
        sources = bool(not self.environment.wheels) and settings.builds_sources(
            sandboxed=self.machine.sandbox is not None
        )
        first = _Held(self._told)
        output = Output(first.take if sources else self._told, _MAX_LOG_BYTES)
        made = await trio.to_thread.run_sync(_new_folder, folder / VENV)
        with trio.move_on_after(settings.build_s) as time:
            ending = await self._uv(uv, folder, source, output, sources=False)
            if sources and _NEEDS_SOURCES in output.tail("stderr"):
                self._note("a package has no wheel: building it from its sources\n")
                made = await trio.to_thread.run_sync(_new_folder, folder / VENV)
                output = Output(self._readable, _MAX_LOG_BYTES)
                ending = await self._uv(uv, folder, source, output, sources=True)
            else:
                first.release()
        if time.cancelled_caught or ending.how != "exit" or ending.number:
            first.release()
        if time.cancelled_caught:
            why = f"uv was stopped after {settings.build_s:g} s; ask for less"
            if last := self._words(output).splitlines()[-_LAST_LINES:]:
                why += "; it was stopped while: " + "\n".join(last)
            raise EnvironmentFailed(why)
        if ending.how != "exit" or ending.number:
            why = self._why(ending, output)
            if self.environment.wheels:
                mine = self.interpreter.python
                why = f"with the wheels that came along, for {mine.name} on {mine.platform}: {why}"
            raise EnvironmentFailed(why)
        await trio.to_thread.run_sync(remove_folder_now, work)
        return made

    async def _source(self, settings: EnvironmentSettings, work: Path) -> Source:
        """Raises EnvironmentFailed, LocalError, RemoteError."""
        if self.environment.wheels:
            if self.blobs is None:
                raise EnvironmentFailed("this machine keeps no data, and so gets no wheels")
            wheels = work / "wheels"
            wheels.mkdir(mode=0o700)
            with trio.move_on_after(settings.build_s) as time:
                files = ((wheels / n, blob) for n, blob in self.environment.wheels)
                await self.blobs.copies(files, self.owner)
            if time.cancelled_caught:
                raise EnvironmentFailed(f"the wheels did not come within {settings.build_s:g} s")
            return Source(options=("--offline", "--no-index", "--find-links", str(wheels)))
        allowed = settings.own_indexes
        if not allowed:
            raise EnvironmentFailed('this machine uses no package index; use wheels="ship"')
        for url in self.environment.indexes:
            if url not in allowed:
                raise EnvironmentFailed(f"this machine does not allow the package index {url}")
        return Source((*self.environment.indexes, allowed[0]))

    async def _uv(
        self, uv: str, folder: Path, source: Source, output: Output, *, sources: bool
    ) -> Ending:
        relay = None
        if self.machine.sandbox is not None and source.indexes:
            relay = IndexRelay(source.indexes, self.cache.seal)
        listens = folder / "build" / _LISTENS
        listens.unlink(missing_ok=True)
        launch = self._launch(uv, folder, source, relay, sources=sources)
        async with trio.open_nursery() as nursery:
            task = await Supervised.start(self.machine.without_lent, launch)
            try:
                if relay is not None:
                    nursery.start_soon(relay.serve, partial(listens.touch, 0o600, exist_ok=False))
                return await task.run_to_end(output, None)
            finally:
                await task.close()
                nursery.cancel_scope.cancel()

    def _launch(
        self, uv: str, folder: Path, source: Source, relay: IndexRelay | None, *, sources: bool
    ) -> Launch:
        work, venv = folder / "build", folder / VENV
        if relay is not None:
            reach = source.variables(address_of)
        else:
            reach = {**network_variables(), **source.variables()}
        # Build backends are foreign code: what they leave in a cache is for this environment alone.
        downloads = work / "cache" if sources else self.downloads
        writable = (venv,) if sources else (venv, downloads)
        script = (
            "/bin/sh",
            "-c",
            _SCRIPT,
            "sh",
            uv,
            str(self.interpreter.path),
            str(venv),
            compile_all.__file__,
            "" if sources else str(downloads / _COMPILED),
            "" if relay is None else str(work / _LISTENS),
        )
        return Launch(
            argv=(
                *script,
                *("--requirement", str(work / "requirements.txt")),
                *(() if sources else ("--no-build",)),
                *source.options,
            ),
            environment={
                **base_environment(work),
                **interpreter_environment(),
                **reach,
                "UV_CACHE_DIR": str(downloads),
                "UV_NO_CONFIG": "1",
                "UV_NO_PROGRESS": "1",
                **({"RUST_LOG": _RUST_LOG} if sources else {}),
                "UV_PYTHON_DOWNLOADS": "never",
                # A task may change what it has without a sandbox, but not what others get.
                "UV_LINK_MODE": "copy",
                "NO_COLOR": "1",
            },
            folder=work,
            # Without a sandbox it has the machine's network in any case.
            limits=TaskLimits(_CPU_MILLI, _MEMORY_BYTES, self.most_bytes),
            ports=None if relay is None else relay.ports,
            shown=(Path(uv).resolve().parent, Path(compile_all.__file__).parent),
            writable=writable,
            counted=writable,
        )

    def _why(self, ending: Ending, output: Output) -> str:
        words = self._words(output)
        # At a single file of more than that the kernel stops uv, of which the shell tells so.
        too_large = ending.number == 128 + signal.SIGXFSZ
        match "storage" if too_large else ending.how:
            case "storage":
                most = format_bytes(self.most_bytes)
                return f"uv was stopped at {most} with its downloads: {self.cache.room}"
            case "memory":
                return f"uv was stopped at {format_bytes(_MEMORY_BYTES)} of memory"
            case _:
                return f"uv could not make the environment: {words or ending.problem or ending.how}"

    def _readable(self, stream: Stream, data: bytes) -> None:
        if readable := _without_debug(data):
            self._told(stream, readable)

    def _told(self, _: Stream, data: bytes) -> None:
        """What uv and builds print: the task's stdout is its own."""
        self.log("stderr", self._named(data))

    def _named(self, printed: bytes) -> bytes:
        own = self.cache.settings.own_indexes
        return named((*self.environment.indexes, *own), printed)

    def _words(self, output: Output) -> str:
        said = self._named(_without_debug(output.tail("stderr")))
        return _GREETING.sub("", said[-_TAIL_BYTES:].decode(errors="replace")).strip()

    def _note(self, text: str) -> None:
        self.log("stderr", f"formation: {text}".encode())


def _new_folder(path: Path) -> Place:
    """In the place of what an attempt before has left."""
    remove_folder_now(path)
    path.mkdir(mode=0o700)
    return place_of(path)


def _without_debug(data: bytes) -> bytes:
    return _DEBUG.sub(b"", _ASKS.sub(b"   Building ", data))

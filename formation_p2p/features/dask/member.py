"""What a member of a Dask cluster runs, in its task: the scheduler, or one life of a worker.

Members have this module by value, where this package is not installed: it imports no other of this
package than `place`, `comm` and `scheduler`.
"""

from __future__ import annotations

import asyncio
import ctypes
import gc
import os
import pickle
import platform
import sys
import threading
from contextlib import suppress
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from traceback import format_exception
from typing import TYPE_CHECKING, Any, Final

import dask
import psutil
from distributed import Worker
from distributed.comm.registry import backends
from distributed.core import Status
from distributed.protocol import register_serialization_family
from tornado.ioloop import PeriodicCallback

from formation_p2p.features.dask.comm import (
    GANG,
    GANG_ID,
    MARKED,
    PREFIX,
    RANK,
    SCHEME,
    FormationBackend,
    own_place,
)
from formation_p2p.features.dask.scheduler import DASHBOARD_PORT, FormationScheduler

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Mapping

# Two releases of these do not read each other's messages and graphs.
COMPARED: Final = ("dask", "distributed", "cloudpickle", "msgpack", "numpy")
# Where the scheduler listens; Dask's own.
SCHEDULER_PORT: Final = 8786
# How many workers a Dask task may lose before it is given up: as many as any other task of the
# network (`max_lost` in jobs/core/parameters.py).
ALLOWED_FAILURES: Final = 5
# What is told of an end that was not in good order: a pipe holds it.
MAX_PROBLEM_BYTES: Final = 4096
# <malloc.h>, and the value that Dask's nanny starts its workers with.
_M_TRIM_THRESHOLD: Final = -1
_TRIM_BYTES: Final = 64 * 1024
# Looks of a paused worker that find no change, a second apart, until it ends: later than a life
# that the cluster counts as one that failed at its start.
STUCK_LOOKS: Final = 6


def versions() -> dict[str, str]:
    """Of this process. numpy may be absent."""
    found = {"python": ".".join(platform.python_version_tuple()[:2])}
    for name in COMPARED:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "none"
    return found


def differing(own: Mapping[str, str], expected: Mapping[str, str], who: str) -> str | None:
    """What keeps a member from a cluster, for people; None where nothing does."""
    wrong = [name for name, asked in expected.items() if own.get(name) != asked]
    if not wrong:
        return None
    pairs = ", ".join(f"{x} {own.get(x, 'none')} instead of {expected[x]}" for x in wrong)
    asked = " ".join(f"{each}=={expected[each]}" for each in wrong if each != "python")
    how = f"install {asked} there" if asked else "have it offer that Python"
    return f"{who} has {pairs}; {how}, or bring the packages along with env="


def enter(member: Any, expected: Mapping[str, str]) -> None:
    """Raises RuntimeError where this member's packages are not the cluster's."""
    os.environ |= {RANK: str(member.rank), GANG_ID: member.gang_id, GANG: member.folder}
    problem = differing(versions(), expected, f"member {member.rank}")
    if problem is not None:
        raise RuntimeError(problem)
    backends[SCHEME] = FormationBackend()
    # Dask serializes in several threads.
    dumps = partial(marked, result_pickler(member), threading.Lock())
    register_serialization_family(MARKED, dumps, None)
    return_freed_memory()
    # A member that is replaced takes a while to come back under its address.
    dask.config.set({"distributed.comm.timeouts.connect": "20s"})


def result_pickler(member: Any) -> Any:
    """What pickles results of calls in this interpreter, which need not have this package: its file
    is in the room of drivers, which the file of the class of members leads to."""
    name = f"{SCHEME}_p2p_result_pickler"
    if name not in sys.modules:
        library = Path(str(sys.modules[type(member).__module__].__file__)).parents[3]
        spec = spec_from_file_location(name, library / "drivers" / "result_pickler.py")
        assert spec is not None
        assert spec.loader is not None
        sys.modules[name] = module_from_spec(spec)
        spec.loader.exec_module(sys.modules[name])
    return sys.modules[name]


def marked(
    pickler: Any, pickling: threading.Lock, value: object
) -> tuple[dict[str, Any], list[Any]]:
    """As a family of serializers has it, for an owner that reads results as data."""
    buffers: list[pickle.PickleBuffer] = []
    with pickling:
        pickled = pickler.dumps(value, buffers.append)
    return {}, [pickled, *(each.raw() for each in buffers)]


def return_freed_memory() -> None:
    """Have the C library return what is freed to the kernel. By default glibc keeps freed arrays of
    up to 32 MiB each: they count as used, nothing of them can be spilled, and a small worker that
    Dask pauses for its memory stays paused."""
    with suppress(AttributeError):  # another C library
        ctypes.CDLL(None).mallopt(_M_TRIM_THRESHOLD, _TRIM_BYTES)


def live(life: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """One life, in a process of its own. This one has imported Dask, which takes seconds, and is
    kept warm for the next life. Raises RuntimeError with what ended it, where it did not end in
    good order."""
    reads, writes = os.pipe()
    gc.freeze()  # else its first collection copies all pages that it shares
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    process = os.fork()
    if not process:
        code = 1
        try:
            if "numpy" in sys.modules:  # two lives would draw the same numbers
                sys.modules["numpy"].random.seed()
            asyncio.run(life())
            code = 0
        except BaseException as error:  # noqa: BLE001 - the process ends with it
            os.write(writes, "".join(format_exception(error)).encode()[-MAX_PROBLEM_BYTES:])
        finally:
            for stream in (sys.stdout, sys.stderr):
                stream.flush()
            os._exit(code)  # what is above it on the stack is the other process's
    _, status = os.waitpid(process, 0)
    os.close(writes)
    os.set_blocking(reads, False)  # what it has forked itself may hold the other end
    with os.fdopen(reads, "rb") as pipe:
        problem = (pipe.read(MAX_PROBLEM_BYTES) or b"").decode(errors="replace")
    if os.WIFSIGNALED(status):
        problem = f"its process was ended by signal {os.WTERMSIG(status)}"
    if problem:
        raise RuntimeError(problem)


def run_scheduler(member: Any, spec: Mapping[str, Any]) -> None:
    """Until the cluster ends it, or its process ends."""
    enter(member, spec["versions"])
    live(_schedule)


async def _schedule() -> None:
    # The HTTP server has an address of its own, that nothing outside the sandbox reaches; a
    # service of the member leads to it.
    scheduler = FormationScheduler(
        host=f"{PREFIX}{own_place().host}",
        port=SCHEDULER_PORT,
        dashboard_address="127.0.0.1:0",
        allowed_failures=ALLOWED_FAILURES,
    )
    async with scheduler:
        listener, _ = own_place().listening(DASHBOARD_PORT, 128)
        scheduler.http_server.add_socket(listener)
        await scheduler.finished()


class MemberWorker(Worker):  # type: ignore[misc]
    """It ends where it cannot go on: its cluster starts it again, under the same name."""

    def __init__(self, *args: Any, look_s: float = 1.0, **options: Any) -> None:
        super().__init__(*args, **options)
        self.handlers["formation_running"] = self.running
        self.periodic_callbacks["formation-look"] = PeriodicCallback(self._look, look_s * 1000)
        self._in_memory, self._looks = -1, 0

    async def _look(self) -> None:
        """Dask pauses a worker above 80 % of its memory, until results that it spills make room.
        Where what is used are no results, or the disk is full, that is never: what was assigned to
        it would wait for ever. It hands over its results, and a new life begins with little."""
        before, self._in_memory = self._in_memory, len(getattr(self.data, "fast", ()))
        waits = self.status == Status.paused and not self.running() and before == self._in_memory
        self._looks = self._looks + 1 if waits else 0
        if self._looks == STUCK_LOOKS:
            await self.close_gracefully(reason="its memory is in use, and nothing can be spilled")

    def running(self) -> int:
        """How many tasks are being run, and not merely here."""
        return len(self.state.executing) + len(self.state.long_running)


def run_worker(member: Any, spec: Mapping[str, Any]) -> None:
    """One life of a worker: until it is retired, or has lost its scheduler."""
    enter(member, spec["versions"])
    own = psutil.Process().memory_info()
    spare_bytes = spec["memory_bytes"] - (own.rss - own.shared)
    live(partial(_work, member.rank, spec, max(spare_bytes, spec["memory_bytes"] // 2)))


async def _work(rank: int, spec: Mapping[str, Any], memory_bytes: int) -> None:
    worker = MemberWorker(
        f"{PREFIX}m0.{os.environ[GANG_ID]}:{SCHEDULER_PORT}",
        name=rank,
        host=f"{PREFIX}{own_place().host}",
        nthreads=spec["threads"],
        memory_limit=memory_bytes,
        resources=spec["resources"],
        local_directory=str(Path.cwd()),
        dashboard_address="127.0.0.1:0",
        death_timeout=60,
    )
    async with worker:
        await worker.finished()

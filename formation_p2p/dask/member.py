"""What a member of a Dask cluster runs, in its task: the scheduler, or one life of a worker.

Members have this module by value, where this package is not installed: it imports no other of this
package than `place`, `comm` and `scheduler`.
"""

from __future__ import annotations

import asyncio
import gc
import os
import platform
import sys
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from traceback import format_exception
from typing import TYPE_CHECKING, Any, Final

import dask
import psutil
from distributed import Worker
from distributed.comm.registry import backends

from formation_p2p.dask.comm import PREFIX, SCHEME, FormationBackend
from formation_p2p.dask.place import GANG, GANG_ID, RANK, own_place
from formation_p2p.dask.scheduler import DASHBOARD_PORT, FormationScheduler

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Mapping

# Two releases of these do not read each other's messages and graphs.
COMPARED: Final = ("dask", "distributed", "cloudpickle", "msgpack", "numpy")
# Where the scheduler listens; Dask's own.
SCHEDULER_PORT: Final = 8786
# How many workers a Dask task may lose before it is given up: as many as any other task of the
# network (`max_lost` in core/dispatch/parameters.py).
ALLOWED_FAILURES: Final = 5
# What is told of an end that was not in good order: a pipe holds it.
MAX_PROBLEM_BYTES: Final = 4096


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
    # A member that is replaced takes a while to come back under its address.
    dask.config.set({"distributed.comm.timeouts.connect": "20s"})


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

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.handlers["formation_running"] = self.running

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

"""Find the most complex functions of Python's standard library, on a network of one gate and
three workers, one of which is killed half-way.

All four are processes of their own that talk libp2p over the loopback interface, as they would
between machines. Every number that is printed is counted from what the job told.
"""

from __future__ import annotations

import asyncio
import json
import os
import platform
import signal
import sysconfig
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import cloudpickle
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from formation_demo import complexity
from formation_demo.complexity import analyse
from formation_demo.local_network import LocalNetwork, NodeProcess
from formation_p2p import (
    FormationError,
    JobEvent,
    JobHandle,
    Node,
    TaskPlaced,
    TaskRecalled,
    TaskRetried,
    TaskSucceeded,
    WorkerLost,
    python_calls,
    value_of,
)

WORKERS: Final = 3
SHOWN: Final = 20
NEEDS: Final = "cpu=1,memory=256MiB"
# Thirty seconds is usual on two cores, and minutes where others keep them busy; past this something
# hangs.
DEADLINE_S: Final = 600.0
# Of tasks without a result, the reasons of so many are printed.
WHY_SHOWN: Final = 3
# Where output goes to no terminal, a line for each tenth that is done.
PLAIN_LINES: Final = 10
# Tests, some of them no valid Python on purpose, and what is not the library's own.
LEFT_OUT: Final = frozenset({"test", "tests", "idle_test", "site-packages", "dist-packages"})

Analysis = dict[str, tuple[int, list[complexity.Function]]]
"""What `analyse` says, by the module's file."""

# As code of a user, which is installed nowhere: it travels with the calls.
cloudpickle.register_pickle_by_value(complexity)


@dataclass
class Share:
    """What one worker did."""

    tasks: int = 0
    nearest: int = 0
    ran_ms: int = 0


@dataclass
class Account:
    """What happened, counted event by event."""

    attempts: int = 0
    lost: int = 0
    recalled: int = 0
    successes: Counter[str] = field(default_factory=Counter)
    in_flight: dict[str, TaskPlaced] = field(default_factory=dict)
    shares: dict[str, Share] = field(default_factory=dict)

    def note(self, event: JobEvent) -> None:
        match event:
            case TaskPlaced(task_id):
                self.attempts += 1
                self.in_flight[task_id] = event
            case TaskRetried(task_id):
                self.lost += 1
                del self.in_flight[task_id]
            case TaskRecalled(task_id):
                self.recalled += 1
                del self.in_flight[task_id]
            case TaskSucceeded(task_id, worker, _, ran_ms):
                self.successes[task_id] += 1
                share = self.shares.setdefault(worker, Share())
                share.tasks += 1
                share.ran_ms += ran_ms
                placed = self.in_flight.pop(task_id, None)
                share.nearest += placed is not None and placed.nearest
            case _:
                pass

    def busiest(self) -> tuple[str, int]:
        """The worker with most in flight, and how much that is."""
        by_worker = Counter(placed.worker for placed in self.in_flight.values())
        return by_worker.most_common(1)[0]


def standard_library() -> dict[str, bytes]:
    """The source of each module, by its path below the library."""
    root = Path(sysconfig.get_path("stdlib"))
    files = {path.relative_to(root): path for path in sorted(root.rglob("*.py"))}
    return {
        str(name): path.read_bytes()
        for name, path in files.items()
        if not LEFT_OUT & set(name.parts)
    }


async def demo(console: Console) -> dict[str, bool | int | float]:
    began_s = time.monotonic()
    modules = standard_library()
    size_mb = sum(map(len, modules.values())) / 1e6
    versions = f"Python {platform.python_version()}, {os.cpu_count()} cores"
    console.print(f"{versions}: {len(modules)} modules, {size_mb:.1f} MB of source")
    async with LocalNetwork(workers=WORKERS) as network:
        console.print(f"gate      {network.gate.address}")
        for worker in network.workers:
            console.print(f"worker    {worker.address}")
        async with Node.join(network.invite, home=network.home, listen=()) as node:
            await network.seen_by(node)
            job = await node.submit(
                python_calls(analyse, modules.values()),
                needs=NEEDS,
                name="complexity of the standard library",
                labels=list(modules),
            )
            # With the ids of the job and of the workers the XOR distances are given: they say
            # which worker each task is nearest to. The rest is a matter of timing.
            console.print(f"submitted {node.peer_id}  job {job.job_id}")
            account = Account()
            killed = await watch(console, job, account, network.workers)
            results = await job
    analysed: Analysis = {
        result.label: value_of(result) for result in results if result.status == "succeeded"
    }
    failed = [result for result in results if result.label not in analysed]
    for result in failed[:WHY_SHOWN]:
        console.print(f"{result.label}: {result.error()}", markup=False)
    show_functions(console, analysed)
    show_workers(console, account, network.workers, killed)
    checked_s = time.monotonic()
    equal = analysed == {name: analyse(source) for name, source in modules.items()}
    console.print(
        f"the same analysis in this one process took {time.monotonic() - checked_s:.1f} s and is "
        + ("equal" if equal else "DIFFERENT")
    )
    lost = len(modules) - len(account.successes)
    duplicated = sum(count > 1 for count in account.successes.values())
    return {
        "ok": equal and not lost and not duplicated and bool(killed),
        "tasks": len(modules),
        "attempts": account.attempts,
        "lost_attempts": account.lost,
        "recalled": account.recalled,
        "workers": len(network.workers),
        "killed": len(killed),
        "lost": lost,
        "duplicated": duplicated,
        "equal_to_local": equal,
        "wall_s": round(time.monotonic() - began_s, 1),
    }


async def watch(
    console: Console, job: JobHandle, account: Account, workers: list[NodeProcess]
) -> set[str]:
    """Follow the job to its end; once half is done, kill a worker with work in flight."""
    killed: set[str] = set()
    with progress(console, len(job.tasks)) as update:
        async for event in job.events():
            account.note(event)
            update(account.successes.total())
            if isinstance(event, WorkerLost):
                console.print(f"lost      {event.worker}: {event.why}")
            half_done = account.successes.total() >= len(job.tasks) // 2
            if half_done and account.in_flight and not killed:
                victim, in_flight = account.busiest()
                next(worker for worker in workers if worker.peer_id == victim).kill()
                killed.add(victim)
                console.print(f"SIGKILL   {victim}, with {in_flight} tasks in flight")
    return killed


@contextmanager
def progress(console: Console, total: int) -> Iterator[Callable[[int], None]]:
    """Yields what to call with the number of modules that are done."""
    if console.is_terminal:
        columns = (
            TextColumn("analysing"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
        )
        with Progress(*columns, console=console) as bar:
            task = bar.add_task("", total=total)
            yield lambda done: bar.update(task, completed=done)
        return
    unsaid = [total * tenth // PLAIN_LINES for tenth in range(1, PLAIN_LINES + 1)]

    def say(done: int) -> None:
        while unsaid and done >= unsaid[0]:
            console.print(f"analysed  {unsaid.pop(0)} of {total}")

    yield say


def show_functions(console: Console, analysed: Analysis) -> None:
    functions = [
        (found, f"{name}:{line}", function)
        for name, (_, functions) in analysed.items()
        for function, line, found in functions
    ]
    lines = sum(lines for lines, _ in analysed.values())
    table = Table(title=f"{lines:,} lines, {len(functions):,} functions; the most complex")
    table.add_column("complexity", justify="right")
    table.add_column("function")
    table.add_column("where")
    for found, where, function in sorted(functions, key=lambda f: (-f[0], f[1]))[:SHOWN]:
        table.add_row(str(found), function, where)
    console.print(table)


def show_workers(
    console: Console, account: Account, workers: list[NodeProcess], killed: set[str]
) -> None:
    table = Table(title="who did it")
    for column in ("worker", "tasks", "seconds", "XOR-nearest", "fallback"):
        table.add_column(column, justify="left" if column == "worker" else "right")
    for worker in workers:
        share = account.shares.get(worker.peer_id, Share())
        table.add_row(
            f"…{worker.peer_id[-8:]}" + (" (killed)" if worker.peer_id in killed else ""),
            str(share.tasks),
            f"{share.ran_ms / 1000:.1f}",
            str(share.nearest),
            str(share.tasks - share.nearest),
        )
    console.print(table)
    console.print(
        f"{account.attempts} attempts at {len(account.successes)} tasks; "
        f"{account.lost} were lost, {account.recalled} recalled for a worker that was free sooner"
    )


async def bounded(console: Console) -> dict[str, bool | int | float]:
    task = asyncio.current_task()
    assert task is not None
    # As Ctrl-C does: everything is ended and removed on the way out.
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    async with asyncio.timeout(DEADLINE_S):
        return await demo(console)


def run(*, as_json: bool) -> int:
    """Returns the exit code: 0 only if each module was analysed, counted once, and gave what it
    gives in this one process."""
    console = Console(highlight=False, soft_wrap=True)
    try:
        outcome = asyncio.run(bounded(console))
    except (KeyboardInterrupt, asyncio.CancelledError):
        console.print("interrupted; all of its processes are ended")
        return 130
    except TimeoutError:
        console.print(f"not done within {DEADLINE_S:.0f} s")
        return 1
    except (FormationError, RuntimeError) as error:
        console.print(str(error), markup=False)
        return 1
    if as_json:
        print(json.dumps(outcome))
    else:
        console.print(f"{'done' if outcome['ok'] else 'FAILED'} in {outcome['wall_s']} s")
    return 0 if outcome["ok"] else 1

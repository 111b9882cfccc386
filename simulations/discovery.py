"""Discovery in a town of thousands, on a virtual clock: who finds whom, and what it costs.

    python -m simulations.discovery --nodes 10000 --workers-per-bucket 12 --churn golem --json

Every node is the shipped peer. The same arguments give the same run, byte for byte: compare
their `--trace-digest`. `--plot` needs matplotlib: pip install 'formation_p2p[sim]'.
"""

from __future__ import annotations

import argparse
import gc
import json
import random
import resource
import shlex
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table

from formation_p2p.discovery.core.parameters import DiscoveryParameters
from simulations.arguments import is_resumed, latencies_of, parser, plan_of
from simulations.figures import Load, by_bucket, of_queries
from simulations.placed import LIFE_S
from simulations.queries import Outcome, Queries
from simulations.town import STEADY_S, Town
from simulations.trace import TraceDigest

# The bar moves, and the interpreter may be interrupted, after so much virtual time.
SLICE_S: Final = 1.0
# Queries stop this long before the end, so that all have their answers by then.
LAST_QUERY_S: Final = 20.0
# The cause of all that is asked in order to announce.
ANNOUNCE: Final = "announce"


@dataclass(slots=True)
class Run:
    """What a run gave: `figures` to print, and the rest to plot."""

    figures: dict[str, Any]
    outcomes: list[Outcome] = field(default_factory=list)
    load: Load = field(default_factory=lambda: Load(()))


Progressed = Callable[[str, float], None]
"""What is being done, and which share of it has been."""


def main(argv: Sequence[str] | None = None) -> int:
    argv = list(sys.argv[1:] if argv is None else argv)
    arguments = _parser().parse_args(argv)
    refused = _refused(arguments)
    if refused is not None:
        _parser().error(refused)
    with bar() as progressed:
        run = simulate(arguments, progressed)
    command = f"python -m simulations.discovery {shlex.join(argv)}"
    run.figures["command"] = command
    if arguments.json:
        print(json.dumps(run.figures))
    else:
        _print(run)
    if arguments.plot is not None:
        from simulations.plot import plot  # matplotlib takes a second to import

        plot(run.outcomes, run.load, f"{command} (seed {arguments.seed})", arguments.plot)
    return 0


@contextmanager
def bar(prefix: str = "") -> Iterator[Progressed]:
    """A progress bar on stderr, where that is a terminal."""
    errors = Console(stderr=True)
    with Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.percentage:3.0f} %"),
        TimeElapsedColumn(),
        console=errors,
        transient=True,
        disable=not errors.is_terminal,
    ) as progress:
        tasks: dict[str, TaskID] = {}

        def progressed(what: str, share: float) -> None:
            if what not in tasks:
                tasks[what] = progress.add_task(prefix + what, total=1.0)
            progress.update(tasks[what], completed=share)

        yield progressed


def simulate(arguments: argparse.Namespace, progressed: Progressed) -> Run:
    """Raises OSError or ValueError where the latencies cannot be read."""
    # A run makes millions of objects that stay, and hardly a cycle: the collector would go
    # through all of them again and again.
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        return _simulate(arguments, progressed)
    finally:
        if was_enabled:
            gc.enable()


def _simulate(arguments: argparse.Namespace, progressed: Progressed) -> Run:
    began_s, cpu_began_s = time.perf_counter(), time.process_time()
    latencies, whose = latencies_of(arguments)
    digest = TraceDigest() if arguments.trace_digest else None
    town = Town(plan_of(arguments), latencies, digest)
    _elapse(town, town.found(), "founding", progressed)
    founded_s = time.perf_counter()

    measured_s = arguments.minutes * 60
    if arguments.churn == "golem":
        town.churn(measured_s)
    if arguments.partition is not None:
        town.world.after(arguments.partition.after_s, town.partition, arguments.partition.share)
        town.world.after(arguments.partition.after_s + arguments.partition.for_s, town.heal)
    queries = Queries(town, random.Random(f"{arguments.seed}/queries"))
    asking_s = max(measured_s - LAST_QUERY_S, measured_s / 2)
    for number in range(arguments.queries):
        town.world.after(asking_s * number / arguments.queries, queries.ask)
    announced = _Announcements(town)
    _elapse(town, measured_s, "measuring", progressed)
    load = Load.of(town)

    figures: dict[str, Any] = {
        **of_queries(queries.outcomes),
        **load.figures(),
        "announce_messages_per_worker_min": announced.per_worker_min(),
        "messages": dict(sorted(town.world.messages.items())),
        "buckets": by_bucket(queries.outcomes, town.registers),
        "members": {name: len(register) for name, register in town.registers.items()},
        "online": len(town.residents),
        "came": town.came,
        "crashed": town.crashed,
        "left": town.left,
        "queries_lost": queries.lost,
        "queries_refused": queries.refused,
        "virtual_s": town.world.now_s,
        "founding_wall_s": round(founded_s - began_s, 1),
        "wall_s": round(time.perf_counter() - began_s, 1),
        "cpu_s": round(time.process_time() - cpu_began_s, 1),
        "peak_rss_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
        "seed": arguments.seed,
        "latencies": whose,
        "arguments": {
            name: value if isinstance(value, int | float | str | None) else str(value)
            for name, value in sorted(vars(arguments).items())
        },
    }
    if digest is not None:
        figures["trace_digest"] = digest.hexdigest()
    return Run(figures, queries.outcomes, load)


def _parser() -> argparse.ArgumentParser:
    arguments = parser("discovery", "Who finds whom in a town of thousands, and what it costs.")
    arguments.add_argument(
        "--trace-digest", action="store_true", help="a SHA-256 over every message delivered"
    )
    arguments.add_argument("--plot", type=Path, metavar="FILE", help="also draw the figures")
    return arguments


def _refused(arguments: argparse.Namespace) -> str | None:
    """Why what is asked for cannot be measured, if it cannot."""
    if arguments.nat and (arguments.laid_out or arguments.placed or arguments.clients):
        return "--nat is for towns whose people join: without --laid-out, --placed and --clients"
    if arguments.announcing is not None and not arguments.placed:
        return "--announcing is for --placed workers; without it all announce themselves"
    if not arguments.placed or is_resumed(arguments):
        return None
    minutes = 9
    if arguments.announcing is not None:
        if arguments.announcing > arguments.nodes // 2:
            return "--announcing at most half of the nodes; or all"
        minutes = int(
            (LIFE_S - STEADY_S - DiscoveryParameters(ttl_s=arguments.ttl).republish_s) // 60
        )
    if arguments.minutes > minutes:
        return (
            f"--placed needs --minutes {minutes} or less, or --churn, or --announcing all: "
            "its records expire"
        )
    return None


def _elapse(town: Town, seconds: float, what: str, progressed: Progressed) -> None:
    ends_s = town.world.now_s + seconds
    while town.world.now_s < ends_s:
        town.world.elapse(min(SLICE_S, ends_s - town.world.now_s))
        progressed(what, 1 - (ends_s - town.world.now_s) / seconds)


class _Announcements:
    """Messages for announcing, over the time since this was made: of those placed workers that
    do announce themselves, or of all there are."""

    def __init__(self, town: Town) -> None:
        self._town = town
        self._began_s = town.world.now_s
        self._messages = self._spent()
        self._workers = self._there()

    def per_worker_min(self) -> float | None:
        workers = (self._workers + self._there()) / 2
        minutes = (self._town.world.now_s - self._began_s) / 60
        spent = self._spent() - self._messages
        return spent / workers / minutes if workers and minutes else None

    def _there(self) -> int:
        return len(self._town.announcing) or self._town.workers

    def _spent(self) -> int:
        town = self._town
        if not town.announcing:
            return town.world.messages[ANNOUNCE]
        return sum(node.messages[ANNOUNCE] for node in town.announcing)


def _print(run: Run) -> None:
    table = Table("figure", "value")
    for name, value in run.figures.items():
        if isinstance(value, dict):
            value = "  ".join(f"{key}={each}" for key, each in value.items())
        table.add_row(name, f"{value:.4g}" if isinstance(value, float) else str(value))
    Console().print(table)


if __name__ == "__main__":
    sys.exit(main())

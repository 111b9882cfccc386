"""Small tasks on loopback: ours, Ray's, Dask's and a pool's, one after the other in one run.

    make bench-dispatch        or: python -m benchmarks.dispatch [--json] [--only ray,formation]

Two worker processes each, a no-op that gives its argument back. Every side is warmed up in the same
way: a thousand no-ops, then a tenth of `--tasks`, which shows whether it can do all of them in a
minute and a half (one that can't is given fewer, and `details` says how many), and fifty calls
before those that are timed.

    throughput    20,000 no-ops, all submitted together, until all results are here; the median of
                  three rounds, fewer where they take longer than a minute
    single        one no-op at a time, from its submission to its result

Ours alone:

    cold          a node that has joined and done nothing yet: discover, negotiate, lease, run
    rss           what the scheduler's process holds with 100,000 tasks queued
    durable       `submit` of 10,000 tasks to a scheduler that keeps its state on disk
    killed        a worker of three is killed under its tasks: until all of them run elsewhere

`--profile DIR` measures ours alone, under cProfile, which slows it down: shares, and no times.
"""

from __future__ import annotations

import argparse
import json
import pstats
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from benchmarks.command import listed, run_and_exit
from benchmarks.dispatch.figures import SIDES, Line, combined, table
from benchmarks.dispatch.parts import Part, here, run_parts
from benchmarks.dispatch.processes import SideFailed, adopt_orphans, run_side
from benchmarks.dispatch.profiles import VARIABLE

TASKS: Final = 20_000
# Lines of each profile that are printed; the file has the rest.
PROFILE_LINES: Final = 15


def parts(sides: Sequence[str], tasks: int, quick: bool) -> list[Part]:
    common = (f"--tasks={tasks}", *(("--rounds=1", "--calls=100") if quick else ()))
    every = [
        Part("process_pool", "dispatch.pool_side", common, 180),
        Part("ray", "dispatch.ray_side", common, 360, peers=True),
        Part("dask", "dispatch.dask_side", common, 480, peers=True),
        Part("formation", "dispatch.formation_side", common, 480),
        Part("formation", "dispatch.formation_cold", ("--times=3",) if quick else (), 240),
        Part("formation", "dispatch.formation_memory", (), 180),
        Part("formation", "dispatch.formation_durable", ("--times=1",) if quick else (), 300),
        Part("formation", "dispatch.formation_killed", ("--kills=2",) if quick else (), 420),
    ]
    return [part for part in every if part.side in sides]


async def profile(folder: Path, tasks: int) -> None:
    """Raises SideFailed."""
    arguments = ("benchmarks.dispatch.formation_side", f"--tasks={tasks}", "--rounds=1")
    await run_side(sys.executable, (*arguments, "--calls=100"), {VARIABLE: str(folder)}, 480)


def show_profile(folder: Path) -> None:
    for file in sorted(folder.glob("*.pstats")):
        stats = pstats.Stats(str(file))
        stats.strip_dirs().sort_stats("tottime").print_stats(PROFILE_LINES)


async def main(arguments: argparse.Namespace) -> int:
    adopt_orphans()

    def say(line: str) -> None:
        print(line, file=sys.stderr if arguments.json else sys.stdout, flush=True)

    tasks = arguments.tasks or (TASKS // 10 if arguments.quick else TASKS)
    if arguments.profile:
        try:
            await profile(arguments.profile, tasks)
        except SideFailed as failure:
            print(failure, file=sys.stderr)
            return 1
        show_profile(arguments.profile)
        return 0
    lines, loads, failed = await run_parts(parts(arguments.only, tasks, arguments.quick), say)
    by_side: dict[str, Line] = {}
    for part, line in lines.items():
        by_side.setdefault(part.side, {}).update(line)
    result = {**combined(by_side), **here(), "load_before": loads}
    if arguments.json:
        print(json.dumps({**result, "failed": failed}))
    else:
        print("\n".join(["", *table(result)]))
    return 1 if failed else 0


def _folder(text: str) -> Path:
    return Path(text).resolve()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", action="store_true", help="end with one line of JSON")
    parser.add_argument("--only", type=listed(SIDES), default=SIDES, metavar="SIDE,…")
    parser.add_argument("--tasks", type=int, help=f"in place of {TASKS}")
    parser.add_argument("--quick", action="store_true", help="a tenth of the tasks, few repeats")
    parser.add_argument(
        "--profile", type=_folder, metavar="DIR", help="write cProfile's files there"
    )
    run_and_exit(main(parser.parse_args()))

"""Workers found and chosen among a million, in one process and one thread.

    make bench-placement       or: python -m benchmarks.placement [--json] [--seed 42]

    placing    100,000 tasks on 5,000 workers, which are kept nearly full
    asking     of a table of a million workers, the twenty that are nearest to a key by XOR of those
               that can run a task (or could at once: "free now"): for needs that nearly everyone
               meets, for needs that nobody meets, and some in between. The headline is the slowest
               of them, beside the time in which numpy sums all columns that it asks
    storing    what the table would do for a peer that stores the 32 to 512 profiles of one name,
               beside what such a peer does
    changes    of that table: a worker says that other parts of it are free, leaves, and comes

Machines are made up (benchmarks/placement/machines.py), the same for the same seed.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
from typing import Any, Final

import numpy as np
from rich.console import Console
from rich.table import Table as Printed

from benchmarks.placement import asking, placing, storing

WORKERS: Final = 1_000_000
PLACED_ON: Final = 5_000
TASKS: Final = 100_000


def tables(result: dict[str, Any]) -> list[Printed]:
    asked = Printed(title=f"the {asking.TOP} nearest of {result['workers']:,} workers that can")
    for heading in (
        "needs",
        "p50, ms",
        "p99, ms",
        "one pass, ms",
        "passes",
        "columns",
        "meet",
        "found",
    ):
        asked.add_column(heading, justify="left" if heading == "needs" else "right")
    for name, shape in result["shapes"].items():
        asked.add_row(name, *(str(value) for value in shape.values()))
    changed = Printed(title="one worker changes")
    for heading in ("", "p50, us", "p99, us", "max, us"):
        changed.add_column(heading, justify="right" if heading else "left")
    for name, times_us in result["changes_us"].items():
        changed.add_row(name, *(str(value) for value in times_us.values()))
    stored = Printed(title="a storing peer's answer, us of CPU: the store | a table")
    for heading in ("under a name", *storing.SHAPES, "a newer profile filed in the table"):
        stored.add_column(heading, justify="right")
    for count, line in result["storing"].items():
        answers = (line[name] for name in storing.SHAPES)
        both = (f"{answer['store_us']} | {answer['table_us']}" for answer in answers)
        stored.add_row(count, *both, str(line["put_us"]))
    placed = Printed(title=f"{result['tasks']:,} tasks on {result['placed_on']:,} workers")
    headings = (
        "placed a second",
        "CPU each, us",
        "no room",
        "running at the end",
        "cores taken, %",
    )
    for heading in ("rule", *headings):
        placed.add_column(heading, justify="left" if heading == "rule" else "right")
    for name, rule in result["placing"].items():
        placed.add_row(name, *(str(value) for value in rule.values()))
    return [asked, changed, stored, placed]


def main(arguments: argparse.Namespace) -> None:
    def say(line: str) -> None:
        print(line, file=sys.stderr, flush=True)

    say(f"seed {arguments.seed}")
    say(f"placing {arguments.tasks:,} tasks …")
    result = placing.measure(arguments.placed_on, arguments.tasks, arguments.seed, say)
    result |= storing.measure(arguments.seed, say)
    result |= asking.measure(arguments.workers, arguments.seed, say)
    result |= {
        "placed_on": arguments.placed_on,
        "tasks": arguments.tasks,
        "seed": arguments.seed,
        "cores": os.cpu_count(),
        "load": round(os.getloadavg()[0], 2),
        "python": platform.python_version(),
        "numpy": np.__version__,
    }
    if arguments.json:
        print(json.dumps(result))
        return
    console = Console()
    for table in tables(result):
        console.print(table)
    console.print(f"seed {arguments.seed}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", action="store_true", help="end with one line of JSON")
    parser.add_argument("--seed", type=int, default=42)
    parser.add_argument("--workers", type=int, default=WORKERS, help="in the table that is asked")
    parser.add_argument("--placed-on", type=int, default=PLACED_ON, help="workers for the tasks")
    parser.add_argument("--tasks", type=int, default=TASKS)
    main(parser.parse_args())

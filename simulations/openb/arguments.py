"""What the simulation is told on its command line."""

from __future__ import annotations

import argparse
from pathlib import Path

from simulations.arguments import count
from simulations.openb.run import POLICIES
from simulations.openb.trace import NAMES

CAPABILITY, CAPACITY = "capability", "capacity"
SEEN, ORACLE = "seen", "oracle"
# More than anybody averages over, and one policy's take hours.
_MAX_SEEDS = 1000


def parser() -> argparse.ArgumentParser:
    arguments = argparse.ArgumentParser(
        prog="python -m simulations.openb",
        description="GPU packing on Alibaba's trace, against the published results of others.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    add = arguments.add_argument
    listed = f"{', '.join(NAMES)}, or a file's path"
    add("--pods", type=pods, default="default", help=f"{listed}; made up where the trace is not")
    add("--policy", choices=POLICIES, nargs="+", default=list(POLICIES))
    add("--candidates", type=count(1, 10_000), default=16, help="of a decision of packed")
    add("--seeds", type=seeds, default=seeds("42..51"), help="42..51, or 42,43; as published")
    add(
        "--buckets",
        choices=(CAPABILITY, CAPACITY),
        default=CAPABILITY,
        help="in which packed finds its candidates: what machines are, or what is free of them too",
    )
    add(
        "--mix",
        choices=(SEEN, ORACLE),
        default=SEEN,
        help="what packed expects: the tasks that candidates were asked about, or what will come",
    )
    add("--jobs", type=count(1, 1024), default=1, help="runs at a time, one process each")
    add("--json", action="store_true", help="print JSON")
    add("--plot", type=Path, metavar="FILE", help="also draw allocation against arrivals")
    return arguments


def pods(text: str) -> str:
    """The name of a list, or the path of a file that is there. Raises ArgumentTypeError."""
    if text not in NAMES and not Path(text).is_file():
        known = f"{', '.join(NAMES)}, or the path of a list in the trace's format"
        raise argparse.ArgumentTypeError(f"{text} is neither a list nor a file; write {known}")
    return text


def seeds(text: str) -> list[int]:
    """`42..51`, both included, or `42,43`. Raises ArgumentTypeError."""
    first, dots, last = text.partition("..")
    try:
        given = range(int(first), int(last) + 1) if dots else map(int, text.split(","))
        listed = list(given[:_MAX_SEEDS] if isinstance(given, range) else given)
    except ValueError:
        listed = []
    if not listed:
        raise argparse.ArgumentTypeError(f"{text} is no seeds; write 42..51 or 42,43")
    return listed

"""Machines that work as one, on loopback: gangs, what they divide, and what flows between members.

    make bench-clusters        or: python -m benchmarks.clusters [--json] [--only gangs,…]

One part after the other, each in processes of its own; `--json` ends with one line of all figures.
"""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any, Final

from benchmarks.command import listed, run_and_exit
from benchmarks.dispatch.parts import Part, here, run_parts
from benchmarks.dispatch.processes import adopt_orphans

PARTS: Final = {
    "gangs": Part("formation", "clusters.gangs", (), 300),
    "partitioning": Part(
        "formation", "clusters.part", ("partitioning",), 300, label="partitioning"
    ),
    "streams": Part("formation", "clusters.part", ("streams",), 400, label="streams"),
    "dask": Part("formation", "clusters.part", ("dask_clusters",), 400, label="dask"),
    "network": Part("formation", "clusters.part", ("network",), 300, label="network"),
}


async def main(arguments: argparse.Namespace) -> int:
    adopt_orphans()

    def say(line: str) -> None:
        print(line, file=sys.stderr if arguments.json else sys.stdout, flush=True)

    lines, loads, failed = await run_parts((PARTS[name] for name in arguments.only), say)
    figures: dict[str, Any] = {}
    for line in lines.values():
        figures |= line
    if arguments.json:
        print(json.dumps({**figures, **here(), "load_before": loads, "failed": failed}))
    return 1 if failed else 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", action="store_true", help="end with one line of JSON")
    parser.add_argument("--only", type=listed(tuple(PARTS)), default=tuple(PARTS), metavar="PART,…")
    run_and_exit(main(parser.parse_args()))

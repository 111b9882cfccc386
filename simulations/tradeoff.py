"""TTL and replication against dead workers offered: what each choice costs and gives.

    python -m simulations.tradeoff --nodes 1000 --ttls 30 60 120 240 --replicas-tried 3 5 8 20

One run of `simulations.discovery` for each pair, with the same seed and the same town. Churn is
Golem's, and `--churn-speed 20` makes it as fast as it takes for the differences to show.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from itertools import product
from typing import Any, Final

from rich.console import Console
from rich.table import Table

from simulations.arguments import count, parser, positive
from simulations.discovery import bar, simulate

SHOWN: Final = (
    "announce_messages_per_worker_min",
    "live_found_share",
    "dead_share",
    "exact_share",
    "busiest_over_mean",
    "wall_s",
)


def main(argv: Sequence[str] | None = None) -> int:
    arguments = _parser().parse_args(argv)
    rows: list[dict[str, Any]] = []
    for ttl_s, replicas in product(arguments.ttls, arguments.replicas_tried):
        arguments.ttl, arguments.replicas = ttl_s, replicas
        with bar(f"TTL {ttl_s:g} s, {replicas} replicas: ") as progressed:
            figures = simulate(arguments, progressed).figures
        rows.append({"ttl_s": ttl_s, "replicas": replicas, **{k: figures[k] for k in SHOWN}})
    if arguments.json:
        print(json.dumps({"seed": arguments.seed, "nodes": arguments.nodes, "rows": rows}))
    else:
        table = Table(*rows[0])
        for row in rows:
            table.add_row(*("-" if value is None else f"{value:.4g}" for value in row.values()))
        Console().print(table)
    return 0


def _parser() -> argparse.ArgumentParser:
    arguments = parser("tradeoff", "What a TTL and a number of replicas cost and give.")
    arguments.set_defaults(churn="golem", churn_speed=20.0, laid_out=True, trace_digest=False)
    add = arguments.add_argument
    add("--ttls", type=positive, nargs="+", default=[30.0, 60.0, 120.0, 240.0], metavar="S")
    add("--replicas-tried", type=count(1, 20), nargs="+", default=[3, 5, 8, 20], metavar="N")
    return arguments


if __name__ == "__main__":
    sys.exit(main())

"""GPU packing on Alibaba's trace: what each policy allocates, and what was published of it.

    python -m simulations.openb --pods default --policy fgd packed --candidates 16 --json

`random`, `bestfit` and `fgd` see all machines and are there to show that the simulation is right;
`packed` is the library's, on a few candidates found by XOR (docs/explanation/performance.md). Where
the trace is not there, made-up machines and pods of the same shape take its place. `--plot` needs
matplotlib: pip install 'formation_p2p[sim]'.

The trace is not ours to distribute. Put `openb_node_list_gpu_node.csv` and `openb_pod_list_*.csv`
of `cluster-trace-gpu-v2023` in Alibaba's `clusterdata` into a folder `openb`, and have
FORMATION_DATA name the folder that contains it. A list of pods is one of those, or the path of a
file with the columns `cpu_milli`, `memory_mib`, `num_gpu`, `gpu_milli` and, optionally, `gpu_spec`.
"""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from statistics import mean
from typing import Any

from rich.console import Console
from rich.table import Table

from simulations.discovery import bar
from simulations.openb.arguments import CAPACITY, ORACLE, parser
from simulations.openb.run import FGD, PACKED, Outcome, Plan, run
from simulations.openb.trace import SYNTHETIC, Trace, published, read, synthetic

_SHOWN = ("allocation_pct_100", "allocation_pct_130", "fragmented_pct_90")


def main(argv: Sequence[str] | None = None) -> int:
    argv = list(sys.argv[1:] if argv is None else argv)
    arguments = parser().parse_args(argv)
    try:
        trace = read(arguments.pods)
    except OSError as error:
        print(
            f"the trace is not here: {error}; made-up machines and pods instead. "
            "docs/explanation/performance.md says where it is to be had",
            file=sys.stderr,
        )
        arguments.pods, trace = SYNTHETIC, synthetic()
    except ValueError as problem:
        parser().error(str(problem))
    outcomes = _outcomes(trace, arguments)
    entries = {policy: _entry(policy, each, arguments) for policy, each in outcomes.items()}
    if arguments.json:
        print(json.dumps(entries))
    else:
        _print(entries)
    if arguments.plot is not None:
        from simulations.openb.plot import plot  # matplotlib takes a second to import

        curves = {policy: curve(each) for policy, each in outcomes.items()}
        made_up = " (made-up machines and pods)" if arguments.pods == SYNTHETIC else ""
        title = f"python -m simulations.openb {shlex.join(argv)}{made_up}"
        plot(curves, title, arguments.plot)
    return 0


def curve(outcomes: Sequence[Outcome]) -> dict[int, float]:
    """The mean over the runs."""
    return {
        at: mean(each.allocation_pct[at] for each in outcomes) for at in outcomes[0].allocation_pct
    }


def _outcomes(trace: Trace, arguments: argparse.Namespace) -> dict[str, list[Outcome]]:
    plans = [
        Plan(
            policy,
            seed,
            arguments.candidates,
            by_capacity=arguments.buckets == CAPACITY,
            oracle=arguments.mix == ORACLE,
        )
        for policy in dict.fromkeys(arguments.policy)
        for seed in arguments.seeds
    ]
    found: dict[str, list[Outcome]] = {}
    with bar() as progressed:
        for done, outcome in enumerate(_runs(trace, plans, arguments.jobs)):
            found.setdefault(plans[done].policy, []).append(outcome)
            progressed("placing", (done + 1) / len(plans))
    return found


def _runs(trace: Trace, plans: Iterable[Plan], jobs: int) -> Iterator[Outcome]:
    if jobs == 1:
        yield from map(partial(run, trace), plans)
        return
    with ProcessPoolExecutor(jobs) as pool:
        yield from pool.map(partial(run, trace), plans)


def _entry(
    policy: str, outcomes: Sequence[Outcome], arguments: argparse.Namespace
) -> dict[str, Any]:
    """Means over the seeds. Nobody has published `packed`: it is held against FGD."""
    allocated = curve(outcomes)
    entry: dict[str, Any] = {
        "allocation_pct_100": round(allocated[100], 3),
        "allocation_pct_130": round(allocated[130], 3),
        "fragmented_pct_90": round(mean(each.fragmented_pct for each in outcomes), 3),
        "published": published(arguments.pods, FGD if policy == PACKED else policy),
        "pods": arguments.pods,
        "seeds": arguments.seeds,
    }
    if policy == PACKED:
        entry |= {
            "candidates": arguments.candidates,
            "buckets": arguments.buckets,
            "mix": arguments.mix,
            "shards_per_task": round(mean(each.shards / each.tasks for each in outcomes), 3),
        }
        if arguments.buckets == CAPACITY:
            left = mean(each.left / each.placed for each in outcomes)
            entry["buckets_left_per_task"] = round(left, 3)
    return entry


def _print(entries: dict[str, dict[str, Any]]) -> None:
    table = Table(title="per cent of all GPUs; in brackets, published")
    table.add_column("policy")
    for name in ("allocated at 100 %", "at 130 %", "fragmented at 90 %"):
        table.add_column(name, justify="right")
    for policy, entry in entries.items():
        known = entry["published"] or {}
        table.add_row(
            policy,
            *(
                f"{entry[key]:.2f} ({known[key]:.2f})" if key in known else f"{entry[key]:.2f}"
                for key in _SHOWN
            ),
        )
    Console().print(table)


if __name__ == "__main__":
    raise SystemExit(main())

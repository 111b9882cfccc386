"""Services that keep themselves running: workers die, reads fail, the network is cut in two.

    python -m simulations.services --seeds 0..9 --json

Seeds run side by side, one on each core. What a seed raises is printed with the seed, and the exit
code is 1 then.

A village of 200 workers with 14 services of 3 replicas, every node the shipped peer; a replica
takes 20 s to start. Twenty seeds have one village, whose story goes on in twenty ways. In half of
them the dead refuse connections at once, as after a kill; in the others they are silent, as after
a power failure.

    extra_starts             replicas started beyond those lost, after 1, 5 and 20 % of workers died
    filled_p95_s             from their death until as many are ready again; filled_late were so
                             after more than 40 s
    moves_quiet              replicas started or stopped in ten minutes in which nothing happens
    false_gap_starts         replicas started while reads, or reads and writes, fail for 40 s or
                             120 s, and after: of four seeds in a row each has one of these
    duplicates_after_heal_s  after 120 s in two parts: until no service has more than it wants
    pinned_twice             times that a pinned service ran twice
    loss_starts              replicas started in five minutes in which 15 % of messages are lost
    critical_over_oracle     how long services of one replica have none, in an hour of churn as of
                             Golem, 30 times as fast; beside an oracle that is told of deaths by
                             the same detector, and then places at once (`--only golem`)
    messages_per_s           requests and replies for services, of a worker that has none;
                             messages_per_s_10000 among as many (`--only crowd`)
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from itertools import groupby
from typing import Any, Final, TypeVar

from formation_p2p.dht.core import rpc
from simulations.branch import branches
from simulations.figures import percentile
from simulations.golem import golem
from simulations.simulator.node import SimNode
from simulations.village import SETTLE_S, WORKERS, Village

T = TypeVar("T")

SHARES: Final = (0.01, 0.05, 0.20)
# A network in which most workers are too far from any slot to be of use.
CROWD: Final = 10_000
CROWD_SAMPLE: Final = 60
CROWD_S: Final = 300.0
QUIET_S: Final = 600.0
# What is lost is looked for again for so long; once all is filled, something that is too much for
# so long.
AFTER_DEATH_S: Final = 120.0
# What a replica is to be ready again within: 20 s and its start. More is told.
FILLED_S: Final = 40.0
AFTER_FILLED_S: Final = 20.0
LOSS: Final = 0.15
LOSS_S: Final = 300.0
# How long nothing is answered, and whether what is written is lost as well: seeds take turns.
FALSE_GAPS: Final = ((40.0, False), (40.0, True), (120.0, False), (120.0, True))
AFTER_FALSE_GAP_S: Final = 180.0
# Seeds with one village.
STORIES: Final = 20


def quiet(village: Village, seed: int) -> dict[str, Any]:
    """Nothing happens for ten minutes, but what workers that have nothing say to each other."""
    village.leave_tables()
    began_s, seen = village.now_s, village.seen
    idle = [node for node in village.alive() if not node.replicas.running]
    before = {node.name: _for_services(node) for node in idle}
    village.world.elapse(QUIET_S)
    moves = len(seen.since(began_s, "start")) + len(seen.since(began_s, "stop"))
    rates = [(_for_services(node) - before[node.name]) / QUIET_S for node in idle]
    return {"moves_quiet": moves, "messages": rates}


def crowd(seed: int, workers: int = CROWD) -> list[float]:
    """Messages a second of workers of a large network that have nothing, and watch nothing. Only
    those that may have replicas, and a sample, run services; the others answer."""
    village = Village(seed, workers, sample=CROWD_SAMPLE)
    village.world.elapse(SETTLE_S)
    before = [_for_services(node) for node in village.sampled]
    village.world.elapse(CROWD_S)
    after = [_for_services(node) for node in village.sampled]
    print(f"crowd: {village.lacking()} replicas are missing", file=sys.stderr)
    return [(b - a) / CROWD_S for a, b in zip(before, after, strict=True)]


def deaths(village: Village, seed: int) -> dict[str, Any]:
    """1, 5 and 20 % of the workers die, one after the other."""
    unfilled, seen = village.lacking(), village.seen
    extra, filled = 0, dict[float, list[float]]()
    for share in SHARES:
        at_s = village.now_s
        lost = _die(village, share, silent=seed % 2 == 1)
        over_s = at_s + AFTER_DEATH_S
        while village.now_s < over_s:
            village.world.elapse(1.0)
            if (
                over_s == at_s + AFTER_DEATH_S
                and max(_filled_s(village, lost, at_s)) < AFTER_DEATH_S
            ):
                over_s = min(over_s, village.now_s + AFTER_FILLED_S)
        more = Counter(each.service for each in seen.since(at_s, "start")) - lost
        if more:
            print(f"deaths: seed {seed}, {share:.0%}: too much: {dict(more)}", file=sys.stderr)
        extra += more.total()
        filled[share] = _filled_s(village, lost, at_s)
        if late := [took_s for took_s in filled[share] if took_s > FILLED_S]:
            told = ", ".join(f"{took_s:.0f}" for took_s in late)
            print(f"deaths: seed {seed}, {share:.0%}: ready after {told} s", file=sys.stderr)
    return {
        "unfilled_at_first": unfilled,
        "extra_starts": extra,
        "filled": filled,
        "missing": village.lacking(),
    }


def _die(village: Village, share: float, *, silent: bool) -> Counter[str]:
    """How many replicas of each service are lost by it."""
    alive = village.alive()
    dying = village.rng.sample(alive, max(1, round(share * len(village.nodes))))
    holders = village.holders()
    if holders and not any(node.replicas.running for node in dying):
        dying[0] = village.rng.choice(holders)
    lost: Counter[str] = Counter()
    for node in dying:
        lost.update(node.replicas.running.keys())
        village.end(node, silent=silent)
    return lost


def _filled_s(village: Village, lost: Counter[str], at_s: float) -> list[float]:
    """For each replica that was lost, until another one was ready; infinity where none was."""
    ready = village.seen.since(at_s, "ready")
    took = []
    for service, count in lost.items():
        times = sorted(each.at_s - at_s for each in ready if each.service == service)[:count]
        took += times + [float("inf")] * (count - len(times))
    return took


def _for_services(node: SimNode) -> int:
    return sum(count for cause, count in node.messages.items() if cause.startswith("services: "))


def false_gap(village: Village, seed: int) -> int:
    """How many replicas are started where nobody dies, and what is asked is not answered."""
    began_s = village.now_s
    lasts_s, writes_fail = FALSE_GAPS[seed % len(FALSE_GAPS)]

    def fails(ask: rpc.SendRequest) -> bool:
        is_write = type(ask.message).__name__ == "PutValue"
        return ask.cause.startswith("services: ") and (writes_fail or not is_write)

    village.requests.fails = fails
    village.world.elapse(lasts_s)
    village.requests.fails = lambda ask: False
    village.world.elapse(AFTER_FALSE_GAP_S)
    starts = len(village.seen.since(began_s, "start"))
    if starts:
        how = "reads and writes" if writes_fail else "reads"
        print(f"false gap: seed {seed}, {how}, {lasts_s} s: {starts} started", file=sys.stderr)
    return starts


def loss(village: Village, seed: int) -> int:
    """How many replicas are started while a part of all messages is lost."""
    began_s = village.now_s
    village.world.loss = LOSS
    village.world.elapse(LOSS_S)
    return len(village.seen.since(began_s, "start"))


def partition(village: Village, seed: int) -> dict[str, float]:
    """Two parts for 120 s, each of which fills what it lacks; then one again."""
    began_s = village.now_s
    for node in village.rng.sample(village.nodes, len(village.nodes) // 2):
        node.side = 1
    twice = 0
    for _ in range(24):
        village.world.elapse(5.0)
        twice += _pinned_twice(village)
    duplicates = village.surplus()
    for node in village.nodes:
        node.side = 0
    healed_s, drained_s = village.now_s, float("inf")
    while village.now_s < healed_s + 600.0:
        village.world.elapse(1.0)
        twice += _pinned_twice(village)
        if village.surplus() == 0:
            drained_s = village.now_s - healed_s
            break
    starts = len(village.seen.since(began_s, "start"))
    return {
        "duplicates": duplicates,
        "drained_s": drained_s,
        "pinned_twice": twice,
        "starts": starts,
        "missing": village.lacking(),
    }


def _pinned_twice(village: Village) -> int:
    counts = village.running()
    return sum(counts[spec.name] > 1 for spec in village.specs if spec.pinned is not None)


def main(arguments: argparse.Namespace) -> int:
    gc.set_threshold(100_000, 50, 1000)
    figures: dict[str, Any] = {"seeds": len(arguments.seeds), "workers": arguments.workers}
    failed: list[str] = []
    for name in arguments.only:
        try:
            figures |= SCENARIOS[name](arguments)
        except SeedsFailed as these:
            failed.append(f"{name}: {these}")
    if arguments.json:
        print(json.dumps(figures))
    else:
        print("\n".join(f"{name:24} {value}" for name, value in figures.items()))
    for each in failed:
        print(each, file=sys.stderr)
    return 1 if failed else 0


class SeedsFailed(Exception):
    """Something was raised in the stories of these seeds; what they printed says what."""


def _stories(
    arguments: argparse.Namespace,
    tell: Callable[[Village, int], T],
    *,
    pinned: int = 0,
    settle_s: float = SETTLE_S,
) -> list[T]:
    """What comes of each seed, and its progress on the standard error. Raises SeedsFailed."""
    told: list[T] = []
    failed: list[int] = []
    what = tell.__name__.replace("_", "-")
    began_s, began_cpu_s = time.monotonic(), _cpu_s()
    for number, group in groupby(arguments.seeds, lambda seed: seed // STORIES):
        seeds = list(group)
        village = Village(number, arguments.workers, pinned=pinned)
        village.world.elapse(settle_s)
        ways = (partial(_tell, village, seed, tell) for seed in seeds)
        for seed, one in zip(seeds, branches(ways, arguments.at_once), strict=True):
            told += one
            failed += [] if one else [seed]
            done = f"{len(told) + len(failed)} of {len(arguments.seeds)} seeds"
            took = f"{time.monotonic() - began_s:.0f} s, {_cpu_s() - began_cpu_s:.0f} s of CPU"
            print(f"{what}: {done} after {took}", file=sys.stderr, flush=True)
    if failed:
        raise SeedsFailed(f"failed: seeds {', '.join(map(str, failed))}")
    return told


def _tell(village: Village, seed: int, tell: Callable[[Village, int], T]) -> list[T]:
    """Nothing where it raises, which is printed."""
    try:
        village.go_on_as(seed)
        return [tell(village, seed)]
    except Exception:  # noqa: BLE001 -- the other seeds go on; this one is told by its number
        print(f"{tell.__name__}: seed {seed}:\n{traceback.format_exc()}", file=sys.stderr)
        return []


def _cpu_s() -> float:
    """Of this process, and of the branches that have ended."""
    return sum(os.times()[:4])


def _deaths(arguments: argparse.Namespace) -> dict[str, Any]:
    runs = _stories(arguments, deaths)
    by_share = {share: [each for run in runs for each in run["filled"][share]] for share in SHARES}
    filled = [each for took in by_share.values() for each in took]
    return {
        "extra_starts": sum(run["extra_starts"] for run in runs),
        "filled_p50_s": _rounded(percentile(filled, 50)),
        "filled_p95_s": _rounded(percentile(filled, 95)),
        "filled_max_s": _rounded(max(filled)),
        "filled_p95_s_by_share": {
            f"{share:.0%}": _rounded(percentile(took, 95)) for share, took in by_share.items()
        },
        "filled_late": sum(took_s > FILLED_S for took_s in filled),
        "lost": len(filled),
        "unfilled_at_first": sum(run["unfilled_at_first"] for run in runs),
        "missing": sum(run["missing"] for run in runs),
    }


def _quiet(arguments: argparse.Namespace) -> dict[str, Any]:
    runs = _stories(arguments, quiet, settle_s=3 * SETTLE_S)
    rates = [each for run in runs for each in run["messages"]]
    return {
        "moves_quiet": sum(run["moves_quiet"] for run in runs),
        "messages_per_s": round(sum(rates) / len(rates), 3),
    }


def _crowd(arguments: argparse.Namespace) -> dict[str, Any]:
    rates = [rate for seed in _told(arguments, "crowd") for rate in crowd(seed)]
    return {"messages_per_s_10000": round(sum(rates) / len(rates), 3)}


def _false_gaps(arguments: argparse.Namespace) -> dict[str, Any]:
    return {"false_gap_starts": sum(_stories(arguments, false_gap))}


def _losses(arguments: argparse.Namespace) -> dict[str, Any]:
    return {"loss_starts": sum(_stories(arguments, loss))}


def _golem(arguments: argparse.Namespace) -> dict[str, Any]:
    runs = [golem(seed, arguments.workers) for seed in _told(arguments, "golem")]
    critical_s = sum(run["critical_s"] for run in runs)
    oracle_s = sum(run["oracle_s"] for run in runs)
    return {
        "critical_over_oracle": round(critical_s / max(oracle_s, 1e-9), 3),
        "critical_s": _rounded(critical_s),
        "oracle_critical_s": _rounded(oracle_s),
        "golem_deaths": sum(run["deaths"] for run in runs),
        "golem_losses": sum(run["losses"] for run in runs),
        "oracle_losses": _rounded(sum(run["oracle_losses"] for run in runs)),
    }


def _partitions(arguments: argparse.Namespace) -> dict[str, Any]:
    runs = _stories(arguments, partition, pinned=2)
    return {
        "duplicates": sum(run["duplicates"] for run in runs),
        "duplicates_after_heal_s": max(run["drained_s"] for run in runs),
        "pinned_twice": sum(run["pinned_twice"] for run in runs),
        "missing_after_heal": sum(run["missing"] for run in runs),
    }


SCENARIOS: Final[dict[str, Callable[[argparse.Namespace], dict[str, Any]]]] = {
    "quiet": _quiet,
    "crowd": _crowd,
    "deaths": _deaths,
    "false-gap": _false_gaps,
    "loss": _losses,
    "partition": _partitions,
    "golem": _golem,
}


# The crowd takes some minutes, and an hour of churn as many.
USUAL: Final = ["quiet", "deaths", "false-gap", "partition"]


def _told(arguments: argparse.Namespace, what: str) -> Iterator[int]:
    for seed in arguments.seeds:
        print(f"{what}: seed {seed}", file=sys.stderr)
        yield seed


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 1)


def _seeds(text: str) -> range:
    first, _, last = text.partition("..")
    return range(int(first), int(last or first) + 1)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=_seeds, default=range(10), help="FIRST..LAST")
    parser.add_argument("--workers", type=int, default=WORKERS)
    parser.add_argument("--only", nargs="+", choices=list(SCENARIOS), default=USUAL)
    cores = len(os.sched_getaffinity(0))
    parser.add_argument("--at-once", type=int, default=cores, help="seeds, each in a process")
    parser.add_argument("--json", action="store_true", help="print one line of JSON")
    sys.exit(main(parser.parse_args()))

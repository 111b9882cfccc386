"""What a simulation is told on its command line."""

from __future__ import annotations

import argparse
import gzip
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from formation_p2p.discovery.core.parameters import DiscoveryParameters
from simulations.geometry import GEOMETRIES, MAX_BUCKETS
from simulations.homes import nat_arguments, nat_of
from simulations.latency import Latencies
from simulations.simulator.connections import DIAL_ROUND_TRIPS
from simulations.town import GATES, Plan

# Beside the repository, where the data are handed around; their licence lets us use them there.
LATENCY_FILE: Final = (
    Path(__file__).parents[2] / "shared" / "data" / "latency" / "PlanetLabData_1.txt.gz"
)
CHURNS: Final = ("none", "golem")


@dataclass(frozen=True, slots=True)
class Partition:
    """From `after_s` on, for `for_s`, a random `share` of the town does not hear the rest."""

    after_s: float
    for_s: float
    share: float


def parser(program: str, what: str) -> argparse.ArgumentParser:
    arguments = argparse.ArgumentParser(
        prog=f"python -m simulations.{program}",
        description=what,
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    add = arguments.add_argument
    add("--nodes", type=count(GATES + 1, 1_000_000), default=1000)
    add("--seed", type=int, default=1, help="the same seed gives the same run, on any machine")
    add("--minutes", type=positive, default=10.0, help="virtual time measured")
    add("--queries", type=count(0, 100_000), default=200, help="cold ones; each has two warm ones")
    add(
        "--workers-per-bucket",
        type=count(1, MAX_BUCKETS),
        default=MAX_BUCKETS,
        metavar="BUCKETS",
        help="so many nested buckets: the first holds all workers, each next one half as many",
    )
    add("--geometry", choices=GEOMETRIES, default="nested", help="all: every worker in each bucket")
    add("--churn", choices=CHURNS, default="none")
    add("--churn-speed", type=positive, default=1.0, help="10: sessions last a tenth as long")
    add("--laid-out", action="store_true", help="begin with full routing tables, without joining")
    add("--placed", action="store_true", help="begin with everybody announced, too")
    add(
        "--announcing",
        type=_announcing,
        metavar="N|all",
        help="with --placed: so many workers start to announce themselves, beside the others who"
        " are just there; or all go on, as they do with churn",
    )
    add("--loss", type=_share, default=0.0, help="share of messages that never arrive")
    add("--liars", type=_share, default=0.0, help="share of nodes that answer with lies")
    add("--clients", type=_share, default=0.0, help="share of nodes that nobody can dial")
    nat_arguments(arguments)
    add("--partition", type=_partition, help="AFTER:FOR:SHARE, in minutes; 2:3:0.5 cuts in half")
    add("--latency", type=Path, help="matrix of round trips in ms (default: PlanetLab's if there)")
    add("--dial-round-trips", type=_not_negative, default=DIAL_ROUND_TRIPS)
    add(
        "--ttl",
        type=positive,
        default=DiscoveryParameters().ttl_s,
        help="seconds that an announcement counts",
    )
    add("--replicas", type=count(1, 20), default=DiscoveryParameters().replicas)
    add("--json", action="store_true", help="print JSON")
    return arguments


def storm_parser(program: str, what: str) -> argparse.ArgumentParser:
    """Of a program whose seed draws what befalls real processes."""
    arguments = argparse.ArgumentParser(
        prog=f"python -m {program}",
        description=what,
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    arguments.add_argument("--seed", type=count(0, 2**31), default=1, help="draws what happens")
    arguments.add_argument("--json", action="store_true", help="print one line of JSON")
    return arguments


def is_resumed(arguments: argparse.Namespace) -> bool:
    """Whether everybody is announced at the beginning, and goes on."""
    goes_on = arguments.announcing == "all" or arguments.churn != "none"
    return bool(arguments.placed and goes_on)


def plan_of(arguments: argparse.Namespace) -> Plan:
    return Plan(
        nodes=arguments.nodes,
        seed=arguments.seed,
        buckets=arguments.workers_per_bucket,
        geometry=arguments.geometry,
        churn_speed=arguments.churn_speed,
        laid_out=arguments.laid_out or arguments.placed,
        placed=arguments.placed,
        announcing=arguments.announcing if isinstance(arguments.announcing, int) else 0,
        resumed=is_resumed(arguments),
        loss=arguments.loss,
        liars=arguments.liars,
        clients=arguments.clients,
        nat=nat_of(arguments),
        dial_round_trips=arguments.dial_round_trips,
        ttl_s=arguments.ttl,
        replicas=arguments.replicas,
    )


def latencies_of(arguments: argparse.Namespace) -> tuple[Latencies, str]:
    """The matrix, and what it is. Raises OSError, or ValueError for what is none."""
    path: Path | None = arguments.latency
    if path is None and not LATENCY_FILE.exists():
        return Latencies.made_up(arguments.seed), "made up"
    path = path or LATENCY_FILE
    raw = path.read_bytes()
    text = gzip.decompress(raw) if path.suffix == ".gz" else raw
    return Latencies.read(text.decode()), path.name


def count(least: int, most: int) -> Callable[[str], int]:
    def counted(text: str) -> int:
        number = int(text)
        if not least <= number <= most:
            raise argparse.ArgumentTypeError(f"{number} is not from {least} to {most}")
        return number

    return counted


def positive(text: str) -> float:
    number = float(text)
    if not 0 < number < float("inf"):
        raise argparse.ArgumentTypeError(f"{text} is not more than 0")
    return number


def _announcing(text: str) -> int | str:
    return text if text == "all" else count(1, 1_000_000)(text)


def _not_negative(text: str) -> float:
    return 0.0 if text == "0" else positive(text)


def _share(text: str) -> float:
    number = float(text)
    if not 0 <= number < 1:
        raise argparse.ArgumentTypeError(f"{text} is no share from 0 up to 1")
    return number


def _partition(text: str) -> Partition:
    try:
        after, lasts, share = text.split(":")
        return Partition(_not_negative(after) * 60, positive(lasts) * 60, _share(share))
    except ValueError as error:
        problem = f"{text} is not AFTER:FOR:SHARE, as in 2:3:0.5"
        raise argparse.ArgumentTypeError(problem) from error

"""A small network under everything at once: what is lost, wrong, counted twice, and how it grows.

    make soak ARGS="--minutes 5 --json"          or: python -m tests.soak --minutes 5

A gate, three workers, two submitters with states and a customer, who wants one small job after the
other, are processes on loopback. First they work in quiet, for a minute at most. Then for so many
minutes a squatter, a fuzzer with a grant and one without, and a stranger who opens streams and
resets them are at it; in the first two thirds of that all but the customer are ended with SIGKILL,
one after the other, and come back. Then the submitters end what they have begun, and all is
counted. `honest_p95_over_quiet` compares the customer's jobs, beside the same work of the
submitters. Exit code 1 where a bound is broken.
"""

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Final

from simulations.arguments import positive, storm_parser
from tests.soak.account import Account
from tests.soak.memory import Scales, growth_of
from tests.soak.network import Kills, SoakNetwork

QUIET_S: Final = 60.0
# Of the storm, until nodes are left alone: what they grow by is seen in the rest.
KILLING: Final = 2 / 3
MB: Final = 1_000_000
MAX_SHOWN: Final = 10
# At most, in the JSON.
BOUNDS: Final = {
    "lost": 0,
    "wrong": 0,
    "duplicated": 0,
    "tracebacks": 0,
    "unfinished": 0,
    "rss_growth_mb": 30.0,
    "honest_p95_over_quiet": 3.0,
}


def story(
    minutes: float, seed: int, told: Callable[[str], None], kept: Path | None = None
) -> dict[str, object]:
    """Homes and output are in the folder `kept`, or in one that is deleted."""
    began_s = time.monotonic()
    with ExitStack() as held:
        folder = kept or Path(
            held.enter_context(
                tempfile.TemporaryDirectory(prefix="formation-", ignore_cleanup_errors=True)
            )
        )
        folder.mkdir(parents=True, exist_ok=True)
        network = SoakNetwork(folder, seed)
        held.callback(network.end)
        network.start()
        told("all have started")
        scales = Scales([node for node in network.nodes if node not in network.submitters])
        scales.start()
        held.callback(scales.stop)
        quiet_s = time.monotonic()
        time.sleep(min(QUIET_S, minutes * 60 / 4))
        scales.storm()
        network.attack()
        storm_s = time.monotonic()
        told("the storm begins")
        kills = Kills(network, seed)
        kills.go_on(minutes * 60 * KILLING)
        told(f"killed: {dict(kills.happened)}")
        time.sleep(max(0.0, storm_s + minutes * 60 - time.monotonic()))
        attackers_alive = network.end_attack()
        over_s = time.monotonic()
        told("the storm is over")
        late = network.finish()
        scales.stop()
        network.end()
        account = Account()
        for node in network.started:
            account.read_output(node.output)
        for submitter in network.submitters:
            if submitter.name not in late:
                account.read_state(network.state(submitter))
        account.settle()
        if not attackers_alive:
            account.faults.append("the attackers ended before the storm")
            account.tracebacks += 1
        quiet_p95_s = account.p95_s(quiet_s, storm_s)
        honest_p95_s = account.p95_s(storm_s, over_s)
        growth = scales.growth() | {
            node.name: growth_of(account.weights[node.name]) for node in network.submitters
        }
        growth_mb = {name: round(grown / MB, 1) for name, grown in growth.items()}
        return {
            "lost": len(account.lost),
            "wrong": len(account.wrong),
            "duplicated": len(account.duplicated),
            "tracebacks": account.tracebacks,
            "unfinished": len(late),
            "rss_growth_mb": max(growth_mb.values()),
            "rss_growth_mb_of": growth_mb,
            "weighed": {
                node.name: max(map(len, account.weights[node.name])) for node in network.submitters
            },
            "honest_p95_over_quiet": round(honest_p95_s / quiet_p95_s, 2),
            "quiet_p95_s": round(quiet_p95_s, 3),
            "honest_p95_s": round(honest_p95_s, 3),
            "small_jobs": len(account.small),
            "kept_jobs": len(account.kept),
            "right_jobs": len(account.right),
            "hostile_tasks": account.ends_of_hostile_tasks(),
            "kills": dict(kills.happened),
            "minutes": minutes,
            "seed": seed,
            "wall_s": round(time.monotonic() - began_s, 1),
            "faults": account.faults[:MAX_SHOWN],
        }


def broken(figures: dict[str, object]) -> list[str]:
    """The bounds that do not hold."""
    return [
        f"{name} is {value}, over {most}"
        for name, most in BOUNDS.items()
        if isinstance(value := figures[name], int | float) and value > most
    ]


def main(argv: Sequence[str] | None = None) -> int:
    arguments = _parser().parse_args(argv)
    began_s = time.monotonic()

    def told(what: str) -> None:
        if not arguments.json:
            print(f"{time.monotonic() - began_s:7.2f} {what}", flush=True)

    figures = story(arguments.minutes, arguments.seed, told, arguments.keep)
    if arguments.json:
        print(json.dumps(figures))
    else:
        for name, value in figures.items():
            print(f"{name}: {value}")
    for each in broken(figures):
        print(each, file=sys.stderr)
    return 1 if broken(figures) else 0


def _parser() -> argparse.ArgumentParser:
    parser = storm_parser("tests.soak", "A small network under everything at once.")
    parser.add_argument("--minutes", type=positive, default=5.0, help="the storm's length")
    parser.add_argument("--keep", type=Path, help="leave the homes and what all print here")
    return parser


if __name__ == "__main__":
    sys.exit(main())

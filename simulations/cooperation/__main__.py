"""What cooperation comes to, measured on the shipped peer.

    python -m simulations.cooperation --json --only charter --seeds 7..7

Each case is a module of this package, whose functions of a seed return its figures.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Mapping
from typing import Final

from simulations.cooperation import charter, fair, find, leaks, moving, quorum, quota

CASES: Final[Mapping[str, Callable[[int], Mapping[str, object]]]] = {
    "starvation": fair.starvation,
    "shares": fair.shares,
    "free-rider": fair.free_rider,
    "charter": charter.run,
    "leaks": leaks.run,
    "find": find.run,
    "leave": moving.leave,
    "kill": moving.kill,
    "chains": moving.chains,
    "quorum": quorum.run,
    "quota": quota.run,
    "quota-deaths": quota.with_deaths,
}


def main() -> None:
    arguments = argparse.ArgumentParser(
        prog="python -m simulations.cooperation",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    arguments.add_argument(
        "--only", "--case", dest="only", nargs="+", choices=sorted(CASES), default=sorted(CASES)
    )
    arguments.add_argument("--seeds", default="7..7", metavar="FIRST..LAST")
    arguments.add_argument("--json", action="store_true", help="one JSON object on a line")
    given = arguments.parse_args()
    first, _, last = given.seeds.partition("..")
    for seed in range(int(first), int(last or first) + 1):
        found = {"seed": seed, **{name: CASES[name](seed) for name in given.only}}
        print(json.dumps(found) if given.json else json.dumps(found, indent=2), flush=True)


if __name__ == "__main__":
    main()

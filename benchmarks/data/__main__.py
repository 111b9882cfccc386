"""Code, packages and data that travel, on loopback: ours, Ray's and joblib's, one after the other.

    make bench-data        or: python -m benchmarks.data [--json] [--only arrays,thumbs] [--quick]

Two workers, or processes, on each side, warmed up in the same way: by a first round of the same
work, which is not counted.

    arrays        ten arrays of 50 MB to a function that sums them; to one that doubles them
    remote        the same for ours as if between machines, and a plain TCP copy
    blob          1 GiB from the page cache of one node to another, over a plain TCP copy
    thumbs        500 thumbnails: a process for each, beside `xargs -P 2`; calls, beside joblib
    package       the first call with a package of a hundred modules, and those that follow
    env           the first call in an environment with scikit-learn, and those that follow
    mixed         20,000 calls on workers of three versions of Python: crashes, and wrong results

docs/explanation/performance.md lists the keys of the result. `cpu_s` is processor time of all
processes of a side, which a busy machine changes less than it does the others.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks.command import listed, run_and_exit
from benchmarks.data.figures import SECTIONS, SIDES, combined, table
from benchmarks.dispatch.parts import PEERS_PYTHON, Part, here, run_parts
from benchmarks.dispatch.processes import adopt_orphans


def parts(sections: Sequence[str], sides: Sequence[str], quick: bool) -> list[Part]:
    arrays = ("--arrays=3", "--mb=2", "--rounds=1") if quick else ()
    # The same interpreter, and so the same Pillow, for all processes; ours where Ray has none.
    has_peers = Path(PEERS_PYTHON).exists()
    python = (f"--python={PEERS_PYTHON if has_peers else sys.executable}",)
    thumbs = ("--pictures=6", *python) if quick else python
    blob = ("--mib=8", "--rounds=1") if quick else ("--rounds=3",)
    package = ("--rounds=1", "--calls=8") if quick else ()
    env = ("--times=1", "--calls=20") if quick else ()
    mixed = ("--calls=120",) if quick else ()
    every = {
        "arrays": [
            Part(
                side,
                f"data.arrays_{side}",
                (f"--way={way}", *arrays),
                180,
                peers=side != "formation",
                label=f"arrays {way} {side}",
            )
            for way in ("in", "inout")
            for side in ("formation", "ray", "joblib")
        ],
        "remote": [
            Part("formation", "data.arrays_tcp", arrays, 90, label="arrays tcp"),
            *(
                Part(
                    "formation",
                    "data.arrays_formation",
                    (f"--way={way}", "--apart", *arrays),
                    180,
                    label=f"arrays remote {way}",
                )
                for way in ("in", "inout")
            ),
        ],
        "blob": [Part("formation", "data.blob", ("--json", *blob), 400)],
        "thumbs": [
            Part("xargs", "data.thumbs_xargs", thumbs, 180, has_peers, "thumbs xargs"),
            Part("joblib", "data.thumbs_joblib", thumbs, 180, True, "thumbs joblib"),
            Part("formation", "data.thumbs_formation", thumbs, 240, label="thumbs formation"),
        ],
        "package": [Part("formation", "data.packages", package, 240, label="package")],
        "env": [Part("formation", "data.environments", env, 300, label="env")],
        "mixed": [Part("formation", "mixed", ("--json", *mixed), 400)],
    }
    return [part for section in sections for part in every[section] if part.side in sides]


async def main(arguments: argparse.Namespace) -> int:
    adopt_orphans()

    def say(line: str) -> None:
        print(line, file=sys.stderr if arguments.json else sys.stdout, flush=True)

    chosen = parts(arguments.only, arguments.sides, arguments.quick)
    lines, loads, failed = await run_parts(chosen, say)
    result = {**combined({part.name: line for part, line in lines.items()}), **here()}
    if arguments.json:
        print(json.dumps({**result, "load_before": loads, "failed": failed}))
    else:
        print("\n".join(["", *table(result)]))
    return 1 if failed else 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", action="store_true", help="end with one line of JSON")
    parser.add_argument("--only", type=listed(SECTIONS), default=SECTIONS, metavar="SECTION,…")
    parser.add_argument("--sides", type=listed(SIDES), default=SIDES, metavar="SIDE,…")
    parser.add_argument("--quick", action="store_true", help="small and few")
    run_and_exit(main(parser.parse_args()))

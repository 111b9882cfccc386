"""What it costs to read results of workers that are not trusted, beside `pickle.loads`.

python -m benchmarks.data.results
"""

from __future__ import annotations

import argparse
import pickle
import time
from collections.abc import Callable

from formation_p2p.drivers.result_pickler import dumps
from formation_p2p.results.load import load_result

ITEMS = 1_000_000
RESULTS: dict[str, Callable[[], object]] = {
    "a list of texts": lambda: [f"item {n}" for n in range(ITEMS)],
    "a dict of texts to numbers": lambda: {f"item {n}": n for n in range(ITEMS)},
    "a list of pairs": lambda: [(n, n + 1) for n in range(ITEMS)],
    "a list of 200,000 small dicts": lambda: [
        {"id": n, "name": f"item {n}", "score": n / 2} for n in range(ITEMS // 5)
    ],
}


def cpu_s(read: Callable[[bytes], object], pickled: bytes) -> float:
    """The least of three."""
    took_s = []
    for _ in range(3):
        began_s = time.process_time()
        read(pickled)
        took_s.append(time.process_time() - began_s)
    return min(took_s)


def main() -> None:
    argparse.ArgumentParser(description=__doc__).parse_args()
    print(f"{'seconds of CPU':32}{'pickle.loads':>14}{'load_result':>14}")
    for name, made in RESULTS.items():
        pickled = dumps(made())
        print(f"{name:32}{cpu_s(pickle.loads, pickled):14.2f}{cpu_s(load_result, pickled):14.2f}")


if __name__ == "__main__":
    main()

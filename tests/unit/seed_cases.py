"""What the systems before this one do with given facts, and which of our functions answers for it.

The vectors are in one file of JSON, which FORMATION_VECTORS_SEED names, or which stands beside the
project; a fresh clone has none of them, and then these cases are run on a few of the same shape,
made by hand. What they say is tested in the tests of placement, resources and trust as well.
"""

import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parents[2]
PATH: Final = Path(
    os.environ.get(
        "FORMATION_VECTORS_SEED", ROOT.parent / "shared" / "vectors" / "seed_vectors.json"
    )
)


@dataclass(frozen=True, slots=True)
class Vector:
    """`given` and `expect` are as the file has them, which differs from one to the next."""

    name: str
    given: Any
    expect: Any


Case = Callable[[Any, Any], None]
"""Takes what is given and what to expect."""

CASES: Final[dict[str, Case]] = {}


def covers(*names: str) -> Callable[[Case], Case]:
    """That the function tests these vectors, each as `system/name`, and each only once."""

    def register(case: Case) -> Case:
        for name in names:
            assert name not in CASES, f"{name} is covered twice"
            CASES[name] = case
        return case

    return register


BY_HAND: Final = (
    Vector(
        "icn/BUG:compute_capability_lexicographic",
        {"pairs_have_need": [["sm_120", "sm_90"], ["sm_75", "sm_100"]]},
        {"correct": [True, False]},
    ),
    Vector("hypha/scheduler_price_cap", {"max": 20, "offers": [19, 20, 21]}, {"kept": [19, 20]}),
    Vector(
        "formation/cluster_size_configurable", {"capable": 3, "cluster_size": 2}, {"cluster_len": 2}
    ),
    Vector(
        "icn/trust_gates",
        {"submit": [0.09, 0.11], "execute": [0.2, 0.4]},
        {"submit_ok": [False, True], "execute_ok": [False, True]},
    ),
)


def vectors() -> dict[str, Vector]:
    """By `system/name`; those made by hand where the file is not there."""
    if not PATH.exists():
        return {each.name: each for each in BY_HAND}
    found = {}
    for each in json.loads(PATH.read_text()):
        name = f"{each['system']}/{each['name']}"
        assert name not in found, f"{name} is there twice"
        found[name] = Vector(name, each["given"], each["expect"])
    return found

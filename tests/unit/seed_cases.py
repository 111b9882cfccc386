"""What the systems before this one do with given facts, and which of our functions answers for it.

The vectors are in one file of JSON, which FORMATION_VECTORS_SEED names, or which stands beside the
project; a fresh clone has none of them. What they say is tested without them as well, on cases of
our own (the tests of placement, resources, negotiation and trust).
"""

from __future__ import annotations

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


Case = Callable[[Vector], None]

CASES: Final[dict[str, Case]] = {}


def covers(*names: str) -> Callable[[Case], Case]:
    """That the function tests these vectors, each as `system/name`, and each only once."""

    def register(case: Case) -> Case:
        for name in names:
            assert name not in CASES, f"{name} is covered twice"
            CASES[name] = case
        return case

    return register


def vectors() -> dict[str, Vector]:
    """By `system/name`. None where the file is not at hand."""
    if not PATH.exists():
        return {}
    found = {}
    for each in json.loads(PATH.read_text()):
        name = f"{each['system']}/{each['name']}"
        assert name not in found, f"{name} is there twice"
        found[name] = Vector(name, each["given"], each["expect"])
    return found

"""What the parts of one result have in common while it is read."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from formation_p2p.host.results.budget import Budget
from formation_p2p.host.results.hashing import Weight
from formation_p2p.host.results.own_classes import ClassFinder, FoundClass


@dataclass(slots=True)
class Reading:
    """`found` are the classes that it may have instances of, by what makes these and their names.
    `unfilled` are the instances made so far that have no attributes yet, by their `id`: what is
    in here stays alive, so that an id is of one object. `attributes` are what the classes of those
    have, with their bases. `hashed` are the weights of the instances that are hashed by their
    attributes, by their `id`, and `kept` those instances."""

    budget: Budget
    classes: ClassFinder
    trust: bool = False
    found: dict[tuple[Callable[..., object], object], FoundClass] = field(default_factory=dict)
    unfilled: dict[int, object] = field(default_factory=dict)
    hashed: dict[int, Weight] = field(default_factory=dict)
    kept: list[object] = field(default_factory=list)
    attributes: dict[type, dict[str, Any]] = field(default_factory=dict)

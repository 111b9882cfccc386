"""The figures of a run, under the names that `docs/explanation/performance.md` uses."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from formation_p2p.dht.core.store import RecordStore
from simulations.queries import Outcome, Warmth
from simulations.simulator.node import SimNode
from simulations.town import Town

Figures = dict[str, float | int | str | None]


def percentile(values: Iterable[float], percent: int) -> float | None:
    """The least value that so many per cent do not exceed; None where there is none."""
    ordered = sorted(values)
    if not ordered:
        return None
    return ordered[max((len(ordered) * percent + 99) // 100 - 1, 0)]


def share(part: int, whole: int) -> float | None:
    return part / whole if whole else None


def of_queries(outcomes: Sequence[Outcome]) -> Figures:
    def among(warmth: Warmth) -> list[Outcome]:
        return [each for each in outcomes if each.warmth == warmth]

    cold, near, far = among("cold"), among("near"), among("far")
    return {
        "queries": len(outcomes),
        "exact_share": share(sum(each.exact for each in outcomes), len(outcomes)),
        "live_found_share": share(
            sum(each.found for each in outcomes), sum(each.due for each in outcomes)
        ),
        "dead_share": share(
            sum(each.dead for each in outcomes), sum(each.offered for each in outcomes)
        ),
        "reached_share": share(
            sum(each.reached for each in outcomes),
            sum(each.offered - each.dead for each in outcomes),
        ),
        "lookups_cold_p50": percentile((each.lookups for each in cold), 50),
        "lookups_cold_p95": percentile((each.lookups for each in cold), 95),
        "lookups_warm_p50": percentile((each.lookups for each in near + far), 50),
        "lookups_warm_p95": percentile((each.lookups for each in near + far), 95),
        "lookups_warm_near_p50": percentile((each.lookups for each in near), 50),
        "lookups_warm_far_p50": percentile((each.lookups for each in far), 50),
        "messages_per_query_p50": percentile((each.messages for each in cold), 50),
        "messages_per_query_p95": percentile((each.messages for each in cold), 95),
        "messages_per_warm_query_p50": percentile((each.messages for each in near + far), 50),
        "latency_p50_s": percentile((each.latency_s for each in cold), 50),
        "latency_p95_s": percentile((each.latency_s for each in cold), 95),
        "latency_warm_p50_s": percentile((each.latency_s for each in near + far), 50),
        "latency_warm_p95_s": percentile((each.latency_s for each in near + far), 95),
    }


@dataclass(frozen=True, slots=True)
class Load:
    """How many entries (one author under one name) each peer keeps. The busiest is held against
    the mean of those who keep any, and of all."""

    entries: tuple[int, ...]

    @classmethod
    def of(cls, town: Town) -> Load:
        return cls(tuple(sorted(entries_of(town))))

    def figures(self) -> Figures:
        total, busiest = sum(self.entries), max(self.entries, default=0)
        storing = sum(count > 0 for count in self.entries)
        return {
            "entries": total,
            "busiest_entries": busiest,
            "busiest_over_mean": busiest * storing / total if total else None,
            "busiest_over_mean_all": busiest * len(self.entries) / total if total else None,
        }


def entries_of(town: Town) -> list[int]:
    """Of every live peer that can be dialled."""
    return [
        _load(town, node)
        for node in town.world.nodes.values()
        if node.alive and node.name not in town.world.undialable
    ]


def _load(town: Town, node: SimNode) -> int:
    if not node.awake:
        return 0 if town.placed is None else town.placed.load(node)
    records = node.peer.dht.records
    return records.load if isinstance(records, RecordStore) else 0


def by_bucket(outcomes: Sequence[Outcome], buckets: Iterable[str]) -> dict[str, Figures]:
    """How exact the queries for each bucket were."""
    found: dict[str, Figures] = {}
    for name in buckets:
        each = [outcome for outcome in outcomes if outcome.bucket == name]
        exact = share(sum(outcome.exact for outcome in each), len(each))
        found[name] = {"queries": len(each), "exact_share": exact}
    return found

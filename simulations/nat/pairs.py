"""A worker behind one router, a submitter behind another, for each pair of kinds."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from simulations.nat.network import Failed, Network, Submitter
from simulations.nat.rules import KINDS, Kind
from simulations.node_process import NodeProcess

# A pair that has no result by then has failed.
FIRST_TASK_S: Final = 8.0
FIRST_TASK_TARGET_S: Final = 3.0
# For workers that have just begun to learn that others cannot dial them, and to reserve at a gate.
REACHED_S: Final = 4.0
# For a circuit to give way to a direct connection: nat.md's pairs take 2 s at most.
SETTLE_S: Final = 2.0
TASKS: Final = 9
# Enough to see by which way it goes, at the gate's own cable; there, headers and the DHT come on
# top of what is relayed, which is counted on its way in and on its way out.
BULK_BYTES: Final = 2 * 1024 * 1024
SEEN_AT_GATE: Final = 0.2

_DIRECT_ALWAYS: Final[frozenset[Kind]] = frozenset({"public", "full"})
_SYMMETRIC: Final[frozenset[Kind]] = frozenset({"random", "fully-random"})


@dataclass(frozen=True, slots=True)
class Pair:
    """`worker` and `submitter` are the kinds of router that they are behind."""

    worker: Kind
    submitter: Kind

    @property
    def name(self) -> str:
        return f"{self.worker}-{self.submitter}"

    @property
    def can_be_direct(self) -> bool:
        """Between routers of which one maps ports for each connection anew, there is no way
        unless the other lets strangers in."""
        kinds = {self.worker, self.submitter}
        return bool(kinds & _DIRECT_ALWAYS) or not kinds & _SYMMETRIC


ALL: Final = tuple(Pair(worker, submitter) for worker in KINDS for submitter in KINDS)


def measure(
    network: Network, pairs: Sequence[Pair], told: Callable[[str, dict[str, Any]], None]
) -> dict[str, dict[str, Any]]:
    """By name. One worker for each kind, and one process that submits; a new member each time."""
    lab = network.lab
    gate_host = lab.host("gate")
    network.gate(gate_host)
    workers = {
        kind: network.worker(lab.behind(kind, f"w-{kind}"))
        for kind in _kinds(p.worker for p in pairs)
    }
    submitters = {
        kind: network.submitter(lab.behind(kind, f"s-{kind}"))
        for kind in _kinds(p.submitter for p in pairs)
    }
    network.ready(*workers.values(), *submitters.values())
    time.sleep(REACHED_S)
    bulk = network.folder / "bulk"
    figures: dict[str, dict[str, Any]] = {}
    for pair in pairs:
        worker, submitter = workers[pair.worker], submitters[pair.submitter]
        # New content each time: a worker keeps what it had.
        bulk.write_bytes(pair.name.encode().ljust(64) * (BULK_BYTES // 64))
        figures[pair.name] = found = _one(
            pair, worker, submitter, lambda: gate_host.bytes, str(bulk)
        )
        told(pair.name, found)
    return figures


def _one(
    pair: Pair, worker: NodeProcess, submitter: Submitter, at_gate: Callable[[], int], bulk: str
) -> dict[str, Any]:
    found: dict[str, Any] = {"can_be_direct": pair.can_be_direct}
    try:
        found |= submitter.join(worker.name, FIRST_TASK_S)
        found |= submitter.do("settle", SETTLE_S, within_s=SETTLE_S)
        found |= submitter.do("tasks", FIRST_TASK_S, tasks=TASKS)
        before = at_gate()
        found |= submitter.do("bulk", FIRST_TASK_S, file=bulk)
        found["gate_share"] = (at_gate() - before) / BULK_BYTES
    except Failed as failed:
        found["failed"] = str(failed)
    submitter.do("leave", FIRST_TASK_S)
    return {name: round(v, 3) if isinstance(v, float) else v for name, v in found.items()}


def violations(figures: dict[str, dict[str, Any]]) -> list[str]:
    """What is not as it must be: a pair without work, one that could be direct and is not, and
    one that is said to be direct while its bytes pass the gate."""
    found: list[str] = []
    for name, each in figures.items():
        if "failed" in each:
            found.append(f"{name}: {each['failed']}")
            continue
        if each["first_task_s"] > FIRST_TASK_TARGET_S:
            found.append(f"{name}: the first task took {each['first_task_s']} s")
        relayed = each["gate_share"] > SEEN_AT_GATE
        if relayed is not (each["path"] == "relayed"):
            found.append(f"{name} says {each['path']}; {each['gate_share']:.0%} passed the gate")
        if each["can_be_direct"] is relayed:
            found.append(f"{name} is {each['path']}")
    return found


def _kinds(named: Iterable[Kind]) -> tuple[Kind, ...]:
    there = set(named)
    return tuple(kind for kind in KINDS if kind in there)

"""How far a candidate meets the hints of a task.

Each kind of hint is met from 0 to 1. A required hint refuses all below 1; else it is a term, and
the sum of the terms decides before the score of the policy. All kinds weigh the same, but that
workers to be avoided come after all others.

A worker says with its offer how much of the data it has (leases/core/round.py), and its round trip
may not be measured yet: neither refuses a candidate here.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from functools import partial
from typing import Final, assert_never

from formation_p2p.core.refusals import Unwanted
from formation_p2p.core.units import format_bytes
from formation_p2p.machine.core.environment import packages_of
from formation_p2p.placement.core.candidate import Candidate, TaskView
from formation_p2p.placement.core.policy import Term
from formation_p2p.placement.core.round_trips import nearness
from formation_p2p.workload.core.hints import Hints, Kind
from formation_p2p.workload.core.scope import Scope

# More than all the other kinds together.
LAST_RESORT: Final = float(len(Kind))
# Of a region that a worker says it is in, where the charter says of others that they are.
SAID: Final = 0.5


def holds_data_of(scope: Scope, hints: Hints) -> Callable[[Candidate], bool] | None:
    """Which workers may have data of a task with this scope and these hints; None for any."""
    if scope < Scope.COMMONS or Kind.REGION in hints.required:
        return partial(may_hold, scope, hints)
    return None


def may_hold(scope: Scope, hints: Hints, candidate: Candidate) -> bool:
    """Whether data of a task with this scope and these hints may be with a worker."""
    if candidate.scope > scope:
        return False
    is_bound = Kind.REGION in hints.required
    return not is_bound or _met(Kind.REGION, hints, candidate) == 1.0


def unwanted(task: TaskView, candidate: Candidate) -> Unwanted | None:
    """The required hint that the candidate does not meet, if any."""
    hints = task.hints
    for kind in hints.kinds:
        if kind in hints.required and (why := _why_not(kind, hints, candidate)):
            return Unwanted(kind, why)
    return None


def welcome(task: TaskView, candidate: Candidate) -> tuple[Term, ...]:
    """How far it meets each hint; and whether it has the packages of the task already, which is
    another one."""
    met = [(kind, _met(kind, task.hints, candidate)) for kind in task.hints.kinds]
    terms = tuple(
        Term(kind, part - 1.0, LAST_RESORT, _in_words(part))
        if kind is Kind.AVOID
        else Term(kind, part, shown=_in_words(part))
        for kind, part in met
    )
    packages = packages_of(task.needs.environment)
    if not packages:
        return terms
    has = float(packages in candidate.profile.environments)
    return *terms, Term("env", has, shown=_in_words(has))


def _in_words(part: float) -> str:
    """How far a hint is met."""
    return {0.0: "no", 1.0: "yes"}.get(part, f"{part:.0%}")


def unmet(hints: Hints, there: Collection[int], rtt_us: int) -> Unwanted | None:
    """The required hint that an offering worker does not meet, if any. `there` are the places in
    `hints.near` of the data that it has."""
    if Kind.NEAR in hints.required and (local := hints.bytes_of(there)) < hints.data_bytes:
        has, whole = map(format_bytes, (local, hints.data_bytes))
        return Unwanted(Kind.NEAR, f"it has {has} of {whole}")
    if Kind.RTT in hints.required and not _is_within(hints, rtt_us):
        return Unwanted(Kind.RTT, _too_far(hints, rtt_us))
    return None


def _met(kind: Kind, hints: Hints, candidate: Candidate) -> float:
    labels, tasks = candidate.profile.labels, candidate.tasks
    match kind:
        case Kind.PREFER:
            return float(hints.prefers(candidate.peer_id))
        case Kind.AVOID:
            return float(not hints.avoids(candidate.peer_id))
        case Kind.REGION:
            is_labelled = ("region", hints.region) in labels
            if candidate.region is None:
                return float(is_labelled)
            return 1.0 if candidate.region == hints.region else is_labelled * SAID
        case Kind.LABEL:
            return _share(label in labels for label in hints.labels)
        case Kind.NEAR:
            return min(candidate.local_bytes, hints.data_bytes) / hints.data_bytes
        case Kind.WITH:
            return _share(name in tasks for name in hints.with_tasks)
        case Kind.AWAY:
            return _share(name not in tasks for name in hints.away_from)
        case Kind.RTT:
            return 1.0 if _is_within(hints, candidate.rtt_us) else nearness(candidate.rtt_us)
        case _:
            assert_never(kind)


def _share(met: Iterable[bool]) -> float:
    each = tuple(met)
    return sum(each) / len(each)


def _is_within(hints: Hints, rtt_us: int | None) -> bool:
    most_ms = hints.max_rtt_ms
    return most_ms is not None and rtt_us is not None and rtt_us <= most_ms * 1000


def _too_far(hints: Hints, rtt_us: int) -> str:
    return f"it is {rtt_us / 1000:.1f} ms away, of {hints.max_rtt_ms} at most"


def _why_not(kind: Kind, hints: Hints, candidate: Candidate) -> str | None:
    if _met(kind, hints, candidate) == 1.0:
        return None
    labels = dict(candidate.profile.labels)
    match kind:
        case Kind.PREFER:
            return "it is none of those named"
        case Kind.AVOID:
            return "it is one of those named"
        case Kind.REGION:
            has = labels.get("region") if candidate.region is None else candidate.region
            if candidate.region == "":
                return "the charter has it in no region"
            return f"it is in {has}, not {hints.region}" if has else "it does not say where it is"
        case Kind.LABEL:
            missing = (f"{key}={value}" for key, value in hints.labels if labels.get(key) != value)
            return f"it is not labelled {', '.join(missing)}"
        case Kind.WITH:
            absent = (name for name in hints.with_tasks if name not in candidate.tasks)
            return f"{', '.join(absent)} does not run there"
        case Kind.AWAY:
            there = (name for name in hints.away_from if name in candidate.tasks)
            return f"{', '.join(there)} runs there"
        case Kind.RTT if candidate.rtt_us is not None:
            return _too_far(hints, candidate.rtt_us)
        case _:
            return None

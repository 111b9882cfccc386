"""Calls of Python functions as jobs, many at a time: what `map` and the executor have in common."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any, Final

from formation_p2p.api.calls import error_of
from formation_p2p.api.job import TaskEnd, result_of
from formation_p2p.api.placing import Needs, Placing, requirements_of
from formation_p2p.core.dispatch.job_events import TaskSucceeded
from formation_p2p.core.errors import InvalidInput
from formation_p2p.core.placement.policy import PlacementPolicy
from formation_p2p.core.placement.scheduling_key import NEAREST
from formation_p2p.core.resources.requirements import Requirements
from formation_p2p.core.units import MIB
from formation_p2p.core.workload.hints import NO_HINTS, Hints
from formation_p2p.core.workload.plain_pickle import load_result
from formation_p2p.core.workload.python_call import PythonCall
from formation_p2p.core.workload.scope import Scope
from formation_p2p.core.workload.task import Job, Task, task_id

# Calls handed over as one job. One crossing to the node's thread costs as much as making five
# tasks; more than this would keep the caller's loop from its other work for over 10 ms.
BATCH_CALLS: Final = 512
# ...of so many bytes at the most: eight of the largest payloads.
BATCH_BYTES: Final = 64 * MIB


@dataclass(frozen=True, slots=True)
class CallOptions:
    """What all calls of one `map` or executor have in common. `needs` names the python driver."""

    needs: Requirements
    attempts: int
    timeout_s: float | None
    priority: int
    trust_results: bool
    max_price_micro: int | None = None
    speculate: bool = False
    policy: PlacementPolicy = NEAREST
    hints: Hints = NO_HINTS
    scope: Scope = Scope.COMMONS


def terms_of(
    needs: Needs,
    placing: Placing,
    *,
    attempts: int,
    timeout_s: float | None,
    priority: int,
    trust_results: bool,
    max_price_micro: int | None,
    speculate: bool = False,
) -> CallOptions:
    """Raises InvalidInput."""
    required = requirements_of(needs)
    if required.driver not in ("", PythonCall.driver):
        raise InvalidInput("driver", f"{required.driver} does not run a function")
    return CallOptions(
        replace(required, driver=PythonCall.driver),
        attempts,
        timeout_s,
        priority,
        trust_results,
        max_price_micro,
        speculate,
        **placing,
    )


def job_of(calls: Iterable[tuple[bytes, bytes]], terms: CallOptions, name: str) -> Job:
    """One task for each pair of a function's pickle and its arguments', in their order.

    Raises InvalidInput.
    """
    job_id = secrets.token_hex(8)
    tasks = tuple(
        Task(
            task_id(job_id, index),
            terms.needs,
            arguments,
            "",
            terms.timeout_s,
            terms.attempts,
            function,
        )
        for index, (function, arguments) in enumerate(calls)
    )
    return Job(
        job_id,
        tasks,
        name,
        terms.priority,
        speculate=terms.speculate,
        max_price_micro=terms.max_price_micro,
        policy=str(terms.policy),
        hints=terms.hints,
        scope=terms.scope,
    )


def value_of_end(end: TaskEnd, terms: CallOptions) -> Any:
    """What the function returned. Raises TaskFailed, from what it raised; Unplaceable."""
    if type(end) is TaskSucceeded:
        return load_result(end.result, trust=terms.trust_results)
    raise error_of(result_of(end), trust_results=terms.trust_results)


def name_of(function: Callable[..., Any]) -> str:
    return getattr(function, "__name__", type(function).__name__)

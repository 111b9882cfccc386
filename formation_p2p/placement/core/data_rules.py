"""Jobs go no further than their inputs may."""

from __future__ import annotations

from dataclasses import replace

from formation_p2p.core.errors import InvalidInput
from formation_p2p.placement.core.task_options import TaskOptions
from formation_p2p.workload.core.data_rule import combined
from formation_p2p.workload.core.hints import Kind
from formation_p2p.workload.core.inputs_from import process_in
from formation_p2p.workload.core.plan import Plan
from formation_p2p.workload.core.scope import Scope


def within_rules(options: TaskOptions, plan: Plan) -> TaskOptions:
    """The options of a job with these tasks: in the region, and the scope, of all data that they
    read. Raises InvalidInput for an unknown place."""
    processes = (process_in(task.work) for task in plan.tasks)
    inputs = (blob for each in processes if each is not None for blob in each.inputs.values())
    rules = [blob.rule for blob in inputs if blob.rule is not None]
    rule = combined(rules)
    if rule is None:
        return options
    # What is for the parties of a job may go to its workers, which are parties.
    circles = (each.scope for each in rules if each.scope != Scope.LOCAL)
    scope = min(options.scope, *circles, Scope.COMMONS)
    hints = options.hints
    if rule.region:
        if hints.region not in ("", rule.region):
            problem = f"the job asks for {hints.region}, and its inputs stay in {rule.region}"
            raise InvalidInput("region", f"{problem}; leave the hint out")
        required = frozenset(hints.required) | {Kind.REGION}
        hints = replace(hints, region=rule.region, required=required)
    return replace(options, scope=scope, hints=hints)

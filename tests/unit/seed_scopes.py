"""ICN's scopes and constraints: how far a task may go, and where to."""

from __future__ import annotations

from dataclasses import replace

from formation_p2p.core.refusals import Unwanted
from formation_p2p.leases.core.budget import Budget
from formation_p2p.placement.core.policy import Policy
from formation_p2p.workload.core.hints import parse_hints
from formation_p2p.workload.core.scope import EVERYTHING, WHOLE_MILLI, Scope, ScopeShares
from tests.support.placement_world import peer, placed, profile, task, worker
from tests.support.stories import BOB
from tests.unit.seed_cases import Vector, covers


def accepts(shares: ScopeShares, widest: Scope, between: Scope) -> bool:
    """Whether a task that may go so far comes to a machine with these shares."""
    candidate = replace(worker("alice"), scope=between)
    decision = placed(task(scope=widest), [candidate], Policy())
    budget = Budget(shares, 8000, lambda grant, peer_id: between)
    return bool(decision.ranked) and budget.refusal(b"", BOB.peer_id, 1000) is None


def scopes(names: list[str]) -> list[Scope]:
    return [Scope[name.upper()] for name in names]


@covers("icn/scope_gates")
def who_is_near_enough(vector: Vector) -> None:
    widest = Scope[vector.given["max_scope"].upper()]
    peers = scopes(vector.given["peer"])
    assert [accepts(EVERYTHING, widest, each) for each in peers] == vector.expect["accept"]
    case = vector.given["allowed_scopes_case"]
    allowed = scopes(case["allowed"])
    shares = ScopeShares(tuple(WHOLE_MILLI * (scope in allowed) for scope in Scope))
    widest = Scope[case["max"].upper()]
    accepted = [accepts(shares, widest, each) for each in scopes(case["peers"])]
    assert accepted == vector.expect["case_accept"]
    assert all(accepts(EVERYTHING, Scope.COMMONS, each) for each in Scope)


@covers("icn/scope_budget_exhaustion")
def how_much_a_circle_may_have(vector: Vector) -> None:
    given = vector.given
    cores_milli = given["cores"] * 1000
    task_milli = round(given["profile_cpu"] * 1000)

    def takes_one_more(share: float, queued: int) -> bool:
        shares = ScopeShares((round(share * WHOLE_MILLI),) * len(Scope))
        budget = Budget(shares, cores_milli, lambda grant, peer_id: Scope.CELL)
        for number in range(queued):
            budget.opened(str(number), b"", BOB.peer_id, task_milli)
        return budget.refusal(b"", BOB.peer_id, task_milli) is None

    # Its default: a quarter for the cell.
    slots = next(queued for queued in range(1000) if not takes_one_more(0.25, queued))
    assert slots == vector.expect["slots_cell"]
    accepted = [takes_one_more(0.25, queued) for queued in given["cell_queue"]]
    assert accepted == vector.expect["accept"]
    accepted = [takes_one_more(share, 5) for share in given["commons_queue_5_with_share"]]
    assert accepted == vector.expect["commons_accept"]


@covers("icn/policy_constraints")
def what_a_cooperative_demands_of_executors(vector: Vector) -> None:
    """Its rules are hints that are required; a capability is a label."""
    expect = vector.expect
    allowed = [peer(name) for name in expect["allowed"]]
    forbidden = [peer(name) for name in expect["forbidden"]]
    able = tuple((name, "yes") for name in expect["caps"])
    region = ("region", expect["required_region"])
    hints = parse_hints(
        [
            f"require {region[0]}={region[1]}",
            *(f"require prefer={each}" for each in (*allowed, *forbidden)),
            *(f"require avoid={each}" for each in forbidden),
            *(f"require label.{key}={value}" for key, value in able),
        ]
    )

    def refused_by(name: str, *labels: tuple[str, str]) -> str | None:
        decision = placed(task(hints=hints), [worker(profile(name, labels=labels))], Policy())
        whys = [each.hint for _, each in decision.rejected if isinstance(each, Unwanted)]
        assert len(decision.ranked) + len(whys) == 1
        return whys[0] if whys else None

    assert [refused_by(name, region, *able) for name in expect["allowed"]] == [None, None]
    assert refused_by("carol", region, *able) == "prefer"
    assert [refused_by(name, region, *able) for name in expect["forbidden"]] == ["avoid"]
    assert refused_by(expect["allowed"][0], region) == "label"
    assert refused_by(expect["allowed"][0], ("region", "us-east"), *able) == "region"
    assert expect["node_without_region"] == "skip"
    assert refused_by(expect["allowed"][0], *able) == "region"

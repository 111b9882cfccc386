"""ICN's quotas and priorities, which are a grant's here."""

from __future__ import annotations

from typing import Any, Final

from formation_p2p.core.effects import Moment
from formation_p2p.core.refusals import TooDear
from formation_p2p.placement.core.policy import Policy
from formation_p2p.trust.core.admission import AdmissionController, Tolerated
from formation_p2p.trust.core.grants import Rights, issue, read_grant
from formation_p2p.trust.core.membership import Membership
from formation_p2p.trust.core.quota import Quota, Used, month_after, month_of
from tests.support.placement_world import placed, profile, task, worker
from tests.support.stories import BOB, NEEDS, at, identity
from tests.unit.seed_cases import Vector, covers

ROOT: Final = identity("root")
EXPIRY: Final = 10**10
LEVELS: Final = ("Low", "Normal", "High", "Critical")
NOW: Final = at(0)


def granted(**limits: Any) -> bytes:
    return issue(ROOT, Rights(EXPIRY, **limits), BOB.peer_id)


def controller(used_ms: int, grant: bytes, *, permissive: bool = False) -> AdmissionController:
    """Where one core has been used for so long."""
    month = month_of(NOW.unix_s)
    names = [account.name for account in read_grant(grant, ROOT.public_key).accounts]
    used = [(month, name, Used(used_ms, 0)) for name in names]
    return AdmissionController(Membership(ROOT.public_key), {}, used, permissive)


def why_not(
    judge: AdmissionController, grant: bytes, priority: int = 0, now: Moment = NOW
) -> str | None:
    denied = judge.denied(grant, BOB.peer_id, NEEDS, priority, now, another=True)
    return None if denied is None else denied.why


@covers("icn/quotas")
def each_is_refused(vector: Vector) -> None:
    given, expect = vector.given, vector.expect
    cpu, concurrent, priority, credit = expect["reasons"]

    hours = granted(quota=Quota(cpu_milli_hours=round(given["cpu_limit_h"] * 1000)))
    # Here it also says when there are hours again.
    until = month_after(NOW.unix_s)
    assert why_not(controller(given["used_ms"], hours), hours) == f"{cpu}, until {until}"

    running, most = given["concurrent"]
    few = granted(quota=Quota(leases=most))
    busy = controller(0, few)
    for number in range(running):
        assert why_not(busy, few) is None
        busy.opened(str(number), few, 1000, 0)
    assert why_not(busy, few) == concurrent

    # A priority is a number here: its levels are 0 to 3.
    asked, limit = (LEVELS.index(level.removeprefix("max ")) for level in given["priority"])
    assert priority == f"Task priority {LEVELS[asked]} exceeds member limit {LEVELS[limit]}"
    low = granted(max_priority=limit)
    assert why_not(controller(0, low), low, asked) == (
        f"the grant allows priorities up to {limit}, not {asked}"
    )

    # Nor are there credits: what a job may cost is its owner's to say, and nobody else learns it.
    spent, allowed = given["credits"]
    assert credit == f"Monthly credit quota exceeded: {spent}/{allowed}"
    dear = worker(profile("alice", price_micro=spent))
    ((_, refusal),) = placed(task(max_price_micro=allowed), [dear], Policy()).rejected
    assert refusal == TooDear(spent, allowed)

    assert (expect["decision"], expect["Permissive"]) == ("Reject each", "Allow")
    permissive = controller(given["used_ms"], hours, permissive=True)
    assert why_not(permissive, hours) is None
    assert [type(reported) for reported in permissive.take()] == [Tolerated]

    assert expect["no_policy"] == "Allow"
    free = granted()
    assert why_not(controller(given["used_ms"], free), free) is None


@covers("icn/priority_multiplier")
def priorities_are_weighed(vector: Vector) -> None:
    most = len(LEVELS) - 1
    assert vector.expect["formula"] == f"round(level*mult) clamp 0..{most}"
    adjusted = []
    for level, multiplier in vector.given["cases"]:
        grant = granted(max_priority=most, weight_milli=round(multiplier * 1000))
        judge = controller(0, grant)
        assert why_not(judge, grant, LEVELS.index(level)) is None
        adjusted.append(LEVELS[judge.weighed(grant, LEVELS.index(level))])
    assert adjusted == vector.expect["adjusted"]

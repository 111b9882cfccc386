"""Workers that claim one slot at the same moment: all but one of them yield."""

from __future__ import annotations

from formation_p2p.core.services.events import ServiceStep
from tests.support.services_world import Hamlet, wanting


def contest(seed: int) -> Hamlet:
    """Some workers far from each other, so that each has claimed before it hears of the others."""
    hamlet = Hamlet(6, seed=seed)
    hamlet.world.elapse(5)
    hamlet.world.latency = lambda a, b: 0.4
    hamlet.publish(wanting(1))
    hamlet.world.elapse(60)
    return hamlet


def test_of_workers_that_claim_a_slot_at_once_one_starts_and_the_others_yield() -> None:
    contests = [contest(seed) for seed in range(6)]
    assert [len(hamlet.having("echo")) for hamlet in contests] == [1] * 6
    assert [len(hamlet.steps(ServiceStep.STARTED)) for hamlet in contests] == [1] * 6
    yielded = [
        event.why
        for hamlet in contests
        for node in hamlet.workers
        for _, event in node.service_events
        if event.step is ServiceStep.YIELDED
    ]
    assert "another has the slot" in yielded

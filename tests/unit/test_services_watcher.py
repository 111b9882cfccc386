"""Workers that read the claims of the services that they may run."""

from __future__ import annotations

from dataclasses import replace

from formation_p2p.core.services.spec import ONE, Pinned
from tests.support.services_world import ECHO, Hamlet, wanting


def test_a_service_whose_spec_has_expired_ends_and_is_read_no_more() -> None:
    hamlet = Hamlet(3)
    hamlet.world.elapse(5)
    hamlet.publish(wanting(1), life_s=100)
    hamlet.world.elapse(90)
    assert len(hamlet.having("echo")) == 1
    hamlet.world.elapse(120)
    assert hamlet.having("echo") == []
    reads = hamlet.world.messages["services: watch"]
    assert reads
    hamlet.world.elapse(600)
    assert hamlet.having("echo") == []
    assert hamlet.world.messages["services: watch"] == reads


def test_a_pinned_service_runs_on_while_no_holder_answers() -> None:
    hamlet = Hamlet(4)
    hamlet.world.elapse(5)
    home, *others = hamlet.workers
    hamlet.publish(replace(ECHO, replicas=ONE, pinned=Pinned("data", home.identity.peer_id)))
    hamlet.world.elapse(60)
    for other in (*others, hamlet.gate):
        other.side = 1
    hamlet.world.elapse(120)
    assert hamlet.having("echo") == [home]

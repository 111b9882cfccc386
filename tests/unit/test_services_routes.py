"""How long what was read of a service counts."""

from __future__ import annotations

from formation_p2p.features.services.core.resend import IDEMPOTENT, may_send_again
from formation_p2p.features.services.core.routes import Freshness, Route


def test_it_is_used_then_read_again_beside_and_then_forgotten() -> None:
    route: Route[str] = Route()
    assert route.freshness(0.0) is Freshness.NOTHING
    assert route.found(0.0) is None
    assert route.may_read_at_s() < 0
    route.read("here", 10.0)
    assert (route.found(10.0), route.freshness(10.2)) == ("here", Freshness.FRESH)
    assert route.freshness(14.9) is Freshness.FRESH
    assert route.freshness(15.0) is Freshness.OLD
    assert route.found(69.9) == "here"
    assert (route.found(70.0), route.freshness(70.0)) == (None, Freshness.NOTHING)


def test_a_read_that_fails_leaves_what_there_was() -> None:
    route: Route[str] = Route()
    route.read("here", 0.0)
    route.read(None, 20.0)
    assert (route.found(20.1), route.freshness(20.1)) == ("here", Freshness.FRESH)
    assert route.freshness(20.6) is Freshness.OLD
    assert route.found(60.0) is None
    assert route.may_read_at_s() == 20.5


def test_after_a_failure_it_is_read_first_and_not_at_once_again() -> None:
    route: Route[str] = Route()
    route.read("here", 0.0)
    route.failed()
    assert route.freshness(0.4) is Freshness.FRESH
    assert route.freshness(0.6) is Freshness.SPENT
    assert route.found(0.6) == "here"  # should the next read fail
    route.read("there", 0.7)
    assert route.freshness(1.3) is Freshness.FRESH


def test_a_post_is_sent_again_only_where_it_never_ran() -> None:
    assert "POST" not in IDEMPOTENT
    assert may_send_again(never_ran=True, idempotent=False, answer_began=False)
    assert may_send_again(never_ran=False, idempotent=True, answer_began=False)
    assert not may_send_again(never_ran=False, idempotent=False, answer_began=False)
    assert not may_send_again(never_ran=True, idempotent=True, answer_began=True)

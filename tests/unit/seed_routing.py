"""CMACatalyst: requests brought to services."""

from __future__ import annotations

import random

from formation_p2p.features.services.core.balancer import Balancer, Replica
from formation_p2p.features.services.core.routes import Route, RouteParameters
from tests.support.placement_world import peer
from tests.unit.seed_cases import Vector, covers


@covers("cmacatalyst/BUG:proxy_always_first_worker")
def the_one_that_lives(vector: Vector) -> None:
    """The first one is dead; a request is brought to the other, at once and from then on."""
    dead, alive = map(peer, vector.given["service_workers"])
    assert alive == peer(vector.expect["correct"])
    for seed in range(9):
        balancer = Balancer(random.Random(seed))
        balancer.listed([Replica(dead, 16), Replica(alive, 16)])
        balancer.rest(dead, 0.0)
        assert balancer.choose(0.0, tried={dead}) == balancer.choose(0.0) == alive


@covers("cmacatalyst/route_cache_ttl")
def what_was_read_lasts_as_long_as_a_claim(vector: Vector) -> None:
    ttl_s = vector.given["ttl_s"]
    assert RouteParameters().ttl_s == ttl_s
    route: Route[str] = Route()
    route.read("here", 0.0)
    assert route.found(vector.expect["hit_until_s"] - 0.001) == "here"
    assert route.found(ttl_s) is None
    route.read("here", 100.0)
    before = route.freshness(101.0)
    route.failed()
    assert (route.freshness(101.0) is not before) == vector.expect["failure_invalidates"]

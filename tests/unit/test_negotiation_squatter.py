"""Members who ask for whole machines and commit to nothing, and how long honest jobs take then."""

from __future__ import annotations

from dataclasses import replace

import pytest

from formation_p2p.core.dispatch.job_events import TaskSucceeded
from formation_p2p.core.effects import Moment
from formation_p2p.core.negotiation.messages import Offer, PlacementRequest, RequestRefused
from formation_p2p.core.negotiation.session import Received
from formation_p2p.core.peer.effects import PeerEffect
from formation_p2p.core.peer.events import PeerEvent
from formation_p2p.core.peer.peer import Peer
from formation_p2p.core.trust.grants import Rights, bind, issue
from formation_p2p.core.workload.outcome import Succeeded
from formation_p2p.sim.world import EPOCH_UNIX_S, World
from tests.support.stories import NEEDS, job, only

TASK_S = 0.1
# An honest job with a squatter in the network.
TARGET_S = 3.0
ALL = replace(NEEDS, cpu_milli=2000)
EVERY_S = 0.1


class Mute(Peer):
    """Says nothing of offers: neither does it take one, nor give it back."""

    def handle(self, event: PeerEvent, now: Moment) -> list[PeerEffect]:
        if isinstance(event, Received) and isinstance(event.message, Offer | RequestRefused):
            return []
        return super().handle(event, now)


class Town:
    """Two workers, bob, who is honest, and squatters with an invitation of their own."""

    def __init__(self, squatters: int, priority: int = 0) -> None:
        self.world = World(7, lambda running: (TASK_S, Succeeded(b"")))
        self.world.add("gate")
        self.workers = [
            self.world.add(name, serve=self.world.machine(cpu=2)) for name in ("alice", "carol")
        ]
        self.bob = self.world.add("bob")
        self.world.peer = Mute
        self.squatters = [self.world.add(f"mallory {n}") for n in range(squatters)]
        self.priority = priority
        self.invitation = issue(self.world.root, Rights(int(EPOCH_UNIX_S) + 10**7))
        self.asked = 0
        self.world.elapse(20)  # so that all know each other

    def squat(self) -> None:
        """One of them after the other asks every worker for all that it has."""
        who = self.squatters[self.asked // len(self.workers) % len(self.squatters)]
        worker = self.workers[self.asked % len(self.workers)]
        self.asked += 1
        root = self.world.root.public_key
        grant = bind(self.invitation, root, who.identity.peer_id)
        request = PlacementRequest(self.asked, ALL, grant, self.priority)
        self.world.deliver(worker, Received(who.contact, request))
        self.world.after(EVERY_S / len(self.workers), self.squat)

    def took_s(self, number: int) -> float:
        """A job of bob's, of as many whole machines as there are."""
        began_s, done = self.world.now_s, len(only(self.bob.reported, TaskSucceeded))
        self.bob.submit(job(2, job_id=f"job {number}", needs=ALL))
        while len(only(self.bob.reported, TaskSucceeded)) < done + 2:
            self.world.elapse(0.1)
            assert self.world.now_s < began_s + 60
        return self.world.now_s - began_s


@pytest.mark.parametrize("priority", [0, 9])
@pytest.mark.parametrize("squatters", [1, 12])
def test_an_honest_job_takes_three_seconds_at_most(squatters: int, priority: int) -> None:
    town = Town(squatters, priority)
    town.squat()
    # The first one finds both machines taken a moment before it came.
    took_s = [town.took_s(0)]
    for number in range(1, 5):
        town.world.elapse(4.3)
        took_s.append(town.took_s(number))
    assert max(took_s) <= TARGET_S


@pytest.mark.at_length
def test_whose_jobs_run_is_served_as_if_the_squatter_were_not_there() -> None:
    town = Town(1)
    quiet_s = town.took_s(0)
    town.world.elapse(5)
    town.squat()
    town.world.elapse(20)
    assert town.took_s(1) <= quiet_s + 0.1

"""Services while workers come and go as volunteers do, and what an oracle would make of the same.

The oracle lives through the same sessions, and learns of a death as late as the shipped peers do:
after as long as their guardians took to suspect a holder that had died, drawn anew for each death.
Then it knows everything: it starts a replica at once, on a worker that is alive at that moment and
has the fewest. So what it is better by is the time for claiming, and what was claimed twice, not at
all, or where no guardian was left.
"""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

from formation_p2p.features.services.core.events import ServiceStep
from formation_p2p.features.services.core.spec import ONE
from simulations.churn import Churn
from simulations.simulator.node import SimNode
from simulations.simulator.performer import START_S
from simulations.village import SETTLE_S, Village

LASTS_S: Final = 3600.0
# At the speed of the measurement a service with one replica loses it once in two days.
SPEED: Final = 30.0
# The oracle's story is told so often, each with other delays.
ORACLES: Final = 50


@dataclass(slots=True)
class Session:
    """A worker that is there from then to then."""

    node: SimNode
    from_s: float
    until_s: float = float("inf")


@dataclass(slots=True)
class Golem:
    """An hour in a village in which each service is to have one replica."""

    village: Village
    churn: Churn
    sessions: dict[str, Session] = field(default_factory=dict)
    began_s: float = 0.0

    def tell(self) -> None:
        world = self.village.world
        self.began_s = world.now_s
        for node in self.village.alive():
            self._stays(node, self.churn.remaining_s())
        for at_s in self.churn.arrivals_s(LASTS_S):
            world.after(at_s, self._comes)
        world.elapse(LASTS_S)

    def _comes(self) -> None:
        self._stays(self.village.arrive(), self.churn.session_s())

    def _stays(self, node: SimNode, for_s: float) -> None:
        now_s = self.village.now_s
        self.sessions[node.name] = Session(node, now_s, now_s + for_s)
        if now_s + for_s < self.began_s + LASTS_S:
            self.village.world.after(for_s, self._goes, node, self.churn.crashes())

    def _goes(self, node: SimNode, crashes: bool) -> None:
        """Those that do not crash are switched off: their connections break."""
        self.village.end(node, silent=crashes)

    # -- what became of the services --------------------------------------------------------------

    def critical_s(self) -> float:
        """For how long services had no replica that is ready, all of them together."""
        return sum(
            lacking_s(self._ready(spec.name), self.began_s, self.began_s + LASTS_S)
            for spec in self.village.specs
        )

    def losses(self) -> int:
        """How many replicas that were ready died with their workers."""
        ends_s = self.began_s + LASTS_S
        return sum(
            self.began_s <= until_s < ends_s and until_s == self._until_s(node)
            for spec in self.village.specs
            for node, _, until_s in self._spans(spec.name)
        )

    def _ready(self, service: str) -> list[tuple[float, float]]:
        return [(from_s, until_s) for _, from_s, until_s in self._spans(service)]

    def _spans(self, service: str) -> list[tuple[str, float, float]]:
        """On which node its replicas were ready, from when until when."""
        since: dict[str, float] = {}
        times = []
        for each in self.village.seen.happened:
            if each.service == service and each.what == "ready":
                since[each.node] = each.at_s
            elif each.service == service and each.what == "stop" and each.node in since:
                times.append((each.node, since.pop(each.node), each.at_s))
        return times + [(node, at_s, self._until_s(node)) for node, at_s in since.items()]

    def _until_s(self, node: str) -> float:
        session = self.sessions.get(node)
        return self.began_s if session is None else session.until_s

    def delays_s(self) -> list[float]:
        """From the death of a holder until a guardian suspected it, for each that was."""
        suspected: dict[tuple[str, str], list[float]] = defaultdict(list)
        for session in self.sessions.values():
            for at_s, event in session.node.service_events:
                if event.step is ServiceStep.SUSPECTED and event.peer_id is not None:
                    suspected[event.service, event.peer_id].append(at_s)
        delays = []
        for session in self.sessions.values():
            for spec in self.village.specs:
                times = suspected[spec.name, session.node.identity.peer_id]
                after = [at_s for at_s in times if at_s >= session.until_s]
                delays += [min(after) - session.until_s] if after else []
        return delays

    def oracle(self, first: dict[str, str]) -> tuple[float, float]:
        """What `critical_s` and `losses` would be: the mean of many stories. `first` are the
        holders at the beginning."""
        rng = random.Random("oracle")
        delays = self.delays_s() or [0.0]
        told = [self._oracle(first, delays, rng) for _ in range(ORACLES)]
        return sum(each[0] for each in told) / ORACLES, sum(each[1] for each in told) / ORACLES

    def _oracle(
        self, first: dict[str, str], delays: Sequence[float], rng: random.Random
    ) -> tuple[float, int]:
        ends_s = self.began_s + LASTS_S
        held = Counter(first.values())
        lost_s, losses = 0.0, 0
        # (when its replica is lost, the service, its holder), the earliest first
        due = sorted((self._until_s(node), service, node) for service, node in first.items())
        while due and due[0][0] < ends_s:
            died_s, service, node = due.pop(0)
            held[node] -= 1
            losses += 1
            ready_s = died_s
            while ready_s < ends_s:
                placed_s = ready_s + rng.choice(delays)
                alive = [
                    name
                    for name, session in self.sessions.items()
                    if session.from_s <= placed_s < session.until_s
                ]
                fewest = min(held[name] for name in alive)
                node = rng.choice([name for name in alive if held[name] == fewest])
                ready_s = placed_s + START_S
                if self._until_s(node) > ready_s:
                    break
                ready_s = self._until_s(node)  # it died meanwhile, which is to be noticed as well
            lost_s += min(ready_s, ends_s) - died_s
            held[node] += 1
            due.append((self._until_s(node), service, node))
            due.sort()
        return lost_s, losses


def lacking_s(times: Iterable[tuple[float, float]], from_s: float, until_s: float) -> float:
    """How much of a span these spans leave out."""
    lacking, reached_s = 0.0, from_s
    for begins_s, ends_s in sorted(times):
        lacking += max(0.0, min(begins_s, until_s) - reached_s)
        reached_s = max(reached_s, min(ends_s, until_s))
    return lacking + max(0.0, until_s - reached_s)


def golem(seed: int, workers: int, speed: float = SPEED) -> dict[str, float]:
    """The times without a replica in one such hour, and an oracle's."""
    village = Village(seed, workers, replicas=ONE)
    village.world.elapse(2 * SETTLE_S)
    first = {service: node.name for node in village.holders() for service in node.replicas.running}
    hour = Golem(village, Churn(random.Random(f"golem/{seed}"), workers, speed))
    hour.tell()
    deaths = sum(each.until_s < hour.began_s + LASTS_S for each in hour.sessions.values())
    oracle_s, oracle_losses = hour.oracle(first)
    return {
        "critical_s": hour.critical_s(),
        "losses": hour.losses(),
        "oracle_s": oracle_s,
        "oracle_losses": oracle_losses,
        "deaths": deaths,
    }

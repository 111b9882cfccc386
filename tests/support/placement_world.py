"""Workers to choose from, and tasks to place, for the tests of placement."""

from collections.abc import Iterable

from formation_p2p.core.effects import Contact
from formation_p2p.core.identity import PeerId, key_of_peer
from formation_p2p.core.keyspace import key_of
from formation_p2p.core.units import GIB
from formation_p2p.machine.core.capability import Capability, Capacity, idle
from formation_p2p.machine.core.requirements import Requirements
from formation_p2p.placement.core.candidate import Candidate, TaskView
from formation_p2p.placement.core.decision import Decision, decide
from formation_p2p.placement.core.policy import PlacementPolicy
from formation_p2p.records.core.profile import Profile
from formation_p2p.workload.core.hints import NO_HINTS, Hints
from formation_p2p.workload.core.scope import Scope
from tests.support.stories import at, contact

NOW = at(0)
SMALL = Requirements(cpu_milli=1000, memory_bytes=GIB)


def task(
    name: str = "job/0",
    needs: Requirements = SMALL,
    *,
    max_price_micro: int | None = None,
    hints: Hints = NO_HINTS,
    scope: Scope = Scope.COMMONS,
) -> TaskView:
    key = key_of(name.encode())
    return TaskView(
        name=name, key=key, needs=needs, max_price_micro=max_price_micro, hints=hints, scope=scope
    )


def profile(
    who: str | Contact,
    capability: Capability | None = None,
    capacity: Capacity | None = None,
    *,
    price_micro: int = 0,
    labels: tuple[tuple[str, str], ...] = (),
    drivers: tuple[str, ...] = ("process",),
    lives_s: int = 60,
) -> Profile:
    """A machine of 8 cores and 16 GiB, idle, unless something else is said."""
    there = contact(who) if isinstance(who, str) else who
    able = capability or Capability(8000, 16 * GIB, 100 * GIB)
    return Profile(
        peer_id=there.peer_id,
        sequence=1,
        issued_unix_s=int(NOW.unix_s) - 60,
        expires_unix_s=int(NOW.unix_s) + lives_s,
        capability=able,
        capacity=capacity or idle(able),
        labels=labels,
        drivers=drivers,
        price_micro=price_micro,
        addresses=there.addresses,
    )


def worker(
    who: str | Profile, *, trust: float | None = None, queue: int = 0, rtt_ms: int | None = None
) -> Candidate:
    return Candidate(
        profile=profile(who) if isinstance(who, str) else who,
        trust_milli=None if trust is None else round(trust * 1000),
        queue=queue,
        rtt_us=None if rtt_ms is None else rtt_ms * 1000,
    )


def placed(task: TaskView, candidates: Iterable[Candidate], policy: PlacementPolicy) -> Decision:
    """In a network of which everybody is a member."""
    return decide(task, candidates, policy, authorised=lambda profile: None, now_unix_s=NOW.unix_s)


def order(task: TaskView, candidates: Iterable[Candidate], policy: PlacementPolicy) -> list[PeerId]:
    """Who is ranked, best first."""
    return [each.profile.peer_id for each in placed(task, candidates, policy).ranked]


def peer(name: str) -> PeerId:
    return contact(name).peer_id


def nearest_first(task: TaskView, names: Iterable[str]) -> list[str]:
    return sorted(names, key=lambda name: key_of_peer(peer(name)) ^ task.key)

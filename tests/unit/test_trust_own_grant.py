"""A node's own grant: its owner is warned of its end, and what ends with it, comes back with a new
one."""

from dataclasses import replace

import pytest

from formation_p2p.command.outcomes import retried_in_words, waits_in_words
from formation_p2p.core.effects import Moment
from formation_p2p.core.refusals import Denied, GrantEnded
from formation_p2p.jobs.core.job_events import (
    Awaited,
    JobWaits,
    RetryReason,
    TaskGaveUp,
    TaskRetried,
    TaskSucceeded,
    TaskUnplaceable,
)
from formation_p2p.leases.core.messages import LeaseEnded, RequestRefused
from formation_p2p.peer.core.events import Renewed
from formation_p2p.trust.core.grant_form import MAX_EXPIRY_UNIX_S, Life
from formation_p2p.trust.core.grants import Right, Rights, issue
from formation_p2p.trust.core.network import Network
from formation_p2p.trust.core.renewal import GrantEnds, GrantOver, GrantTaken, OwnGrant
from formation_p2p.workload.core.outcome import FailureKind, Succeeded
from simulations.simulator.disk import Disk
from simulations.simulator.node import Clock, SimNode
from simulations.simulator.world import EPOCH_UNIX_S, World
from tests.support.stories import (
    at,
    at_work,
    ends,
    identity,
    is_idle,
    job,
    only,
    passed,
    peer_of,
    worker_of,
    workers_of,
)

HOUR_S, DAY_S = 3600, 86_400
ROOT = identity("root")
EPOCH_S = int(EPOCH_UNIX_S)


def network(lasts_s: float, life_s: int | None = None) -> Network:
    """With a grant that ends so long after the epoch."""
    until_unix_s = EPOCH_S + int(lasts_s)
    life = None if life_s is None else Life(life_s, until_unix_s)
    grant = issue(ROOT, Rights(until_unix_s, life=life), identity("alice").peer_id)
    return Network(ROOT.public_key, (), grant)


def warned_at(grant: OwnGrant, until_s: float) -> list[float]:
    """How long before its end each warning comes, in hours, if it is looked at when it is due."""
    warned, now_s = [], 0.0
    while now_s < until_s:
        told = grant.look(at(now_s))
        warned += [each.left_s / HOUR_S for each in only(told, GrantEnds)]
        assert grant.next_timeout() > now_s
        now_s = grant.next_timeout()
    return warned


@pytest.mark.parametrize(
    ("life_s", "hours"),
    [
        (None, [7 * 24, 24, 1]),
        (30 * DAY_S, [7 * 24, 24, 1]),
        (7 * DAY_S, [24, 1]),
        (12 * HOUR_S, [1]),
        (HOUR_S, []),
        (60, []),
    ],
)
def test_its_owner_is_warned_a_week_a_day_and_an_hour_ahead(
    life_s: int | None, hours: list[float]
) -> None:
    lasts_s = 30 * DAY_S if life_s is None else life_s
    assert warned_at(OwnGrant(network(lasts_s, life_s)), lasts_s) == pytest.approx(hours)


def test_one_that_does_not_say_its_life_is_measured_by_what_is_left_at_first() -> None:
    assert warned_at(OwnGrant(network(HOUR_S)), HOUR_S) == []
    assert warned_at(OwnGrant(network(2 * DAY_S)), 2 * DAY_S) == pytest.approx([24, 1])


def test_one_that_is_warned_late_is_warned_once() -> None:
    grant = OwnGrant(network(5 * HOUR_S, 30 * DAY_S))
    (ends_soon,) = grant.look(at(0))
    assert ends_soon == GrantEnds(EPOCH_S + 5 * HOUR_S, 5 * HOUR_S, cause="")
    assert grant.look(at(1)) == []
    assert grant.look(at(4.5 * HOUR_S)) == [GrantEnds(EPOCH_S + 5 * HOUR_S, HOUR_S / 2, cause="")]


def test_its_end_is_told_once_and_a_clock_that_is_set_back_undoes_it() -> None:
    grant = OwnGrant(network(100, 100))
    over = GrantOver(EPOCH_S + 100, cause="")
    assert (grant.look(at(100)), grant.look(at(101))) == ([over], [])
    may_work = [grant.may_work]
    assert grant.look(Moment(102, EPOCH_S + 99)) == []
    assert [*may_work, grant.may_work] == [False, True]
    assert grant.look(Moment(103, EPOCH_S + 100)) == [over]


def test_one_without_end_is_not_looked_at_again() -> None:
    grant = OwnGrant(network(MAX_EXPIRY_UNIX_S - EPOCH_S))
    assert grant.look(at(0)) == []
    assert grant.next_timeout() == float("inf")


def test_a_new_one_counts_at_once() -> None:
    grant = OwnGrant(network(100, 100))
    grant.look(at(200))
    taken = grant.taken(network(300, 100), at(200))
    assert taken == [GrantTaken(EPOCH_S + 300, True, cause="")]
    assert grant.may_work
    assert grant.next_timeout() == 300


def test_one_of_another_network_is_left_to_others_to_judge() -> None:
    grant = OwnGrant(network(100))
    alien = network(100)
    object.__setattr__(alien, "root_public_key", identity("another root").public_key)
    grant = OwnGrant(alien)
    assert grant.look(at(1000)) == []
    assert grant.may_work


# -- in a small town ----------------------------------------------------------------------------


def lasting(seconds: float, may: frozenset[Right] = frozenset(Right)) -> Rights:
    return Rights(EPOCH_S + int(seconds), may)


def town(alice_s: float = 10**7, bob_s: float = 10**7, task_s: float = 1000.0) -> World:
    """alice works, and bob submits, on grants that last so long; so long do tasks run."""
    world = World(7, lambda running: (task_s, Succeeded(b"")))
    world.add("gate")
    world.add("alice", serve=world.machine(cpu=1), rights=lasting(alice_s))
    world.add("bob", rights=lasting(bob_s))
    world.elapse(3)
    return world


def renew(world: World, node: SimNode, rights: Rights) -> None:
    grant = issue(world.root, rights, node.identity.peer_id)
    world.deliver(node, Renewed(replace(peer_of(node).network, grant=grant)))


def test_with_its_grant_a_workers_leases_end_and_their_owner_hears_why() -> None:
    world, bob = at_work(town(alice_s=30), job(1), for_s=20)
    alice = world.nodes["alice"]
    assert workers_of(bob) == ["alice"]
    world.elapse(10)
    assert only(alice.told, GrantOver) == [GrantOver(EPOCH_S + 30, cause="")]
    (ended,) = only(passed(world, "alice", "bob"), LeaseEnded)
    assert ended.refusal == GrantEnded()
    (retried,) = only(bob.reported, TaskRetried)
    assert retried.attempt.why == str(GrantEnded())
    assert not retried.counts
    assert is_idle(alice)
    world.elapse(120)
    (unplaceable,) = only(ends(bob).values(), TaskUnplaceable)
    assert dict(unplaceable.reasons)[alice.identity.peer_id] == GrantEnded()


def test_it_refuses_new_work_by_name_and_is_not_held_to_be_a_bad_worker() -> None:
    world = World(7)
    world.clock_of = lambda name: Clock(unix_off_s=-20.0 if name == "bob" else 0.0)
    world.add("gate")
    alice = world.add("alice", serve=world.machine(cpu=1), rights=lasting(30))
    bob = world.add("bob")
    world.elapse(35)
    bob.submit(job(1))
    world.elapse(60)
    refused = only(passed(world, "alice", "bob"), RequestRefused)
    assert GrantEnded() in [each.refusal for each in refused]
    standing = peer_of(bob).reputation.explain(alice.identity.peer_id, at(world.now_s))
    assert (standing.errors, standing.lost) == (0, 0)


def test_with_a_new_grant_it_announces_itself_and_works_again() -> None:
    world = town(alice_s=30, task_s=1.0)
    alice, bob = world.nodes["alice"], world.nodes["bob"]
    world.elapse(60)
    renew(world, alice, lasting(10_000))
    assert only(alice.told, GrantTaken) == [GrantTaken(EPOCH_S + 10_000, True, cause="")]
    world.elapse(5)
    bob.submit(job(1))
    world.elapse(10)
    assert len(only(ends(bob).values(), TaskSucceeded)) == 1


def test_one_that_is_renewed_in_time_goes_on_and_announces_the_new_one() -> None:
    world, bob = at_work(town(alice_s=60, task_s=100.0), job(1), for_s=20)
    alice = world.nodes["alice"]
    renew(world, alice, lasting(10_000))
    world.elapse(120)
    assert len(only(ends(bob).values(), TaskSucceeded)) == 1
    assert only(alice.told, GrantOver) == []
    bob.explain(None)
    world.elapse(5)
    (found,) = bob.explained[-1].decision.ranked
    assert found.profile.grant == peer_of(alice).network.grant


def test_a_grant_without_the_right_to_work_ends_its_work_as_well() -> None:
    world, _ = at_work(town(task_s=1000.0), job(1), for_s=10)
    alice = world.nodes["alice"]
    renew(world, alice, lasting(10_000, frozenset({Right.SUBMIT})))
    world.elapse(5)
    assert is_idle(alice)
    (ended,) = only(passed(world, "alice", "bob"), LeaseEnded)
    assert ended.refusal == GrantEnded()


def test_one_that_begins_with_an_old_grant_waits_for_a_new_one() -> None:
    world = World(7)
    world.add("gate")
    world.add("bob")
    world.elapse(100)
    alice = world.add("alice", serve=world.machine(cpu=1), rights=lasting(50))
    world.elapse(30)
    assert only(alice.told, GrantOver) == [GrantOver(EPOCH_S + 50, cause="")]
    renew(world, alice, lasting(10_000))
    world.elapse(10)
    _, bob = at_work(world, job(1), for_s=10)
    assert len(only(ends(bob).values(), TaskSucceeded)) == 1


def test_a_worker_that_has_left_is_not_called_back_by_a_new_grant() -> None:
    world, _ = at_work(town(alice_s=30), job(1), for_s=10)
    alice = world.nodes["alice"]
    before = len(passed(world, "alice", "bob"))
    world.fence_s = lambda: 10.0
    alice.leave()
    renew(world, alice, lasting(10_000))
    world.elapse(60)
    assert alice.left
    assert len(passed(world, "alice", "bob")) > before
    assert worker_of(alice).announcer.next_timeout() == float("inf")


def test_a_job_whose_submitters_grant_ends_is_told_so() -> None:
    _, bob = at_work(town(bob_s=30), job(1), for_s=120)
    (unplaceable,) = only(ends(bob).values(), TaskUnplaceable)
    ((_, refusal),) = unplaceable.reasons
    assert isinstance(refusal, Denied)
    assert refusal.why.startswith("the grant expired")
    (retried,) = only(bob.reported, TaskRetried)
    assert retried.reason is RetryReason.DENIED
    assert not retried.counts
    assert "the grant expired" in retried_in_words(retried)
    assert not only(bob.reported, JobWaits)


@pytest.mark.at_length
def test_a_job_that_is_kept_waits_for_a_new_grant_though_its_clock_is_behind() -> None:
    world = World(7, lambda running: (25.0, Succeeded(b"")))
    world.clock_of = lambda name: Clock(unix_off_s=-20.0 if name == "bob" else 0.0)
    world.add("gate")
    world.add("alice", serve=world.machine(cpu=1))
    world.add("carol", serve=world.machine(cpu=1))
    bob = world.add("bob", rights=lasting(30))
    bob.disk = Disk(world, lambda: 0.001)
    world.elapse(10)
    given = job(2)
    bob.disk.submit(given)
    bob.submit(given)
    world.elapse(300)
    assert {each.reason for each in only(bob.reported, TaskRetried)} == {RetryReason.DENIED}
    (waits,) = only(bob.reported, JobWaits)
    assert waits.awaited is Awaited.GRANT
    assert "waiting for a new one" in waits_in_words(waits)
    assert not ends(bob)
    renew(world, bob, lasting(10_000))
    world.elapse(30)
    assert len(only(ends(bob).values(), TaskSucceeded)) == 2


def test_a_job_that_is_kept_waits_for_a_new_grant_up_to_its_deadline() -> None:
    world, bob = at_work(town(bob_s=30))
    bob.disk = Disk(world, lambda: 0.001)
    given = job(1, deadline_s=100.0)
    bob.disk.submit(given)
    bob.submit(given)
    world.elapse(99)
    assert not ends(bob)
    world.elapse(2)
    (gave_up,) = only(ends(bob).values(), TaskGaveUp)
    assert gave_up.kind is FailureKind.DEADLINE


def test_what_was_denied_on_the_old_grant_is_asked_for_on_the_new_one() -> None:
    world, bob = at_work(town(bob_s=30, task_s=1.0))
    world.elapse(40)
    bob.submit(job(1))
    renew(world, bob, lasting(10_000))
    world.elapse(20)
    assert len(only(ends(bob).values(), TaskSucceeded)) == 1


def test_a_task_goes_on_when_the_grant_that_its_lease_was_asked_for_on_is_replaced() -> None:
    world, bob = at_work(town(bob_s=60, task_s=100.0), job(1), for_s=20)
    renew(world, bob, lasting(10_000))
    world.elapse(120)
    assert len(only(ends(bob).values(), TaskSucceeded)) == 1
    assert only(bob.reported, TaskRetried) == []

"""Quotas, hours and permissiveness between whole peers: alice works, bob's grant has limits.

A world begins on a Thursday, at midnight UTC.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from formation_p2p.core.refusals import Denied, Preempted
from formation_p2p.features.quotas.core.messages import AskSlice, SliceAnswer
from formation_p2p.features.quotas.core.quota_parameters import EscrowParameters
from formation_p2p.features.quotas.core.quota_status import AccountStatus, Verdict
from formation_p2p.features.quotas.core.quota_voucher import seal_voucher
from formation_p2p.jobs.core.job_events import JobEnded, TaskSucceeded, TaskUnplaceable
from formation_p2p.leases.core.messages import Commit, LeaseEnded, Renew, Renewed
from formation_p2p.leases.core.parameters import LEASE_DEFAULTS
from formation_p2p.machine.core.bounds import MAX_LABELS
from formation_p2p.machine.core.requirements import Requirements
from formation_p2p.peer.core.events import Explain, OfferCharter
from formation_p2p.placement.core.decision import Decision
from formation_p2p.placement.core.task_options import SchedulingKey
from formation_p2p.trust.core.charter import Charter
from formation_p2p.trust.core.grants import Right, Rights
from formation_p2p.trust.core.hours import parse_hours
from formation_p2p.trust.core.membership import Membership
from formation_p2p.trust.core.network_quota import NetworkCount
from formation_p2p.trust.core.quota import NOTHING, Quota, Used
from formation_p2p.trust.core.root_keys import KeySet
from formation_p2p.trust.core.signed_charter import draft, sign
from formation_p2p.workload.core.outcome import Outcome, Succeeded
from simulations.simulator.executor import Run, Running
from simulations.simulator.node import SimNode
from simulations.simulator.world import EPOCH_UNIX_S, World
from tests.support.stories import (
    NEEDS,
    at_work,
    ends,
    is_idle,
    job,
    named,
    only,
    passed,
    peer_of,
    worker_of,
    workers_of,
)

# Half a minute of one core.
HALF_A_MINUTE = Quota(cpu_milli_hours=8)
MONTH = "2026-01"
TERMS = SchedulingKey(NEEDS)


def for_s(seconds: float) -> Run:
    def run(running: Running) -> tuple[float, Outcome]:
        return seconds, Succeeded(b"")

    return run


def village(task_s: float, cores: int = 1, *, permissive: bool = False, **limits: Any) -> World:
    """A gate, alice with so many cores, and bob, whose grant has these limits."""
    world = World(7, for_s(task_s))
    world.add("gate")
    serve = replace(world.machine(cpu=cores), permissive=permissive)
    world.add("alice", serve=serve)
    world.add("bob", rights=Rights(int(EPOCH_UNIX_S) + 10**7, **limits))
    world.elapse(3)
    return world


def charged(alice: SimNode, to: SimNode) -> Used:
    return alice.used.get((MONTH, to.identity.peer_id), NOTHING)


def why_unplaceable(world: World, of: SimNode, task: str = "job/0") -> Denied:
    end = ends(of)[task]
    assert isinstance(end, TaskUnplaceable)
    why = named(world, end.reasons)["alice"]
    assert isinstance(why, Denied)
    return why


def test_work_over_its_quota_ends_when_it_would_be_renewed_and_says_why() -> None:
    world, bob = at_work(village(3600, quota=HALF_A_MINUTE), job(), for_s=28)
    alice = world.nodes["alice"]
    assert len(alice.running) == 1
    renewals = len(only(passed(world, "alice", "bob"), Renewed))
    assert charged(alice, bob).cpu_milli_s > 0  # while it runs
    world.elapse(20)
    assert renewals == len(only(passed(world, "alice", "bob"), Renewed)) == 4
    why = why_unplaceable(world, bob)
    assert why.why == "Monthly CPU quota exceeded: 0.009/0.008 hours, until 2026-02-01"
    assert is_idle(alice)
    assert 28_800 <= charged(alice, bob).cpu_milli_s <= 28_800 + 1000 * LEASE_DEFAULTS.lease_s


def test_starting_a_worker_again_resets_nothing() -> None:
    world, bob = at_work(village(3600, quota=HALF_A_MINUTE), job(), for_s=60)
    alice = world.nodes["alice"]
    used = charged(alice, bob)
    world.kill(alice)
    world.elapse(1)
    world.restart(alice, replace(world.machine(cpu=1), used=alice.usage))
    world.elapse(5)
    bob.submit(job(job_id="again"))
    world.elapse(10)
    assert why_unplaceable(world, bob, "again/0").why.startswith("Monthly CPU quota exceeded")
    assert charged(alice, bob) == used


def test_a_worker_that_dies_has_charged_for_all_but_the_last_renewal() -> None:
    world, bob = at_work(village(3600), job(), for_s=100)
    alice = world.nodes["alice"]
    world.kill(alice)
    used_s = charged(alice, bob).cpu_milli_s / 1000
    assert 100 - LEASE_DEFAULTS.lease_s <= used_s <= 100


def test_who_has_as_many_tasks_as_he_may_waits_for_one_to_end() -> None:
    world = village(5, cores=4, quota=Quota(leases=1))
    alice, bob = world.nodes["alice"], world.nodes["bob"]
    for name, priority in (("first", 0), ("second", 1)):  # each is leased by itself
        bob.submit(job(job_id=name, priority=priority))
    most = 0
    for _ in range(300):
        world.elapse(0.1)
        most = max(most, len(alice.running))
    assert most == 1
    assert only(bob.reported, JobEnded) == [JobEnded(1, 0, 0, 0)] * 2
    assert is_idle(alice)


def test_who_may_have_no_task_at_all_is_told_so_and_does_not_wait() -> None:
    world, bob = at_work(village(5, quota=Quota(leases=0)), job(), for_s=60)
    assert why_unplaceable(world, bob).why == "Concurrent task limit reached: 0/0"


def test_work_ends_with_the_hours_of_its_grant() -> None:
    world = village(3600, hours=parse_hours("wed 23:00-24:00, thu 00:00-00:01"))
    alice, bob = world.nodes["alice"], world.nodes["bob"]
    bob.submit(job())
    world.elapse(50)
    assert len(alice.running) == 1
    world.elapse(40)
    why = why_unplaceable(world, bob)
    assert why.why == "the grant is good wed 23:00-00:01 UTC; that begins next Wed 23:00 UTC"
    assert is_idle(alice)


def test_a_permissive_worker_runs_it_and_tells() -> None:
    world, bob = at_work(village(40, quota=HALF_A_MINUTE, permissive=True), job(), for_s=60)
    alice = world.nodes["alice"]
    assert only(ends(bob).values(), TaskSucceeded)
    (tolerated,) = alice.tolerated
    assert tolerated.peer_id == bob.identity.peer_id
    assert tolerated.why.startswith("Monthly CPU quota exceeded: 0.009/0.008")
    mallory = world.add("mallory", stranger=True)
    world.elapse(2)
    mallory.submit(job())
    world.elapse(5)
    assert "refused" in why_unplaceable(world, mallory).why


# -- what bob can tell before he asks ---------------------------------------------------------


def decided(bob: SimNode, terms: SchedulingKey = TERMS, name: str = "a task") -> Decision:
    bob.world.deliver(bob, Explain(0, terms, name))
    bob.world.elapse(2)
    return bob.explained[-1].decision


def test_what_every_worker_would_refuse_is_refused_before_any_is_asked() -> None:
    world, bob = at_work(village(1, max_priority=5, drivers=frozenset({"process"})))
    for terms, why in (
        (SchedulingKey(NEEDS, priority=6), "the grant allows priorities up to 5, not 6"),
        (
            SchedulingKey(Requirements(driver="wasm")),
            "the grant allows the drivers process, not wasm",
        ),
    ):
        decision = decided(bob, terms)
        assert decision.ranked == ()
        assert named(world, decision.rejected) == {"alice": Denied("submit", why)}
    bob.submit(job(priority=6))
    world.elapse(10)
    assert why_unplaceable(world, bob).why == "the grant allows priorities up to 5, not 6"
    assert passed(world, "bob", "alice") == []
    undecided = decided(bob, SchedulingKey(Requirements()))  # whose driver nobody has named
    assert [each.lacking for each in undecided.ranked] == [None]


def test_who_may_not_submit_sees_who_works_all_the_same() -> None:
    world, bob = at_work(village(1, may=frozenset({Right.WORK})))
    ((_, why),) = decided(bob).rejected
    assert why == Denied("submit", "the grant gives no right to submit")
    bob.explain(None)
    world.elapse(2)
    assert [each.contact for each in bob.explained[-1].decision.ranked] == [
        world.nodes["alice"].contact
    ]


@pytest.mark.at_length
def test_the_few_workers_that_a_grant_is_for_are_found_among_many() -> None:
    world = village(1, labels=frozenset({("site", "lab")}))
    for number in range(16):
        world.add(f"worker {number}", serve=world.machine(cpu=8))
    carol = world.add("carol", serve=world.machine(cpu=1, labels=(("site", "lab"),)))
    world.elapse(10)
    bob = world.nodes["bob"]
    for number in range(3):  # wherever they fall by their keys
        (ranked,) = decided(bob, name=f"task {number}").ranked
        assert (ranked.contact, ranked.lacking) == (carol.contact, None)
        bob.submit(job(job_id=f"j{number}"))
        world.elapse(5)
    assert workers_of(bob) == ["carol"] * 3
    assert passed(world, "bob", "alice") == []


def test_a_worker_that_the_grant_is_not_for_is_shown_with_the_reason() -> None:
    world = village(1, labels=frozenset({("site", "lab")}))
    labels = tuple((f"l{n}", "x") for n in range(MAX_LABELS))  # a query has room for no more
    world.add("carol", serve=world.machine(labels=labels))
    world.elapse(3)
    for terms, name in ((TERMS, "alice"), (SchedulingKey(replace(NEEDS, labels=labels)), "carol")):
        decision = decided(world.nodes["bob"], terms)
        lacking = {each.profile.peer_id: each.lacking for each in decision.ranked}
        assert str(named(world, list(lacking.items()))[name]) == (
            "not allowed to submit: the grant is for workers with site=lab, and this one is without"
        )


def test_a_permissive_worker_is_asked_although_the_grant_is_good_elsewhere() -> None:
    world, bob = at_work(village(1, permissive=True, labels=frozenset({("site", "lab")})), job())
    alice = world.nodes["alice"]
    world.elapse(10)
    assert workers_of(bob) == ["alice"]
    (tolerated,) = alice.tolerated
    assert "site=lab" in tolerated.why


@pytest.mark.at_length
def test_who_waits_for_his_hours_is_told_when_they_begin() -> None:
    world, bob = at_work(village(1, hours=parse_hours("thu 00:10-01:00")), job(), for_s=60)
    (ranked,) = decided(bob).ranked
    assert isinstance(ranked.lacking, Denied)
    assert (
        ranked.lacking.why
        == "the grant is good thu 00:10-01:00 UTC; that begins next Thu 00:10 UTC"
    )
    assert ends(bob) == {}
    world.elapse(600)
    assert workers_of(bob) == ["alice"]
    assert [each.lacking for each in decided(bob).ranked] == [None]


# -- priorities -------------------------------------------------------------------------------


def test_whose_priorities_weigh_more_goes_first() -> None:
    world = village(8, weight_milli=2000)
    carol = world.add("carol", rights=Rights(int(EPOCH_UNIX_S) + 10**7))
    world.elapse(2)
    bob = world.nodes["bob"]
    carol.submit(job(3, job_id="carols", priority=3))
    world.elapse(1)
    bob.submit(job(job_id="bobs", priority=2))
    world.elapse(60)
    (placed,) = only(bob.reported, TaskSucceeded)
    lost = [ended.refusal for ended in only(passed(world, "alice", "carol"), LeaseEnded)]
    assert lost == [Preempted(4)]
    assert placed.task_id == "bobs/0"


# A grant's hours over all workers, between whole peers: alice and carol work, bob's grant has a
# quota, and the others keep its account.

PARAMETERS = EscrowParameters()
WORKERS = ("alice", "carol")
# Two minutes of one core.
QUOTA = Quota(cpu_milli_hours=33)
LIMIT_S = 118.8
# Of two workers, until their renewals.
OVERRUN_S = 2 * 10.0


def town_of_two(quota: Quota = QUOTA, task_s: float = 3600.0) -> World:
    world = World(7, lambda running: (task_s, Succeeded(b"")))
    world.add("gate")
    for name in WORKERS:
        world.add(name, serve=world.machine(cpu=1))
    for name in ("hanna", "hugo", "heidi"):
        world.add(name)
    world.add("bob", rights=Rights(int(EPOCH_UNIX_S) + 10**7, quota=quota))
    world.elapse(3)
    return world


def used_s(world: World) -> float:
    """Of bob's hours, at all workers."""
    bob = world.nodes["bob"].identity.peer_id
    return sum(
        used.cpu_milli_s / 1000
        for name in WORKERS
        for (_, account), used in world.nodes[name].used.items()
        if account == bob
    )


def test_the_hours_of_a_grant_are_those_of_all_workers() -> None:
    world, bob = at_work(town_of_two(), job(2), for_s=30)
    assert sum(len(world.nodes[name].running) for name in WORKERS) == 2
    world.elapse(120)
    assert LIMIT_S <= used_s(world) <= LIMIT_S + OVERRUN_S
    end = ends(bob)["job/0"]
    assert isinstance(end, TaskUnplaceable)
    told = {str(why) for _, why in end.reasons}
    assert told == {
        "not allowed to submit: CPU quota used in the network: 0.033 of 0.033 h, until 2026-02-01"
    }
    assert all(isinstance(why, Denied) for _, why in end.reasons)
    world.elapse(PARAMETERS.spent_s)
    bob.submit(job(1, job_id="again"))
    world.elapse(10)
    assert used_s(world) <= LIMIT_S + OVERRUN_S


def accounts_at(node: SimNode) -> tuple[AccountStatus, ...]:
    escrow = peer_of(node).quotas.escrow
    assert escrow is not None
    return escrow.status()


def quotas_told(node: SimNode) -> Sequence[Mapping[str, Any]]:
    """For the status of the node."""
    return next(told.rows["quotas"] for told in peer_of(node).told() if "quotas" in told.rows)


def test_a_worker_that_leaves_gives_its_slice_back() -> None:
    world = town_of_two(Quota(cpu_milli_hours=1000))
    alice, bob = world.nodes["alice"], world.nodes["bob"]
    world.kill(world.nodes["carol"])
    bob.submit(job(1))
    world.elapse(10)
    [before] = accounts_at(alice)
    [row] = quotas_told(alice)
    assert quotas_told(bob) == []
    alice.leave()
    world.elapse(1)
    last = only(passed(world, "alice", "hugo"), AskSlice)[-1]
    assert before.verdict is Verdict.HELD
    assert row["allowed_cpu_milli_s"] == before.allowed.cpu_milli_s
    assert last.wanted.cpu_milli_s < before.allowed.cpu_milli_s


@pytest.mark.at_length
def test_hours_that_the_charter_gives_are_those_of_all_workers_too() -> None:
    world = town_of_two(Quota())
    root = KeySet(1, (world.root.public_key,))
    issued = int(EPOCH_UNIX_S + world.now_s)
    rules = Charter(
        version=1,
        network=Membership(world.root.public_key).network_id,
        keys=root,
        issued_unix_s=issued,
        expires_unix_s=issued + 10**6,
        quotas=QUOTA,
    )
    signed = sign(draft(rules, root, None), world.root)
    for node in world.nodes.values():
        world.deliver(node, OfferCharter(signed.raw))
    world.elapse(5)
    world.nodes["bob"].submit(job(2))
    world.elapse(150)
    assert LIMIT_S <= used_s(world) <= LIMIT_S + OVERRUN_S


def test_a_slice_answer_to_one_that_does_not_work_is_nothing() -> None:
    world, bob = at_work(town_of_two(), job(1), for_s=5)
    alice = world.nodes["alice"]
    [answer, *_] = only(
        passed(world, "hugo", "alice") + passed(world, "hugo", "carol"), SliceAnswer
    )
    before = len(world.sent)
    world.delivered(alice, bob, answer)
    assert len(world.sent) == before + 1


def test_a_voucher_with_no_lease_or_with_the_grant_of_another_counts_for_nothing() -> None:
    world = town_of_two()
    alice, bob = world.nodes["alice"], world.nodes["bob"]
    issued_unix_ms = int((EPOCH_UNIX_S + world.now_s) * 1000)
    word = seal_voucher(bob.identity, alice.identity.peer_id, Used(1000, 0), issued_unix_ms)
    for grant in (b"", b"rubbish", alice.network().grant, bob.network().grant):
        world.delivered(bob, alice, Renew("no lease", 1, grant, word))
    world.delivered(bob, alice, Commit("no lease", word))
    assert accounts_at(alice) == ()


def test_a_worker_that_counts_its_own_hours_only_reads_no_voucher() -> None:
    world = town_of_two()
    alice, bob = world.nodes["alice"], world.nodes["bob"]
    worker_of(alice).admission.network = NetworkCount()
    issued_unix_ms = int((EPOCH_UNIX_S + world.now_s) * 1000)
    word = seal_voucher(bob.identity, alice.identity.peer_id, Used(1000, 0), issued_unix_ms)
    world.delivered(bob, alice, Renew("no lease", 1, bob.network().grant, word))
    alice.leave()
    world.elapse(5)
    assert accounts_at(alice) == ()

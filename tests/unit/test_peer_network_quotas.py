"""A grant's hours over all workers, between whole peers: alice and carol work, bob's grant has a
quota, and the others keep its account."""

from __future__ import annotations

import pytest

from formation_p2p.core.refusals import Denied
from formation_p2p.features.quotas.core.messages import AskSlice, SliceAnswer
from formation_p2p.features.quotas.core.quota_parameters import EscrowParameters
from formation_p2p.features.quotas.core.quota_status import AccountStatus, Verdict
from formation_p2p.features.quotas.core.quota_voucher import seal_voucher
from formation_p2p.jobs.core.job_events import TaskUnplaceable
from formation_p2p.leases.core.messages import Commit, Renew
from formation_p2p.peer.core.events import OfferCharter
from formation_p2p.trust.core.charter import Charter
from formation_p2p.trust.core.grants import Rights
from formation_p2p.trust.core.membership import Membership
from formation_p2p.trust.core.quota import Quota, Used
from formation_p2p.trust.core.root_keys import KeySet
from formation_p2p.trust.core.signed_charter import draft, sign
from formation_p2p.workload.core.outcome import Succeeded
from simulations.simulator.node import SimNode
from simulations.simulator.world import EPOCH_UNIX_S, World
from tests.support.stories import at_work, ends, job, only, passed, peer_of

PARAMETERS = EscrowParameters()
WORKERS = ("alice", "carol")
# Two minutes of one core.
QUOTA = Quota(cpu_milli_hours=33)
LIMIT_S = 118.8
# Of two workers, until their renewals.
OVERRUN_S = 2 * 10.0


def village(quota: Quota = QUOTA, task_s: float = 3600.0) -> World:
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
    world, bob = at_work(village(), job(2), for_s=30)
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


def test_a_worker_that_leaves_gives_its_slice_back() -> None:
    world = village(Quota(cpu_milli_hours=1000))
    alice, bob = world.nodes["alice"], world.nodes["bob"]
    world.kill(world.nodes["carol"])
    bob.submit(job(1))
    world.elapse(10)
    [before] = accounts_at(alice)
    alice.leave()
    world.elapse(1)
    last = only(passed(world, "alice", "hugo"), AskSlice)[-1]
    assert before.verdict is Verdict.HELD
    assert last.wanted.cpu_milli_s < before.allowed.cpu_milli_s


@pytest.mark.at_length
def test_hours_that_the_charter_gives_are_those_of_all_workers_too() -> None:
    world = village(Quota())
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
    world, bob = at_work(village(), job(1), for_s=5)
    alice = world.nodes["alice"]
    [answer, *_] = only(
        passed(world, "hugo", "alice") + passed(world, "hugo", "carol"), SliceAnswer
    )
    before = len(world.sent)
    world.delivered(alice, bob, answer)
    assert len(world.sent) == before + 1


def test_a_voucher_with_no_lease_or_with_the_grant_of_another_counts_for_nothing() -> None:
    world = village()
    alice, bob = world.nodes["alice"], world.nodes["bob"]
    word = seal_voucher(bob.identity, alice.identity.peer_id, Used(1000, 0), 1)
    for grant in (b"", b"rubbish", alice.network().grant):
        world.delivered(bob, alice, Renew("no lease", 1, grant, word))
    world.delivered(bob, alice, Commit("no lease", word))
    assert accounts_at(alice) == ()

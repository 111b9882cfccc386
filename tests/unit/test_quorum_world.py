"""Several workers agree on the results of tasks: whole nodes, on a virtual clock."""

from __future__ import annotations

from formation_p2p.core.dispatch.job_events import (
    TaskAnswered,
    TaskDisagreed,
    TaskPlaced,
    TaskSucceeded,
)
from formation_p2p.core.trust.grants import Rights
from formation_p2p.core.workload.outcome import Outcome, Succeeded
from formation_p2p.core.workload.quorum import Quorum
from formation_p2p.core.workload.scope import Place
from formation_p2p.sim.executor import Running
from formation_p2p.sim.node import SimNode
from formation_p2p.sim.world import EPOCH_UNIX_S, World
from tests.support.stories import ends, job, only, peer_of, town, where, workers_of

# On one LAN all have one invitation, and one subnet.
NEAR = Quorum(2, of=3, apart=())


def voters(
    quorum: Quorum = NEAR, tasks: int = 1, seed: int = 7, **answers: bytes | None
) -> tuple[World, SimNode]:
    """Workers that answer all tasks so, or truly, and bob, who has submitted."""

    def run(running: Running) -> tuple[float, Outcome]:
        lie = answers[where(world, running).name]
        return 1.0, Succeeded(running.work.payload if lie is None else lie)

    world = town(seed, run, **dict.fromkeys(answers, 1))
    bob = world.nodes["bob"]
    bob.submit(job(tasks, quorum=quorum))
    return world, bob


def test_two_that_agree_are_enough() -> None:
    world, bob = voters(alice=None, carol=None, dave=None)
    world.elapse(20)
    (end,) = ends(bob).values()
    assert isinstance(end, TaskSucceeded)
    assert end.result == b"0"
    assert len(only(bob.reported, TaskPlaced)) == 2
    assert len(set(workers_of(bob))) == 2
    assert len(only(bob.reported, TaskAnswered)) == 1
    reputation, now = peer_of(bob).reputation, world.moment(bob)
    agreed = {each.worker for each in only(bob.reported, TaskPlaced)}
    assert {each.peer_id for each in reputation.standings(now) if each.successes} == agreed
    assert all(reputation.explain(each, now).successes == 1 for each in agreed)


def test_one_that_lies_is_outvoted_and_trusted_no_longer() -> None:
    world, bob = voters(tasks=6, alice=None, carol=None, dave=b"a lie", erin=None)
    world.elapse(60)
    ended = ends(bob)
    assert [getattr(ended[f"job/{n}"], "result", None) for n in range(6)] == [
        b"%d" % n for n in range(6)
    ]
    dave = world.nodes["dave"].identity.peer_id
    assert peer_of(bob).reputation.explain(dave, world.moment(bob)).wrong >= 1
    assert peer_of(bob).reputation.score_milli(dave, world.moment(bob)) < 300


def test_all_that_disagree_is_an_outcome_with_all_answers() -> None:
    world, bob = voters(alice=b"a", carol=b"c", dave=b"d")
    world.elapse(30)
    (end,) = ends(bob).values()
    assert isinstance(end, TaskDisagreed)
    assert sorted(each.result for each in end.answers) == [b"a", b"c", b"d"]
    # Who is wrong is not known.
    standings = peer_of(bob).reputation.standings(world.moment(bob))
    assert not any(each.wrong or each.successes for each in standings)


def test_too_few_workers_is_told_with_the_reasons_of_the_others() -> None:
    world = World(7)
    world.add("gate")
    of_acme = Rights(int(EPOCH_UNIX_S) + 10**7, place=Place(org="acme"))
    for name in ("alice", "carol"):
        world.add(name, serve=world.machine(cpu=1), rights=of_acme)
    bob = world.add("bob")
    world.elapse(3)
    bob.submit(job(quorum=Quorum(2, of=3)))
    world.elapse(60)
    (end,) = ends(bob).values()
    assert isinstance(end, TaskDisagreed)
    assert [each.result for each in end.answers] == [b"0"]
    assert sorted(str(why).split(" with ")[0] for _, why in end.reasons) == [
        "has answered already",
        "shares the org acme",
    ]


def test_attempts_do_not_tell_that_two_are_of_one_task() -> None:
    world, bob = voters(tasks=3, alice=None, carol=None, dave=None)
    world.elapse(20)
    ids = [each.attempt_id for each in only(bob.reported, TaskPlaced)]
    assert len(set(ids)) == len(ids) == 6
    assert not any("job" in each or "#" in each for each in ids)

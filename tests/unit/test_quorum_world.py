"""Several workers agree on the results of tasks: whole nodes, on a virtual clock."""

import re
import secrets
from collections import Counter
from dataclasses import replace

import cbor2
import pytest

from formation_p2p.api.task_result import result_of
from formation_p2p.core.errors import Disagreement
from formation_p2p.core.identity import PeerId
from formation_p2p.discovery.core.parameters import DiscoveryParameters
from formation_p2p.jobs.core.job import Job
from formation_p2p.jobs.core.job_events import (
    TaskAnswered,
    TaskCancelled,
    TaskDisagreed,
    TaskPlaced,
    TaskRetried,
    TaskSucceeded,
)
from formation_p2p.jobs.core.quorum_draw import DrawnQueues
from formation_p2p.machine.core.requirements import Requirements
from formation_p2p.peer.core.events import Resume, Submit
from formation_p2p.peer.core.story import StoryStep
from formation_p2p.trust.core.experience import Experience
from formation_p2p.trust.core.grants import Rights, issue
from formation_p2p.workload.core.comparers import numbers
from formation_p2p.workload.core.outcome import Outcome, Succeeded
from formation_p2p.workload.core.quorum import Quorum
from formation_p2p.workload.core.scope import Place
from simulations.simulator.disk import Disk
from simulations.simulator.executor import Run, Running
from simulations.simulator.node import SimNode
from simulations.simulator.world import EPOCH_UNIX_S, World
from tests.support.stories import at_work, ends, job, only, peer_of, town, where, workers_of

# On one LAN all have one invitation, and one subnet.
NEAR = Quorum(2, of=3, apart=())
AT_ONCE = Quorum(2, of=3, apart=(), at_once=True)


def voters(
    quorum: Quorum = NEAR, tasks: int = 1, seed: int = 7, **answers: bytes | None
) -> tuple[World, SimNode]:
    """Workers that answer all tasks so, or truly, and bob, who has submitted."""

    def run(running: Running) -> tuple[float, Outcome]:
        lie = answers[where(world, running).name]
        return 1.0, Succeeded(running.work.payload if lie is None else lie)

    world, bob = at_work(town(seed, run, **dict.fromkeys(answers, 1)), job(tasks, quorum=quorum))
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


def test_who_runs_a_copy_is_known_while_it_does() -> None:
    """It is told of no other worker that has the same inputs."""
    world, bob = voters(alice=None, carol=None, dave=None)
    scheduler, checked = peer_of(bob).scheduler, set[PeerId]()
    for _ in range(400):
        world.elapse(0.05)
        running = {x for x in scheduler.leases() if any(x.attempts)}
        assert all(scheduler.is_checked(x.worker) for x in running)
        checked |= {x.worker for x in running}
    assert checked == {each.worker for each in only(bob.reported, TaskPlaced)}
    assert not any(map(scheduler.is_checked, checked))
    bob.submit(job(1, job_id="alone"))
    world.elapse(1)
    (alone,) = {x.worker for x in scheduler.leases() if x.attempts}
    assert not scheduler.is_checked(alone)


@pytest.mark.at_length
def test_one_that_lies_is_outvoted_and_trusted_no_longer() -> None:
    world, bob = voters(tasks=6, alice=None, carol=None, dave=b"a lie", erin=None)
    world.elapse(60)
    ended = ends(bob)
    assert [getattr(ended[f"job/{n}"], "result", None) for n in range(6)] == [
        b"%d" % n for n in range(6)
    ]
    copies = dict(peer_of(bob).status(world.moment(bob)).copies)
    assert copies["sent"] == len(only(bob.reported, TaskPlaced))
    assert copies["agreed"] == 12
    assert copies["disagreed"] >= 1
    dave = world.nodes["dave"].identity.peer_id
    assert peer_of(bob).reputation.explain(dave, world.moment(bob)).wrong >= 1
    assert peer_of(bob).reputation.score_milli(dave, world.moment(bob)) < 300


@pytest.mark.parametrize("quorum", [NEAR, AT_ONCE])
def test_all_that_disagree_is_an_outcome_with_all_answers(quorum: Quorum) -> None:
    world, bob = voters(quorum, alice=b"a", carol=b"c", dave=b"d")
    world.elapse(30)
    (end,) = ends(bob).values()
    assert isinstance(end, TaskDisagreed)
    assert sorted(each.result for each in end.answers) == [b"a", b"c", b"d"]
    copies = peer_of(bob).status(world.moment(bob)).copies
    assert copies == (("sent", 3), ("agreed", 0), ("disagreed", 3))
    # Who is wrong is not known.
    standings = peer_of(bob).reputation.standings(world.moment(bob))
    assert not any(each.wrong or each.successes for each in standings)
    told = [(each.step, each.cause) for each in peer_of(bob).story("job/0")]
    assert (StoryStep.ANSWERED, "more answers are needed") in told
    assert told[-1] == (StoryStep.DISAGREED, "too few of its 3 answers are the same")
    error = result_of(end).error()
    assert isinstance(error, Disagreement)
    assert sorted(answer for _, answer in error.answers) == [b"a", b"c", b"d"]
    assert str(error).startswith("task job/0: too few of its 3 answers are the same")


def of_one_operator() -> tuple[World, SimNode]:
    """All workers are acme's, so that copies at two of them prove nothing."""
    world = World(7)
    world.add("gate")
    of_acme = Rights(int(EPOCH_UNIX_S) + 10**7, place=Place(org="acme"))
    for name in ("alice", "carol"):
        world.add(name, serve=world.machine(cpu=1), rights=of_acme)
    bob = world.add("bob")
    world.elapse(3)
    return world, bob


@pytest.mark.at_length
def test_a_job_that_a_state_keeps_waits_for_a_worker_that_may_be_away() -> None:
    world, bob = of_one_operator()
    world.deliver(bob, Submit(job(quorum=Quorum(2, of=3)), durable=True))
    world.elapse(600)
    assert not ends(bob)
    world.elapse(120)
    assert [type(end) for end in ends(bob).values()] == [TaskDisagreed]


def test_too_few_workers_is_told_with_the_reasons_of_the_others() -> None:
    world, bob = of_one_operator()
    bob.submit(job(quorum=Quorum(2, of=3)))
    world.elapse(10)
    assert not ends(bob), "another worker may be starting"
    world.elapse(50)
    (end,) = ends(bob).values()
    assert isinstance(end, TaskDisagreed)
    assert [each.result for each in end.answers] == [b"0"]
    assert peer_of(bob).scheduler.copies == {"sent": 1, "agreed": 0, "disagreed": 1}
    assert end.why == "only one worker has answered"
    assert re.match(
        r"task job/0: only \S* ?…\S+ has answered; no other worker", str(result_of(end).error())
    )
    assert sorted(str(why).split(" with ")[0] for _, why in end.reasons) == [
        "has answered already",
        "shares the org acme",
    ]


def test_attempts_do_not_tell_that_two_are_of_one_task() -> None:
    """Nor, by their form, that others are to check them."""
    world, bob = voters(tasks=3, alice=None, carol=None, dave=None)
    world.elapse(20)
    ids = [each.attempt_id for each in only(bob.reported, TaskPlaced)]
    assert len(set(ids)) == len(ids) == 6
    assert not any("job" in each for each in ids)
    plain = job(1, job_id=secrets.token_hex(8))
    bob.submit(plain)
    world.elapse(20)
    (alone,) = (x.attempt_id for x in only(bob.reported, TaskPlaced) if x.attempt_id not in ids)
    assert alone == f"{plain.job_id}/0#1"
    form = re.compile("[0-9a-f]{16}/0#1")
    assert all(form.fullmatch(each) for each in (alone, *ids))


@pytest.mark.at_length
def test_an_answer_of_one_found_wrong_meanwhile_counts_no_more() -> None:
    """dave has two cores, and lies on both: on one at once, on the other later."""
    lies: list[str] = []

    def run(running: Running) -> tuple[float, Outcome]:
        if where(world, running).name != "dave":
            return 1.0, Succeeded(running.work.payload)
        lies.append(running.work.attempt_id)
        return (1.0 if len(lies) == 1 else 9.0), Succeeded(b"a lie")

    world, bob = at_work(town(7, run, alice=1, carol=1, dave=2, erin=1), job(8, quorum=NEAR))
    world.elapse(60)
    assert len(lies) > 1
    assert all(isinstance(each, TaskSucceeded) for each in ends(bob).values())
    late = [
        each for each in only(bob.reported, TaskRetried) if "trusted no longer" in each.attempt.why
    ]
    assert late
    assert not any(each.counts for each in late)


@pytest.mark.at_length
def test_a_copy_goes_on_where_the_answer_of_another_counts_no_more() -> None:
    """dave lies at once, and slowly; what he is slow with, another is begun with meanwhile."""
    lies: list[bytes] = []

    def run(running: Running) -> tuple[float, Outcome]:
        work = running.work
        if where(world, running).name == "dave":
            lies.append(work.payload)
            return (1.0 if len(lies) == 1 else 9.0), Succeeded(b"a lie")
        return (20.0 if work.payload in lies[1:] else 1.0), Succeeded(work.payload)

    world = town(7, run, alice=1, carol=1, dave=2, erin=1)
    _, bob = at_work(world, job(8, speculate=True, quorum=NEAR), for_s=120)
    assert all(isinstance(each, TaskSucceeded) for each in ends(bob).values())
    late = [x for x in only(bob.reported, TaskRetried) if "trusted no longer" in x.attempt.why]
    assert late


def test_a_worker_that_has_proved_itself_is_enough_but_for_some() -> None:
    def run(running: Running) -> tuple[float, Outcome]:
        return 0.5, Succeeded(running.work.payload)

    world, bob = at_work(town(7, run, alice=1, carol=1, dave=1))
    reputation, now = peer_of(bob).reputation, world.moment(bob)
    workers = [world.nodes[name].identity.peer_id for name in ("alice", "carol", "dave")]
    assert reputation.doubt(workers[0], now) == 1
    for worker in workers:
        for _ in range(7):
            reputation.note(worker, Experience.AGREED, now)
        assert reputation.doubt(worker, now) == 1
        for _ in range(41):
            reputation.note(worker, Experience.AGREED, now)
        assert reputation.doubt(worker, now) == pytest.approx(0.17)
    before = reputation.explain(workers[0], now).successes
    bob.submit(job(40, quorum=Quorum.adaptive(2, of=5, check=0.02, apart=())))
    world.elapse(60)
    assert all(isinstance(each, TaskSucceeded) for each in ends(bob).values())
    checked = len(only(bob.reported, TaskAnswered))
    assert 1 <= checked <= 18
    assert len(only(bob.reported, TaskPlaced)) == 40 + checked
    # What was not checked earned no trust.
    earned = sum(reputation.explain(each, now).successes - before for each in workers)
    assert earned == 2 * checked


def test_a_function_that_fails_is_told() -> None:
    quorum = Quorum(2, of=2, same=lambda one, other: one / 0, apart=())
    world, bob = voters(quorum, alice=None, carol=None)
    world.elapse(30)
    (end,) = ends(bob).values()
    assert isinstance(end, TaskDisagreed)
    assert "process" in end.problem or "own(" in end.problem


def test_values_that_are_close_are_the_same() -> None:
    """Only what a process printed, and its files, is looked into: what a custom driver returns is
    CBOR."""
    answers = {"alice": 1.0, "carol": 1.0 + 1e-9, "dave": 2.0}
    encoded = {name: cbor2.dumps(value) for name, value in answers.items()}
    needs = Requirements(driver="custom")

    def run(running: Running) -> tuple[float, Outcome]:
        return 1.0, Succeeded(encoded[where(world, running).name])

    world = World(7, run)
    world.add("gate")
    for name in answers:
        world.add(name, serve=world.machine(cpu=1, drivers=("custom",)))
    bob = world.add("bob")
    world.elapse(3)
    bob.submit(job(needs=needs, quorum=Quorum(2, of=3, same=numbers(1e-6), apart=())))
    world.elapse(30)
    (end,) = ends(bob).values()
    assert isinstance(end, TaskSucceeded)
    assert end.result in (encoded["alice"], encoded["carol"])


def killed(run: Run | None, given: Job, after_s: float) -> tuple[World, SimNode, Disk]:
    """bob dies so long after he has submitted it; what he has is on his disk."""
    world = town(7, run, alice=1, carol=1, dave=1, erin=1)
    bob = world.nodes["bob"]
    disk = bob.disk = Disk(world, lambda: 0.001)
    assert disk.submit(given)
    bob.submit(given)
    world.elapse(after_s)
    world.kill(bob)
    disk.crash(True)
    return world, bob, disk


def test_a_slow_copy_is_overtaken_by_one_of_another_operator() -> None:
    slow: list[str] = []

    def run(running: Running) -> tuple[float, Outcome]:
        if running.work.payload == b"5" and not slow:
            slow.append(where(world, running).name)
            return 60.0, Succeeded(running.work.payload)
        return 0.3, Succeeded(running.work.payload)

    world = town(7, run, alice=1, carol=1, dave=1, erin=1)
    _, bob = at_work(world, job(6, speculate=True, quorum=NEAR), for_s=30)
    assert len(ends(bob)) == 6
    placed = [each for each in only(bob.reported, TaskPlaced) if each.task_id == "job/5"]
    assert len({each.worker for each in placed}) == len(placed) >= 3


@pytest.mark.parametrize(
    ("after_s", "quorum"),
    [(0.5, NEAR), (1.6, NEAR), (2.4, NEAR), (0.5, AT_ONCE), (1.3, AT_ONCE)],
)
def test_a_scheduler_that_is_killed_goes_on_with_the_answers_so_far(
    after_s: float, quorum: Quorum
) -> None:
    world, bob, disk = killed(None, job(4, quorum=quorum), after_s)
    kept = {each.task_id for each in only(disk.jobs["job"].events, TaskAnswered)}
    (saved,), leases = disk.saved()
    assert {each.task_id for each in saved.begun if each.answers} == kept
    world.elapse(1)
    world.restart(bob, Resume((saved,), leases))
    world.elapse(60)
    events = disk.jobs["job"].events
    results = {each.task_id: each.result for each in only(events, TaskSucceeded)}
    assert results == {f"job/{n}": b"%d" % n for n in range(4)}
    for task_id in kept:  # its first answer was not asked for again
        answered = [each for each in only(events, TaskAnswered) if each.task_id == task_id]
        assert len(answered) == 1


# -- copies at once ---------------------------------------------------------------------------


def granted(world: World, name: str, org: str) -> bytes:
    rights = Rights(int(EPOCH_UNIX_S) + 10**7, place=Place(org=org))
    return issue(world.root, rights, world.nodes[name].identity.peer_id)


def of_orgs(
    quorum: Quorum, orgs: dict[str, str], run: Run | None = None, tasks: int = 1, **options: bool
) -> tuple[World, SimNode]:
    """Workers of these organisations, and bob, who has submitted."""
    world = World(7, run)
    world.add("gate")
    for name, org in orgs.items():
        rights = Rights(int(EPOCH_UNIX_S) + 10**7, place=Place(org=org))
        world.add(name, serve=world.machine(cpu=1), rights=rights)
    bob = world.add("bob")
    world.elapse(3)
    bob.submit(job(tasks, quorum=quorum, speculate=options.get("speculate", False)))
    return world, bob


@pytest.mark.at_length
def test_of_copies_at_once_one_that_lies_is_outvoted() -> None:
    world, bob = voters(AT_ONCE, tasks=12, alice=None, carol=None, dave=b"a lie", erin=None)
    world.elapse(60)
    ended = ends(bob)
    assert [getattr(ended[f"job/{n}"], "result", None) for n in range(12)] == [
        b"%d" % n for n in range(12)
    ]
    placed = Counter(each.task_id for each in only(bob.reported, TaskPlaced))
    assert set(placed.values()) == {2, 3}
    dave = world.nodes["dave"].identity.peer_id
    assert peer_of(bob).reputation.explain(dave, world.moment(bob)).wrong >= 1


def test_copies_at_once_go_to_different_operators_or_one_after_the_other() -> None:
    world, bob = of_orgs(
        Quorum(2, of=3, at_once=True), {"alice": "acme", "carol": "acme", "dave": "other"}
    )
    world.elapse(1)
    first = workers_of(bob)
    assert len(first) == 2
    assert "dave" in first
    world.elapse(20)
    assert isinstance(ends(bob)["job/0"], TaskSucceeded)


def test_where_one_copy_alone_finds_a_worker_the_others_wait_for_it() -> None:
    world, bob = of_orgs(Quorum(2, of=3, at_once=True), {"alice": "acme", "carol": "acme"})
    world.elapse(60)
    assert len(workers_of(bob)) == 1
    (end,) = ends(bob).values()
    assert isinstance(end, TaskDisagreed)
    assert "shares the org acme" in [str(why).split(" with ")[0] for _, why in end.reasons]


@pytest.mark.at_length
def test_a_slow_copy_is_not_overtaken_by_its_own_operator() -> None:
    """Else the two would agree, and be of one operator."""

    def run(running: Running) -> tuple[float, Outcome]:
        slow = running.work.payload == b"5"
        return (20.0 if slow else 0.3), Succeeded(b"a lie" if slow else running.work.payload)

    world, bob = of_orgs(
        Quorum(2, of=2), {"alice": "acme", "carol": "acme"}, run, tasks=6, speculate=True
    )
    world.elapse(90)
    assert len(only(bob.reported, TaskPlaced)) == 6
    assert all(isinstance(each, TaskDisagreed) for each in ends(bob).values())


def test_the_answer_of_one_that_has_joined_the_operator_of_another_does_not_count() -> None:
    world, bob = of_orgs(
        Quorum(2, of=2, at_once=True), {"alice": "acme", "carol": "other"}, tasks=1
    )
    world.elapse(0.7)
    assert len(workers_of(bob)) == 2
    (group,) = peer_of(bob).scheduler.groups.values()
    pool = group.candidates.pool
    carol = pool[world.nodes["carol"].identity.peer_id]
    pool[carol.peer_id] = replace(carol, grant=granted(world, "carol", "acme"))
    world.elapse(60)
    (end,) = ends(bob).values()
    assert isinstance(end, TaskDisagreed)
    assert len(end.answers) == 1
    assert any("shares the org acme" in x.attempt.why for x in only(bob.reported, TaskRetried))


@pytest.mark.parametrize(("quorum", "lost_s"), [(NEAR, 1.5), (AT_ONCE, 0.6), (AT_ONCE, 1.4)])
def test_copies_that_are_lost_are_made_again(quorum: Quorum, lost_s: float) -> None:
    world, bob = voters(quorum, tasks=8, alice=None, carol=None, dave=None, erin=None)
    world.elapse(lost_s)
    world.kill(world.nodes["alice"])
    world.elapse(90)
    assert len(ends(bob)) == 8
    assert all(isinstance(each, TaskSucceeded) for each in ends(bob).values())


def test_a_job_is_cancelled_while_copies_wait_and_run() -> None:
    world, bob = voters(AT_ONCE, tasks=8, alice=None, carol=None, dave=None)
    bob.submit(job(2, job_id="other", quorum=AT_ONCE))
    world.elapse(1)
    bob.cancel("job")
    world.elapse(30)
    ended = ends(bob)
    assert len(ended) == 10
    assert any(isinstance(ended[f"job/{n}"], TaskCancelled) for n in range(8))
    assert all(isinstance(ended[f"other/{n}"], TaskSucceeded) for n in range(2))


@pytest.mark.at_length
@pytest.mark.parametrize("quorum", [AT_ONCE, NEAR])
def test_a_copy_that_outlives_what_its_worker_has_announced_counts(quorum: Quorum) -> None:
    """Nobody looks for workers while copies run, and what is known of these expires."""

    def run(running: Running) -> tuple[float, Outcome]:
        return 3 * DiscoveryParameters().ttl_s, Succeeded(running.work.payload)

    world, bob = at_work(town(7, run, alice=1, carol=1, dave=1), job(1, quorum=quorum))
    world.elapse(7 * DiscoveryParameters().ttl_s)
    assert isinstance(ends(bob)["job/0"], TaskSucceeded)
    assert len(only(bob.reported, TaskPlaced)) == 2
    assert not only(bob.reported, TaskRetried)


@pytest.mark.at_length
def test_copies_that_were_in_flight_count_before_their_workers_are_found_again() -> None:
    run = lambda running: (1.5, Succeeded(running.work.payload))  # noqa: E731
    world, bob, disk = killed(run, job(1, quorum=AT_ONCE), 1)
    saved, leases = disk.saved()
    assert [len(each.attempts) for each in leases] == [1, 1]
    assert [each.marks is not None for each in leases] == [True, True]
    world.elapse(3)
    world.restart(bob, Resume(saved, leases))
    world.elapse(30)
    events = disk.jobs["job"].events
    assert only(events, TaskSucceeded)
    assert len(only(events, TaskPlaced)) == 2
    assert not only(events, TaskRetried)


def test_an_answer_of_a_worker_of_which_nothing_is_known_does_not_count() -> None:
    """An earlier release has not written down what is known of the worker of a lease."""
    run = lambda running: (6.0, Succeeded(running.work.payload))  # noqa: E731
    world, bob, disk = killed(run, job(1, quorum=AT_ONCE), 1)
    saved, leases = disk.saved()
    world.restart(bob, Resume(saved, tuple(replace(each, marks=None) for each in leases)))
    world.elapse(60)
    events = disk.jobs["job"].events
    assert only(events, TaskSucceeded)
    assert {x.attempt.why for x in only(events, TaskRetried)} == {"its place is not known"}


def test_beside_a_copy_of_which_nothing_is_known_no_other_goes_out() -> None:
    world = town(7, lambda running: (9.0, Succeeded(running.work.payload)), a=1, b=1, c=1)
    _, bob = at_work(world, job(1, quorum=AT_ONCE), for_s=1)
    (group,) = peer_of(bob).scheduler.groups.values()
    (run,) = {run for active in group.leases.values() for run in active.runs}
    one, two = workers = [active.worker for active in group.leases.values()]
    assert one != two
    other = next(each for who, each in group.candidates.pool.items() if who not in workers)
    assert isinstance(group.queues, DrawnQueues)
    assert group.queues.may(run, other, [one])
    del group.candidates.pool[one]
    assert group.queues.may(run, other, [one])
    for active in group.leases.values():
        active.marks = None
    assert not group.queues.may(run, other, [one])

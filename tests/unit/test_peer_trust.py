"""Trust in a small town: what bob learns of those who work for him, and what he is told."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from formation_p2p.core.effects import Contact, Effect, Moment
from formation_p2p.core.identity import Identity, PeerId
from formation_p2p.core.refusals import Denied
from formation_p2p.jobs.core.job_events import TaskSucceeded, TaskUnplaceable
from formation_p2p.leases.core.messages import (
    MAX_ATTESTATIONS,
    AskOpinions,
    Opinions,
    PlacementRequest,
    RequestRefused,
)
from formation_p2p.leases.core.session import Received, Send
from formation_p2p.peer.core.reputation_gossip import EVERY_S, MAX_PEERS, Lately, ReputationGossip
from formation_p2p.trust.core.attestation import open_attestation
from formation_p2p.trust.core.experience import MEMORY, Experience
from formation_p2p.trust.core.grants import Rights, bind, issue
from formation_p2p.trust.core.membership import Membership
from formation_p2p.trust.core.reputation import Reputation, Standing
from formation_p2p.workload.core.outcome import Failed, FailureKind, Succeeded
from simulations.simulator.node import SimNode
from simulations.simulator.world import World
from tests.support.stories import (
    at,
    at_work,
    contact,
    ends,
    identity,
    job,
    only,
    passed,
    peer_of,
    town,
)

ROOT = identity("root")


def standing(world: World, node: SimNode, name: str) -> Standing:
    now = at(world.now_s)
    return peer_of(node).reputation.explain(world.nodes[name].identity.peer_id, now)


def trust(world: World, node: SimNode, name: str, count: int) -> None:
    """Let a node have had so much good experience with another."""
    for _ in range(count):
        other = world.nodes[name].identity.peer_id
        peer_of(node).reputation.note(other, Experience.SUCCESS, at(world.now_s))


# -- what a scheduler learns ------------------------------------------------------------------


def test_each_result_is_a_good_experience_with_its_worker() -> None:
    world, bob = at_work(town(alice=2), job(10), for_s=20)
    reported = standing(world, bob, "alice")
    assert (reported.successes, reported.errors, reported.lost, reported.wrong) == (10, 0, 0, 0)
    assert reported.score_milli > 500


@pytest.mark.parametrize(
    ("kind", "errors"), [(FailureKind.DRIVER, 3), (FailureKind.EXCEPTION, 0), (FailureKind.EXIT, 0)]
)
def test_what_the_machine_cannot_run_is_held_against_it_and_what_the_task_did_is_not(
    kind: FailureKind, errors: int
) -> None:
    world = town(7, lambda running: (0.1, Failed(kind, "no")), alice=2)
    _, bob = at_work(world, job(1, attempts=3), for_s=120)
    reported = standing(world, bob, "alice")
    assert (reported.successes, reported.errors, reported.lost) == (0, errors, 0)
    assert (reported.score_milli < 500) == (errors > 0)


def test_a_worker_that_vanishes_with_a_task_is_remembered_for_it() -> None:
    world, bob = at_work(town(7, lambda running: (60.0, Succeeded(b"")), alice=2), job(1), for_s=2)
    world.vanish(world.nodes["alice"])
    world.elapse(30)
    assert standing(world, bob, "alice").lost == 1


# -- what a worker does with it ---------------------------------------------------------------


def test_a_submitter_with_whom_there_was_only_bad_experience_is_refused() -> None:
    world = town(alice=2)
    alice, bob = world.nodes["alice"], world.nodes["bob"]
    peer_of(alice).reputation.note(bob.identity.peer_id, Experience.WRONG, at(world.now_s))
    bob.submit(job(1))
    world.elapse(60)
    (unplaceable,) = only(ends(bob).values(), TaskUnplaceable)
    ((_, refusal),) = unplaceable.reasons
    assert refusal == Denied("submit", "this node has had bad experience with you")


def test_a_node_works_for_itself_whatever_it_thinks_of_itself() -> None:
    world = town(alice=2)
    alice = world.nodes["alice"]
    peer_of(alice).reputation.note(alice.identity.peer_id, Experience.WRONG, at(world.now_s))
    alice.submit(job(1))
    world.elapse(5)
    assert len(only(ends(alice).values(), TaskSucceeded)) == 1


# -- what they tell each other ----------------------------------------------------------------


def test_a_worker_that_has_done_well_is_asked_what_it_thinks_and_listened_to() -> None:
    world = town(alice=2)
    carol = world.add("carol", serve=world.machine(cpu=2))
    alice, bob = world.nodes["alice"], world.nodes["bob"]
    for _ in range(20):
        peer_of(alice).reputation.note(carol.identity.peer_id, Experience.ERROR, at(world.now_s))
    trust(world, bob, "alice", MEMORY)
    bob.submit(job(1, job_id="first"))
    world.elapse(5)
    assert len(only(passed(world, "bob", "alice"), AskOpinions)) == 1
    reported = standing(world, bob, "carol")
    assert [each.author for each in reported.heard] == [alice.identity.peer_id]
    assert reported.score_milli < 400
    bob.submit(job(1, job_id="second"))
    world.elapse(5)
    assert len(only(passed(world, "bob", "alice"), AskOpinions)) == 1  # not again so soon


def test_a_stranger_is_not_asked() -> None:
    world, _ = at_work(town(alice=2), job(1), for_s=5)
    assert only(passed(world, "bob", "alice"), AskOpinions) == []


# -- alone ------------------------------------------------------------------------------------


def hearsay_of(
    name: str, reputation: Reputation | None = None, max_peers: int = MAX_PEERS
) -> ReputationGossip:
    who = identity(name)
    return ReputationGossip(
        who,
        grant_of(who),
        Membership(ROOT.public_key),
        reputation or Reputation(who.peer_id),
        max_peers,
    )


def grant_of(who: Identity) -> bytes:
    return issue(ROOT, Rights(2**32), who.peer_id)


def knowing(own: str, *names: str) -> Reputation:
    reputation = Reputation(identity(own).peer_id)
    for name in names:
        reputation.note(identity(name).peer_id, Experience.SUCCESS, at(0))
    return reputation


def test_only_members_are_answered_and_each_once_in_a_while() -> None:
    alice = hearsay_of("alice", knowing("alice", "carol"))
    bob, mallory = contact("bob"), contact("mallory")
    asking = AskOpinions(grant_of(identity("bob")))
    assert alice.received(mallory, asking, at(0)) == []
    (answer,) = alice.received(bob, asking, at(0))
    assert isinstance(answer, Send)
    assert isinstance(answer.message, Opinions)
    (raw,) = answer.message.attestations
    assert open_attestation(raw, at(0).unix_s).author == identity("alice").peer_id
    assert alice.received(bob, asking, at(EVERY_S - 1)) == []
    assert len(alice.received(bob, asking, at(EVERY_S))) == 1


def test_one_invitation_bound_to_a_crowd_silences_nobody_of_another() -> None:
    alice = hearsay_of("alice", knowing("alice", "carol"), max_peers=4)
    mallorys, others = (issue(ROOT, Rights(2**32)) for _ in range(2))

    def is_answered(name: str, invitation: bytes, seconds: float) -> bool:
        asking = AskOpinions(bind(invitation, ROOT.public_key, identity(name).peer_id))
        return alice.received(contact(name), asking, at(seconds)) != []

    crowd = [is_answered(f"mallory {n}", mallorys, 0) for n in range(6)]
    assert crowd == [True] * 4 + [False] * 2
    # Each gives up half of what there is, and no more.
    assert [is_answered(name, others, 1) for name in ("bob", "dave", "erin")] == [True, True, False]
    assert not is_answered("mallory 9", mallorys, 1)
    assert not is_answered("bob", others, EVERY_S - 1)
    # Those that made room were the first to ask, and the rest has asked already.
    assert not is_answered("mallory 3", mallorys, 1)
    assert all(is_answered(f"mallory {n}", mallorys, EVERY_S) for n in range(2))
    assert is_answered("bob", others, EVERY_S + 1)


@given(st.lists(st.tuples(st.integers(0, 9), st.sampled_from("abc"), st.integers(0, 300))))
def test_whoever_is_turned_away_is_of_those_that_have_the_most_or_was_answered_lately(
    story: list[tuple[int, str, int]],
) -> None:
    lately, now_s = Lately(max_peers=5), 0.0
    there: dict[PeerId, tuple[str, float]] = {}
    for number, origin, wait_s in story:
        now_s += wait_s
        there = {each: x for each, x in there.items() if x[1] + EVERY_S > now_s}
        peer_id, share = PeerId(f"{origin} {number}"), Counter(x[0] for x in there.values())
        if lately.admits(peer_id, now_s, origin):
            assert peer_id not in there
            there[peer_id] = origin, now_s
            gone = [each for each in there if each not in lately]
            there = {each: x for each, x in there.items() if each in lately}
            assert len(gone) <= 1
            assert all(share[each[0]] == max(share.values()) for each in gone)
        elif peer_id not in there:
            assert len(there) == 5
            assert share[origin] + 1 >= max(share.values())
        assert len(there) <= 5


def test_whoever_knows_nobody_says_nothing() -> None:
    alice = hearsay_of("alice")
    assert alice.received(contact("bob"), AskOpinions(grant_of(identity("bob"))), at(0)) == []


def test_what_was_heard_is_passed_on_within_bounds() -> None:
    reputation = knowing("alice", *(f"voice {n}" for n in range(20)))
    for n in range(20):
        voice = f"voice {n}"
        raw = knowing(voice, "carol").attest(identity(voice), at(n))
        assert raw is not None
        reputation.heard([raw], at(n))
    alice = hearsay_of("alice", reputation)
    (answer,) = alice.received(contact("bob"), AskOpinions(grant_of(identity("bob"))), at(30))
    assert isinstance(answer, Send)
    assert isinstance(answer.message, Opinions)
    authors = [open_attestation(x, at(30).unix_s).author for x in answer.message.attestations]
    newest = [identity(f"voice {n}").peer_id for n in range(19, 12, -1)]
    assert authors == [identity("alice").peer_id, *newest]
    assert len(authors) == MAX_ATTESTATIONS


def test_nobody_is_listened_to_who_was_not_asked_nor_twice() -> None:
    reputation = knowing("bob", "alice")
    bob, alice = hearsay_of("bob", reputation), contact("alice")
    reported = [
        knowing("alice", *names).attest(identity("alice"), at(n))
        for n, names in enumerate((["carol"], ["carol", "dave"]))
    ]
    first, second = (Opinions((raw,)) for raw in reported if raw is not None)

    def known() -> int:
        return len(reputation.standings(at(10)))

    bob.received(alice, first, at(10))
    assert known() == 1
    assert len(bob.met(alice, at(10))) == 1
    bob.received(alice, first, at(10))
    assert known() == 2
    bob.received(alice, second, at(11))
    assert known() == 2


def test_of_a_crowd_only_so_many_are_asked_at_a_time() -> None:
    names = [f"voice {n}" for n in range(5)]
    bob = hearsay_of("bob", knowing("bob", "bob", *names), max_peers=3)

    def asked(now: Moment) -> list[PeerId]:
        effects: list[Effect] = [x for name in names for x in bob.met(contact(name), now)]
        return [each.to.peer_id for each in effects if isinstance(each, Send)]

    assert asked(at(0)) == [identity(name).peer_id for name in names[:3]]
    assert asked(at(EVERY_S - 1)) == []
    assert len(asked(at(EVERY_S))) == 3
    assert bob.met(contact("bob"), at(2 * EVERY_S)) == []  # which need not ask itself


def test_a_node_that_does_not_work_refuses_whom_it_distrusts_all_the_same() -> None:
    world = town()
    bob = peer_of(world.nodes["bob"])
    carol = world.add("carol")
    bob.reputation.note(carol.identity.peer_id, Experience.WRONG, at(world.now_s))
    sender = Contact(carol.identity.peer_id)
    request = PlacementRequest(1, job().tasks[0].needs, b"")
    (refused,) = bob.handle(Received(sender, request), at(world.now_s))
    assert isinstance(refused, Send)
    assert isinstance(refused.message, RequestRefused)
    assert isinstance(refused.message.refusal, Denied)

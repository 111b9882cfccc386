"""Whom bob trusts: by what they did for him, and a little by what others tell."""

import random
from bisect import bisect
from collections.abc import Mapping, Sequence
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from formation_p2p.core.effects import Moment
from formation_p2p.core.identity import Identity, PeerId
from formation_p2p.placement.core.policies import EXECUTE_MILLI
from formation_p2p.trust.core.attestation import (
    LIFE_S,
    MAX_SUBJECTS,
    Opinion,
    open_attestation,
    seal_attestation,
)
from formation_p2p.trust.core.experience import HALF_LIFE_S, MEMORY, Experience
from formation_p2p.trust.core.parameters import TrustParameters
from formation_p2p.trust.core.reputation import Reputation, attenuated_milli
from simulations.simulator.world import EPOCH_UNIX_S
from tests.support.stories import at, identity

TRUST = TrustParameters()

ALICE, BOB, CAROL, DAVE, ERIN = map(identity, ("alice", "bob", "carol", "dave", "erin"))
NOW = at(0)
BEST, WORST = Opinion(1000, MEMORY * 1000), Opinion(0, MEMORY * 1000)

SUCCESS, AGREED, ERROR, LOST, WRONG = Experience
histories = st.lists(st.sampled_from(Experience), max_size=40)
sybils = st.sampled_from([identity(f"sybil {n}") for n in range(12)])
opinions = st.builds(Opinion, st.integers(0, 1000), st.integers(0, MEMORY * 1000))


def bobs(**histories: Sequence[Experience]) -> Reputation:
    """What bob thinks, who has had these experiences with people."""
    reputation = Reputation(BOB.peer_id)
    for name, history in histories.items():
        live(reputation, identity(name), history)
    return reputation


def live(reputation: Reputation, peer: Identity, history: Sequence[Experience]) -> None:
    for experience in history:
        reputation.note(peer.peer_id, experience, NOW)


def word(author: Identity, said: Mapping[PeerId, Opinion], now: Moment = NOW) -> bytes:
    return seal_attestation(author, said, int(now.unix_s * 1000))


# -- one's own experience ---------------------------------------------------------------------


def test_a_stranger_stands_in_the_middle_above_both_gates() -> None:
    assert bobs().score_milli(ALICE.peer_id, NOW) == 500
    assert TRUST.submit_milli < EXECUTE_MILLI < 500


def test_good_work_is_rewarded_and_bad_work_is_not() -> None:
    reputation = bobs(alice=[SUCCESS] * MEMORY, carol=[ERROR] * 5, dave=[WRONG])
    alice, carol, dave = (
        reputation.score_milli(each.peer_id, NOW) for each in (ALICE, CAROL, DAVE)
    )
    assert alice == 1000 * (MEMORY + TRUST.prior) // (MEMORY + 2 * TRUST.prior)
    assert TRUST.submit_milli < carol < EXECUTE_MILLI
    assert dave < TRUST.submit_milli


@pytest.mark.at_length
def test_whoever_has_done_well_for_long_falls_by_a_few_false_results() -> None:
    reputation = bobs(alice=[SUCCESS] * 100_000)
    scores = []
    for _ in range(4):
        reputation.note(ALICE.peer_id, WRONG, NOW)
        scores.append(reputation.score_milli(ALICE.peer_id, NOW))
    assert scores[0] < 700
    assert scores[-1] < EXECUTE_MILLI


@given(histories)
def test_with_time_everybody_becomes_a_stranger_again(history: list[Experience]) -> None:
    reputation = bobs(alice=history)
    scores = [
        reputation.score_milli(ALICE.peer_id, at(weeks * HALF_LIFE_S / 4)) for weeks in range(80)
    ]
    # A rounding apart.
    assert all(abs(later - 500) <= abs(sooner - 500) + 1 for sooner, later in pairwise(scores))
    assert 499 <= scores[-1] <= 500


@given(histories, st.sampled_from(Experience))
def test_a_success_never_lowers_a_score_and_nothing_else_raises_it(
    history: list[Experience], experience: Experience
) -> None:
    reputation = bobs(alice=history)
    before = reputation.score_milli(ALICE.peer_id, NOW)
    reputation.note(ALICE.peer_id, experience, NOW)
    after = reputation.score_milli(ALICE.peer_id, NOW)
    assert after >= before if experience in (SUCCESS, AGREED) else after <= before


def test_of_more_peers_than_can_be_remembered_those_least_known_are_forgotten() -> None:
    reputation = Reputation(BOB.peer_id, parameters=TrustParameters(max_peers=10))
    live(reputation, ALICE, [SUCCESS] * 50)
    live(reputation, CAROL, [WRONG])
    for n in range(1_000):
        reputation.note(identity(f"passer-by {n % 30}").peer_id, SUCCESS, NOW)
    known = {each.peer_id for each in reputation.standings(NOW)}
    assert len(known) <= 10
    assert {ALICE.peer_id, CAROL.peer_id} <= known


def test_whoever_is_forgotten_begins_anew_and_is_heard_no_more() -> None:
    reputation = bobs(alice=[SUCCESS] * 50)
    reputation.heard([word(ALICE, {CAROL.peer_id: WORST})], NOW)
    assert reputation.score_milli(CAROL.peer_id, NOW) < 500
    reputation.forget(ALICE.peer_id)
    assert reputation.score_milli(ALICE.peer_id, NOW) == 500
    assert reputation.score_milli(CAROL.peer_id, NOW) == 500
    assert reputation.standings(NOW) == ()
    reputation.forget(ALICE.peer_id)  # again, which changes nothing


# -- what others say --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("local", "said", "expected"),
    [(900, 800, 360), (300, 800, 120), (1500, 1200, 500), (-500, -300, 0)],
)
def test_a_word_is_attenuated_as_in_icn(local: int, said: int, expected: int) -> None:
    """seed_vectors.json, trust_attenuation: with a factor of a half."""
    assert attenuated_milli(local, said, TRUST.attenuation_milli) == expected


def test_the_gates_are_those_of_icn() -> None:
    """seed_vectors.json, trust_gates."""
    assert [trust >= TRUST.submit_milli for trust in (50, 100)] == [False, True]
    assert [trust >= EXECUTE_MILLI for trust in (290, 300)] == [False, True]


def test_a_trusted_voice_moves_strangers_up_and_down_by_as_much() -> None:
    reputation = bobs(alice=[SUCCESS] * MEMORY)
    reputation.heard([word(ALICE, {CAROL.peer_id: BEST, DAVE.peer_id: WORST})], NOW)
    assert reputation.score_milli(CAROL.peer_id, NOW) == 700
    assert reputation.score_milli(DAVE.peer_id, NOW) == 300


def test_own_experience_outweighs_what_all_others_say() -> None:
    reputation = bobs(alice=[SUCCESS] * MEMORY, carol=[SUCCESS] * 20, dave=[ERROR] * 20)
    reputation.heard([word(ALICE, {CAROL.peer_id: WORST, DAVE.peer_id: BEST})], NOW)
    assert reputation.score_milli(CAROL.peer_id, NOW) > 750
    assert reputation.score_milli(DAVE.peer_id, NOW) < EXECUTE_MILLI


def test_whoever_is_known_better_is_heard_more_and_whoever_failed_is_not_heard() -> None:
    reputation = bobs(
        alice=[SUCCESS] * 40, carol=[SUCCESS] * 10, dave=[SUCCESS] * 10 + [ERROR] * 10
    )
    voices = [reputation.voice_milli(each.peer_id, NOW) for each in (ALICE, CAROL, DAVE, ERIN)]
    assert voices == [1000 * 40 // MEMORY, 1000 * 10 // MEMORY, 0, 0]
    reputation.heard([word(ALICE, {ERIN.peer_id: WORST}), word(CAROL, {ERIN.peer_id: BEST})], NOW)
    assert reputation.score_milli(ERIN.peer_id, NOW) < 500


def test_nobody_is_heard_on_himself() -> None:
    reputation = bobs(alice=[SUCCESS] * 20, bob=[SUCCESS] * 20)
    before = reputation.score_milli(ALICE.peer_id, NOW)
    reputation.heard([word(ALICE, {ALICE.peer_id: BEST})], NOW)
    reputation.heard([word(BOB, {ALICE.peer_id: WORST})], NOW)  # bob's own words, come back
    assert reputation.score_milli(ALICE.peer_id, NOW) == before


def test_of_two_words_of_one_author_the_later_counts_however_they_come() -> None:
    old = word(ALICE, {CAROL.peer_id: WORST}, at(0))
    new = word(ALICE, {CAROL.peer_id: BEST}, at(5))
    for order in ([old, new], [new, old], [new, old, new]):
        reputation = bobs(alice=[SUCCESS] * MEMORY)
        for raw in order:
            reputation.heard([raw], at(10))
        assert reputation.score_milli(CAROL.peer_id, at(10)) == 700


def test_a_word_expires_and_a_broken_one_is_passed_over() -> None:
    reputation = bobs(alice=[SUCCESS] * MEMORY)
    good = word(ALICE, {CAROL.peer_id: BEST})
    reputation.heard([b"", good[:-1], good], NOW)
    assert reputation.score_milli(CAROL.peer_id, NOW) == 700
    assert reputation.score_milli(CAROL.peer_id, at(LIFE_S)) == 500
    assert reputation.explain(CAROL.peer_id, at(LIFE_S)).heard == ()


def test_a_word_that_has_expired_is_neither_passed_on_nor_kept() -> None:
    reputation = bobs(alice=[SUCCESS] * MEMORY, carol=[SUCCESS] * MEMORY)
    last = at(LIFE_S - 1)
    first, second = word(ALICE, {ERIN.peer_id: BEST}), word(CAROL, {ERIN.peer_id: BEST}, last)
    reputation.heard([first, second], last)
    assert reputation.passed_on(7, last) == (second, first)
    assert reputation.passed_on(7, at(LIFE_S)) == (second,)
    assert dict(reputation.take().attestations) == {ALICE.peer_id: first, CAROL.peer_id: second}
    reputation.heard([], at(LIFE_S))
    assert reputation.take().attestations == ((ALICE.peer_id, None),)


def test_a_word_that_is_heard_again_is_not_stored_again() -> None:
    reputation = bobs(alice=[SUCCESS] * MEMORY)
    raw = word(ALICE, {CAROL.peer_id: BEST})
    reputation.heard([raw], NOW)
    assert reputation.take().attestations == ((ALICE.peer_id, raw),)
    reputation.heard([raw], NOW)
    assert reputation.take().attestations == ()


def test_a_voice_that_is_hardly_trusted_has_little_weight_however_much_it_has_seen() -> None:
    reputation = bobs(alice=[SUCCESS] * 16)
    reputation.heard([word(ALICE, {CAROL.peer_id: WORST})], NOW)
    (heard,) = reputation.explain(CAROL.peer_id, NOW).heard
    # A quarter of a voice, attenuated by half, of eight experiences: one.
    assert (heard.voice_milli, heard.counts_milli) == (250, 1000)


def test_of_more_voices_than_can_be_kept_the_strongest_are() -> None:
    crowd = [identity(f"voice {n}") for n in range(TRUST.max_voices + 2)]
    reputation = bobs()
    for n, each in enumerate(crowd):
        live(reputation, each, [SUCCESS] * (3 if n else 2))
    *first, weak, strong = crowd
    live(reputation, strong, [SUCCESS] * 5)
    live(reputation, weak, [ERROR] * 2)
    said = {CAROL.peer_id: BEST}
    reputation.heard([word(each, said) for each in first], NOW)
    reputation.heard([word(weak, said)], NOW)
    assert {h.author for h in reputation.explain(CAROL.peer_id, NOW).heard} == {
        each.peer_id for each in first
    }
    reputation.take()
    as_strong = identity("as strong as the others")
    live(reputation, as_strong, [SUCCESS] * 2)
    reputation.heard([word(as_strong, said)], NOW)
    assert reputation.take().attestations == ()
    reputation.heard([word(strong, said)], NOW)
    heard = {h.author for h in reputation.explain(CAROL.peer_id, NOW).heard}
    assert heard == {each.peer_id for each in (*first[1:], strong)}
    # A voice that is kept can speak again.
    reputation.heard([word(strong, {DAVE.peer_id: BEST}, at(1))], at(1))
    assert reputation.score_milli(DAVE.peer_id, at(1)) > 500


# -- laws of what others can do -------------------------------------------------------------------


@settings(deadline=None, max_examples=40)
@given(
    histories,
    st.lists(
        st.tuples(
            sybils, st.dictionaries(sybils.map(lambda x: x.peer_id), opinions), st.booleans()
        ),
        max_size=20,
    ),
)
def test_any_number_of_identities_that_did_nothing_change_no_score(
    history: list[Experience], graph: list[tuple[Identity, dict[PeerId, Opinion], bool]]
) -> None:
    """However they vouch for each other, for a peer that is known, and against one: not by one
    thousandth, nor is anything of theirs kept."""
    alone, beset = (bobs(alice=history, carol=[SUCCESS] * 20) for _ in range(2))
    for author, said, for_alice in graph:
        extreme = (BEST, WORST) if for_alice else (WORST, BEST)
        all_said = {**said, ALICE.peer_id: extreme[0], CAROL.peer_id: extreme[1]}
        beset.heard([word(author, all_said)], NOW)
    subjects = {ALICE.peer_id, CAROL.peer_id, *(peer for _, said, _ in graph for peer in said)}
    for subject in subjects:
        assert beset.score_milli(subject, NOW) == alone.score_milli(subject, NOW)
    assert beset.take() == alone.take()


@settings(deadline=None, max_examples=40)
@given(histories, st.dictionaries(st.integers(0, 11), st.tuples(histories, opinions), max_size=12))
def test_all_voices_together_count_no_more_than_one_that_is_fully_trusted(
    history: list[Experience], voices: dict[int, tuple[list[Experience], Opinion]]
) -> None:
    """Which is as much as `gossip_weight` experiences of one's own; and of a stranger no more than
    that he is still given a try."""
    crowd, one = (bobs(alice=history) for _ in range(2))
    live(one, CAROL, [SUCCESS] * MEMORY)
    for n, (past, opinion) in voices.items():
        live(crowd, identity(f"voice {n}"), past)
        crowd.heard([word(identity(f"voice {n}"), {ALICE.peer_id: opinion})], NOW)
    extremes: list[int] = []
    for extreme in (WORST, BEST):
        one.heard([word(CAROL, {ALICE.peer_id: extreme}, at(len(extremes)))], at(1))
        extremes.append(one.score_milli(ALICE.peer_id, NOW))
    worst, best = extremes
    assert worst <= crowd.score_milli(ALICE.peer_id, NOW) <= best
    reported = crowd.explain(ALICE.peer_id, NOW)
    assert 0 <= reported.heard_good_milli + reported.heard_bad_milli <= TRUST.gossip_weight * 1000
    if not history:
        assert worst == EXECUTE_MILLI


@settings(deadline=None, max_examples=40)
@given(st.lists(st.integers(1, 10), min_size=2, max_size=6), opinions)
def test_work_shared_out_among_identities_gives_them_no_more_voice_than_one(
    shares: list[int], opinion: Opinion
) -> None:
    crowd, one = bobs(), bobs(alice=[SUCCESS] * sum(shares))
    one.heard([word(ALICE, {ERIN.peer_id: opinion})], NOW)
    for n, share in enumerate(shares):
        live(crowd, identity(f"part {n}"), [SUCCESS] * share)
        crowd.heard([word(identity(f"part {n}"), {ERIN.peer_id: opinion})], NOW)
    shared_out, whole = (
        sum(each.counts_milli for each in reputation.explain(ERIN.peer_id, NOW).heard)
        for reputation in (crowd, one)
    )
    assert shared_out <= whole


# -- what this node says --------------------------------------------------------------------------


def test_what_is_told_is_ones_own_experience_and_nothing_that_was_heard() -> None:
    reputation = bobs(alice=[SUCCESS] * 9 + [ERROR], bob=[SUCCESS], carol=[WRONG])
    reputation.heard([word(ALICE, {DAVE.peer_id: BEST})], NOW)
    raw = reputation.attest(BOB, NOW)
    assert raw is not None
    reported = open_attestation(raw, NOW.unix_s)
    assert reported.author == BOB.peer_id
    assert reported.opinions == {
        ALICE.peer_id: Opinion(900, 10_000),
        CAROL.peer_id: Opinion(0, 32_000),
    }
    (passed_on,) = reputation.passed_on(7, NOW)
    assert open_attestation(passed_on, NOW.unix_s).author == ALICE.peer_id
    assert reputation.passed_on(0, NOW) == ()


def test_it_is_signed_again_only_after_a_while_and_not_where_there_is_nothing_to_say() -> None:
    reputation = bobs()
    assert reputation.attest(BOB, NOW) is None
    live(reputation, ALICE, [SUCCESS])
    assert reputation.attest(BOB, at(TRUST.attest_every_s - 1)) is None
    first = reputation.attest(BOB, at(TRUST.attest_every_s))
    assert first is not None
    live(reputation, CAROL, [SUCCESS])
    assert reputation.attest(BOB, at(2 * TRUST.attest_every_s - 1)) == first
    assert reputation.attest(BOB, at(2 * TRUST.attest_every_s)) not in (None, first)
    # In a hundred weeks alice is a stranger, of whom there is nothing to say.
    assert reputation.attest(BOB, at(100 * HALF_LIFE_S)) is None


def test_of_many_the_worst_are_told_of_and_those_known_best() -> None:
    reputation = bobs(carol=[WRONG], dave=[SUCCESS] * 60)
    for n in range(3 * MAX_SUBJECTS):
        live(reputation, identity(f"passer-by {n}"), [SUCCESS] * 2)
    raw = reputation.attest(BOB, NOW)
    assert raw is not None
    reported = open_attestation(raw, NOW.unix_s).opinions
    assert len(reported) == MAX_SUBJECTS
    assert {CAROL.peer_id, DAVE.peer_id} <= reported.keys()


def test_half_of_what_is_told_is_of_the_worst() -> None:
    reputation, half = bobs(), MAX_SUBJECTS // 2
    bad = [identity(f"bad {n}") for n in range(half + 8)]
    good = [identity(f"good {n}") for n in range(half + 8)]
    for n in range(half + 8):
        live(reputation, bad[n], [ERROR] * (n + 1))
        live(reputation, good[n], [SUCCESS] * (n + 1))
    raw = reputation.attest(BOB, NOW)
    assert raw is not None
    reported = open_attestation(raw, NOW.unix_s).opinions
    assert reported.keys() == {each.peer_id for each in (*bad[8:], *good[8:])}


@given(
    histories, st.integers(-10 * HALF_LIFE_S, 10 * HALF_LIFE_S), st.integers(0, 10 * HALF_LIFE_S)
)
def test_whatever_the_clock_did_others_can_read_what_is_told(
    history: list[Experience], before_s: int, later_s: int
) -> None:
    reputation = Reputation(BOB.peer_id)
    for now in (at(later_s), at(later_s + before_s)):
        for experience in (SUCCESS, *history):
            reputation.note(ALICE.peer_id, experience, now)
        raw = reputation.attest(BOB, now)
    assert raw is not None
    assert open_attestation(raw, now.unix_s).opinions[ALICE.peer_id].weight_milli > 0
    assert reputation.voice_milli(ALICE.peer_id, now) <= 1000


# -- why ------------------------------------------------------------------------------------------


def test_a_score_is_explained_by_what_went_into_it() -> None:
    reputation = bobs(alice=[SUCCESS] * 32, carol=[SUCCESS] * 3 + [ERROR, LOST])
    reputation.heard([word(ALICE, {CAROL.peer_id: Opinion(250, 4_000)})], NOW)
    reported = reputation.explain(CAROL.peer_id, NOW)
    assert (reported.successes, reported.errors, reported.lost, reported.wrong) == (3, 1, 1, 0)
    assert (reported.good_milli, reported.bad_milli) == (3000, 2000)
    # Half a voice, attenuated by half, of four experiences: one, three quarters of it bad.
    assert (reported.heard_good_milli, reported.heard_bad_milli) == (250, 750)
    (heard,) = reported.heard
    assert (heard.author, heard.voice_milli, heard.counts_milli) == (ALICE.peer_id, 500, 1000)
    assert reported.score_milli == 1000 * (3000 + 3000 + 250) // (6000 + 5000 + 1000)
    assert reported.seen_unix_s == int(EPOCH_UNIX_S)
    assert reputation.explain(DAVE.peer_id, NOW).seen_unix_s is None


def test_everyone_known_or_heard_of_is_listed_the_most_trusted_first() -> None:
    reputation = bobs(alice=[SUCCESS] * 50, bob=[SUCCESS], carol=[ERROR] * 9)
    reputation.heard([word(ALICE, {DAVE.peer_id: BEST, BOB.peer_id: BEST})], NOW)
    listed = [each.peer_id for each in reputation.standings(NOW)]
    assert listed == [ALICE.peer_id, DAVE.peer_id, CAROL.peer_id]


# -- keeping it -----------------------------------------------------------------------------------


def test_what_has_changed_is_taken_once_and_makes_the_next_life_the_same() -> None:
    reputation = bobs(alice=[SUCCESS] * 50, carol=[ERROR])
    reputation.heard([word(ALICE, {DAVE.peer_id: BEST})], NOW)
    reputation.note(ERIN.peer_id, LOST, NOW)
    reputation.forget(ERIN.peer_id)
    changes = reputation.take()
    assert dict(changes.accounts).keys() == {ALICE.peer_id, CAROL.peer_id, ERIN.peer_id}
    assert dict(changes.accounts)[ERIN.peer_id] is None
    again = Reputation(
        BOB.peer_id,
        [(peer_id, account) for peer_id, account in changes.accounts if account is not None],
        [open_attestation(raw, NOW.unix_s) for _, raw in changes.attestations if raw is not None],
    )
    assert again.standings(at(500)) == reputation.standings(at(500))
    nothing = reputation.take()
    assert (nothing.accounts, nothing.attestations) == ((), ())
    reputation.forget(ALICE.peer_id)
    gone = reputation.take()
    assert (gone.accounts, gone.attestations) == (
        ((ALICE.peer_id, None),),
        ((ALICE.peer_id, None),),
    )


def test_what_was_taken_stays_as_it_was_then() -> None:
    reputation = bobs(alice=[SUCCESS])
    ((_, taken),) = reputation.take().accounts
    reputation.note(ALICE.peer_id, SUCCESS, NOW)
    assert taken is not None
    assert taken.successes == 1


# Scores against the outcome rates of a real network of volunteers. Of the nodes of Golem with
# twenty subtasks or more (December 2018 to February 2019) one in twenty brought fewer than 65.5 %
# of its results, one in four fewer than 88.5 %, and half fewer than 94.1 %.

P5, P25, P50 = 0.655, 0.885, 0.941
QUANTILES = ((0.0, 0.4), (0.05, P5), (0.25, P25), (0.5, P50), (1.0, 1.0))
# A task a minute from each.
EVERY_S = 60.0


def drawn(rng: random.Random) -> float:
    """A success rate of that population, in straight lines between the known quantiles."""
    share = rng.random()
    place = bisect([each for each, _ in QUANTILES], share)
    (low, rate), (high, next_rate) = QUANTILES[place - 1], QUANTILES[place]
    return rate + (next_rate - rate) * (share - low) / (high - low)


def outcome(rate: float, wrong: float, rng: random.Random) -> Experience:
    if rng.random() < wrong:
        return Experience.WRONG
    return Experience.SUCCESS if rng.random() < rate else Experience.ERROR


def tasks_until_shut_out(rate: float, rng: random.Random, *, wrong: float = 0.0) -> int:
    """How many of 200 it gets before its score falls below the gate."""
    worker, reputation = PeerId("worker"), Reputation(PeerId("bob"))
    for task in range(200):
        now = at(task * EVERY_S)
        if reputation.score_milli(worker, now) < EXECUTE_MILLI:
            return task
        reputation.note(worker, outcome(rate, wrong, rng), now)
    return 200


def ranks(values: list[float]) -> list[float]:
    order = sorted(range(len(values)), key=values.__getitem__)
    ranked = [0.0] * len(values)
    for rank, place in enumerate(order):
        ranked[place] = rank
    return ranked


def correlation(xs: list[float], ys: list[float]) -> float:
    """Spearman's."""
    count = len(xs)
    apart = sum((x - y) ** 2 for x, y in zip(ranks(xs), ranks(ys), strict=True))
    return 1 - 6 * apart / (count * (count**2 - 1))


@pytest.mark.at_length
def test_real_machines_are_kept_the_weakest_twentieth_too() -> None:
    rng = random.Random(1)
    for rate, most in ((P5, 0.03), (P25, 0.001), (P50, 0.001)):
        shut_out = sum(tasks_until_shut_out(rate, rng) < 200 for _ in range(200))
        assert shut_out / 200 <= most, rate


@pytest.mark.at_length
def test_bad_machines_are_shut_out_after_a_few_tasks() -> None:
    rng = random.Random(2)
    for rate, median in ((0.0, 5), (0.1, 5), (0.2, 10), (0.25, 15)):
        tasks = sorted(tasks_until_shut_out(rate, rng) for _ in range(500))
        assert tasks[250] <= median, rate
        assert tasks[475] < 200, rate


@pytest.mark.at_length
def test_liars_are_shut_out_however_well_they_work_otherwise() -> None:
    rng = random.Random(3)
    for wrong, median in ((1.0, 1), (0.5, 2), (0.1, 10)):
        tasks = sorted(tasks_until_shut_out(0.99, rng, wrong=wrong) for _ in range(500))
        assert tasks[250] <= median, wrong
        assert tasks[-1] < 200, wrong


@pytest.mark.at_length
def test_who_is_trusted_more_is_better() -> None:
    """After a hundred tasks each. With no doubt left the correlation would be 1."""
    rng = random.Random(4)
    rates = [drawn(rng) for _ in range(300)]
    reputation = Reputation(PeerId("bob"))
    now = Moment(0, 0)
    for task in range(100):
        now = at(task * EVERY_S)
        for n, rate in enumerate(rates):
            reputation.note(PeerId(f"worker {n}"), outcome(rate, 0, rng), now)
    scores = [float(reputation.score_milli(PeerId(f"worker {n}"), now)) for n in range(300)]
    assert correlation(rates, scores) > 0.9

"""Which replica takes the next stream."""

import random
from collections import Counter, deque
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from formation_p2p.core.identity import Identity, PeerId
from formation_p2p.features.services.core.balancer import (
    ERRORS,
    Balancer,
    Freshness,
    Replica,
    Route,
)
from formation_p2p.features.services.core.turns import Turns

PEERS = [Identity.from_seed(bytes([n]) * 32).peer_id for n in range(20)]
A, B, C, D = PEERS[:4]


def of(*replicas: Replica | PeerId) -> Balancer:
    balancer = Balancer(random.Random(1))
    balancer.listed(each if isinstance(each, Replica) else Replica(each, 16) for each in replicas)
    return balancer


def chosen(balancer: Balancer, now_s: float = 0.0, tries: int = 200) -> Counter[PeerId | None]:
    return Counter(balancer.choose(now_s) for _ in range(tries))


def fail(balancer: Balancer, peer_id: PeerId, now_s: float) -> bool:
    """As often as it takes."""
    return [balancer.failed(peer_id, now_s) for _ in range(ERRORS)][-1]


def test_there_is_none_where_none_is_listed() -> None:
    assert of().choose(0.0) is None
    assert A not in of(B)
    assert len(of(A, B)) == 2


def test_the_nearest_tier_comes_first_and_overflows_when_it_is_full() -> None:
    balancer = of(Replica(A, 2), B)
    balancer.measured(A, 500)
    balancer.measured(B, 50_000)
    assert set(chosen(balancer)) == {A}
    balancer.began(A)
    balancer.began(A)
    assert set(chosen(balancer)) == {B}
    balancer.ended(A)
    assert set(chosen(balancer)) == {A}


def test_within_a_tier_the_one_with_less_to_do_is_chosen() -> None:
    balancer = of(A, B)
    for _ in range(3):
        balancer.began(A)
    assert set(chosen(balancer)) == {B}


def test_streams_count_by_the_time_to_the_first_byte() -> None:
    balancer = of(A, B)
    balancer.answered(A, 0.1, 0.0)
    balancer.answered(B, 0.001, 0.0)
    for _ in range(5):
        balancer.began(B)
    assert set(chosen(balancer)) == {B}
    for _ in range(200):
        balancer.answered(B, 2.0, 0.0)
    assert set(chosen(balancer)) == {A}


def test_what_was_slow_long_ago_is_tried_again() -> None:
    balancer = of(A, B)
    balancer.answered(A, 4.0, 0.0)
    balancer.answered(B, 0.001, 0.0)
    balancer.began(B)
    assert set(chosen(balancer, 1.0)) == {B}
    balancer.answered(B, 0.001, 200.0)
    assert set(chosen(balancer, 200.0)) == {A}


def test_what_claims_say_of_others_counts_until_all_seem_full() -> None:
    balancer = of(Replica(A, 4, outstanding=4), Replica(B, 4))
    assert set(chosen(balancer)) == {B}
    balancer.listed([Replica(A, 4, outstanding=4), Replica(B, 4, outstanding=4)])
    assert set(chosen(balancer)) == {A, B}  # it may be old


def test_own_streams_in_a_claim_are_not_counted_twice() -> None:
    balancer = of(Replica(A, 4))
    for _ in range(3):
        balancer.began(A)
    balancer.listed([Replica(A, 4, outstanding=3)])
    assert balancer.choose(0.0) == A
    balancer.began(A)
    assert balancer.choose(0.0) is None


def test_one_that_drains_is_asked_last() -> None:
    balancer = of(Replica(A, 1), Replica(B, 1, is_draining=True))
    assert set(chosen(balancer)) == {A}
    balancer.began(A)
    assert set(chosen(balancer)) == {B}


def test_a_sticky_one_is_chosen_while_it_takes_more() -> None:
    balancer = of(Replica(A, 1), B)
    balancer.measured(B, 100_000)
    assert balancer.choose(0.0, sticky=B) == B
    assert balancer.choose(0.0, sticky=D) == A
    assert balancer.choose(0.0, sticky=B, tried={B}) == A
    fail(balancer, B, 0.0)
    assert balancer.choose(0.0, sticky=B) == A


def test_one_that_is_busy_rests_longer_each_time_until_it_takes_one() -> None:
    balancer = of(A)
    assert balancer.may_choose_at_s(0.0) == float("inf")
    ends = []
    for _ in range(7):
        balancer.rest(A, 0.0)
        ends.append(balancer.may_choose_at_s(0.0))
        assert balancer.choose(0.0) is None
    assert ends == [0.05, 0.1, 0.2, 0.4, 0.8, 1.0, 1.0]
    assert balancer.choose(1.0) == A
    balancer.opened(A)
    assert balancer.choose(0.0) == A
    balancer.rest(A, 0.0)
    assert balancer.may_choose_at_s(0.0) == 0.05


def test_one_that_fails_again_and_again_is_left_out_for_a_while() -> None:
    balancer = of(A, B)
    assert fail(balancer, A, 0.0)
    assert balancer.left_out(0.0) == {A}
    assert set(chosen(balancer, 29.9)) == {B}
    assert set(chosen(balancer, 30.0)) == {A, B}


def test_few_are_left_out_at_once() -> None:
    """A fault of this caller's own network shows at all of them."""
    balancer = of(A, B, C)
    assert [fail(balancer, each, 0.0) for each in (A, B, C)] == [True, False, False]
    assert set(chosen(balancer)) == {B, C}


def test_failures_far_apart_or_with_answers_between_leave_none_out() -> None:
    balancer = of(A, B)
    assert not any(balancer.failed(A, 3.0 * n) for n in range(20))
    for n in range(20):
        assert not balancer.failed(B, 0.1 * n)
        if n % 4 == 3:
            balancer.answered(B, 0.01, 0.1 * n)


def test_where_no_other_is_left_it_is_asked_all_the_same() -> None:
    balancer = of(A)
    assert fail(balancer, A, 0.0)
    assert balancer.choose(0.0) == A


def test_a_replica_that_is_not_listed_any_more_is_forgotten() -> None:
    balancer = of(A, B)
    fail(balancer, A, 0.0)
    balancer.listed([Replica(B, 16)])
    for told in (balancer.began, balancer.ended, balancer.opened):
        told(A)
    balancer.answered(A, 0.1, 0.0)
    balancer.measured(A, 5)
    balancer.rest(A, 0.0)
    assert not balancer.failed(A, 0.0)
    assert set(chosen(balancer)) == {B}
    balancer.listed([Replica(A, 16), Replica(B, 16)])
    balancer.ended(A)  # of a stream from before
    assert set(chosen(balancer)) == {A, B}


@given(
    st.integers(1, 20),
    st.lists(
        st.tuples(
            st.sampled_from(["began", "ended", "opened", "failed", "rest", "slow", "near", "far"]),
            st.integers(0, 19),
        ),
        max_size=120,
    ),
    st.integers(0, 2**32),
)
def test_laws(count: int, history: list[tuple[str, int]], seed: int) -> None:
    """Whatever happens: no more streams than one takes, none to one that was tried or rests, one to
    the failing only where no other takes it, and few left out."""
    balancer = Balancer(random.Random(seed))
    replicas = [Replica(peer, 3) for peer in PEERS[:count]]
    balancer.listed(replicas)
    own = Counter[PeerId]()
    now_s = 0.0
    for what, number in history:
        now_s += 0.3
        peer = PEERS[number % count]
        match what:
            case "began" if own[peer] < 3:
                balancer.began(peer)
                own[peer] += 1
            case "ended" if own[peer]:
                balancer.ended(peer)
                own[peer] -= 1
            case "opened":
                balancer.opened(peer)
            case "failed":
                balancer.failed(peer, now_s)
            case "rest":
                balancer.rest(peer, now_s)
            case "slow":
                balancer.answered(peer, 1.0, now_s)
            case "near":
                balancer.measured(peer, 100)
            case "far":
                balancer.measured(peer, 300_000)
        out = balancer.left_out(now_s)
        assert len(out) <= max(count // 10, 1)
        tried = {PEERS[0]}
        picked = balancer.choose(now_s, tried=tried)
        able = [each for each in PEERS[:count] if own[each] < 3 and each not in tried]
        if picked is None:
            # The others rest: they may be chosen soon.
            assert not able or balancer.may_choose_at_s(now_s) <= now_s + 1.0
        else:
            assert picked in able
            if picked in out:
                rested = now_s + 1.0 + 0.01
                assert all(
                    each in out or balancer.may_choose_at_s(now_s) <= rested for each in able
                )


@pytest.mark.parametrize("slow", [0, 3])
def test_load_is_shared_and_follows_speed(slow: int) -> None:
    """A closed system: 24 streams over four replicas, each answering at its own speed."""
    balancer = of(A, B, C, D)
    speed_s = dict.fromkeys((A, B, C, D), 0.1)
    for peer in PEERS[:slow]:
        speed_s[peer] = 0.4
    rng = random.Random(2)
    under_way: list[tuple[float, PeerId]] = []
    served = Counter[PeerId]()
    now_s = 0.0
    for _ in range(4000):
        while len(under_way) < 24:
            picked = balancer.choose(now_s)
            assert picked is not None
            balancer.began(picked)
            under_way.append((now_s + speed_s[picked] * rng.uniform(0.5, 1.5), picked))
        under_way.sort()
        now_s, peer = under_way.pop(0)
        balancer.ended(peer)
        balancer.answered(peer, speed_s[peer], now_s)
        served[peer] += 1
    if slow:
        assert served[D] > max(served[each] for each in (A, B, C))
    else:
        assert min(served.values()) > 0.8 * max(served.values())


# How long what was read of a service counts.


def test_it_is_used_then_read_again_beside_and_then_forgotten() -> None:
    route: Route[str] = Route()
    assert route.freshness(0.0) is Freshness.NOTHING
    assert route.found(0.0) is None
    assert route.may_read_at_s() < 0
    route.read("here", 10.0)
    assert (route.found(10.0), route.freshness(10.2)) == ("here", Freshness.FRESH)
    assert route.freshness(14.9) is Freshness.FRESH
    assert route.freshness(15.0) is Freshness.OLD
    assert route.found(69.9) == "here"
    assert (route.found(70.0), route.freshness(70.0)) == (None, Freshness.NOTHING)


def test_a_read_that_fails_leaves_what_there_was() -> None:
    route: Route[str] = Route()
    route.read("here", 0.0)
    route.read(None, 20.0)
    assert (route.found(20.1), route.freshness(20.1)) == ("here", Freshness.FRESH)
    assert route.freshness(20.6) is Freshness.OLD
    assert route.found(60.0) is None
    assert route.may_read_at_s() == 20.5


def test_after_a_failure_it_is_read_first_and_not_at_once_again() -> None:
    route: Route[str] = Route()
    route.read("here", 0.0)
    route.failed()
    assert route.freshness(0.4) is Freshness.FRESH
    assert route.freshness(0.6) is Freshness.SPENT
    assert route.found(0.6) == "here"  # should the next read fail
    route.read("there", 0.7)
    assert route.freshness(1.3) is Freshness.FRESH


# Whose request is the next.


def order(turns: Turns[str]) -> list[str]:
    """All that wait, as they are taken."""
    taken = []
    while (request := turns.first()) is not None:
        turns.take(request)
        taken.append(request)
    return taken


def test_one_caller_is_served_in_the_order_in_which_it_came() -> None:
    turns: Turns[str] = Turns()
    assert turns.first() is None
    for request in ("a1", "a2", "a3"):
        assert turns.join("a", request) is None
    assert len(turns) == 3
    assert order(turns) == ["a1", "a2", "a3"]
    assert len(turns) == 0


def test_callers_take_turns_however_many_requests_each_has() -> None:
    turns: Turns[str] = Turns()
    for request in ("a1", "a2", "a3", "a4", "b1", "c1", "b2"):
        turns.join(request[0], request)
    assert order(turns) == ["a1", "b1", "c1", "a2", "b2", "a3", "a4"]


def test_one_whose_replica_was_full_is_the_first_again() -> None:
    turns: Turns[str] = Turns()
    for request in ("a1", "a2", "b1"):
        turns.join(request[0], request)
    turns.take("a1")
    turns.put_back("a", "a1")
    assert order(turns) == ["a1", "b1", "a2"]
    turns.put_back("c", "c1")  # also where its caller has nothing else in line
    assert "c1" in turns
    assert turns.first() == "c1"


def test_who_leaves_is_out_of_line() -> None:
    turns: Turns[str] = Turns()
    for request in ("a1", "a2", "b1"):
        turns.join(request[0], request)
    turns.leave("a1")
    turns.leave("b1")
    turns.leave("b1")
    assert "b1" not in turns
    assert order(turns) == ["a2"]


def test_where_all_places_are_taken_the_greediest_caller_is_refused() -> None:
    turns: Turns[str] = Turns(most=3)
    for request in ("a1", "a2", "a3"):
        assert turns.join("a", request) is None
    assert turns.join("a", "a4") == "a4"
    assert turns.join("b", "b1") == "a3"
    assert turns.join("c", "c1") == "a2"
    assert order(turns) == ["a1", "b1", "c1"]


def test_of_callers_with_as_many_requests_the_one_that_comes_last_is_refused() -> None:
    turns: Turns[str] = Turns(most=3)
    for request in ("a1", "b1", "c1"):
        assert turns.join(request[0], request) is None
    assert turns.join("d", "d1") == "d1"
    assert turns.join("b", "b2") == "b2"
    assert order(turns) == ["a1", "b1", "c1"]


@given(st.lists(st.sampled_from("abcd"), max_size=40), st.integers(1, 20))
def test_between_two_turns_of_a_caller_each_other_that_waits_has_one(
    callers: list[str], most: int
) -> None:
    turns: Turns[tuple[str, int]] = Turns(most)
    for number, caller in enumerate(callers):
        turns.join(caller, (caller, number))
        assert len(turns) <= most
    left: deque[tuple[str, int]] = deque()
    while (request := turns.first()) is not None:
        turns.take(request)
        left.append(request)
    for caller in set(callers):
        own = [n for n, each in enumerate(left) if each[0] == caller]
        assert [left[n][1] for n in own] == sorted(left[n][1] for n in own)
        for before, after in pairwise(own):
            between = [each[0] for each in list(left)[before + 1 : after]]
            waiting = {each[0] for each in list(left)[after:]} - {caller}
            assert waiting <= set(between)

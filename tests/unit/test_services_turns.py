"""Whose request is the next."""

from __future__ import annotations

from collections import deque
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from formation_p2p.features.services.core.turns import Turns


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

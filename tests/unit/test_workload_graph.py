"""Which tasks wait for which."""

import itertools
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from formation_p2p.core.errors import InvalidInput
from formation_p2p.workload.core import derive
from formation_p2p.workload.core.derive import linked, refuse_cycles, refuse_many


def refused(labels: list[str], edges: list[tuple[int, ...]]) -> str:
    with pytest.raises(InvalidInput) as error:
        refuse_cycles(labels, edges)
    return str(error.value)


def test_a_name_is_a_group_or_a_task() -> None:
    labels = ["prepare", "train-1", "train-2", "compare"]
    after = [(), ("prepare",), ("prepare", "train-1"), ("train", "train-2")]
    edges = linked(labels, after, {"train": range(1, 3)})
    assert edges == [(), (0,), (0, 1), (1, 2)]


def test_a_name_that_is_nobodys_is_refused() -> None:
    with pytest.raises(InvalidInput, match="b waits for 'c', and no task is called that"):
        linked(["a", "b"], [(), ("c",)], {})


def test_a_circle_is_told_in_order() -> None:
    reported = "after: tasks wait for each other in a circle: 'b' for 'd' for 'c' for 'b'"
    # a waits for b, which is in the circle; a is not.
    assert refused(["a", "b", "c", "d"], [(1,), (3,), (1,), (2,)]) == reported


def test_a_task_that_waits_for_itself_is_a_circle() -> None:
    assert refused(["a"], [(0,)]).endswith("in a circle: 'a' for 'a'")


def test_a_long_circle_is_told_in_part() -> None:
    labels = [f"t{n}" for n in range(1000)]
    reported = refused(labels, [((n + 1) % 1000,) for n in range(1000)])
    assert reported.count(" for ") < 15


@st.composite
def forward_edges(draw: st.DrawFn) -> list[tuple[int, ...]]:
    """Of tasks that wait for earlier ones alone."""
    count = draw(st.integers(1, 12))
    return [tuple(draw(st.sets(st.integers(0, n - 1)))) if n else () for n in range(count)]


@given(forward_edges(), st.randoms())
def test_whatever_can_be_put_in_order_is_taken_and_one_edge_back_makes_a_circle(
    edges: list[tuple[int, ...]], random: object
) -> None:
    labels = [str(n) for n in range(len(edges))]
    refuse_cycles(labels, edges)
    backwards = [(first, last) for last, before in enumerate(edges) for first in before]
    for first, last in backwards[:3]:
        circular = list(edges)
        circular[first] = (*circular[first], last)
        reported = refused(labels, circular).partition("circle: ")[2].split(" for ")
        assert reported[0] == reported[-1]
        walked = [int(each.strip("'")) for each in reported]
        assert all(b in circular[a] for a, b in itertools.pairwise(walked))


def test_there_is_a_bound_on_pairs() -> None:
    refuse_many(derive.MAX_EDGES)
    many, after = 1000, derive.MAX_EDGES // 1000
    labels = [str(n) for n in range(many + after)]
    names: list[tuple[str, ...]] = [()] * many + [("all",)] * after
    assert len(linked(labels, names, {"all": range(many)})) == many + after
    with pytest.raises(InvalidInput, match=f"more than {derive.MAX_EDGES} pairs"):
        linked([*labels, "one more"], [*names, ("0",)], {"all": range(many)})


@pytest.mark.at_length
def test_a_hundred_thousand_tasks_take_a_moment() -> None:
    labels = [str(n) for n in range(100_000)]
    began_s = time.thread_time()
    refuse_cycles(labels, [(n - 1, n - 2) if n > 1 else () for n in range(100_000)])
    assert time.thread_time() - began_s < 5

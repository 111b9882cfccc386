"""Whether a task should move, and where to: as a pure function, and as a scheduler acts on it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from formation_p2p.core.identity import PeerId
from formation_p2p.core.units import GIB
from formation_p2p.placement.core.should_move import (
    MAX_LOAD,
    Host,
    Move,
    MoveReason,
    accepts,
    should_move,
)


def host(name: str, load: float = 0.2, **facts: float) -> Host:
    return Host(PeerId(name), load, free_memory_bytes=8 * GIB, **facts)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("here", "there", "expected"),
    [
        (host("here", 0.9), host("there", 0.1), MoveReason.LOAD),
        (host("here", 0.8), host("there", 0.1), None),  # not too busy
        (host("here", 0.9), host("there", 0.64), None),  # soon as busy
        (host("here", 0.9), host("there", 0.1, trust=0.2), None),
        (host("here", 0.9), host("there", 0.1, queue=21), None),
        (host("here", local=0.5), host("there", local=1.0), MoveReason.LOCALITY),
        (host("here", local=0.8), host("there", local=1.0), None),  # not worth it
        (host("here", price_micro=100), host("there", price_micro=60), MoveReason.COST),
        (host("here", price_micro=100), host("there", price_micro=80), None),
        (host("here"), host("there"), None),
        (host("here", fails=1), host("there"), MoveReason.FAILURE),
        (host("here", fails=1), host("there", fails=1), None),
        (host("here", 0.9, local=0.0), host("there", 0.1, local=1.0), MoveReason.LOCALITY),
    ],
)
def test_a_task_moves_for_a_reason(here: Host, there: Host, expected: MoveReason | None) -> None:
    move = should_move(here, [there], GIB)
    assert (None if move is None else move.reason) is expected


def test_of_several_the_one_with_the_most_data_and_the_least_to_do_is_taken() -> None:
    others = [host("a", 0.5, local=1.0), host("b", 0.1, local=1.0), host("c", 0.0, local=0.5)]
    assert should_move(host("here"), others, GIB) == Move(PeerId("b"), MoveReason.LOCALITY, 10.0)
    assert should_move(host("here"), others, 9 * GIB) is None
    assert should_move(host("here"), [], GIB) is None


parts = st.floats(0, 1)
hosts = st.builds(
    Host,
    st.text("abc", min_size=1).map(PeerId),
    parts,
    parts,
    parts,
    st.integers(0, 1000),
    st.integers(0, 40),
    st.integers(0, 4 * GIB),
    st.booleans(),
)


@given(hosts, st.lists(hosts, max_size=5), st.integers(0, 4 * GIB))
def test_it_goes_only_where_it_is_accepted_and_never_to_and_fro(
    here: Host, others: list[Host], memory_bytes: int
) -> None:
    move = should_move(here, others, memory_bytes)
    if move is None:
        return
    there = [each for each in others if each.worker == move.to and accepts(each, memory_bytes)]
    assert there
    assert 0 < move.benefit <= 10
    if move.reason is MoveReason.LOAD:
        assert here.load > MAX_LOAD > max(each.load for each in there)
    if move.reason is not MoveReason.FAILURE:
        back = [should_move(each, [here], memory_bytes) for each in there]
        assert not all(each is not None and each.reason is move.reason for each in back)

"""What alice gives to each circle: a quarter of her eight cores to the commons."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from formation_p2p.core.identity import PeerId
from formation_p2p.core.refusals import Denied, Infeasible
from formation_p2p.leases.core.budget import Budget
from formation_p2p.workload.core.scope import WHOLE_MILLI, Scope, ScopeShares
from tests.support.stories import BOB, CAROL

CORES_MILLI = 8000
QUARTER = ScopeShares.parse(["commons=0.25", "federation=0"])


def scope_of(grant: bytes, peer_id: PeerId) -> Scope:
    """The grants of these tests are the names of scopes."""
    return Scope[grant.decode()]


def budget(shares: ScopeShares = QUARTER) -> Budget:
    return Budget(shares, CORES_MILLI, scope_of)


def refusal(alices: Budget, grant: bytes, needed_milli: int) -> Denied | Infeasible | None:
    return alices.refusal(grant, BOB.peer_id, needed_milli)


def test_a_scope_that_is_closed_is_denied_for_good() -> None:
    denied = refusal(budget(), b"FEDERATION", 1)
    assert denied == Denied("submit", "this machine takes no tasks of scope federation")


def test_each_scope_is_counted_by_itself_and_over_all_who_are_of_it() -> None:
    alices = budget()
    alices.opened("1", b"COMMONS", BOB.peer_id, 1500)
    assert refusal(alices, b"COMMONS", 500) is None
    over = alices.refusal(b"COMMONS", CAROL.peer_id, 501)
    assert over == Infeasible("share.commons", 501, 500)
    assert str(over) == "share.commons: needs 0.501, has 0.5"
    alices.opened("2", b"CELL", BOB.peer_id, 6000)
    assert refusal(alices, b"COMMONS", 500) is None
    assert refusal(alices, b"CELL", 2000) is None
    alices.closed("1")
    assert refusal(alices, b"COMMONS", 8000) is None  # the first one may be of any size


@pytest.mark.parametrize(
    ("share", "scope", "queued", "accepted"),
    [
        ("cell=0.25", b"CELL", 10, True),
        ("cell=0.25", b"CELL", 25, False),
        ("commons=0.1", b"COMMONS", 5, True),
        ("commons=0.01", b"COMMONS", 5, False),
    ],
)
def test_tasks_of_a_tenth_of_a_core_fill_a_share(
    share: str, scope: bytes, queued: int, accepted: bool
) -> None:
    alices = budget(ScopeShares.parse([share]))
    for number in range(queued):
        alices.opened(str(number), scope, BOB.peer_id, 100)
    assert (refusal(alices, scope, 100) is None) is accepted


@given(
    st.lists(st.integers(0, WHOLE_MILLI), min_size=5, max_size=5),
    st.lists(st.tuples(st.sampled_from(Scope), st.integers(1, 4000), st.booleans()), max_size=60),
)
def test_whatever_comes_and_goes_each_scope_keeps_to_its_share(
    milli: list[int], asked: list[tuple[Scope, int, bool]]
) -> None:
    alices = budget(ScopeShares(tuple(milli)))
    held: dict[str, tuple[Scope, int]] = {}
    for number, (scope, needed_milli, ends) in enumerate(asked):
        if ends and held:
            first = next(iter(held))
            alices.closed(first)
            del held[first]
        if refusal(alices, scope.name.encode(), needed_milli) is None:
            alices.opened(str(number), scope.name.encode(), BOB.peer_id, needed_milli)
            held[str(number)] = (scope, needed_milli)
        of_scope = [used for of, used in held.values() if of is scope]
        within = sum(of_scope) * WHOLE_MILLI <= CORES_MILLI * milli[scope]
        assert within or len(of_scope) == 1 or milli[scope] == WHOLE_MILLI
        assert milli[scope] or not of_scope

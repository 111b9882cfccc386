"""The circles that two peers share, and what a machine gives to each."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from formation_p2p.core.errors import InvalidInput
from formation_p2p.workload.core.scope import (
    EVERYTHING,
    NOWHERE,
    WHOLE_MILLI,
    Place,
    Scope,
    ScopeShares,
    parse_scope,
    scope_between,
)

KITCHEN = Place(cell="kitchen", org="acme", federation="coops")

names = st.sampled_from(("", "a", "b"))
places = st.builds(Place, cell=names, org=names, federation=names)
shares = st.lists(st.integers(0, WHOLE_MILLI), min_size=5, max_size=5).map(
    lambda milli: ScopeShares(tuple(milli))
)


@pytest.mark.parametrize(
    ("theirs", "shared"),
    [
        (KITCHEN, Scope.CELL),
        (Place(cell="garage", org="acme", federation="coops"), Scope.ORG),
        (Place(org="acme", federation="coops"), Scope.ORG),
        (Place(cell="kitchen", org="emca", federation="coops"), Scope.FEDERATION),
        (Place(federation="coops"), Scope.FEDERATION),
        (Place(cell="kitchen", org="acme", federation="others"), Scope.COMMONS),
        (Place(cell="kitchen", org="acme"), Scope.COMMONS),
        (NOWHERE, Scope.COMMONS),
    ],
)
def test_the_smallest_circle_that_two_share_is_between_them(theirs: Place, shared: Scope) -> None:
    assert scope_between(KITCHEN, theirs) is shared


def test_a_circle_needs_no_larger_one_around_it() -> None:
    assert scope_between(Place(cell="home"), Place(cell="home")) is Scope.CELL
    assert scope_between(Place(org="acme"), Place(org="acme")) is Scope.ORG
    assert scope_between(NOWHERE, NOWHERE) is Scope.COMMONS


@given(places, places)
def test_what_is_between_two_is_the_same_from_either_side(mine: Place, theirs: Place) -> None:
    assert scope_between(mine, theirs) is scope_between(theirs, mine)
    assert scope_between(mine, theirs) is not Scope.LOCAL


@given(places, places, places)
def test_whoever_two_share_a_circle_with_share_one_no_wider(a: Place, b: Place, c: Place) -> None:
    assert scope_between(a, c) <= max(scope_between(a, b), scope_between(b, c))


@pytest.mark.parametrize("field", ["cell", "org", "federation"])
@pytest.mark.parametrize("name", ["a b", "-a", "a" * 64, "a\n", 7, "é"])
def test_a_name_that_is_none_is_refused(field: str, name: object) -> None:
    with pytest.raises(InvalidInput, match=f"{field}: .* is not a name"):
        Place(**{field: name})  # type: ignore[arg-type]  # which is what is tested


def test_scopes_are_read_as_they_are_shown() -> None:
    assert [parse_scope(str(scope)) for scope in Scope] == list(Scope)
    with pytest.raises(InvalidInput, match="'galaxy' is none of local, cell, org, federation, c"):
        parse_scope("galaxy")


def test_a_machine_is_everybodys_unless_it_says_otherwise() -> None:
    assert ScopeShares.parse([]) == EVERYTHING
    assert str(EVERYTHING) == ""
    limited = ScopeShares.parse(["commons=0.25", "org=0", "cell=1"])
    assert limited.milli == (1000, 1000, 0, 1000, 250)
    assert str(limited) == "org=0, commons=0.25"
    assert [scope for scope in Scope if limited.allows(scope)] == [
        Scope.LOCAL,
        Scope.CELL,
        Scope.FEDERATION,
        Scope.COMMONS,
    ]


@given(shares)
def test_shares_are_read_as_they_are_shown(given_shares: ScopeShares) -> None:
    assert ScopeShares.parse(filter(None, str(given_shares).split(", "))) == given_shares


@pytest.mark.parametrize(
    ("items", "why"),
    [
        (["galaxy=1"], "none of local, cell"),
        (["commons"], "write it like commons=0.25"),
        (["commons=-1"], "'commons=-1' is not a share; write it like commons=0.25, or 1 for all$"),
        (["commons=0.0001"], "is not a share"),
        (["commons=1.5"], "'commons=1.5' is more than all; write 1 or less"),
        (["commons=25%"], "write it like commons=0.25"),
        (["cell=1", "cell=0.5"], "cell is given twice"),
    ],
)
def test_a_share_that_is_none_is_refused_with_what_to_write(items: list[str], why: str) -> None:
    with pytest.raises(InvalidInput, match=f"share: .*{why}"):
        ScopeShares.parse(items)


def test_there_is_one_share_for_each_scope() -> None:
    with pytest.raises(InvalidInput, match="one for each of local, cell"):
        ScopeShares((1000,))


def test_a_scope_has_what_its_leases_leave_of_its_share() -> None:
    quarter = ScopeShares.parse(["commons=0.25", "cell=0"])
    assert quarter.left_milli(Scope.COMMONS, 8000, 1500) == 500
    assert quarter.has_room(Scope.COMMONS, 8000, 1500, 500)
    assert not quarter.has_room(Scope.COMMONS, 8000, 1500, 501)
    assert quarter.left_milli(Scope.COMMONS, 8000, 9000) == 0
    assert quarter.has_room(Scope.ORG, 8000, 1500, 9000)  # which has no limit
    assert not quarter.has_room(Scope.CELL, 8000, 0, 1)


def test_the_first_lease_of_an_open_scope_fits_however_small_the_share() -> None:
    little = ScopeShares.parse(["commons=0.01"])
    assert little.has_room(Scope.COMMONS, 4000, 0, 4000)
    assert not little.has_room(Scope.COMMONS, 4000, 4000, 1)


@given(
    shares,
    st.sampled_from(Scope),
    st.integers(1, 64_000),
    st.lists(st.integers(1, 8000), max_size=30),
)
def test_leases_of_a_scope_never_have_more_than_its_share_or_one_lease(
    given_shares: ScopeShares, scope: Scope, cpu_milli: int, wanted: list[int]
) -> None:
    leases: list[int] = []
    for needed_milli in wanted:
        if given_shares.has_room(scope, cpu_milli, sum(leases), needed_milli):
            leases.append(needed_milli)
    share = given_shares.milli[scope]
    within = sum(leases) * WHOLE_MILLI <= cpu_milli * share
    assert within or len(leases) == 1 or share == WHOLE_MILLI
    assert share or not leases

"""Fair shares: siblings are compared from the top down, use fades, and little is remembered."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from formation_p2p.core.identity import Identity, PeerId
from formation_p2p.trust.core.grants import Rights, issue
from formation_p2p.trust.core.hours import (
    MAX_ORGS,
    MAX_WORKERS,
    NEWCOMER,
    HoursReceived,
    Reciprocity,
)
from formation_p2p.trust.core.network import Circles, Network, narrowed
from formation_p2p.trust.core.shares import Account, Lead, Shares, ShareUsed, Weights, account_of
from formation_p2p.workload.core.scope import NOWHERE, Place, Scope
from simulations.simulator.world import EPOCH_UNIX_S
from tests.support.stories import ALICE, BOB, CAROL, DAVE, at, identity

DAY_S = 24 * 3600
KITCHEN = Place(cell="kitchen", org="acme", federation="fed")
LAB = Place(cell="lab", org="acme", federation="fed")
ELSEWHERE = Place(org="zoo", federation="fed")
BOBS = account_of(KITCHEN, "i", BOB.peer_id)
DAVES = account_of(KITCHEN, "i", DAVE.peer_id)


def test_who_has_used_more_of_the_machine_is_ahead_by_it() -> None:
    shares = Shares()
    shares.opened(BOBS, 0.5, at(0))
    assert shares.lead(BOBS, DAVES, at(60)) == Lead(30.0, 0.5)
    shares.closed(BOBS, 0.5, at(60))
    shares.opened(DAVES, 0.25, at(60))
    lead = shares.lead(BOBS, DAVES, at(100))
    assert lead.ahead_s == pytest.approx(20, rel=0.01)
    assert lead.grows == -0.25


def test_none_is_ahead_of_itself() -> None:
    assert Shares().lead(BOBS, BOBS, at(0)) == Lead(0.0, 0.0)


def test_siblings_are_compared_where_two_accounts_part() -> None:
    """What the lab used counts against its member, though he has used nothing himself."""
    shares = Shares()
    in_lab = account_of(LAB, "i", BOB.peer_id)
    other_in_lab = account_of(LAB, "j", CAROL.peer_id)
    shares.opened(other_in_lab, 1.0, at(0))
    assert shares.lead(in_lab, DAVES, at(10)).ahead_s == 10
    assert shares.lead(in_lab, other_in_lab, at(10)).ahead_s == -10


def test_a_share_of_two_may_use_twice_as_much() -> None:
    weights: dict[Account, float] = {("fed", "zoo"): 2.0}
    shares = Shares(lambda branch, now: weights.get(branch, 1.0))
    zoo = account_of(ELSEWHERE, "z", DAVE.peer_id)
    shares.opened(zoo, 0.5, at(0))
    shares.opened(BOBS, 0.25, at(0))
    assert shares.lead(zoo, BOBS, at(100)) == Lead(0.0, 0.0)


def test_use_counts_half_after_a_day_and_none_is_lost_while_it_is_held() -> None:
    shares = Shares()
    shares.opened(BOBS, 1.0, at(0))
    shares.closed(BOBS, 1.0, at(100))
    assert shares.lead(BOBS, DAVES, at(100 + DAY_S)).ahead_s == pytest.approx(50)


def test_when_a_lead_will_have_grown_to_a_bound() -> None:
    assert Lead(10.0, 0.5).reaches_in_s(15) == 10
    assert Lead(16.0, -1.0).reaches_in_s(15) == 0
    assert Lead(10.0, 0.0).reaches_in_s(15) == float("inf")


def test_a_debt_counts_up_to_a_bound() -> None:
    shares = Shares()
    shares.opened(BOBS, 1.0, at(0))
    shares.closed(BOBS, 1.0, at(5000))
    shares.forgive(BOBS, DAVES, 600, at(5000))
    assert shares.lead(BOBS, DAVES, at(5000)).ahead_s == pytest.approx(600)
    shares.forgive(BOBS, DAVES, 600, at(5000))  # no more than that
    shares.forgive(DAVES, BOBS, 600, at(5000))
    shares.forgive(DAVES, DAVES, 0, at(5000))
    assert shares.lead(BOBS, DAVES, at(5000)).ahead_s == pytest.approx(600)
    shares.forgive(account_of(LAB, "new", CAROL.peer_id), DAVES, -1.0, at(5000))  # of nothing


def test_what_was_used_outlives_the_worker_and_fades_meanwhile() -> None:
    shares = Shares()
    shares.opened(BOBS, 0.5, at(0))
    assert shares.take(at(0)) == [
        ShareUsed(BOBS, 0, int(at(0).unix_s), cause="a lease was charged for")
    ]
    assert shares.take(at(10)) == []
    shares.charged(BOBS)
    (kept,) = shares.take(at(100))
    assert kept.used_ms == pytest.approx(50_000, rel=0.01)
    again = Shares(kept=[(kept.account, kept.used_ms, kept.unix_s)])
    assert again.lead(BOBS, DAVES, at(100 + DAY_S)).ahead_s == pytest.approx(25, rel=0.01)


def test_a_clock_that_was_set_back_ages_nothing() -> None:
    shares = Shares(kept=[(BOBS, 10_000, int(at(5000).unix_s))])
    assert shares.lead(BOBS, DAVES, at(0)).ahead_s == 10


def test_people_see_shares_use_and_level_of_every_branch() -> None:
    weights: dict[Account, float] = {("fed", "zoo"): 3.0}
    shares = Shares(lambda branch, now: weights.get(branch, 1.0))
    zoo = account_of(ELSEWHERE, "z", DAVE.peer_id)
    shares.opened(BOBS, 0.5, at(0))
    shares.opened(zoo, 0.5, at(0))
    shares.opened(account_of(KITCHEN, "i", DAVE.peer_id), 0.0, at(0))
    found = {each.account: each for each in shares.standings(at(100))}
    assert len(found) == len(shares) == 10
    orgs = found["fed", "acme"], found["fed", "zoo"]
    assert [each.share_milli for each in orgs] == [250, 750]
    assert [each.level_milli for each in orgs] == [500, 1500]
    assert [each.used_ms for each in orgs] == [50_000, 50_000]
    assert found[DAVES].level_milli is None
    assert found[BOBS].held_milli == 500
    assert [each.level_milli for each in Shares(kept=[(BOBS, 0, 0)]).standings(at(0))] == [None] * 5


def test_of_too_many_branches_those_that_used_least_are_forgotten() -> None:
    shares = Shares(max_branches=16)
    shares.opened(BOBS, 0.5, at(0))
    for number in range(40):
        one = account_of(LAB, f"{number}", identity(f"peer {number}").peer_id)
        shares.opened(one, 0.001, at(number))
        shares.closed(one, 0.001, at(number + 1))
    assert len(shares) <= 16
    assert shares.lead(BOBS, DAVES, at(100)).ahead_s == pytest.approx(50, rel=0.01)
    assert [each.account for each in shares.take(at(100)) if each.account == BOBS] == [BOBS]


def test_organisations_have_the_shares_of_the_charter() -> None:
    weights = Weights({"acme": 200, "zoo": 0, "": 100}.__getitem__)
    orgs = ("acme", "zoo", "")
    assert [weights.of(("fed", org), at(0)) for org in orgs] == [200, 0.01, 100]
    assert weights.of(BOBS, at(0)) == 1


_NAMES = st.sampled_from("ab")
_ACCOUNTS = st.tuples(_NAMES, _NAMES, _NAMES, _NAMES, _NAMES)
_HELD = st.lists(st.tuples(_ACCOUNTS, st.integers(1, 100), st.integers(1, 1000)), max_size=12)


@given(_HELD)
def test_a_branch_has_used_what_its_members_used(held: list[tuple[Account, int, int]]) -> None:
    shares, now_s = Shares(), 0
    for account, percent, for_s in held:
        shares.opened(account, percent / 100, at(now_s))
        now_s += for_s
        shares.closed(account, percent / 100, at(now_s))
    found = {each.account: each.used_ms for each in shares.standings(at(now_s))}
    for account, used_ms in found.items():
        members = [used for each, used in found.items() if each[:-1] == account]
        assert not members or abs(sum(members) - used_ms) <= len(members) + 1


# An organisation's share grows with what its workers gave this node, and with nothing else.

OURS = Place(org="ours")
ACME, ZOO, FARM = ("", "acme"), ("", "zoo"), ("", "farm")


def acquainted() -> Reciprocity:
    """alice is of acme, carol of the zoo, dave of none."""
    known = Reciprocity(lambda: OURS)
    known.met(ALICE.peer_id, Place(org="acme"))
    known.met(CAROL.peer_id, Place(org="zoo"))
    known.met(DAVE.peer_id, NOWHERE)
    return known


def test_all_are_alike_before_anything_was_given() -> None:
    assert [acquainted().factor(org, at(0)) for org in (ACME, ("", "ours"))] == [1, 1]


def test_a_share_grows_with_what_was_given_and_a_newcomer_has_a_tenth() -> None:
    known = acquainted()
    known.gave(ALICE.peer_id, 1000, at(0))
    known.gave(CAROL.peer_id, 250, at(0))
    factors = [known.factor(org, at(0)) for org in (ACME, ZOO, FARM, ("", "ours"))]
    assert factors == [1, 0.25, NEWCOMER, 1]
    known.gave(CAROL.peer_id, 250, at(0))
    assert known.factor(ZOO, at(0)) == 0.5


def test_who_is_of_no_organisation_or_unknown_gives_for_no_share() -> None:
    known = acquainted()
    known.gave(DAVE.peer_id, 1000, at(0))
    known.gave(BOB.peer_id, 1000, at(0))
    assert known.take(at(0)) == []


def test_what_was_given_counts_half_after_a_day() -> None:
    known = acquainted()
    known.gave(ALICE.peer_id, 1000, at(0))
    known.gave(CAROL.peer_id, 500, at(DAY_S))
    assert known.factor(ZOO, at(DAY_S)) == pytest.approx(1)


def test_what_was_given_outlives_the_node() -> None:
    known = acquainted()
    known.gave(ALICE.peer_id, 2.5, at(0))
    (told,) = known.take(at(0))
    assert told == HoursReceived(ACME, 2500, int(at(0).unix_s), cause="results have arrived")
    assert known.take(at(0)) == []
    again = acquainted()
    again.begin([(told.org, told.core_ms, told.unix_s)])
    assert again.factor(ZOO, at(0)) == NEWCOMER


def test_little_is_remembered() -> None:
    known = Reciprocity(lambda: OURS)
    for number in range(MAX_WORKERS + 1):
        known.met(PeerId(f"worker {number}"), OURS)
    for number in range(MAX_ORGS + 1):
        known.met(ALICE.peer_id, Place(org=f"org-{number}"))
        known.gave(ALICE.peer_id, 1, at(0))
    assert len(known.take(at(0))) == MAX_ORGS
    assert known.factor(("", "org-0"), at(0)) == NEWCOMER


def test_it_multiplies_what_the_charter_says() -> None:
    known = acquainted()
    known.gave(ALICE.peer_id, 1000, at(0))
    weights = Weights(lambda org: 200, known.factor)
    assert weights.of(ZOO, at(0)) == 20
    assert weights.of(ACME, at(0)) == 200


# How near others belong: alice's grant says that she cooks in acme's kitchen.

ROOT, ANOTHER = identity("root"), identity("another root")
COOPS_KITCHEN = Place(cell="kitchen", org="acme", federation="coops")


def grant(of: PeerId, place: Place, root: Identity = ROOT) -> bytes:
    return issue(root, Rights(int(EPOCH_UNIX_S) + 3600, place=place), of)


def circles(place: Place = COOPS_KITCHEN) -> Circles:
    network = Network(ROOT.public_key, (), grant(ALICE.peer_id, place))
    return Circles(ALICE.peer_id, network)


@pytest.mark.parametrize(
    ("theirs", "scope"),
    [
        (COOPS_KITCHEN, Scope.CELL),
        (Place(cell="garage", org="acme", federation="coops"), Scope.ORG),
        (Place(org="emca", federation="coops"), Scope.FEDERATION),
        (NOWHERE, Scope.COMMONS),
    ],
)
def test_the_grant_that_a_peer_shows_says_how_near_it_is(theirs: Place, scope: Scope) -> None:
    assert circles().scope_of(grant(BOB.peer_id, theirs), BOB.peer_id) is scope


def test_a_node_is_local_to_itself_whatever_its_grant_says() -> None:
    assert circles(NOWHERE).scope_of(b"", ALICE.peer_id) is Scope.LOCAL


def test_whoever_shows_no_grant_of_this_network_is_of_the_commons() -> None:
    for shown in (b"", b"rubbish", grant(BOB.peer_id, COOPS_KITCHEN, ANOTHER)):
        assert circles().scope_of(shown, BOB.peer_id) is Scope.COMMONS


@pytest.mark.parametrize("place", [COOPS_KITCHEN, NOWHERE])
def test_what_a_node_does_for_another_is_as_far_as_the_other(place: Place) -> None:
    own = grant(ALICE.peer_id, place)
    known = Circles(ALICE.peer_id, Network(ROOT.public_key, (), own))
    outside = narrowed(own, ROOT.public_key, grant(BOB.peer_id, NOWHERE))
    inside = narrowed(own, ROOT.public_key, grant(BOB.peer_id, COOPS_KITCHEN))
    assert known.scope_of(outside, ALICE.peer_id) is Scope.COMMONS
    assert known.scope_of(inside, ALICE.peer_id) is (
        Scope.CELL if place == COOPS_KITCHEN else Scope.COMMONS
    )
    known.moved(Network(ROOT.public_key, (), grant(ALICE.peer_id, COOPS_KITCHEN)))
    assert known.scope_of(own, ALICE.peer_id) is Scope.LOCAL, "it was on its way"

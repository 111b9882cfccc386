"""An organisation's share grows with what its workers gave this node, and with nothing else."""

from __future__ import annotations

import pytest

from formation_p2p.core.identity import PeerId
from formation_p2p.trust.core.reciprocity import (
    MAX_ORGS,
    MAX_WORKERS,
    NEWCOMER,
    HoursReceived,
    Reciprocity,
)
from formation_p2p.trust.core.shares import Weights
from formation_p2p.workload.core.scope import NOWHERE, Place
from tests.support.stories import ALICE, BOB, CAROL, DAVE, at

DAY_S = 24 * 3600
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

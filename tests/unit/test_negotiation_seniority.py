"""What the ticket of a gang counts as at a worker."""

from __future__ import annotations

from dataclasses import replace

from formation_p2p.core.effects import Moment
from formation_p2p.leases.core.parameters import LEASE_DEFAULTS
from formation_p2p.leases.core.precedence import Seniority
from tests.support.stories import ALICE, BOB, CAROL

BEGAN_S = 1_800_000_000.0
BEGAN_MS = round(BEGAN_S * 1000)
SLACK_MS = round(LEASE_DEFAULTS.ticket_slack_s * 1000)


def at(seconds: float) -> Moment:
    return Moment(seconds, BEGAN_S + seconds)


def test_an_honest_ticket_counts_as_it_is() -> None:
    seniority = Seniority(LEASE_DEFAULTS)
    assert seniority.since_ms(ALICE.peer_id, BEGAN_MS - 900, at(0)) == BEGAN_MS - 900
    assert seniority.since_ms(ALICE.peer_id, BEGAN_MS - 900, at(20)) == BEGAN_MS - 900
    assert seniority.since_ms(ALICE.peer_id, 0, at(0)) == 0
    assert len(seniority) == 1


def test_one_from_before_the_first_request_gains_a_moment_at_most() -> None:
    seniority = Seniority(LEASE_DEFAULTS)
    assert seniority.since_ms(ALICE.peer_id, 1, at(0)) == BEGAN_MS - SLACK_MS
    assert seniority.since_ms(ALICE.peer_id, 1, at(10)) == BEGAN_MS - SLACK_MS
    assert seniority.since_ms(ALICE.peer_id, 2, at(10)) == BEGAN_MS + 10_000 - SLACK_MS


def test_one_from_the_future_counts_from_the_first_request() -> None:
    seniority = Seniority(LEASE_DEFAULTS)
    ahead = BEGAN_MS + 3_600_000
    assert seniority.since_ms(ALICE.peer_id, ahead, at(0)) == BEGAN_MS
    assert seniority.since_ms(ALICE.peer_id, ahead, at(9)) == BEGAN_MS


def test_to_ask_for_ever_gains_no_more_after_a_while() -> None:
    seniority = Seniority(LEASE_DEFAULTS)
    for second in range(0, 200, 5):
        since = seniority.since_ms(ALICE.peer_id, 1, at(second))
    least_ms = round((195 - LEASE_DEFAULTS.max_seniority_s) * 1000)
    assert since == BEGAN_MS + least_ms


def test_one_that_was_not_shown_for_long_begins_anew() -> None:
    seniority = Seniority(LEASE_DEFAULTS)
    seniority.since_ms(ALICE.peer_id, 1, at(0))
    assert seniority.since_ms(ALICE.peer_id, 1, at(31)) == BEGAN_MS + 31_000 - SLACK_MS


def test_the_table_is_bounded_for_an_owner_and_for_all() -> None:
    seniority = Seniority(replace(LEASE_DEFAULTS, max_tickets_per_owner=2, max_standings=3))
    for ticket in (1, 2, 3):
        seniority.since_ms(ALICE.peer_id, ticket, at(0))
    assert len(seniority) == 2
    seniority.since_ms(BOB.peer_id, 1, at(0))
    seniority.since_ms(CAROL.peer_id, 1, at(0))
    assert len(seniority) == 3
    # Of these, that of the first one was dropped, and the third one's is known.
    assert seniority.since_ms(ALICE.peer_id, 3, at(9)) == BEGAN_MS - SLACK_MS
    assert seniority.since_ms(ALICE.peer_id, 2, at(9)) == BEGAN_MS + 9_000 - SLACK_MS

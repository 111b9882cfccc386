"""The gate of trust, as a policy."""

from __future__ import annotations

from typing import Any

import pytest

from formation_p2p.core.errors import InvalidInput
from formation_p2p.core.keyspace import key_of
from formation_p2p.core.placement import policies as module
from formation_p2p.core.placement.candidate import Candidate, TaskView
from formation_p2p.core.placement.names import parse_policy
from formation_p2p.core.placement.policies import Trusted
from formation_p2p.core.records.profile import Profile
from formation_p2p.core.refusals import Distrusted
from formation_p2p.core.resources.capability import Capability, idle
from formation_p2p.core.trust.reputation import Reputation
from tests.support.stories import NEEDS, at, identity

TASK = TaskView(name="task", key=key_of(b"task"), needs=NEEDS)
MACHINE = Capability(1000, 2**30)


def candidate(trust_milli: int | None) -> Candidate:
    profile = Profile(
        peer_id=identity("alice").peer_id,
        sequence=1,
        issued_unix_s=1,
        expires_unix_s=2,
        capability=MACHINE,
        capacity=idle(MACHINE),
    )
    return Candidate(profile=profile, trust_milli=trust_milli)


def test_whoever_is_trusted_enough_is_admitted_and_others_are_refused_with_the_figures() -> None:
    gate = Trusted(300)
    assert gate.admit(TASK, candidate(300)) is None
    assert gate.admit(TASK, candidate(299)) == Distrusted(299, 300)


def test_where_nothing_is_known_a_worker_is_a_stranger() -> None:
    assert Trusted(500).admit(TASK, candidate(None)) is None
    assert Trusted(501).admit(TASK, candidate(None)) == Distrusted(500, 501)
    stranger = Reputation(identity("bob").peer_id).score_milli(identity("alice").peer_id, at(0))
    assert stranger == module.STRANGER_MILLI
    assert stranger > module.EXECUTE_MILLI


@pytest.mark.parametrize("text", ["trust>=0.3", "trust>=0", "trust>=1", "trust>=0.125"])
def test_its_text_comes_back(text: str) -> None:
    assert str(parse_policy(text)) == text


def test_people_may_leave_spaces() -> None:
    assert parse_policy(" trust >= 0.3 ") == Trusted(300) == Trusted()


def test_what_is_no_such_gate_is_refused() -> None:
    for text in ("trust>=1.1", "trust>=much", "trust>=-1", "trust>=0.0001"):
        with pytest.raises(InvalidInput, match="policy: trust"):
            parse_policy(text)
    with pytest.raises(InvalidInput, match="0 to 1"):
        Trusted(-1)


@pytest.mark.parametrize("least", [0.3, True, "0.3", None])
def test_trust_is_in_whole_thousandths(least: Any) -> None:
    with pytest.raises(InvalidInput, match=r"write Trusted\(300\), or trust>=0.3"):
        Trusted(least)

"""One invitation has no more identities at any node than it says."""

from __future__ import annotations

from dataclasses import replace

import pytest

from formation_p2p.core.effects import Moment
from formation_p2p.core.errors import InvalidInput
from formation_p2p.core.identity import PeerId
from formation_p2p.trust.core.admission import AdmissionController
from formation_p2p.trust.core.charter import Charter
from formation_p2p.trust.core.grant_form import Life
from formation_p2p.trust.core.grants import (
    Right,
    Rights,
    attenuate,
    bind,
    issue,
    read_grant,
    reissue,
)
from formation_p2p.trust.core.membership import KEPT_S, Identities, Membership
from formation_p2p.trust.core.quota import Quota
from formation_p2p.trust.core.root_keys import KeySet
from formation_p2p.trust.core.signed_charter import draft, sign
from formation_p2p.trust.core.statements import Block
from tests.support.stories import NEEDS, identity

ROOT = identity("root")
KEY = ROOT.public_key
NOW = Moment(0.0, 1_800_000_000.0)
RIGHTS = Rights(1_900_000_000, frozenset(Right), life=Life(9**9, 1_990_000_000), identities=2)
IDS = [identity(f"id{number}").peer_id for number in range(4)]


def later(seconds: float) -> Moment:
    return Moment(seconds, NOW.unix_s + seconds)


def admitted(trust: Membership, grant: bytes, peer_id: PeerId, now: Moment = NOW) -> str | None:
    denied = trust.denies_membership(bind(grant, KEY, peer_id), peer_id, now)
    return None if denied is None else denied.why


def test_a_node_has_to_do_with_no_more_identities_than_the_invitation_says() -> None:
    trust, grant = Membership(KEY), issue(ROOT, RIGHTS)
    assert [admitted(trust, grant, peer_id) for peer_id in IDS[:2]] == [None, None]
    refused = "the invitation is for 2 identities, and as many others use it; ask for another"
    assert admitted(trust, grant, IDS[2]) == refused
    # Those that were first still are, and another invitation is another matter.
    assert admitted(trust, grant, IDS[0]) is None
    assert admitted(trust, issue(ROOT, RIGHTS), IDS[2]) is None
    # Narrowing, and renewing, make it no other invitation.
    narrower = attenuate(grant, KEY, Block(max_priority=1))
    assert admitted(trust, narrower, IDS[3]) == refused
    renewed = reissue(ROOT, bind(grant, KEY, IDS[3]), IDS[3], 1_950_000_000)
    assert read_grant(renewed, KEY).rights.identities == 2
    assert admitted(trust, renewed, IDS[3]) == refused
    # One that was not seen for a day makes room.
    assert admitted(trust, grant, IDS[0], later(KEPT_S - 1)) is None
    assert admitted(trust, grant, IDS[2], later(KEPT_S)) is None
    assert admitted(trust, grant, IDS[1], later(KEPT_S)) == refused


def test_the_charter_bounds_invitations_that_say_nothing() -> None:
    trust, grant = Membership(KEY), issue(ROOT, replace(RIGHTS, identities=None))
    assert all(admitted(trust, grant, peer_id) is None for peer_id in IDS)
    keys = KeySet(1, (KEY,))
    rules = Charter(
        version=1,
        network=trust.network_id,
        keys=keys,
        issued_unix_s=int(NOW.unix_s),
        expires_unix_s=int(NOW.unix_s) + 9999,
        identities=1,
    )
    trust.adopt(sign(draft(rules, keys), ROOT).raw, NOW)
    said = [admitted(trust, grant, peer_id) for peer_id in IDS]
    assert said[0] is None
    assert all("for 1 identities" in str(each) for each in said[1:])


def test_the_charter_has_a_quota_for_grants_without_one() -> None:
    trust = Membership(KEY)
    keys = KeySet(1, (KEY,))
    rules = Charter(
        version=1,
        network=trust.network_id,
        keys=keys,
        issued_unix_s=int(NOW.unix_s),
        expires_unix_s=int(NOW.unix_s) + 9999,
        quotas=Quota(leases=1),
    )
    admission = AdmissionController(trust, {})
    plain = issue(ROOT, Rights(1_900_000_000), IDS[0])
    own = issue(ROOT, Rights(1_900_000_000, quota=Quota(leases=3)), IDS[1])

    def denied(grant: bytes, peer_id: PeerId, lease_id: str) -> str | None:
        refused = admission.denied(grant, peer_id, NEEDS, 0, NOW, another=True)
        if refused is None:
            admission.opened(lease_id, grant, 1000, 0)
        return None if refused is None else refused.why

    assert [denied(plain, IDS[0], f"a{n}") for n in range(2)] == [None, None]
    trust.adopt(sign(draft(rules, keys), ROOT).raw, NOW)
    assert denied(plain, IDS[0], "a2") == "Concurrent task limit reached: 2/1"
    assert [denied(own, IDS[1], f"b{n}") for n in range(2)] == [None, None]


def test_so_many_are_remembered_and_those_of_the_busiest_table_go_first_by_age() -> None:
    seen = Identities(max_identities=3)
    for number in range(3):
        assert seen.admits(f"invitation {number}", IDS[0], 1, 0.0)
    assert seen.admits("invitation 3", IDS[0], 1, 0.0)
    assert len(seen) == 3
    assert seen.admits("invitation 0", IDS[1], 1, 0.0)  # it was forgotten
    one = Identities(max_identities=1)
    assert all(one.admits("invitation", peer_id, 9, 0.0) for peer_id in IDS)


@pytest.mark.parametrize("most", [0, 10**6, "2"])
def test_bounds_that_are_none(most: int) -> None:
    with pytest.raises(InvalidInput):
        replace(RIGHTS, identities=most)

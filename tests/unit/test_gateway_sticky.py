"""The cookie by which a client comes back to a replica, at any gateway of the network."""

import pytest

from formation_p2p.core.identity import Identity
from formation_p2p.features.gateway.sticky import FRESH_S, LIFE_S, MAX_KEPT, Sticky
from formation_p2p.trust.core.charter import Charter
from formation_p2p.trust.core.grants import Rights, issue, read_grant
from formation_p2p.trust.core.network import Network, network_id_of
from formation_p2p.trust.core.root_keys import KeySet

NOW = 1_800_000_000.0
ROOT, OTHER_ROOT, ALICE, BOB, MALLORY = (Identity.from_seed(bytes([n]) * 32) for n in range(1, 6))


def gateway(of: Identity, root: Identity = ROOT, *, ends_unix_s: float = NOW + 10**7) -> Sticky:
    grant = issue(root, Rights(int(ends_unix_s)), of.peer_id)
    return Sticky(Network(root.public_key, (), grant), of)


def test_what_one_gateway_says_each_of_the_network_understands() -> None:
    cookie = gateway(ALICE).cookie("llm", "B", NOW)
    assert len(cookie) < 1_500
    for reader in (gateway(ALICE), gateway(BOB)):
        assert reader.replica("llm", cookie, NOW) == "B"
        assert reader.replica("llm", cookie, NOW) == "B"  # as it was read before
        assert reader.replica("another", cookie, NOW) is None
    assert gateway(ALICE, OTHER_ROOT).replica("llm", cookie, NOW) == "B", "its own word"
    assert gateway(BOB, OTHER_ROOT).replica("llm", cookie, NOW) is None


def test_a_client_chooses_none() -> None:
    cookie = gateway(ALICE).cookie("llm", "B", NOW)
    reader = gateway(BOB)
    for forged in (
        "",
        "B",
        "fgr1_",
        "fgr1_\u00e4",
        cookie[:-4],
        cookie[:90] + "A" * 4 + cookie[94:],
    ):
        assert reader.replica("llm", forged, NOW) is None
    assert reader.replica("llm", "fgr1_" + "A" * 100_000, NOW) is None
    theft = issue(ROOT, Rights(int(NOW) + 10**7), ALICE.peer_id)
    stranger = Sticky(Network(ROOT.public_key, (), theft), MALLORY)
    assert reader.replica("llm", stranger.cookie("llm", "B", NOW), NOW) is None
    assert reader.replica("llm", gateway(ALICE).cookie("llm", "not a name", NOW), NOW) is None


def test_without_a_network_a_gateway_takes_its_own_alone() -> None:
    one, two = Sticky(), Sticky()
    cookie = one.cookie("llm", "B", NOW)
    assert one.replica("llm", cookie, NOW) == "B"
    assert two.replica("llm", cookie, NOW) is None


@pytest.mark.parametrize("later_s", [LIFE_S, LIFE_S + FRESH_S])
def test_it_ends_with_the_day_and_with_the_grant(later_s: float) -> None:
    reader = gateway(BOB)
    cookie = gateway(ALICE).cookie("llm", "B", NOW)
    assert reader.replica("llm", cookie, NOW) == "B"
    assert reader.replica("llm", cookie, NOW + LIFE_S - 1) == "B"
    assert reader.replica("llm", cookie, NOW + later_s) is None
    short = gateway(ALICE, ends_unix_s=NOW + 60).cookie("llm", "B", NOW)
    assert reader.replica("llm", short, NOW + 61) is None


@pytest.mark.parametrize("by_invitation", [False, True])
def test_whom_the_charter_bans_sends_no_client_anywhere(by_invitation: bool) -> None:
    grant = issue(ROOT, Rights(int(NOW) + 10**7), BOB.peer_id)
    rules: list[Charter | None] = [None]
    reader = Sticky(Network(ROOT.public_key, (), grant), BOB, lambda: rules[0])
    granted = issue(ROOT, Rights(int(NOW) + 10**7), ALICE.peer_id)
    banned = Sticky(Network(ROOT.public_key, (), granted), ALICE)
    early, late = (banned.cookie("llm", name, NOW) for name in "BC")
    assert reader.replica("llm", early, NOW) == "B"
    invitation = read_grant(granted, ROOT.public_key).invitation
    rules[0] = Charter(
        version=1,
        network=network_id_of(ROOT.public_key),
        keys=KeySet(1, (ROOT.public_key,)),
        issued_unix_s=int(NOW),
        expires_unix_s=int(NOW) + 10**7,
        banned_keys=frozenset() if by_invitation else frozenset({ALICE.peer_id}),
        banned_invitations=frozenset({invitation}) if by_invitation else frozenset(),
    )
    assert reader.replica("llm", early, NOW) is None, "read before the ban"
    assert reader.replica("llm", late, NOW) is None
    assert reader.replica("llm", reader.cookie("llm", "B", NOW), NOW) == "B"


def test_clients_of_one_replica_share_a_cookie_for_an_hour_and_few_are_kept() -> None:
    made = gateway(ALICE)
    cookie = made.cookie("llm", "B", NOW)
    assert made.cookie("llm", "B", NOW + FRESH_S - 1) == cookie
    assert made.cookie("llm", "B", NOW + FRESH_S) != cookie
    again = made.cookie("llm", "B", NOW + FRESH_S)
    for number in range(MAX_KEPT):
        made.cookie("llm", f"C{number}", NOW)
    assert made.cookie("llm", "B", NOW + FRESH_S + 1) != again

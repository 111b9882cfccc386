"""The word of an owner of leases that a worker reads for it."""

from dataclasses import replace

import pytest

from formation_p2p.content.core.messages import DELEGATED_S, MAX_SKEW_S, Delegation
from formation_p2p.core.identity import Identity, PeerId

ALICE, BOB, CAROL = (Identity.from_seed(bytes([n]) * 32) for n in (1, 2, 3))
NETWORK, OTHER = b"n" * 32, b"o" * 32
NOW_S = 1_800_000_000.5
# Of alice, that bob reads for her.
WORD = Delegation.signed(ALICE, BOB.peer_id, NETWORK, NOW_S)


@pytest.mark.parametrize("later_s", [0, DELEGATED_S - 1, 1 - MAX_SKEW_S])
def test_it_holds_for_a_while_also_where_the_clock_of_its_owner_is_ahead(later_s: float) -> None:
    assert WORD.refuses(BOB.peer_id, NETWORK, NOW_S + later_s) is None


@pytest.mark.parametrize("later_s", [DELEGATED_S, -MAX_SKEW_S - 1])
def test_it_ends(later_s: float) -> None:
    assert "which is over" in str(WORD.refuses(BOB.peer_id, NETWORK, NOW_S + later_s))


@pytest.mark.parametrize(
    ("word", "worker", "network"),
    [
        (WORD, CAROL.peer_id, NETWORK),
        (WORD, BOB.peer_id, OTHER),
        (replace(WORD, owner=CAROL.peer_id), BOB.peer_id, NETWORK),
        (replace(WORD, until_unix_s=WORD.until_unix_s + 1), BOB.peer_id, NETWORK),
        (replace(WORD, signature=bytes(64)), BOB.peer_id, NETWORK),
    ],
)
def test_it_is_for_one_worker_of_one_network_by_its_owner(
    word: Delegation, worker: PeerId, network: bytes
) -> None:
    assert "has not signed it" in str(word.refuses(worker, network, NOW_S))

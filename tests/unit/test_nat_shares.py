"""Bandwidth is shared by peer, in bytes, not by circuit or by how much each has to send."""

from collections import Counter

from hypothesis import example, given
from hypothesis import strategies as st

from formation_p2p.core.identity import PeerId
from formation_p2p.reach.core.reservations import BURST_S, LEAST_PIECE_BYTES, FairShares

ALICE, BOB = PeerId("alice"), PeerId("bob")
RATE = 1000


def test_what_is_within_the_rate_goes_at_once() -> None:
    shares = FairShares(RATE)
    number = shares.ask(ALICE, 100)
    assert shares.granted(5.0) == [number]
    assert shares.at_s == float("inf")


def test_what_exceeds_the_rate_waits() -> None:
    shares = FairShares(RATE)
    first, second = shares.ask(ALICE, 1250), shares.ask(ALICE, 100)
    assert shares.granted(0.0) == [first]
    assert shares.at_s == 1.0
    assert shares.granted(0.5) == []
    assert shares.granted(1.001) == [second]


def test_peers_have_it_in_turn() -> None:
    shares = FairShares(10 * RATE)
    one, two, three, four = (shares.ask(ALICE, 100) for _ in range(4))
    five, six = (shares.ask(BOB, 100) for _ in range(2))
    assert shares.granted(0.0) == [one, five, two, six, three, four]


def test_a_peer_with_large_pieces_has_no_more_bytes_than_one_with_small_ones() -> None:
    shares = FairShares(100 * RATE)
    large = [shares.ask(ALICE, 1000) for _ in range(4)]
    small = [shares.ask(BOB, 250) for _ in range(8)]
    first, second, *_ = large
    assert shares.granted(0.0)[:10] == [first, *small[:4], second, *small[4:]]


def test_one_that_sends_little_does_not_wait_for_what_others_have_queued() -> None:
    shares = FairShares(RATE)
    bulk = [shares.ask(ALICE, 250) for _ in range(9)]
    assert shares.granted(0.0) == bulk[:1]
    ping = shares.ask(BOB, 1)
    assert shares.granted(shares.at_s + 0.01) == [ping, bulk[1]]


def test_a_piece_takes_a_fiftieth_of_a_second_at_most() -> None:
    assert FairShares(1_000_000).piece_bytes == 20_000
    assert FairShares(RATE).piece_bytes == LEAST_PIECE_BYTES


def test_a_piece_that_is_forgotten_is_neither_granted_nor_charged() -> None:
    shares = FairShares(RATE)
    first, gone, last = (shares.ask(ALICE, 250) for _ in range(3))
    assert shares.granted(0.0) == [first]
    shares.forget(gone)
    assert shares.granted(0.001) == [last]
    alone = shares.ask(BOB, 1)
    shares.forget(alone)
    assert shares.at_s == float("inf")


def test_what_a_peer_had_counts_while_another_waits_and_not_for_longer() -> None:
    """Also the bound of what is kept: of peers that have gone, nothing is."""
    shares = FairShares(RATE)
    much, little, more = (shares.ask(*each) for each in ((ALICE, 249), (BOB, 100), (BOB, 100)))
    assert shares.granted(0.0) == [much, little]
    again = shares.ask(ALICE, 1)
    assert shares.granted(0.3) == [more, again]
    first, second = shares.ask(ALICE, 100), shares.ask(BOB, 100)
    assert shares.granted(2.0) == [first, second]


pieces = st.lists(st.integers(1, 500), min_size=1, max_size=60)


@given(pieces, pieces, st.integers(1, 8))
def test_no_peer_has_more_than_its_share_while_both_want_it(
    alices: list[int], bobs: list[int], circuits: int
) -> None:
    """However many pieces alice asks for, of whatever size, as many bytes of bob's go."""
    shares = FairShares(RATE)
    asked = [(ALICE, size) for size in alices for _ in range(circuits)]
    asked += [(BOB, size) for size in bobs]
    whose = {shares.ask(peer, size): (peer, size) for peer, size in asked}
    left = Counter(peer for peer, _ in asked)
    had: Counter[PeerId] = Counter()
    now_s = 0
    while left.total():
        for number in shares.granted(float(now_s)):
            peer, size = whose.pop(number)
            had[peer] += size
            left[peer] -= 1
            if left[ALICE] and left[BOB]:
                assert abs(had[ALICE] - had[BOB]) <= 2 * 500
        now_s += 1
    assert whose == {}


@example([1, 1, 39, 413, 409, 219, 413])
@given(st.lists(st.integers(1, 500), min_size=1, max_size=60))
def test_the_rate_is_kept(sizes: list[int]) -> None:
    shares = FairShares(RATE)
    size_of = {shares.ask(ALICE, size): size for size in sizes}
    gone, now_s = 0, 0.0
    while shares.at_s != float("inf"):
        granted = shares.granted(now_s)
        gone += sum(size_of[number] for number in granted)
        # Seconds are floats: a sum of them may be off by less than a thousandth of a byte.
        assert gone <= RATE * (now_s + BURST_S) + max(sizes) + 0.001
        now_s = max(shares.at_s, now_s + 0.001)
    assert gone == sum(sizes)

"""What many tasks share: numbered and sent once by bob, kept for as long by alice."""

from hypothesis import given
from hypothesis import strategies as st

from formation_p2p.leases.core.in_flight import MAX_SHARED_BLOBS, MAX_SHARED_BYTES, SharedBlobs

LARGE = MAX_SHARED_BYTES // 2


def test_a_part_is_new_once_and_has_one_number() -> None:
    bob = SharedBlobs()
    assert bob.number(b"f") == (1, True)
    assert bob.number(b"g") == (2, True)
    assert bob.number(b"f") == (1, False)
    assert b"f" in bob
    assert b"h" not in bob


def test_the_oldest_of_too_many_make_room() -> None:
    bob = SharedBlobs()
    for number in range(1, MAX_SHARED_BLOBS + 2):
        assert bob.number(b"%d" % number) == (number, True)
    assert bob.get(1) is None
    assert bob.get(2) == b"2"
    assert bob.number(b"1") == (MAX_SHARED_BLOBS + 2, True)
    assert bob.get(2) is None


def test_the_oldest_of_too_large_ones_make_room() -> None:
    bob = SharedBlobs()
    for mark in (b"a", b"b", b"c"):
        assert bob.number(mark * LARGE)[1]
    assert bob.number(b"b" * LARGE) == (2, False)
    assert bob.number(b"a" * LARGE) == (4, True)


def test_what_is_forgotten_is_sent_again_under_another_number() -> None:
    bob = SharedBlobs()
    bob.number(b"f")
    bob.forget()
    assert b"f" not in bob
    assert bob.number(b"f") == (2, True)


def test_a_number_that_comes_again_is_of_what_came_last() -> None:
    """Whoever sends that is no scheduler of ours."""
    alice = SharedBlobs()
    alice.keep(1, b"f")
    alice.keep(2, b"f")
    alice.keep(1, b"g")
    assert [alice.get(1), alice.get(2), alice.get(3)] == [b"g", b"f", None]
    assert b"f" in alice
    alice.keep(2, b"h")
    assert b"f" not in alice
    assert alice.total_bytes == 2


KINDS = st.sampled_from([b"f", b"g", b"h" * LARGE, b"i" * LARGE, b"j" * (LARGE // 2)])
SHARED = KINDS | st.integers(0, 40).map(lambda n: b"%d" % n)


@given(st.lists(SHARED | st.none(), max_size=60))
def test_what_bob_takes_for_known_alice_has(story: list[bytes | None]) -> None:
    """None is a stream that broke."""
    bob, alice = SharedBlobs(), SharedBlobs()
    for data in story:
        if data is None:
            bob.forget()
            continue
        number, new = bob.number(data)
        if new:
            alice.keep(number, data)
        for each in range(1, number + 1):
            assert bob.get(each) in (None, alice.get(each))
        assert alice.get(number) == data
        known = range(1, len(story) + 1)
        kept = [blob for each in known if (blob := alice.get(each)) is not None]
        assert len(alice) == len(kept) <= MAX_SHARED_BLOBS
        assert alice.total_bytes == sum(map(len, kept)) <= MAX_SHARED_BYTES

"""What waits on a stream comes out as it went in, and holds little more than it is."""

import random

import pytest

from formation_p2p.net.transport.stream import LEAST_PIECE_BYTES, Unread, _held_bytes


@pytest.mark.parametrize("in_pieces", [False, True])
def test_what_was_appended_is_taken_in_order(in_pieces: bool) -> None:
    rng = random.Random(1)
    unread, sent, got = Unread(), bytearray(), bytearray()
    for _ in range(3000):
        message = rng.randbytes(rng.choice((1, 30, 5000, 60_000)))
        start = rng.randrange(len(message))
        piece = memoryview(message)[start : start + rng.randrange(len(message) + 1)]
        sent += piece
        unread.append(piece)
        if rng.random() < 0.5:
            most = rng.randrange(60_000)
            got += b"".join(unread.take_pieces(most)) if in_pieces else unread.take(most)
        assert len(unread) == len(sent) - len(got)
    got += unread.take(len(unread) + 1)
    assert got == sent
    assert not unread
    assert unread.take(1) == b""
    assert unread.take_pieces(1) == []


def test_what_is_large_is_passed_on_where_it_lies() -> None:
    unread = Unread()
    message = bytes(65_519)
    unread.append(memoryview(message)[12:])
    (piece,) = unread.take_pieces(len(message))
    assert piece.obj is message


def test_a_small_part_does_not_keep_a_large_message() -> None:
    unread = Unread()
    for _ in range(100):
        unread.append(memoryview(bytes(65_519))[: LEAST_PIECE_BYTES + 1])
        unread.append(memoryview(bytes(65_519))[:40_000])
        unread.take(40_000)
    held = sum(_held_bytes(piece) for piece in unread._pieces)
    assert held + len(unread._small) <= 2 * len(unread)


def test_what_is_cleared_is_gone() -> None:
    unread = Unread()
    unread.append(memoryview(b"abc"))
    unread.append(memoryview(bytes(LEAST_PIECE_BYTES)))
    unread.clear()
    assert (len(unread), unread.take(9)) == (0, b"")

"""Bodies that are expected go where they are to lie, however what comes is cut."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from formation_p2p.net.transport.stream import Expected

HEADS = st.binary(max_size=3)
BODIES = st.binary(max_size=6)


def cut(data: bytes, sizes: list[int]) -> list[memoryview]:
    """All of it, in pieces of these sizes by turns."""
    pieces, at, turn = [], 0, 0
    while at < len(data):
        size = sizes[turn % len(sizes)]
        pieces.append(memoryview(data)[at : at + size])
        at, turn = at + size, turn + 1
    return pieces


@given(
    st.lists(st.tuples(HEADS, BODIES), max_size=4),
    st.binary(max_size=5),
    st.lists(st.integers(1, 7), min_size=1, max_size=5),
)
def test_each_body_is_whole_and_what_follows_the_last_is_left_over(
    messages: list[tuple[bytes, bytes]], after: bytes, sizes: list[int]
) -> None:
    expected = Expected()
    rooms = [bytearray(len(body)) for _, body in messages]
    for (head, _), room in zip(messages, rooms, strict=True):
        expected.add(head, lambda room=room: memoryview(room))  # type: ignore[misc]
    stream = b"".join(head + body for head, body in messages) + after
    left = b"".join(expected.take(piece) for piece in cut(stream, sizes))
    assert (left, expected.is_wrong) == (after, False)
    assert rooms == [body for _, body in messages]
    assert [bytes(body) for body in expected.whole] == rooms


@pytest.mark.parametrize("size", [1, 2, 9])
@pytest.mark.parametrize("said", [b"x", b"hx"])
@pytest.mark.parametrize("before", [b"", b"he12"])
def test_what_is_no_head_is_left_whole_and_nothing_is_expected_after_it(
    before: bytes, said: bytes, size: int
) -> None:
    expected = Expected()
    for _ in range(2):
        expected.add(b"he", lambda: memoryview(bytearray(2)))
    stream = before + said + b"and more"
    left = b"".join(expected.take(piece) for piece in cut(stream, [size]))
    assert (left, expected.is_wrong, expected.rest) == (said + b"and more", True, None)
    assert [bytes(body) for body in expected.whole] == ([b"12"] if before else [])
    expected.add(b"x", lambda: memoryview(bytearray(2)))
    assert bytes(expected.take(memoryview(b"x12"))) == b"x12"


def test_room_is_asked_for_once_a_head_has_come() -> None:
    expected = Expected()
    asked: list[str] = []

    def room() -> memoryview:
        asked.append("room")
        return memoryview(bytearray(2))

    expected.add(b"he", room)
    expected.take(memoryview(b"h"))
    assert (asked, expected.rest) == ([], None)
    expected.take(memoryview(b"e"))
    assert asked == ["room"]
    assert expected.rest is not None
    expected.rest[:1] = b"1"
    expected.filled(1)
    assert not expected.whole
    expected.take(memoryview(b"2"))
    assert [bytes(body) for body in expected.whole] == [b"12"]


def test_nothing_is_written_into_a_body_that_is_expected_no_longer() -> None:
    expected = Expected()
    room = bytearray(4)
    expected.add(b"h", lambda: memoryview(room))
    expected.take(memoryview(b"h12"))
    expected.clear()
    assert bytes(expected.take(memoryview(b"34"))) == b"34"
    assert room == b"12\0\0"

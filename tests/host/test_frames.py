"""Frames on a byte stream, however the stream is cut."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from formation_p2p.core.errors import ProtocolViolation
from formation_p2p.net.transport.frames import Deframer, encode_frame
from formation_p2p.records.core.protobuf import varint

LIMIT = 1000


@st.composite
def cut(draw: st.DrawFn, whole: bytes) -> list[bytes]:
    places = sorted(draw(st.lists(st.integers(0, len(whole)), max_size=20)))
    return [whole[a:b] for a, b in zip([0, *places], [*places, len(whole)], strict=True)]


@given(st.lists(st.binary(max_size=LIMIT), max_size=10), st.data())
def test_frames_come_out_as_they_went_in(frames: list[bytes], data: st.DataObject) -> None:
    held: list[int] = []
    deframer = Deframer(LIMIT, reserve=held.append, release=held.remove)
    pieces = data.draw(cut(b"".join(map(encode_frame, frames))))
    assert [frame for piece in pieces for frame in deframer.feed(piece)] == frames
    assert not deframer.inside_frame
    assert held == []


@given(st.binary(max_size=300))
def test_no_bytes_do_anything_but_frames_or_a_violation(data: bytes) -> None:
    try:
        frames = Deframer(100).feed(data)
    except ProtocolViolation:
        return
    assert all(len(frame) <= 100 for frame in frames)


@pytest.mark.parametrize(
    "data", [varint(LIMIT + 1), varint(2**64), b"\xff\xff", b"\x80\x80", b"\xff" * 1000]
)
def test_a_length_past_the_bound_is_refused_before_a_byte_of_the_frame_is_kept(data: bytes) -> None:
    with pytest.raises(ProtocolViolation):
        Deframer(LIMIT).feed(data)


def test_an_unfinished_frame_is_known_and_gives_back_what_it_reserved() -> None:
    held: list[int] = []
    deframer = Deframer(LIMIT, reserve=held.append, release=held.remove)
    deframer.feed(b"\xe8")
    inside_length, held_then = deframer.inside_frame, list(held)
    deframer.feed(b"\x07" + bytes(10))
    assert (inside_length, held_then, held) == (True, [], [1000])
    deframer.drop()
    assert held == []
    assert not deframer.inside_frame

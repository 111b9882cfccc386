"""What is left of pieces that were written in part."""

from hypothesis import given
from hypothesis import strategies as st

from formation_p2p.net.transport.tcp import rest_of


@given(st.lists(st.binary(max_size=5), max_size=5), st.data())
def test_what_is_left_follows_what_was_taken(pieces: list[bytes], data: st.DataObject) -> None:
    whole = b"".join(pieces)
    sent = data.draw(st.integers(0, len(whole)))
    rest = rest_of(pieces, sent)
    assert b"".join(rest) == whole[sent:]
    assert (rest == []) == (sent == len(whole))  # or a writer would not end


def test_nothing_is_left_of_what_was_taken_whole() -> None:
    assert rest_of([b"ab", memoryview(b"c")], 3) == []

"""Two ends agree on a protocol."""

from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st

from formation_p2p.core.errors import ProtocolViolation, RemoteError, Unreachable
from formation_p2p.net.transport.errors import ConnectionClosedError
from formation_p2p.net.transport.frames import encode_frame
from formation_p2p.net.transport.negotiation import HEADER, MAX_PROPOSALS, NotSpoken, agree
from tests.host.mallory import propose
from tests.support.stacks import run


class Script:
    """A stream whose other end says what it says, and closes."""

    def __init__(self, said: bytes) -> None:
        self._said = said
        self.heard = b""

    async def read(self, n: int | None = None) -> bytes:
        await trio.lowlevel.checkpoint()
        if not self._said:
            raise ConnectionClosedError("closed")
        taken, self._said = self._said[:n], self._said[n:]
        return taken

    async def write(self, data: bytes) -> None:
        self.heard += data


def lines(*messages: str) -> bytes:
    return b"".join(encode_frame(message.encode() + b"\n") for message in messages)


def outcome(act: Callable[[], Awaitable[str | None]]) -> Any:
    """What `act` returns, or the class of the error of ours that it raises."""
    results: list[Any] = []

    async def story() -> None:
        try:
            results.append(await act())
        except RemoteError as error:
            results.append(type(error))

    run(story)
    return results[0]


def test_the_header_and_the_proposal_go_out_together() -> None:
    stream = Script(lines(HEADER, "/a"))
    assert outcome(lambda: propose(stream, "/a")) is None
    assert stream.heard == lines(HEADER, "/a")


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        (lines(HEADER, "na"), NotSpoken),
        (lines(HEADER, "/b"), ProtocolViolation),
        (lines("/multistream/2.0.0"), ProtocolViolation),
        (lines(HEADER), Unreachable),
        (b"", Unreachable),
    ],
)
def test_a_proposal_that_is_not_taken(said: bytes, expected: object) -> None:
    assert outcome(lambda: propose(Script(said), "/a")) is expected


def test_the_first_proposal_that_is_spoken_is_taken() -> None:
    stream = Script(lines(HEADER, "/x", "ls", "/b", "/a"))
    assert outcome(lambda: agree(stream, ("/a", "/b"))) == "/b"
    assert stream.heard == lines(HEADER, "na", "na", "/b")


def test_proposals_without_end_are_a_violation() -> None:
    said = lines(HEADER, *["/x"] * (MAX_PROPOSALS + 1))
    assert outcome(lambda: agree(Script(said), ("/a",))) is ProtocolViolation


@given(st.binary(max_size=200) | st.binary(max_size=50).map(lambda tail: lines(HEADER) + tail))
@settings(max_examples=200, deadline=None)
def test_no_bytes_raise_anything_but_our_errors(said: bytes) -> None:
    assert outcome(lambda: agree(Script(said), ("/a",))) in [ProtocolViolation, Unreachable, "/a"]
    assert outcome(lambda: propose(Script(said), "/a")) in [
        ProtocolViolation,
        Unreachable,
        NotSpoken,
        None,
    ]


def test_a_message_is_bounded_before_it_is_read() -> None:
    for length in (b"\x00", b"\x81\x08", b"\xff\xff\x03", b"\xff" * 10):
        assert outcome(lambda: agree(Script(length + bytes(4096)), ("/a",))) is ProtocolViolation  # noqa: B023

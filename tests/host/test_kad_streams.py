"""Peers that use their kad streams otherwise than ours do."""

from __future__ import annotations

import trio

from tests.support.stacks import Node, run, running


def test_a_peer_that_answers_what_has_no_answer_does_not_confuse_the_next_request() -> None:
    """py-libp2p echoes each ADD_PROVIDER."""

    async def story() -> None:
        alice, bob = Node(), Node()
        async with running(alice, bob):
            for number in range(5):
                reported = b"told %d" % number
                assert (
                    await alice.stack.ask(bob.contact, reported, timeout_s=5, expects_answer=False)
                    is None
                )
                assert await alice.ask(bob, b"asked") == b"re:asked"
                await trio.sleep(0.01)  # the echo is here, and then comes the next request
            assert [frame for _, frame in bob.requests if frame.startswith(b"told")] == [
                b"told %d" % number for number in range(5)
            ]

    run(story)

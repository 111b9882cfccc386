"""Peers that use their kad streams otherwise than ours do."""

import pytest
import trio

from formation_p2p.core.errors import Unreachable
from tests.support.stacks import Node, running
from tests.support.waiting import HANGS_S, in_trio


@in_trio
async def test_a_peer_that_answers_what_has_no_answer_does_not_confuse_the_next_request() -> None:
    """py-libp2p echoes each ADD_PROVIDER."""
    alice, bob = Node(), Node()
    async with running(alice, bob):
        for number in range(5):
            reported = b"told %d" % number
            answer = await alice.stack.ask(
                bob.contact, reported, timeout_s=HANGS_S, expects_answer=False
            )
            assert answer is None
            assert await alice.ask(bob, b"asked") == b"re:asked"
            await trio.sleep(0.01)  # the echo is here, and then comes the next request
        assert [frame for _, frame in bob.requests if frame.startswith(b"told")] == [
            b"told %d" % number for number in range(5)
        ]


@in_trio
async def test_a_client_serves_no_dht_and_still_asks() -> None:
    client, server = Node(()), Node()
    async with running(client, server):
        assert await client.ask(server, b"asked") == b"re:asked"
        with pytest.raises(Unreachable):
            await server.ask(client.contact, b"asked")
        assert client.requests == []

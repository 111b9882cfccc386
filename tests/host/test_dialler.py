"""Dials of one peer that others tell different addresses of."""

from functools import partial

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from formation_p2p.core.effects import Contact
from formation_p2p.core.errors import Unreachable
from formation_p2p.net.dialler import MAX_DIALS_OF_PEER
from formation_p2p.net.transport.parameters import NetParameters
from tests.support.loopback import HOST, tcp
from tests.support.stacks import Node, running
from tests.support.waiting import AT_ONCE_S, HANGS_S, IDLE_S, in_trio, until


async def silent(nursery: trio.Nursery) -> str:
    """Where connections are taken and nothing is said."""

    async def rest(stream: trio.SocketStream) -> None:
        await trio.sleep_forever()

    [listener] = await nursery.start(partial(trio.serve_tcp, rest, 0, host=HOST))
    return tcp(listener.socket.getsockname()[1])


@in_trio
async def test_a_good_address_does_not_wait_for_one_that_falls_silent() -> None:
    alice, bob = Node(parameters=NetParameters(handshake_s=HANGS_S)), Node()
    async with running(alice, bob), trio.open_nursery() as nursery:
        spoofed = Contact(bob.peer_id, (await silent(nursery),))
        ended: list[bytes | None] = []

        async def ask_there() -> None:
            ended.append(await alice.ask(spoofed, b"first"))

        nursery.start_soon(ask_there)
        await trio.sleep(0.2)
        with trio.fail_after(AT_ONCE_S):
            assert await alice.ask(bob.contact, b"hello") == b"re:hello"
            await until(lambda: ended)  # it has what it wants, too
        assert len(alice.stack.swarm.connections_to(bob.peer_id)) == 1
        nursery.cancel_scope.cancel()


@in_trio
async def test_dials_of_one_peer_have_a_bound_and_the_same_addresses_share_one() -> None:
    alice, bob = Node(), Node()
    async with running(alice), trio.open_nursery() as nursery:
        places = [await silent(nursery) for _ in range(MAX_DIALS_OF_PEER + 2)]
        before = len(alice.stack.swarm.nursery.child_tasks)

        async def dial(place: str) -> None:
            with pytest.raises(Unreachable):
                await alice.stack.swarm.dialler.dial(Contact(bob.peer_id, (place,)))

        for place in places * 2:
            nursery.start_soon(dial, place)
        tasks = alice.stack.swarm.nursery
        await until(lambda: len(tasks.child_tasks) - before == MAX_DIALS_OF_PEER)
        await wait_all_tasks_blocked(IDLE_S)
        assert len(tasks.child_tasks) - before == MAX_DIALS_OF_PEER
        nursery.cancel_scope.cancel()

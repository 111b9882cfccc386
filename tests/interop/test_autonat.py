"""AutoNAT v2 with js-libp2p: it dials our node back, and ours dials it.

In a network of their own, since none dials private addresses for others. The go-libp2p of `p2pd`
(0.32.1) is older than the protocol, as is py-libp2p's.
"""

import trio

from formation_p2p.core.effects import Contact
from formation_p2p.reach.core.autonat import REQUEST_PROTOCOL
from tests.interop import fetch, peers
from tests.support.own_network import in_own_network
from tests.support.stacks import Node, running
from tests.support.waiting import until

OURS, SHUT, THEIRS = "11.0.0.1", "11.0.0.2", "11.0.0.3"
HERE, NOWHERE = f"/ip4/{OURS}/tcp/4001", f"/ip4/{SHUT}/tcp/4001"
THERE = f"/ip4/{THEIRS}/tcp/4001"
NETWORK = (f"{OURS}/32", f"{SHUT}/32", f"{THEIRS}/32")


def test_js_dials_us_where_we_ask_it_to() -> None:
    fetch.js()  # from the network that there is

    async def story() -> None:
        node = Node((HERE,))
        with peers.js("autonat", THERE) as js:
            async with running(node):
                to = await trio.to_thread.run_sync(lambda: js.contact)
                connection = await node.stack.swarm.dialler.dial(to)
                await until(lambda: REQUEST_PROTOCOL in connection.protocols)
                ask = node.stack.autonat.ask
                assert await ask(connection, (HERE,)) == (HERE, True)
                assert await ask(connection, (NOWHERE,)) == (NOWHERE, False)

    in_own_network(story, *NETWORK)


def test_we_dial_js_back_and_it_believes_it() -> None:
    fetch.js()

    async def story() -> None:
        node = Node((HERE,))
        with peers.js("autonat", THERE) as js:
            async with running(node):
                do = trio.to_thread.run_sync
                await do(lambda: js.contact)
                assert await do(lambda: js.do("announced")) == []
                await do(lambda: js.connect(Contact(node.peer_id, (HERE,))))

                async def believed() -> bool:
                    announced: list[str] = await do(lambda: js.do("announced"))
                    return announced == [THERE]

                await until(believed, every_s=0.1)

    in_own_network(story, *NETWORK)

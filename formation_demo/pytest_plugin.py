"""For pytest: a network of processes on this machine, for tests of programs that use one.

    def test_squares(formation_network):
        with formation_network.join() as node:
            assert node.map(square, [1, 2, 3]) == [1, 4, 9]

The network is started with the first test that asks for it, and ended with the session. It has two
workers, or as many as `formation_workers` in pytest's configuration says.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from formation_demo.local_network import LocalNetwork
    from formation_p2p import SyncNode


class FormationNetwork:
    """`invite` lets a node join. `home` is for nodes that submit, one at a time."""

    def __init__(self, network: LocalNetwork) -> None:
        self.invite = network.invite
        self.home = network.home

    def join(self) -> SyncNode:
        """A node that submits: `with formation_network.join() as node`."""
        from formation_p2p import SyncNode

        return SyncNode.join(self.invite, home=self.home, listen=())


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addini("formation_workers", "workers of the fixture formation_network", default="2")


@pytest.fixture(scope="session")
def formation_network(request: pytest.FixtureRequest) -> Iterator[FormationNetwork]:
    """A gate and workers, each a process of its own, that tests of this session share."""
    from formation_demo.local_network import LocalNetwork

    workers = int(request.config.getini("formation_workers"))
    with asyncio.Runner() as runner:
        network = LocalNetwork(workers=workers)
        runner.run(_started(network))
        try:
            yield FormationNetwork(network)
        finally:
            runner.run(network.__aexit__(None, None, None))


async def _started(network: LocalNetwork) -> None:
    """Enter it, and wait until its workers are found."""
    from formation_p2p import Node

    await network.__aenter__()
    try:
        async with Node.join(network.invite, home=network.home, listen=()) as node:
            await network.seen_by(node)
    except BaseException:
        await network.__aexit__(None, None, None)
        raise

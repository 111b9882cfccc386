"""For pytest: a network of processes on this machine, for tests of programs that use one.

    def test_squares(formation_network):
        with formation_network.join() as node:
            assert node.map(square, [1, 2, 3]) == [1, 4, 9]

The network is started with the first test that asks for it, and ended with the session. It has two
workers, or as many as `formation_workers` in pytest's configuration says.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterator
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
    network = _running(int(request.config.getini("formation_workers")))
    with asyncio.Runner() as runner:
        yield runner.run(anext(network))
        runner.run(network.aclose())


async def _running(workers: int) -> AsyncGenerator[FormationNetwork, None]:
    """Once its workers are found, and until the generator is closed."""
    from formation_demo.local_network import LocalNetwork
    from formation_p2p import Node

    async with LocalNetwork(workers=workers) as network:
        async with Node.join(network.invite, home=network.home, listen=()) as node:
            await network.seen_by(node)
        yield FormationNetwork(network)

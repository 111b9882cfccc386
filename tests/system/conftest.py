"""What several tests of whole nodes have in common: networks that the tests of a module share. They
run on one loop, and leave the network as they found it."""

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from formation_p2p import Node
from tests.support.network import SmallNetwork, small_network, three_workers


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def small(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[SmallNetwork]:
    async with small_network(tmp_path_factory.mktemp("small"), labels={"region": "eu"}) as network:
        yield network


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def unboxed(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[SmallNetwork]:
    """Its tasks see the files of the tests."""
    folder = tmp_path_factory.mktemp("unboxed")
    async with small_network(folder, sandbox="off") as network:
        yield network


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def apart(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[SmallNetwork]:
    """Bob is as on a machine of his own."""
    folder = tmp_path_factory.mktemp("apart")
    async with small_network(folder, shares_memory=False) as network:
        yield network


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def owner(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Node]:
    """Who finds three workers for gangs."""
    async with three_workers(tmp_path_factory.mktemp("gangs")) as (bob, _):
        yield bob

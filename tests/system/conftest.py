"""What several tests of whole nodes have in common."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.support.network import SmallNetwork, small_network


@pytest.fixture
async def small(tmp_path: Path) -> AsyncIterator[SmallNetwork]:
    """A network of the test's own."""
    async with small_network(tmp_path) as network:
        yield network

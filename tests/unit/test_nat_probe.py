"""A rate follows from what came and how long it took."""

from __future__ import annotations

import pytest

from formation_p2p.core.identity import PeerId
from formation_p2p.reach.core.paths import Path, Rate


@pytest.mark.parametrize(
    ("size_bytes", "took_us", "bytes_per_s"), [(3_000_000, 1_500_000, 2_000_000), (5, 0, 5_000_000)]
)
def test_a_rate_is_in_bytes_a_second(size_bytes: int, took_us: int, bytes_per_s: int) -> None:
    rate = Rate(PeerId("a peer"), Path.RELAYED, PeerId("a gate"), size_bytes, took_us)
    assert rate.bytes_per_s == bytes_per_s

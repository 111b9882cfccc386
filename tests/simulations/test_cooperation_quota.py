"""A quota over many workers, with holders that die and messages that are lost."""

from __future__ import annotations

import pytest

from simulations.cooperation import quota


@pytest.mark.at_length
def test_the_hours_of_a_quota_are_handed_out_once() -> None:
    found = quota.run(7, hours=1, workers=8, others=8, cores=1)
    used = found["used_hours"]
    assert isinstance(used, float)
    assert 0.9 <= used <= 1.05
    ran_on_s = found["ran_on_s"]
    assert ran_on_s is None or (isinstance(ran_on_s, int) and ran_on_s <= 60)

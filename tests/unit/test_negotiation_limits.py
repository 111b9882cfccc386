"""How often something may happen for each of many keys, in each window."""

from __future__ import annotations

from formation_p2p.leases.core.limits import Limits


def test_each_key_has_its_own_count_until_the_window_is_over() -> None:
    limits = Limits(1, window_s=10.0, max_keys=2)
    assert not limits.is_spent("alice", 0.0)
    assert limits.admits("alice", 0.0)
    assert limits.is_spent("alice", 5.0)
    assert not limits.is_spent("bob", 5.0)
    assert not limits.admits("alice", 9.9)
    assert limits.admits("bob", 9.9)
    assert not limits.admits("carol", 9.9), "two keys are counted, and no third"
    assert not limits.is_spent("alice", 10.0)
    assert limits.admits("carol", 10.0)

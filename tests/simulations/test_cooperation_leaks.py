"""Restricted data stays inside its region, while the charter moves workers out of it."""

from __future__ import annotations

from simulations.cooperation.leaks import run


def test_nothing_leaks() -> None:
    # In the last one a worker is moved out while a commit to it is under way.
    for seed in (1, 2, 3, 377):
        found = run(seed)
        assert found["leaked"] == 0, f"seed {seed}"
        assert int(str(found["sent"])) > 10

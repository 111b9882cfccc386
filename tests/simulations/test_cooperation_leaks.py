"""Restricted data stays inside its region, while the charter moves workers out of it."""

from __future__ import annotations

from simulations.cooperation.leaks import run


def test_nothing_leaks() -> None:
    for seed in range(1, 4):
        found = run(seed)
        assert found["leaked"] == 0, f"seed {seed}"
        assert int(str(found["sent"])) > 10

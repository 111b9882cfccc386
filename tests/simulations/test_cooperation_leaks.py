"""Restricted data stays inside its region, while the charter moves workers out of it."""

from __future__ import annotations

import pytest

from formation_p2p.core.peer import placement_context
from simulations.cooperation.leaks import run


def test_nothing_leaks() -> None:
    for seed in range(1, 4):
        found = run(seed)
        assert found["leaked"] == 0, f"seed {seed}"
        assert int(str(found["sent"])) > 10


def test_a_worker_that_was_forgotten_is_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(placement_context, "MAX_GRANTS", 1)
    assert run(2)["leaked"] == 0

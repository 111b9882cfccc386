"""Tasks that save, where machines leave and die: a few of the seeds of the simulation."""

from __future__ import annotations

import pytest

from simulations.cooperation import moving


def test_a_task_is_done_soon_after_its_worker_has_left() -> None:
    found = moving.leave(1)
    assert found["ends_after_leave_s"] <= 50
    assert found["counted_as_failed"] == 0


@pytest.mark.parametrize("seed", [1, 2])
def test_a_worker_that_dies_costs_a_step_and_the_time_to_find_out(seed: int) -> None:
    assert moving.kill(seed)["lost_s"] <= moving.STEP_S + 15


@pytest.mark.parametrize("seed", [3, 4])
def test_no_chain_is_broken(seed: int) -> None:
    assert moving.chains(seed) == {"chains_broken": 0, "violations": 0}

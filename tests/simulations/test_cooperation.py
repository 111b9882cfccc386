"""The figures of docs/fairness.md that take seconds: the others are measured by hand."""

from __future__ import annotations

import pytest

from simulations.cooperation import fair


@pytest.mark.at_length
def test_a_second_submitter_waits_for_a_slice_and_a_task() -> None:
    figures = fair.starvation(2)
    assert figures["second_first_result_s"] <= 80
    assert (figures["lost"], figures["counted_twice"]) == (0, 0)

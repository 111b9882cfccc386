"""How long a service lacks a replica, by when its replicas were ready."""

import pytest

from simulations.golem import lacking_s


@pytest.mark.parametrize(
    ("ready", "lacking"),
    [
        ([], 10.0),
        ([(0.0, 30.0)], 0.0),
        ([(12.0, 15.0)], 7.0),
        ([(5.0, 12.0), (14.0, 19.0)], 3.0),
        ([(12.0, 16.0), (5.0, 13.0), (14.0, 15.0)], 4.0),
        ([(21.0, 30.0)], 10.0),
        ([(1.0, 9.0)], 10.0),
    ],
)
def test_what_spans_leave_out_of_another(ready: list[tuple[float, float]], lacking: float) -> None:
    assert lacking_s(ready, 10.0, 20.0) == lacking

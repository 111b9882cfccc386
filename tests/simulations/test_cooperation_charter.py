"""A ban is with everyone soon, in small."""

from __future__ import annotations

from simulations.cooperation.charter import run


def test_a_ban_is_adopted_and_the_leases_of_the_banned_end() -> None:
    found = run(7, nodes=20)
    assert isinstance(found["adopt_s"], float)
    assert isinstance(found["lease_end_s"], float)
    assert found["adopt_s"] <= 120
    assert found["lease_end_s"] <= 10
    assert found["refused"] == sorted(
        ("another network", "expired", "forged", "m-1", "rollback", "stranger", "twice")
    )

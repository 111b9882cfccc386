"""ICN's trust: how a word is attenuated, and what the gates let through."""

from __future__ import annotations

from formation_p2p.placement.core.policies import EXECUTE_MILLI
from formation_p2p.trust.core.parameters import TrustParameters
from formation_p2p.trust.core.reputation import attenuated_milli
from tests.unit.seed_cases import Vector, covers

TRUST = TrustParameters()


def milli(trust: float) -> int:
    return round(trust * 1000)


@covers("icn/trust_attenuation")
def attenuation(vector: Vector) -> None:
    found = [attenuated_milli(*map(milli, case)) for case in vector.given["local_coop_factor"]]
    assert found == [milli(trust) for trust in vector.expect["trust"]]


@covers("icn/trust_gates")
def gates(vector: Vector) -> None:
    for gate, least_milli in (("submit", TRUST.submit_milli), ("execute", EXECUTE_MILLI)):
        admitted = [milli(trust) >= least_milli for trust in vector.given[gate]]
        assert admitted == vector.expect[f"{gate}_ok"]

"""The benchmarks run, in small: what they measure is for people to look at."""

from __future__ import annotations

import json

from tests.system.programs import python


def test_the_dht_benchmark_measures_every_operation_of_ours() -> None:
    # Twelve nodes: of fewer, everybody holds every record, and nobody has to look for it.
    ran = python(
        "-m", "benchmarks.dht", "--json", "--only", "formation", "--nodes", "12", "--rounds", "5"
    )
    assert ran.process.returncode == 0, ran.output
    result = json.loads(ran.lines[-1])
    figures = result["p50_ms"]["formation"]
    assert (result["nodes"], result["processes"], figures["samples"]) == (12, 4, 5)
    assert all(0 < figures[what] < 10_000 for what in ("announce", "find", "closest", "join_s"))

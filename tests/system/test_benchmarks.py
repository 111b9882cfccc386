"""The benchmarks run, in small: what they measure is for people to look at."""

from __future__ import annotations

import json

from tests.support.programs import python


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


def test_the_placement_benchmark_asks_changes_and_places() -> None:
    ran = python(
        "-m",
        "benchmarks.placement",
        "--json",
        *("--workers", "3000", "--placed-on", "200", "--tasks", "2000", "--seed", "7"),
    )
    assert ran.process.returncode == 0, ran.output
    result = json.loads(ran.lines[-1])
    figures = ("topk_1m_p50_ms", "memory_pass_ms", "update_us", "placements_per_s")
    assert all(result[figure] > 0 for figure in figures)
    assert (result["workers"], result["tasks"], result["seed"]) == (3000, 2000, 7)
    found = {name: shape["found"] for name, shape in result["shapes"].items()}
    assert (found["anything"], found["nobody"]) == (20, 0)
    assert all(rule["full_pct"] > 50 for rule in result["placing"].values())

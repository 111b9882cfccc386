"""The benchmarks run, in small: what they measure is for people to look at."""

import json

from formation_p2p.machine.pythons import own_name
from tests.support.programs import running
from tests.support.pythons import other_pythons
from tests.support.waiting import HANGS_S


def test_the_dht_benchmark_measures_every_operation_of_ours() -> None:
    # Twelve nodes: of fewer, everybody holds every record, and nobody has to look for it.
    small = ("--only", "formation", "--nodes", "12", "--rounds", "2")
    with running("-m", "benchmarks.dht", "--json", *small, forked=True) as ran:
        assert ran.ended() == 0, ran.output
    result = json.loads(ran.lines[-1])
    figures = result["p50_ms"]["formation"]
    assert (result["nodes"], result["processes"], figures["samples"]) == (12, 4, 2)
    assert all(0 < figures[what] < 10_000 for what in ("announce", "find", "closest", "join_s"))


def test_calls_on_workers_of_several_pythons_neither_crash_nor_end_wrong() -> None:
    others = [name.removeprefix("cpython-") for name in other_pythons()][:1]
    flags = (flag for version in others for flag in ("--python", version))
    argv = ("-m", "benchmarks.mixed", "--json", "--calls", "30", *flags)
    with running(*argv, forked=True) as ran:  # four nodes that start and end
        assert ran.ended(3 * HANGS_S) == 0, ran.output
    result = json.loads(ran.lines[-1])
    assert (result["crashes"], result["wrong"], result["missing"]) == (0, 0, 0)
    assert sum(result["ran"].values()) == result["calls"] > 50
    assert set(result["ran"]) == {own_name(), *(f"cpython-{version}" for version in others)}


def test_the_data_benchmark_makes_thumbnails_by_processes_and_by_calls() -> None:
    argv = ("-m", "benchmarks.data", "--json", "--quick", "--only", "thumbs")
    with running(*argv, "--sides", "formation,xargs", forked=True) as ran:
        assert ran.ended(2 * HANGS_S) == 0, ran.output
    result = json.loads(ran.lines[-1])
    assert result["failed"] == {}
    assert min(result["xargs_s"], *result["thumbs_s"].values()) > 0
    assert result["joblib_s"] is None  # it was left out


def test_the_placement_benchmark_asks_changes_and_places() -> None:
    small = ("--workers", "300", "--placed-on", "60", "--tasks", "600", "--seed", "7")
    with running("-m", "benchmarks.placement", "--json", *small, forked=True) as ran:
        assert ran.ended() == 0, ran.output
    result = json.loads(ran.lines[-1])
    figures = ("topk_1m_p50_ms", "memory_pass_ms", "update_us", "placements_per_s")
    assert all(result[figure] > 0 for figure in figures)
    assert (result["workers"], result["tasks"], result["seed"]) == (300, 600, 7)
    found = {name: shape["found"] for name, shape in result["shapes"].items()}
    assert (found["anything"], found["nobody"]) == (20, 0)
    assert all(rule["full_pct"] > 50 for rule in result["placing"].values())


def test_no_request_that_does_no_harm_fails_where_a_replica_is_killed() -> None:
    argv = ("-m", "benchmarks.services", "--json", "--quick", "--only", "killed")
    with running(*argv, forked=True) as ran:
        assert ran.ended(2 * HANGS_S) == 0, ran.output
    found = json.loads(ran.lines[-1])["killed"]
    for what in ("program", "node"):
        assert found[what]["requests"] == 100
        assert found[what]["failed_idempotent"] == 0, found[what]["why"]

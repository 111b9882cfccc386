"""What the benchmark of data makes of what its parts say."""

from benchmarks.data.figures import combined, table, targets
from benchmarks.dispatch.processes import Line


def lines(submit_s: float) -> dict[str, Line]:
    return {
        "arrays in formation": {"mb_s": 4000.0, "version": "this"},
        "arrays in ray": {"mb_s": 4000.0, "cpu_s": 0.5},
        "arrays remote in": {"mb_s": 299.0},
        "arrays tcp": {"mb_s": 900.0},
        "blob": {"ratio": 0.75, "memory_ratio": 0.4},
        "thumbs xargs": {"wall_s": 10.0},
        "thumbs formation": {"submit": {"wall_s": submit_s}},
        "package": {
            "first_ms": {"package": 1000.0, "none": 100.0},
            "warm_ms": {"package": 1.11, "none": 1.0},
        },
        "mixed": {"crashes": 0, "wrong": 1, "calls": 20_000},
    }


def test_the_targets_are_those_of_what_was_measured() -> None:
    result = combined(lines(submit_s=12.0))
    assert {target.figure: target.met for target in targets(result)} == {
        "arrays_in_mb_s": True,
        "arrays_inout_mb_s": None,
        "arrays_remote_mb_s": False,
        "blob_over_tcp": True,
        "thumbs_s submit": True,
        "thumbs_s map": None,
        "first_ms": True,
        "warm_ms": False,
        "env_cold_s": None,
        "env_warm_ms": None,
        "mixed crashes": True,
        "mixed wrong": False,
    }
    assert result["blob_over_tcp"] == 0.4  # the lower one
    slower = targets(combined(lines(submit_s=12.1)))
    assert [target.met for target in slower if target.figure == "thumbs_s submit"] == [False]


def test_the_table_has_each_figure_beside_its_target() -> None:
    rows = {row.split("  ")[0]: row for row in table(combined(lines(submit_s=12.0)))}
    assert rows["arrays_in_mb_s formation"].endswith("4,000.0  ≥ Ray's: yes")
    assert rows["arrays_in_mb_s ray"].endswith("4,000.0")
    assert rows["thumbs_s submit"].endswith("12.0  ≤ 1.2 x xargs: yes")
    assert rows["warm_ms package"].endswith("≤ 1.1 x none: NO")
    assert rows["env_cold_s"].endswith("-  ≤ 5: not measured")
    assert "details" not in rows

"""What the benchmark of small tasks makes of what its sides say."""

import asyncio
import sys
from pathlib import Path

import psutil
import pytest

from benchmarks.dispatch.figures import Line, combined, table, targets
from benchmarks.dispatch.processes import SideFailed, last_line, run_side
from benchmarks.dispatch.recovery import Recovery, Told, recovery
from benchmarks.dispatch.timing import ROUND_S, affordable, percentile
from formation_p2p import JobEvent, TaskBegan, TaskPlaced, TaskSucceeded
from formation_p2p.core.identity import PeerId, peer_id_of
from tests.support.waiting import until

ALICE, BOB = peer_id_of(bytes(31) + b"a"), peer_id_of(bytes(31) + b"b")


def test_a_percentile_is_a_value_that_was_measured() -> None:
    assert percentile([3.0, 1.0, 2.0], 50) == 2.0
    assert percentile(list(range(1, 101)), 95) == 95
    assert percentile([7.0], 95) == 7.0
    with pytest.raises(ValueError, match="nothing"):
        percentile([], 50)
    # A slow side is given as many tasks as it can end.
    rates = {5000: 20_000, 100: 100 * ROUND_S, 0.0001: 1}
    assert {rate: affordable(rate, 20_000) for rate in rates} == rates


# -- a worker that was killed ------------------------------------------------------------------


def placed(task: str, worker: PeerId) -> JobEvent:
    return TaskPlaced(task, f"{task}#1", worker, "lease", nearest=True)


def reported(*events: tuple[float, JobEvent]) -> list[Told]:
    return [Told(at_s, event) for at_s, event in events]


def test_recovery_lasts_until_the_last_task_of_the_dead_worker_runs_elsewhere() -> None:
    story = reported(
        (1.0, placed("one", ALICE)),
        (1.0, placed("two", ALICE)),
        (1.0, placed("three", BOB)),
        (1.1, TaskBegan("one", ALICE)),
        (3.0, placed("one", BOB)),
        (3.0, placed("two", BOB)),
        (3.5, TaskBegan("one", BOB)),
        (4.0, TaskSucceeded("two", BOB, b"", 1)),
        (9.0, TaskBegan("three", BOB)),
    )
    assert recovery(story, ALICE, killed_s=2.0) == Recovery(tasks=2, took_s=2.0)


def test_a_task_that_was_given_to_the_dead_worker_after_its_death_counts() -> None:
    story = reported((2.5, placed("late", ALICE)), (6.0, TaskBegan("late", BOB)))
    assert recovery(story, ALICE, killed_s=2.0) == Recovery(tasks=1, took_s=4.0)
    with pytest.raises(ValueError, match="1 tasks"):  # it never ran again
        recovery(reported((1.0, placed("one", ALICE))), ALICE, killed_s=2.0)


def test_what_the_dead_worker_ended_or_gave_back_in_life_was_not_lost() -> None:
    story = reported(
        (1.0, placed("ended", ALICE)),
        (1.0, placed("on its way", ALICE)),
        (1.0, placed("moved", ALICE)),
        (1.5, TaskSucceeded("ended", ALICE, b"", 1)),
        (1.5, placed("moved", BOB)),
        (2.1, TaskSucceeded("on its way", ALICE, b"", 1)),
        (8.0, TaskBegan("moved", BOB)),
    )
    assert recovery(story, ALICE, killed_s=2.0) == Recovery(tasks=0, took_s=0.0)


# -- figures -----------------------------------------------------------------------------------


def lines(formation: float, ray: float, dask: float) -> dict[str, Line]:
    def line(rate: float, **more: object) -> Line:
        return {"throughput_per_s": rate, "single_p50_ms": 1.0, "single_p95_ms": 2.0, **more}

    return {
        "formation": line(formation, cold_first_result_p50_ms=150.1, version="this"),
        "ray": line(ray, version="2", tasks=7),
        "dask": line(dask),
    }


def verdicts(result: Line) -> list[tuple[str, bool | None]]:
    return [(target.figure, target.met) for target in targets(result)]


def test_a_target_is_met_at_its_very_figure_and_unknown_without_one() -> None:
    assert verdicts(combined(lines(6000, 2000, 600))) == [
        ("throughput_per_s", True),
        ("throughput_per_s", True),
        ("single_p50_ms", True),
        ("single_p95_ms", True),
        ("cold_first_result_p50_ms", False),
        ("rss_100k_queued_mb", None),
        ("durable_submit_10k_s", None),
        ("killed_worker_p95_s", None),
    ]
    assert verdicts(combined(lines(5999, 2000, 600)))[:2] == [
        ("throughput_per_s", False),
        ("throughput_per_s", False),
    ]
    assert {met for _, met in verdicts(combined({}))} == {None}


def test_the_result_has_each_compared_figure_by_side_and_the_rest_in_details() -> None:
    result = combined(lines(6000, 2000, 600))
    assert result["throughput_per_s"] == {
        "formation": 6000,
        "ray": 2000,
        "dask": 600,
        "process_pool": None,
    }
    assert result["versions"] == {"formation": "this", "ray": "2"}
    assert result["details"]["ray"] == {"tasks": 7}


def test_the_table_says_beside_each_figure_whether_it_is_reached() -> None:
    rows = table(combined(lines(6000, 2000, 601)))
    assert rows[1].endswith("≥ 3 x Ray's: yes, ≥ 10 x Dask's: NO")
    assert rows[1].split()[:5] == ["throughput_per_s", "6,000", "2,000", "601", "-"]
    assert rows[6].endswith("not measured")


# -- processes ---------------------------------------------------------------------------------


def test_the_figures_are_the_last_line() -> None:
    assert last_line(b'chatter\n{"a": 1}\n') == {"a": 1}
    for said in (b"", b"chatter\n", b"[1]\n"):
        with pytest.raises(SideFailed, match="no figures"):
            last_line(said)


async def test_a_side_whose_interpreter_is_missing_says_what_to_run() -> None:
    with pytest.raises(SideFailed, match="run make bench-dispatch"):
        await run_side("/nowhere/python", ["this"], {}, 5.0)


async def test_a_side_past_its_deadline_is_ended_with_all_that_it_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The child is in a session of its own, and ignores what it is asked to do.
    child = (
        "import os, signal, sys, time; signal.signal(signal.SIGTERM, signal.SIG_IGN);"
        "open(sys.argv[1] + '.new', 'w').write(str(os.getpid()));"
        "os.rename(sys.argv[1] + '.new', sys.argv[1]); time.sleep(600)"
    )
    side = (
        "import subprocess, sys;"
        f"subprocess.run([sys.executable, '-c', {child!r}, sys.argv[1]], start_new_session=True)"
    )
    (tmp_path / "side.py").write_text(side)
    pid_file = tmp_path / "pid"
    loop = asyncio.get_running_loop()
    now, ahead_s = loop.time, 0.0
    monkeypatch.setattr(loop, "time", lambda: now() + ahead_s)
    environment = {"PYTHONPATH": str(tmp_path)}
    side_runs = asyncio.create_task(
        run_side(sys.executable, ["side", str(pid_file)], environment, deadline_s=600)
    )
    await until(pid_file.exists)
    ahead_s = 600.0
    with pytest.raises(SideFailed, match="did not end within"):
        await side_runs
    assert not psutil.pid_exists(int(pid_file.read_text()))

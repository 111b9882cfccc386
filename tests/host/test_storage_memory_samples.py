"""What tasks used, on disk."""

import contextlib
import logging
import sqlite3
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from formation_p2p.core.effects import Moment
from formation_p2p.core.errors import StateError
from formation_p2p.core.units import GIB, MIB
from formation_p2p.jobs.core.job import Job
from formation_p2p.jobs.core.job_events import (
    Attempt,
    EmitJobEvent,
    JobEnded,
    TaskPlaced,
    TaskRetried,
    TaskSucceeded,
)
from formation_p2p.jobs.core.saved import SavedJob
from formation_p2p.peer.core.events import Resume, Submit, Tick
from formation_p2p.state.memory_samples import SCHEMA, MemoryRecorder, MemorySamples, Sample
from formation_p2p.workload.core.outcome import UNMEASURED, Usage
from formation_p2p.workload.core.work import Task
from tests.support.state_world import BOB, NEEDS

KIND = "process:train.py"


def runs(count: int, memory_bytes: int = 100 * MIB, kind: str = KIND) -> list[Sample]:
    return [Sample(kind, 2000, memory_bytes, 1000) for _ in range(count)]


def test_what_was_added_is_learnt_by_the_next_to_open_it(tmp_path: Path) -> None:
    file = MemorySamples(tmp_path)
    assert file.learnt([KIND]) == {}
    assert file.seen() == ()
    assert file.forget(KIND) == 0
    file.add(runs(4))
    assert file.learnt([KIND]) == {}
    file.add(runs(1))
    learnt = MemorySamples(tmp_path).learnt([KIND, "process:other"])
    assert list(learnt) == [KIND]
    assert (learnt[KIND].runs, learnt[KIND].memory_bytes) == (5, 128 * MIB)
    assert (tmp_path / "sizes.db").stat().st_mode & 0o777 == 0o600


def test_the_newest_of_each_kind_are_kept(tmp_path: Path) -> None:
    file = MemorySamples(tmp_path, max_samples=10)
    file.add(runs(10, 500 * MIB))
    file.add(runs(5, kind="process:other"))
    file.add(runs(10))
    (newest, other) = file.seen()
    assert (newest.kind, newest.runs, newest.most_bytes) == (KIND, 10, 100 * MIB)
    assert (newest.cpu_milli, newest.ran_ms) == (500, 2000)
    assert newest.learnt is not None
    assert (other.kind, other.runs) == ("process:other", 5)


def test_kinds_of_which_nothing_ran_for_longest_are_forgotten(tmp_path: Path) -> None:
    file = MemorySamples(tmp_path, max_kinds=2)
    for kind in ("a", "b", "a", "c"):
        file.add(runs(1, kind=kind))
    assert [each.kind for each in file.seen()] == ["c", "a"]


def test_a_kind_can_be_forgotten(tmp_path: Path) -> None:
    file = MemorySamples(tmp_path)
    file.add(runs(5))
    assert file.forget(KIND) == 5
    assert file.forget(KIND) == 0
    assert file.learnt([KIND]) == {}


def test_cores_are_unknown_where_no_worker_told(tmp_path: Path) -> None:
    file = MemorySamples(tmp_path)
    file.add([Sample(KIND, 0, MIB, 5), Sample("b", 10, MIB, None)])
    assert [each.cpu_milli for each in file.seen()] == [None, None]


def test_a_file_that_cannot_be_used_teaches_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = MemorySamples(tmp_path)
    (tmp_path / "sizes.db").write_bytes(b"something else" * 1000)
    (tmp_path / "sizes.db").chmod(0o600)
    with caplog.at_level(logging.WARNING):
        assert file.learnt([KIND]) == {}
    assert "memory samples cannot be read, sizes are the default ones" in caplog.text
    with pytest.raises(StateError):
        file.add(runs(1))
    (tmp_path / "sizes.db").unlink()
    with sqlite3.connect(tmp_path / "sizes.db") as db:
        db.execute("CREATE TABLE mine (x)")
    (tmp_path / "sizes.db").chmod(0o600)
    with pytest.raises(StateError, match="is not a formation file of memory samples"):
        file.add(runs(1))
    (tmp_path / "sizes.db").chmod(0o644)
    with pytest.raises(StateError, match="chmod 600"):
        file.seen()


def test_a_file_of_a_newer_release_is_refused_and_left_as_it_is(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = MemorySamples(tmp_path)
    file.add(runs(5))
    with contextlib.closing(sqlite3.connect(file.path)) as db:
        assert db.execute("PRAGMA user_version").fetchone() == (1,)
        db.execute("PRAGMA user_version = 9")
    before = file.path.read_bytes()
    for use in (file.seen, lambda: file.forget(KIND), lambda: file.add(runs(1))):
        with pytest.raises(StateError, match="has version 9, and this release knows 1"):
            use()
    with caplog.at_level(logging.WARNING):
        assert file.learnt([KIND]) == {}
    assert "has version 9" in caplog.text
    assert file.path.read_bytes() == before


def test_a_file_that_was_cut_short_as_it_was_made_is_made_after_all(tmp_path: Path) -> None:
    file = MemorySamples(tmp_path)
    with contextlib.closing(sqlite3.connect(file.path)) as db:
        db.execute(f"PRAGMA application_id = {SCHEMA.application_id}")
    file.path.chmod(0o600)
    assert (file.seen(), file.learnt([KIND]), file.forget(KIND)) == ((), {}, 0)
    file.add(runs(5))
    assert list(file.learnt([KIND])) == [KIND]


def test_nodes_of_one_home_may_make_the_file_at_once(tmp_path: Path) -> None:
    with ThreadPoolExecutor(4) as nodes:
        for _ in nodes.map(lambda _: MemorySamples(tmp_path).add(runs(1)), range(8)):
            pass
    assert [each.runs for each in MemorySamples(tmp_path).seen()] == [8]


@pytest.mark.parametrize(
    "damage",
    ["kind = x'00'", "unix_s = 'x'", "cpu_ms = 'x'", "ran_ms = 1.5", "memory_bytes = 1e400"],
)
def test_a_value_that_does_not_count_is_damage(tmp_path: Path, damage: str) -> None:
    file = MemorySamples(tmp_path)
    file.add(runs(1))
    with contextlib.closing(sqlite3.connect(file.path)) as db, db:
        db.execute(f"UPDATE samples SET {damage}")
    with pytest.raises(StateError, match="is damaged"):
        file.seen()


# -- looking on -------------------------------------------------------------------------------

NOW = Moment(0, 0)


def a_job(count: int) -> Job:
    tasks = (Task(f"j/{n}", NEEDS, b"", kind=KIND if n else "") for n in range(count))
    return Job("j", tuple(tasks))


def succeeded(number: int, used: Usage) -> EmitJobEvent:
    return EmitJobEvent("j", TaskSucceeded(f"j/{number}", BOB, b"", 2000, used), cause="test")


def test_what_tasks_of_a_kind_used_is_written_when_their_job_is_over(tmp_path: Path) -> None:
    file = MemorySamples(tmp_path)
    for first in (Submit(a_job(8)), Resume((SavedJob(a_job(8), ()),), ())):
        recorder = MemoryRecorder(file)
        recorder.observe(first, [], NOW)
        reported = [succeeded(n, Usage(100 * MIB, 10)) for n in range(6)]
        placed = EmitJobEvent("j", TaskPlaced("j/7", "j/7#1", BOB, "x", True), cause="test")
        recorder.observe(Tick(), [placed, *reported, succeeded(6, UNMEASURED)], NOW)
        recorder.observe(Tick(), [EmitJobEvent("j", JobEnded(8, 0, 0, 0), cause="test")], NOW)
        recorder.close()
    (seen,) = file.seen()
    assert (seen.kind, seen.runs) == (KIND, 10)


def test_no_task_used_more_than_it_had_whatever_its_worker_says(tmp_path: Path) -> None:
    """Else one that lies would have a size doubled with each job, and not just grow by a fifth."""
    recorder = MemoryRecorder(MemorySamples(tmp_path))
    first = Task("j/0", NEEDS, b"", kind=KIND, more_memory_bytes=GIB)
    recorder.observe(Submit(Job("j", (first, replace(first, task_id="j/1")))), [], NOW)
    grown = TaskRetried("j/1", Attempt("j/1#1", BOB, "memory: it had too little", False), False)
    failed = TaskRetried("j/0", Attempt("j/0#1", BOB, "driver: no such program", False))
    returned = TaskRetried("j/0", Attempt("j/0#2", BOB, "it makes room", True), False)
    reported = [EmitJobEvent("j", each, cause="test") for each in (grown, failed, returned)]
    recorder.observe(Tick(), reported, NOW)
    recorder.observe(Tick(), [succeeded(n, Usage(1 << 60, 1)) for n in range(2)], NOW)
    recorder.close()
    with contextlib.closing(sqlite3.connect(tmp_path / "sizes.db")) as db:
        rows = db.execute("SELECT memory_bytes FROM samples ORDER BY number").fetchall()
    assert rows == [(NEEDS.memory_bytes,), (GIB,)]


def test_what_is_known_when_the_node_is_left_is_written_then(tmp_path: Path) -> None:
    recorder = MemoryRecorder(MemorySamples(tmp_path))
    recorder.observe(Submit(a_job(2)), [], NOW)
    recorder.observe(Submit(Job("other", (Task("other/0", NEEDS, b""),))), [], NOW)
    recorder.observe(Tick(), [succeeded(1, Usage(MIB))], NOW)
    recorder.close()
    assert [each.runs for each in MemorySamples(tmp_path).seen()] == [1]


def test_a_full_disk_stops_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    recorder = MemoryRecorder(MemorySamples(tmp_path / "gone"))
    recorder.observe(Submit(a_job(2)), [succeeded(1, Usage(MIB))], NOW)
    with caplog.at_level(logging.WARNING):
        recorder.close()
    assert "memory samples are lost" in caplog.text

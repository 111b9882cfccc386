"""One bit of a state is altered, in its log or in the file: that is noticed, or nothing is lost."""

import random
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
import trio

from formation_p2p.assembly import PeerEffect
from formation_p2p.core.errors import StateError
from formation_p2p.jobs.core.job import Job
from formation_p2p.jobs.core.job_events import JobEnded, JobEvent, TaskEnd
from formation_p2p.state import sqlite
from formation_p2p.state.journal import Journal
from formation_p2p.state.sqlite import MAX_WAL_PAGES
from formation_p2p.state.state import State
from tests.support.state_world import ALICE, all_done, hold, job_of, placed, reported, succeeded
from tests.support.waiting import run

SEED = 20_261_122
FLIPS = 60
FILES = ("jobs.db", "jobs.db-wal", "jobs.db-shm")
Said = dict[str, tuple[Job, list[JobEvent]]]


def said(path: Path) -> Said:
    """Of each job what was submitted and how its tasks ended: what is acknowledged."""
    with closing(State(path)) as state:
        state.load(ALICE)
        stories = filter(None, (state.story(each.job_id) for each in state.summaries()))
        return {
            job.job_id: (job, [x for x in events if isinstance(x, TaskEnd | JobEnded)])
            for job, events in stories
        }


def said_or_refused(path: Path) -> Said | str:
    """What it says, or the error."""
    try:
        return said(path)
    except StateError as error:
        return str(error)


def filled(state: State) -> None:
    """In many transactions."""
    state.load(ALICE)
    ended, waiting = job_of(30, shared=b"s" * 9_000), job_of(20, "b" * 16, size=6_000)
    state.save_job(ended)
    state.write(all_done(ended))
    state.save_job(waiting)
    state.write([hold()])
    for n in range(10):
        state.write(reported(waiting, placed(waiting, n), succeeded(waiting, n, b"%d" % n * 500)))


@pytest.fixture
def killed(tmp_path: Path) -> Path:
    """The folder of a state whose process was killed."""
    folder = tmp_path / "killed"
    folder.mkdir()
    with closing(State(tmp_path / "jobs.db")) as state:
        filled(state)
        for name in FILES:
            shutil.copy(tmp_path / name, folder / name)
    assert (folder / "jobs.db-wal").stat().st_size > 60 * 4096
    return folder


def copies(folder: Path, tmp_path: Path, name: str, count: int = FLIPS) -> Iterator[Path]:
    """The state, with one bit of a file of it altered, again and again."""
    rng = random.Random(SEED)
    whole = (folder / name).read_bytes()
    print(f"seed {SEED}, {len(whole)} bytes")
    copy = tmp_path / "copy"
    for _ in range(count):
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(folder, copy)
        at = rng.randrange(len(whole))
        altered = bytearray(whole)
        altered[at] ^= 1 << rng.randrange(8)
        (copy / name).write_bytes(altered)
        yield copy / "jobs.db"


def test_a_bit_of_the_log_costs_no_acknowledged_result_without_a_word(
    killed: Path, tmp_path: Path
) -> None:
    whole = tmp_path / "whole"
    shutil.copytree(killed, whole)
    stories = said(whole / "jobs.db")
    refused = 0
    for path in copies(killed, tmp_path, "jobs.db-wal"):
        before = path.with_name("jobs.db-wal").read_bytes()
        found = said_or_refused(path)
        assert found == stories or isinstance(found, str)
        if isinstance(found, str):
            refused += 1
            assert "jobs.db-wal is damaged" in found
            assert path.with_name("jobs.db-wal").read_bytes() == before
    assert refused >= FLIPS * 0.9


def test_in_a_copy_without_the_index_all_but_the_last_transaction_is_checked(
    killed: Path, tmp_path: Path
) -> None:
    (killed / "jobs.db-shm").unlink()
    found = [said_or_refused(path) for path in copies(killed, tmp_path, "jobs.db-wal", 20)]
    assert sum(isinstance(each, str) for each in found) >= 18


def test_a_bit_of_the_file_alters_no_job_and_no_result_without_a_word(
    killed: Path, tmp_path: Path
) -> None:
    stories = said(killed / "jobs.db")  # which carries the log over
    assert not (killed / "jobs.db-wal").exists()
    refused = 0
    for path in copies(killed, tmp_path, "jobs.db", 2 * FLIPS):
        found = said_or_refused(path)
        assert found == stories or isinstance(found, str)
        if isinstance(found, str):
            refused += 1
            assert "damaged" in found or "not a formation file" in found
    assert refused > FLIPS  # a page that nothing is in may be anything


def test_the_error_names_what_was_altered(killed: Path) -> None:
    path = killed / "jobs.db"
    said(path)
    whole = path.read_bytes()
    for content, named in ((b"7" * 400, "b" * 16 + "/7"), (b"00000025" + b"p" * 9, "a" * 16)):
        at = whole.index(content) + 3
        path.write_bytes(whole[:at] + b"x" + whole[at + 1 :])
        with pytest.raises(StateError, match=named):
            said(path)


def test_what_the_error_says_gives_back_what_was_stored_before(
    killed: Path, tmp_path: Path
) -> None:
    stories = said(shutil.copytree(killed, tmp_path / "whole") / "jobs.db")
    log = killed / "jobs.db-wal"
    altered = bytearray(log.read_bytes())
    altered[len(altered) * 3 // 4] ^= 1
    log.write_bytes(altered)
    with pytest.raises(StateError) as caught:
        State(killed / "jobs.db")
    with pytest.raises(StateError):  # and it says so the second time too
        State(killed / "jobs.db")
    _, _, command = str(caught.value).partition("stored last: ")
    subprocess.run(command, shell=True, check=True)
    left = said(killed / "jobs.db")
    assert left["a" * 16] == stories["a" * 16]
    ended = left["b" * 16][1]
    assert 0 < len(ended) < 10
    assert ended == stories["b" * 16][1][: len(ended)]


def test_a_log_that_was_torn_when_the_power_failed_is_no_damage(
    killed: Path, tmp_path: Path
) -> None:
    """The index was not written then, and the last transaction may be there in part."""
    (killed / "jobs.db-shm").write_bytes(b"")
    whole = (killed / "jobs.db-wal").read_bytes()
    for cut in range(0, 3 * 4120, 1370):
        copy = shutil.copytree(killed, tmp_path / f"cut {cut}")
        (copy / "jobs.db-wal").write_bytes(whole[: len(whole) - cut])
        assert len(said(copy / "jobs.db")["b" * 16][1]) >= 8
    copy = shutil.copytree(killed, tmp_path / "torn")
    (copy / "jobs.db-wal").write_bytes(whole[:-2000] + bytes(2000))
    assert len(said(copy / "jobs.db")["b" * 16][1]) == 9


def test_a_log_that_takes_too_long_to_look_at_is_read_as_it_is(killed: Path) -> None:
    assert sqlite.check_log(killed / "jobs.db", time.monotonic() + 60)
    assert not sqlite.check_log(killed / "jobs.db", 0.0)


def test_the_log_stays_small_and_is_empty_soon_after_the_last_write(tmp_path: Path) -> None:
    log = tmp_path / "jobs.db-wal"
    with closing(State(tmp_path / "jobs.db")) as state:
        for n in range(6):
            filled(state) if n == 0 else state.save_job(job_of(20, f"{n}" * 16, size=12_000))
        assert log.stat().st_size < 2 * MAX_WAL_PAGES * 4120
        state.settle()
        assert log.stat().st_size == 0


def test_a_journal_empties_the_log_once_nothing_is_stored(tmp_path: Path) -> None:
    job, log = job_of(3), tmp_path / "jobs.db-wal"
    with closing(State(tmp_path / "jobs.db")) as state:
        state.load(ALICE)
        state.save_job(job)
        journal = Journal(state, lambda error: None)

        async def runs() -> None:
            told: list[PeerEffect] = []
            for effect in all_done(job):
                journal.put(effect, told.append, lambda: None)
            while len(told) < 7 or log.stat().st_size:  # noqa: ASYNC110 - a thread of its own
                await trio.sleep(0.02)

        assert log.stat().st_size
        run(runs)
        journal.close()

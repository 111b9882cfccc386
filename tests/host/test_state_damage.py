"""A file that is damaged, older, newer or cut short: a clear error, or what was written."""

import random
import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from formation_p2p.core.errors import StateError
from formation_p2p.jobs.core.job import Job
from formation_p2p.jobs.core.job_events import JobEvent
from formation_p2p.records.core.codec import encode
from formation_p2p.state.job_tables import JOBS
from formation_p2p.state.sqlite import Schema
from formation_p2p.state.state import State, peek
from tests.support.state_world import ALICE, all_done, hold, job_of, placed, reported, succeeded

Story = tuple[Job, tuple[JobEvent, ...]] | None


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "jobs.db"


def filled(path: Path) -> dict[str, Story]:
    """A state with small and large things in it; and what it says."""
    state = State(path)
    state.load(ALICE)
    ended, waiting = job_of(60, shared=b"s" * 9_000), job_of(20, "b" * 16, size=12_000)
    for job in (ended, waiting):
        state.save_job(job)
    state.write(all_done(ended))
    state.write(
        [hold(), *reported(waiting, placed(waiting, 0), placed(waiting, 1), succeeded(waiting, 0))]
    )
    stories = all_that_it_says(state)
    state.close()
    return stories


def all_that_it_says(state: State) -> dict[str, Story]:
    state.load(ALICE)
    return {each.job_id: state.story(each.job_id) for each in state.summaries()}


def said_or_refused(path: Path, schema: Schema = JOBS) -> dict[str, Story] | None:
    """What it says; None where it says that it is damaged, and is left as it was."""
    before = path.read_bytes()
    refusal = ""
    try:
        state = State(path, schema=schema)
    except StateError as error:
        refusal = str(error)
        unchanged = path.read_bytes() == before
    else:
        unchanged = True
        with closing(state):
            try:
                return all_that_it_says(state)
            except StateError as error:
                refusal = str(error)
    assert str(path) in refusal
    assert "\n" not in refusal
    assert unchanged, "it was changed, though it was refused"
    return None


def test_whichever_page_is_overwritten_nothing_false_is_said(path: Path) -> None:
    stories = filled(path)
    rng = random.Random(1)
    whole = path.read_bytes()
    refused = 0
    pages = len(whole) // 4096
    for page in range(pages):
        damaged = bytearray(whole)
        damaged[page * 4096 : (page + 1) * 4096] = rng.randbytes(4096)
        path.write_bytes(damaged)
        said = said_or_refused(path)
        assert said in (None, stories), f"page {page} of {pages}"
        refused += said is None
    assert refused > pages * 0.9  # a page that nothing is in may be anything
    path.write_bytes(whole)
    assert said_or_refused(path) == stories


def test_cut_short_anywhere_it_is_refused(path: Path) -> None:
    filled(path)
    whole = path.read_bytes()
    for length in (0, 1, 50, 100, 4095, 4096, len(whole) // 2, len(whole) - 4096, len(whole) - 1):
        path.write_bytes(whole[:length])
        assert said_or_refused(path) is None, f"{length} of {len(whole)} bytes"


def test_what_never_was_a_state_is_refused_and_stays(path: Path) -> None:
    rng = random.Random(2)
    for content in (rng.randbytes(100_000), bytes(8192), b"SQLite format 3\x00" + bytes(9000)):
        path.write_bytes(content)
        path.chmod(0o600)
        assert said_or_refused(path) is None
        with pytest.raises(StateError):
            peek(path)
        assert path.read_bytes() == content


def test_the_error_says_what_to_do(path: Path) -> None:
    filled(path)
    path.write_bytes(path.read_bytes()[:10_000])
    with pytest.raises(StateError, match=r"jobs\.db.*damaged.*move it away.*\.recover"):
        State(path)


def test_another_programs_database_is_refused(path: Path) -> None:
    with closing(sqlite3.connect(path)) as db:
        db.execute("CREATE TABLE photos (name TEXT)")
        db.commit()
    path.chmod(0o600)
    with pytest.raises(StateError, match="is not a formation file of jobs"):
        State(path)


def test_damage_that_is_met_only_later_is_an_error_too(path: Path) -> None:
    """As when the disk fails while the state is open."""
    filled(path)
    state = State(path)
    whole = path.read_bytes()
    path.write_bytes(whole[:4096] + bytes(len(whole) - 4096))
    with pytest.raises(StateError, match="damaged"):
        list(state.history("b" * 16))
    state.close()


@pytest.mark.parametrize(
    "damage",
    [
        ("UPDATE jobs SET options = ?", encode([["policy", "no such policy"]])),
        ("UPDATE jobs SET options = ?", encode([["colour", "red"]])),
        ("UPDATE jobs SET options = ?", encode({"policy": "xor"})),
        ("UPDATE tasks SET kind = ?", b"\x00"),
    ],
)
def test_a_job_that_could_not_be_taken_up_is_an_error_while_it_is_read(
    path: Path, damage: tuple[str, bytes]
) -> None:
    """And not when the peer is to go on with all jobs at once."""
    filled(path)
    with closing(sqlite3.connect(path)) as db, db:
        db.execute(damage[0], damage[1:])
    with closing(State(path)) as state, pytest.raises(StateError, match="is damaged"):
        state.load(ALICE)


def test_a_check_that_takes_too_long_is_left_off(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    stories = filled(path)
    caplog.set_level("INFO")
    hasty = replace(JOBS, check_s=-1.0, check_opcodes_between_looks=10)
    assert said_or_refused(path, hasty) == stories
    assert "without having been checked whole" in caplog.text


# -- versions --------------------------------------------------------------------------------------


def version_of(path: Path) -> int:
    with closing(sqlite3.connect(path)) as db:
        return int(db.execute("PRAGMA user_version").fetchone()[0])


def test_a_step_that_fails_leaves_the_version_before_it(path: Path) -> None:
    first = ("ALTER TABLE jobs ADD COLUMN colour TEXT",)
    second = ("ALTER TABLE jobs ADD COLUMN shape TEXT", "ALTER TABLE nowhere ADD COLUMN shape TEXT")
    filled(path)
    known = JOBS.migrations
    with pytest.raises(StateError, match="no such table"):
        State(path, schema=replace(JOBS, migrations=(*known, first, second)))
    assert version_of(path) == len(known) + 1
    state = State(path, schema=replace(JOBS, migrations=(*known, first)))
    assert len(state.load(ALICE)[0]) == 1
    state.close()


def test_a_newer_state_than_ours_is_refused_and_left_as_it_is(path: Path) -> None:
    filled(path)
    with closing(sqlite3.connect(path)) as db:
        db.execute("PRAGMA user_version = 99")
    with pytest.raises(StateError, match="version 99, and this release knows"):
        State(path)
    assert version_of(path) == 99


@pytest.mark.parametrize("content", [b"garbage", bytes.fromhex("d9d505f920a163d7") + bytes(5000)])
def test_a_journal_of_another_program_is_named(path: Path, content: bytes) -> None:
    stories = filled(path)
    journal = path.with_name("jobs.db-journal")
    journal.write_bytes(content)
    for opens in (State, peek):
        with pytest.raises(
            StateError, match=r"jobs\.db-journal lies beside jobs\.db.*move it away"
        ):
            opens(path)
    journal.unlink()
    with closing(State(path)) as state:
        assert all_that_it_says(state) == stories


def test_what_was_altered_is_named_and_not_our_class(path: Path) -> None:
    filled(path)
    with closing(sqlite3.connect(path)) as db:
        db.execute("UPDATE jobs SET name = 'another' WHERE number = 1")
        db.commit()
    with closing(State(path)) as state, pytest.raises(StateError) as raised:
        all_that_it_says(state)
    assert f"({job_of(1).job_id}" in str(raised.value).replace("(job ", "(")
    assert "Altered" not in str(raised.value)

"""What bob has learnt of others, on disk: found again, whatever happened in between."""

import asyncio
import os
import random
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
import trio

from formation_p2p.core.effects import Moment
from formation_p2p.core.errors import StateError
from formation_p2p.core.identity import PeerId
from formation_p2p.machine.clock import moment
from formation_p2p.state.trust import TrustFile, Verdict, leave_note, peek
from formation_p2p.trust.core.attestation import Opinion, seal_attestation
from formation_p2p.trust.core.experience import Experience
from formation_p2p.trust.core.reputation import Reputation, Standing
from tests.support.stories import identity
from tests.support.waiting import until

ALICE, BOB, CAROL = (identity(name) for name in ("alice", "bob", "carol"))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "trust-0.db"


def opened(path: Path, *, every_s: float = 1.0) -> TrustFile:
    return TrustFile(path, BOB.peer_id, every_s=every_s)


def live(reputation: Reputation, count: int = 40) -> None:
    """Alice works well, and warns of carol."""
    now = moment()
    for _ in range(count):
        reputation.note(ALICE.peer_id, Experience.SUCCESS, now)
    said = {CAROL.peer_id: Opinion(0, 20_000)}
    reputation.heard([seal_attestation(ALICE, said, int(now.unix_s * 1000))], now)


def filled(path: Path) -> dict[PeerId, Standing]:
    with closing(opened(path)) as file:
        live(file.reputation)
        return standings(file.reputation)


def standings(reputation: Reputation) -> dict[PeerId, Standing]:
    return {each.peer_id: each for each in reputation.standings(moment())}


async def kept(file: TrustFile, condition: Callable[[], bool]) -> None:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(file.keep)
        await until(condition)
        nursery.cancel_scope.cancel()


# -- from one incarnation to the next ---------------------------------------------------------


def test_what_was_learnt_and_heard_is_there_in_the_next_life(path: Path) -> None:
    known = filled(path)
    assert known[ALICE.peer_id].successes == 40
    assert known[CAROL.peer_id].score_milli < 500
    assert standings(peek(path, BOB.peer_id)) == known
    with closing(opened(path)) as file:
        assert standings(file.reputation) == known
        file.reputation.forget(ALICE.peer_id)
    assert standings(peek(path, BOB.peer_id)) == {}


def test_a_clock_that_is_wrong_for_a_while_does_no_harm_over_the_next_life_either(
    path: Path,
) -> None:
    known, now = filled(path), moment()
    with closing(opened(path)) as file:
        ten_years_on = Moment(now.mono_s, now.unix_s + 10 * 365 * 86_400)
        file.reputation.note(ALICE.peer_id, Experience.ERROR, ten_years_on)
    with closing(opened(path)) as file:
        file.reputation.note(ALICE.peer_id, Experience.SUCCESS, now)
        (alice,) = (x for x in file.reputation.standings(now) if x.peer_id == ALICE.peer_id)
    assert (alice.successes, alice.errors) == (41, 1)
    assert round(alice.good_milli / 1000) == 41
    assert alice.score_milli >= known[ALICE.peer_id].score_milli - 20


def test_a_node_that_is_killed_loses_no_more_than_the_last_second(path: Path) -> None:
    program = (
        "import sys, pathlib, trio\n"
        "from formation_p2p.state.trust import TrustFile, peek\n"
        "from tests.host.test_storage_trust import ALICE, BOB, CAROL, live, standings\n"
        "path = pathlib.Path(sys.argv[1])\n"
        "async def main():\n"
        "    file = TrustFile(path, BOB.peer_id)\n"
        "    async with trio.open_nursery() as nursery:\n"
        "        nursery.start_soon(file.keep)\n"
        "        live(file.reputation)\n"
        "        both = {ALICE.peer_id, CAROL.peer_id}\n"
        "        while both - standings(peek(path, BOB.peer_id)).keys():\n"
        "            await trio.sleep(0.01)\n"
        "        live(file.reputation, 1)\n"
        "        print('lived', flush=True)\n"
        "trio.run(main)\n"
    )
    argv = [sys.executable, "-c", program, str(path)]
    root = str(Path(__file__).parents[2])
    with subprocess.Popen(
        argv, stdout=subprocess.PIPE, cwd=root, env={**os.environ, "PYTHONPATH": root}
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"lived\n"
        process.send_signal(signal.SIGKILL)
    with closing(opened(path)) as file:
        assert standings(file.reputation)[ALICE.peer_id].successes in (40, 41)
        assert CAROL.peer_id in standings(file.reputation)


async def test_a_running_node_stores_what_changes_and_that_alone(path: Path) -> None:
    with closing(opened(path, every_s=0.01)) as file:
        live(file.reputation)

        def stored() -> bool:
            return ALICE.peer_id in standings(peek(path, BOB.peer_id))

        await on_trio(file, stored)
        before = path.with_name(path.name + "-wal").stat().st_size
        rounds = iter(range(20))
        await on_trio(file, lambda: next(rounds, None) is None)
        assert path.with_name(path.name + "-wal").stat().st_size == before


async def on_trio(file: TrustFile, condition: Callable[[], bool]) -> None:
    """These tests run on asyncio, and a node on trio."""
    await asyncio.to_thread(lambda: trio.run(kept, file, condition))


# -- what people say --------------------------------------------------------------------------


async def test_a_running_node_takes_up_what_is_said_of_a_peer_once(path: Path) -> None:
    with closing(opened(path, every_s=0.01)) as file:
        live(file.reputation)
        leave_note(path, ALICE.peer_id, Verdict.WRONG)

        def heard() -> bool:
            return standings(file.reputation)[ALICE.peer_id].wrong == 1

        await on_trio(file, heard)
    with closing(opened(path)) as file:
        assert standings(file.reputation)[ALICE.peer_id].wrong == 1
        leave_note(path, ALICE.peer_id, Verdict.FORGET)
        await on_trio(file, lambda: not standings(file.reputation))
    assert standings(peek(path, BOB.peer_id)) == {}
    assert notes_in(path) == 0


async def test_a_fault_over_what_is_said_of_one_peer_has_none_counted_twice(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    faults, note = [CAROL.peer_id], Reputation.note

    def faulty(
        reputation: Reputation, peer_id: PeerId, experience: Experience, now: Moment
    ) -> None:
        if peer_id in faults:
            faults.remove(peer_id)
            raise ZeroDivisionError
        note(reputation, peer_id, experience, now)

    monkeypatch.setattr(Reputation, "note", faulty)
    with closing(opened(path, every_s=0.01)) as file:
        live(file.reputation)
        leave_note(path, ALICE.peer_id, Verdict.WRONG)
        leave_note(path, CAROL.peer_id, Verdict.WRONG)
        await on_trio(file, lambda: standings(file.reputation)[CAROL.peer_id].wrong == 1)
        assert faults == []
        assert standings(file.reputation)[ALICE.peer_id].wrong == 1


def test_what_is_said_while_no_node_runs_is_seen_at_once_and_taken_up_by_the_next(
    path: Path,
) -> None:
    filled(path)
    leave_note(path, ALICE.peer_id, Verdict.WRONG)
    leave_note(path, CAROL.peer_id, Verdict.WRONG)
    for _ in range(2):
        found = standings(peek(path, BOB.peer_id))
        assert (found[ALICE.peer_id].wrong, found[CAROL.peer_id].wrong) == (1, 1)
    opened(path).close()
    assert notes_in(path) == 0
    assert standings(peek(path, BOB.peer_id))[ALICE.peer_id].wrong == 1


def test_what_is_said_is_bounded(path: Path) -> None:
    filled(path)
    for _ in range(2):
        leave_note(path, ALICE.peer_id, Verdict.WRONG, at_most=2)
    with pytest.raises(StateError, match="2 notes already; start the node"):
        leave_note(path, ALICE.peer_id, Verdict.WRONG, at_most=2)


def notes_in(path: Path) -> int:
    with closing(sqlite3.connect(path)) as db:
        (count,) = db.execute("SELECT count(*) FROM said").fetchone()
    return int(count)


# -- what can be wrong ------------------------------------------------------------------------


def test_whichever_page_is_overwritten_nothing_false_is_said(path: Path) -> None:
    known = filled(path)
    whole = path.read_bytes()
    rng = random.Random(1)
    refused: list[str] = []
    for page in range(len(whole) // 4096):
        damaged = bytearray(whole)
        damaged[page * 4096 : (page + 1) * 4096] = rng.randbytes(4096)
        path.write_bytes(damaged)
        try:
            opened(path).close()
        except StateError as error:
            refused.append(str(error))
            with pytest.raises(StateError):
                peek(path, BOB.peer_id)
        else:
            assert standings(peek(path, BOB.peer_id)) in (known, {})
    assert len(refused) > 1
    assert all(str(path) in each for each in refused)


@pytest.mark.parametrize(
    ("statement", "reported"),
    [
        ("UPDATE accounts SET good = -1", "damaged.*move it away"),
        ("UPDATE accounts SET good = 'much'", "damaged.*move it away"),
        ("UPDATE accounts SET peer_id = 'alice'", "damaged.*move it away"),
        ("INSERT INTO said VALUES (1, 'x', 'y')", "damaged.*move it away"),
        ("PRAGMA application_id = 7", "not a formation file of peer histories"),
        ("PRAGMA user_version = 9", "has version 9"),
    ],
)
def test_what_was_not_written_so_is_refused_with_what_to_do(
    path: Path, statement: str, reported: str
) -> None:
    filled(path)
    with closing(sqlite3.connect(path)) as db:
        db.execute(statement)
        db.commit()
    with pytest.raises(StateError, match=reported):
        opened(path)


def test_a_file_that_others_may_read_is_refused(path: Path) -> None:
    filled(path)
    path.chmod(0o644)
    for look in (lambda: opened(path).close(), lambda: peek(path, BOB.peer_id)):
        with pytest.raises(StateError, match="chmod 600"):
            look()
    with pytest.raises(StateError, match="chmod 600"):
        leave_note(path, ALICE.peer_id, Verdict.FORGET)


def test_one_node_at_a_time_uses_it(path: Path) -> None:
    with closing(opened(path)), pytest.raises(StateError, match="in use by another process"):
        opened(path)


def test_a_word_that_does_not_hold_any_more_is_dropped(path: Path) -> None:
    with closing(opened(path)) as file:
        live(file.reputation)
    with closing(sqlite3.connect(path)) as db:
        db.execute("UPDATE attestations SET attestation = x'00'")
        db.commit()
    with closing(opened(path)) as file:
        assert standings(file.reputation).keys() == {ALICE.peer_id}
    with closing(sqlite3.connect(path)) as db:
        assert db.execute("SELECT count(*) FROM attestations").fetchone() == (0,)


async def test_what_cannot_be_stored_now_is_stored_later(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with closing(opened(path, every_s=0.01)) as file:
        live(file.reputation)
        file.database.connection.execute("PRAGMA query_only = ON")
        await on_trio(file, lambda: "tried again" in caplog.text)
        assert standings(peek(path, BOB.peer_id)) == {}
        file.database.connection.execute("PRAGMA query_only = OFF")
        await on_trio(file, lambda: ALICE.peer_id in standings(peek(path, BOB.peer_id)))
    assert caplog.text.count("tried again") == 1

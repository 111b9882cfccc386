"""What a node gathers is written a second behind, again and again until the disk takes it."""

import logging
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest
import trio

from formation_p2p.state.sqlite import Schema, WriteBehind
from tests.support.waiting import until


class Notebook(WriteBehind):
    """What bob sees is gathered into a page, and the page written while `fault` is None."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, Schema("what bob saw", 1, ()), every_s=0.001)
        self.seen: list[str] = []
        self.page: list[str] = []
        self.written: list[str] = []
        self.tries = 0
        self.fault: Exception | None = None

    def gather(self) -> None:
        self.page += self.seen
        self.seen = []

    def write(self) -> None:
        self.tries += 1
        if self.fault is not None:
            raise self.fault
        self.written += self.page
        self.page = []

    def run(self, condition: Callable[[], bool]) -> None:
        async def main() -> None:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self.keep)
                await until(condition, 10)
                nursery.cancel_scope.cancel()

        trio.run(main)


@pytest.fixture
def notebook(tmp_path: Path) -> Notebook:
    return Notebook(tmp_path / "notes.db")


FULL = sqlite3.OperationalError("database or disk is full")


def test_what_is_seen_is_written_while_the_node_runs(notebook: Notebook) -> None:
    notebook.seen.append("alice")
    notebook.run(lambda: notebook.written == ["alice"])


def test_what_a_disk_refuses_is_written_once_it_takes_it(
    notebook: Notebook, caplog: pytest.LogCaptureFixture
) -> None:
    notebook.fault = FULL
    notebook.seen.append("alice")
    notebook.run(lambda: notebook.tries > 3)
    notebook.fault = None
    notebook.seen.append("carol")
    notebook.run(lambda: notebook.written == ["alice", "carol"])
    assert "what bob saw" not in caplog.text


def test_a_disk_that_fails_is_logged_once_until_it_has_worked(
    notebook: Notebook, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.ERROR):
        for fault in (FULL, None, FULL):
            notebook.fault = fault
            assert [notebook.store() for _ in range(3)] == [fault is None] * 3
    logged = [record.getMessage().partition(":")[0] for record in caplog.records]
    assert logged == [str(notebook.database.path)] * 2


def test_a_fault_of_ours_does_not_end_the_node(
    notebook: Notebook, caplog: pytest.LogCaptureFixture
) -> None:
    notebook.fault = ZeroDivisionError()
    notebook.seen.append("alice")
    notebook.run(lambda: notebook.tries > 3)
    assert "what bob saw cannot be stored; please report this" in caplog.text
    notebook.fault = None
    assert notebook.store()
    assert notebook.written == ["alice"]

"""What calls print comes out in whole lines, harmless, each after the worker that it is from."""

import io
import logging
import sys

import pytest

from formation_p2p.api.output import MAX_LINE_BYTES, OutputPrinter, is_interactive
from formation_p2p.core.identity import Identity, short_id
from formation_p2p.jobs.core.job_events import (
    Attempt,
    TaskCancelled,
    TaskPlaced,
    TaskPrinted,
    TaskRetried,
    TaskSucceeded,
)

ALICE, CAROL = (Identity.from_seed(bytes([n]) * 32).peer_id for n in (1, 2))
A, C = f"{short_id(ALICE)} | ", f"{short_id(CAROL)} | "


def printed(data: bytes, *, task: str = "j/0", worker: str = ALICE, err: bool = False) -> object:
    return TaskPrinted(task, err, data, worker)  # type: ignore[arg-type]


def shown(*events: object) -> None:
    printer = OutputPrinter()
    for event in events:
        printer.observe(event)  # type: ignore[arg-type]
        printer.flush()


def test_lines_are_whole_whichever_pieces_they_come_in(capsys: pytest.CaptureFixture[str]) -> None:
    shown(
        printed(b"one\ntw"),
        printed(b"carol's\n", task="j/1", worker=CAROL),
        printed(b"o\n\nf\xc3"),
        printed(b"oops\n", err=True),
        printed(b"\xa4r"),
        TaskPlaced("j/1", "j/1#2", ALICE, "lease", True),
        TaskSucceeded("j/0", ALICE, b"", 1),
    )
    out, err = capsys.readouterr()
    assert out == f"{A}one\n{C}carol's\n{A}two\n{A}\n{A}f\u00e4r\n"
    assert err == f"{A}oops\n"


def test_an_attempt_that_is_lost_ends_its_line_and_not_that_of_another(
    capsys: pytest.CaptureFixture[str],
) -> None:
    shown(
        printed(b"first"),
        printed(b"sec", worker=CAROL),
        TaskRetried("j/0", Attempt("j/0#1", ALICE, "it is gone", lost=True)),
        printed(b"ond", worker=CAROL),
        TaskCancelled("j/0"),
        TaskCancelled("j/1"),
    )
    assert capsys.readouterr().out == f"{A}first\n{C}second\n"


def test_a_worker_writes_lines_to_the_terminal_and_nothing_else(
    capsys: pytest.CaptureFixture[str],
) -> None:
    red, title, rewritten = b"\x1b[31mred\x1b[0m", b"\x1b]0;owned\x07", b" 10 %\r 90 %\r100 %\r"
    shown(printed(red + b"\n" + title + b"\n" + rewritten + b"\na\tb\x9b\xff\n"))
    assert capsys.readouterr().out == (
        f"{A}red\n{A}\ufffd]0;owned\ufffd\n{A}100 %\n{A}a\tb\ufffd\ufffd\n"
    )


def test_what_has_no_end_is_shown_when_it_is_long(capsys: pytest.CaptureFixture[str]) -> None:
    shown(printed(b"x" * (MAX_LINE_BYTES - 1)), printed(b"xx"), printed(b"y\n"))
    assert capsys.readouterr().out == f"{A}{'x' * (MAX_LINE_BYTES + 1)}\n{A}y\n"


def test_a_terminal_that_has_no_such_letter_gets_its_number(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    raw = io.BytesIO()
    with monkeypatch.context() as patched:
        patched.setattr(sys, "stdout", io.TextIOWrapper(raw, encoding="latin-1"))
        shown(printed("ä ł\n".encode()))
        assert raw.getvalue().endswith(b" | \xe4 \\u0142\n")


def test_output_that_cannot_be_written_ends_nothing_else(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    closed = io.StringIO()
    closed.close()
    with monkeypatch.context() as patched, caplog.at_level(logging.WARNING):
        patched.setattr(sys, "stdout", closed)
        shown(printed(b"a\n"), printed(b"b\n"))
        patched.setattr(sys, "stdout", None)  # a program without a terminal
        shown(printed(b"a\n"))
    assert caplog.text.count("is shown no more") == 1


def test_a_prompt_is_interactive_and_a_test_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not is_interactive()
    monkeypatch.setattr(sys, "ps1", ">>> ", raising=False)
    assert is_interactive()

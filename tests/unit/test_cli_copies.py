"""What `run` and `submit` show of the copies of a task."""

import hashlib
from dataclasses import replace

import pytest

from formation_p2p.command.outcomes import (
    EVENT_BYTES,
    MAX_ALL_HELD_BYTES,
    MAX_HELD_BYTES,
    Whole,
    passed_on,
)
from formation_p2p.core.identity import PeerId
from formation_p2p.jobs.core.job_events import (
    Attempt,
    JobEvent,
    RetryReason,
    TaskDisagreed,
    TaskGaveUp,
    TaskPrinted,
    TaskRetried,
    TaskSucceeded,
)
from formation_p2p.workload.core.process import MAX_TAIL_BYTES, ProcessResult

ALICE, CAROL = PeerId("alice"), PeerId("carol")
LONG = bytes(range(256)) * 512  # 128 KiB


def printed(worker: PeerId, data: bytes = b"x", *, is_stderr: bool = False) -> TaskPrinted:
    return TaskPrinted("a", is_stderr, data, worker)


def ended(stdout: bytes = b"", worker: PeerId = CAROL) -> TaskSucceeded:
    """With the result of an honest worker."""
    digest = hashlib.sha256(stdout).digest() if len(stdout) > MAX_TAIL_BYTES else b""
    result = ProcessResult(0, {}, stdout[-MAX_TAIL_BYTES:], stdout_sha256=digest)
    return TaskSucceeded("a", worker, result.encode(), 1)


def shown(*events: JobEvent) -> list[JobEvent]:
    passes = passed_on("2 of 3")
    return [each for event in events for each in passes(event)]


def test_of_copies_that_agree_one_is_shown() -> None:
    other = TaskSucceeded("b", ALICE, ProcessResult(0).encode(), 1)
    lines = printed(CAROL, b"x\n"), printed(ALICE, b"x\ny\n"), printed(CAROL, b"y\n")
    end = ended(b"x\ny\n")
    assert shown(*lines, other, end) == [other, printed(CAROL, b"x\ny\n"), end]
    nonsense = TaskSucceeded("a", CAROL, b"nonsense", 1)
    assert shown(printed(CAROL), nonsense) == [nonsense]
    assert passed_on(None)(printed(ALICE)) == (printed(ALICE),), "without a quorum all is shown"


def test_of_long_output_the_stream_is_shown_where_it_is_what_was_agreed_on() -> None:
    first, second, end = printed(CAROL, LONG[:70_000]), printed(CAROL, LONG[70_000:]), ended(LONG)
    assert shown(first, printed(ALICE, LONG), second, end) == [first, second, end]


@pytest.mark.parametrize(
    ("stdout", "streamed"),
    [
        (b"right\n", b"wrong\n"),
        (b"", b"wrong\n"),
        (b"right\n", b""),
        (LONG, b"wrong" + LONG[5:]),
        (LONG, LONG + b"wrong"),
        (LONG, LONG[:-5]),
    ],
)
def test_a_worker_that_streams_something_else_is_not_heard(stdout: bytes, streamed: bytes) -> None:
    lie = printed(CAROL, streamed)
    end = ended(stdout)
    agreed = [printed(CAROL, stdout[-MAX_TAIL_BYTES:])] if stdout else []
    assert shown(lie, printed(CAROL, b"wrong", is_stderr=True), end) == [*agreed, end]


def test_what_failed_or_was_not_agreed_on_is_not_shown() -> None:
    failed = TaskRetried("a", Attempt("a#1", CAROL, "exit", lost=False))
    again, end = printed(CAROL, LONG), ended(LONG)
    assert shown(printed(CAROL), failed, again, end) == [failed, again, end]
    for torn in (TaskDisagreed("a", ()), TaskGaveUp("a", (), None, b"")):
        assert shown(printed(CAROL, LONG), torn, ended()) == [torn, ended()]


def test_no_more_is_held_than_may_be(capsys: pytest.CaptureFixture[str]) -> None:
    large = printed(CAROL, bytes(MAX_HELD_BYTES - EVENT_BYTES))
    end = ended(large.data + b"x")
    assert shown(large, printed(CAROL), end) == [printed(CAROL, end_of(end)), end]
    assert "the last 64KiB" in capsys.readouterr().err


def test_of_all_copies_no_more_is_held_than_may_be(capsys: pytest.CaptureFixture[str]) -> None:
    """However many tasks a worker that lies has begun; what has ended makes room."""
    passes = passed_on("2 of 3")
    most, piece = MAX_ALL_HELD_BYTES // MAX_HELD_BYTES, bytes(MAX_HELD_BYTES - EVENT_BYTES)
    for number in range(most):
        assert passes(TaskPrinted(str(number), False, piece, ALICE)) == ()
    end = ended(LONG)
    passes(printed(CAROL, LONG))
    assert list(passes(end)) == [printed(CAROL, end_of(end)), end]
    assert "the last 64KiB" in capsys.readouterr().err
    passes(TaskGaveUp("0", (), None, b""))
    passes(TaskRetried("1", Attempt("1#1", ALICE, "exit", lost=False)))
    passes(printed(CAROL, LONG))
    assert list(passes(end)) == [printed(CAROL, LONG), end]


def end_of(event: TaskSucceeded) -> bytes:
    return ProcessResult.decode(event.result).stdout_tail


LOST = TaskRetried("a", Attempt("a#1", ALICE, "it is gone", lost=True))
MOVED = replace(LOST, reason=RetryReason.MOVED)
CUT, BEGUN = "is not whole", "begins with that of an attempt"


@pytest.mark.parametrize(
    ("already", "events", "said"),
    [
        (b"", (printed(CAROL, b"x\n"), printed(CAROL, b"oops", is_stderr=True)), None),
        (b"x", (printed(CAROL, b"\n"),), None),
        (b"x\n", (), None),
        (b"", (), CUT),
        (b"x", (printed(CAROL, b"x\n"),), CUT),
        (b"", (printed(CAROL, b"x"), LOST, printed(CAROL, b"\n")), None),
        (b"", (printed(ALICE, b"x"), printed(CAROL, b"x\n")), BEGUN),
        (b"", (printed(ALICE, b"x"), LOST, printed(CAROL, b"x\n")), BEGUN),
        (b"", (LOST, printed(CAROL, b"x\n")), None),
        (b"", (printed(ALICE, b"w\n"), MOVED, printed(CAROL, b"x\n")), None),
    ],
)
def test_what_is_missing_of_the_output_is_noticed(
    already: bytes, events: tuple[JobEvent, ...], said: str | None
) -> None:
    whole = Whole(already)
    assert [whole.lacks(each) for each in events] == [None] * len(events)
    assert (said or "None") in str(whole.lacks(ended(b"x\n")))


def test_output_that_is_not_kept_does_not_count_and_long_output_goes_by_its_digest() -> None:
    whole = Whole()
    for event in (printed(ALICE, b"x"), LOST):
        whole.lacks(event)
    whole.forget("a")
    whole.lacks(printed(CAROL, b"x\n"))
    assert whole.lacks(ended(b"x\n")) is None
    for last, said in ((LONG[5:], None), (LONG[6:], CUT)):
        whole = Whole()
        assert [whole.lacks(printed(CAROL, piece)) for piece in (LONG[:5], last)] == [None, None]
        assert (said or "None") in str(whole.lacks(ended(LONG)))

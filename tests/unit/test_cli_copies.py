"""What `run` and `submit` show of the copies of a task."""

from __future__ import annotations

from formation_p2p.cli.copies import EVENT_BYTES, MAX_HELD_BYTES, passed_on
from formation_p2p.core.dispatch.job_events import (
    Attempt,
    JobEvent,
    TaskDisagreed,
    TaskPrinted,
    TaskRetried,
    TaskSucceeded,
)
from formation_p2p.core.identity import PeerId

ALICE, CAROL = PeerId("alice"), PeerId("carol")


def printed(worker: PeerId, data: bytes = b"x", task: str = "a") -> TaskPrinted:
    return TaskPrinted(task, False, data, worker)


def shown(*events: JobEvent) -> list[JobEvent]:
    passes = passed_on("2 of 3")
    return [each for event in events for each in passes(event)]


def test_of_copies_that_agree_one_is_shown() -> None:
    ended = TaskSucceeded("a", CAROL, b"", 1)
    other = TaskSucceeded("b", ALICE, b"", 1)
    mine, late = printed(CAROL), printed(CAROL, b"y")
    assert shown(printed(ALICE), mine, late, other, ended) == [other, mine, late, ended]


def test_what_failed_or_was_not_agreed_on_is_not_shown() -> None:
    failed = TaskRetried("a", Attempt("a#1", CAROL, "exit", lost=False))
    again, ended = printed(CAROL, b"again"), TaskSucceeded("a", CAROL, b"", 1)
    assert shown(printed(CAROL), failed, again, ended) == [failed, again, ended]
    torn = TaskDisagreed("a", ())
    assert shown(printed(CAROL), torn, ended) == [torn, ended]


def test_no_more_is_held_than_may_be() -> None:
    large, ended = (
        printed(ALICE, bytes(MAX_HELD_BYTES - EVENT_BYTES)),
        TaskSucceeded("a", ALICE, b"", 1),
    )
    assert shown(large, printed(ALICE), ended) == [large, ended]


def test_without_a_quorum_all_is_shown_at_once() -> None:
    assert passed_on(None)(printed(ALICE)) == (printed(ALICE),)

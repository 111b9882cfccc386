"""What goes wrong in this package itself."""

import pytest

from formation_p2p.core.errors import (
    InvariantBroken,
    NotPlain,
    RemoteTraceback,
    TaskFailed,
    TaskRaised,
    ensure,
    lacks,
)


def test_what_does_not_hold_is_said() -> None:
    ensure(True, "two and two are five")
    with pytest.raises(InvariantBroken, match="two and two are five"):
        ensure(False, "two and two are five")


def test_what_is_refused_can_be_read_by_those_who_trust_it() -> None:
    refusal = NotPlain("a result holds a socket")
    with pytest.raises(NotPlain, match="a socket"):
        refusal.load_trusted()  # nothing was kept
    refusal.keep(b"its pickle", (b"a buffer",), lambda: "its value")
    assert (refusal.result_bytes, refusal.buffers) == (b"its pickle", (b"a buffer",))
    assert refusal.load_trusted() == "its value"


def test_a_call_that_raised_what_is_refused_keeps_that() -> None:
    refusal = NotPlain("an exception holds a socket")
    refusal.keep(b"its pickle", (), lambda: ValueError("of old"))
    error = TaskRaised("ValueError: of old", refusal)
    assert isinstance(error, TaskFailed)
    assert error.__cause__ is refusal
    assert error.result_bytes == b"its pickle"
    assert str(error.load_trusted()) == "of old"


def test_the_traceback_of_a_worker_says_where_it_is_from() -> None:
    traceback = RemoteTraceback("Traceback: line 3\n", "job/0", "peer", 2)
    assert str(traceback) == '\n"""\nTraceback: line 3\n"""\ntask job/0, on peer'
    assert (traceback.task_id, traceback.worker, traceback.attempts) == ("job/0", "peer", 2)


def test_what_lacks_packages_names_the_command_that_installs_them() -> None:
    said = "a gateway needs h11; install it with: pip install 'formation_p2p[gateway]'"
    assert str(lacks("a gateway", "h11", "gateway")) == said

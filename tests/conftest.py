"""What all tests have in common."""

import gc
import logging
import signal
import sys
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from hypothesis import settings

from tests.support import evidence

# How long one example takes says more about what else the machine does. Draws are the same in each
# run, so that no change fails by what another one left. `--hypothesis-profile=long` draws many
# more, and others each time.
settings.register_profile("formation", deadline=None, max_examples=40, derandomize=True)
settings.register_profile("long", deadline=None, max_examples=2000)
settings.load_profile("formation")

evidence.watch_deadlines()

# A shell's `&` and nohup have these ignored, also by the programs that tests send them to.
for number in (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP):
    if signal.getsignal(number) == signal.SIG_IGN:
        default = signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL
        signal.signal(number, default)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """xdist's processes collect the same tests in the same order; sets have another one in each."""
    for mark in metafunc.definition.iter_markers("parametrize"):
        assert not isinstance(mark.args[1], set | frozenset), "sort it"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: item.get_closest_marker("waits") is None)


class Coverage:
    """What it has installed in this process once all is imported: tests, and what they set up, are
    run under that. Pytest and its plugins take longer under it, and are not what is measured."""

    tracer: Any = None


def pytest_collection_finish() -> None:
    """All that was imported and collected stays: the garbage collector need not look through it
    each time."""
    Coverage.tracer = sys.gettrace()
    sys.settrace(None)
    gc.collect()
    gc.freeze()


@contextmanager
def traced(is_measured: bool = True) -> Iterator[None]:
    """A part of a test, under its limit of time."""
    sys.settrace(Coverage.tracer if is_measured else None)
    try:
        with evidence.limited():
            yield
    finally:
        sys.settrace(None)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    """Without coverage where a test is `at_length`, or drawn by hypothesis: which branches that
    reaches changes from run to run. The mark `no_cover` of pytest-cov stops one collector, and
    lets xdist's workers go on with another. The log is as it was after each."""
    root, own = logging.getLogger(), logging.getLogger("formation_p2p")
    handlers, levels = list(root.handlers), (root.level, own.level)
    try:
        with traced(not any(map(item.get_closest_marker, ("at_length", "hypothesis")))):
            return (yield)
    finally:
        # Commands that a test runs in its own process set up the process's log.
        root.handlers[:] = handlers
        root.setLevel(levels[0])
        own.setLevel(levels[1])


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup() -> Generator[None, object, object]:
    evidence.told()
    with traced():
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown() -> Generator[None, object, object]:
    with traced():
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    gathered = evidence.told()
    if report.failed:
        report.sections += [("what was waited for", each) for each in gathered]
    return report

"""The tool that asks whether tests notice mutants, on a library of three functions."""

import re
from pathlib import Path

import pytest

from tools.mutants.__main__ import Group, run, summary
from tools.mutants.points import points

LIBRARY = '''"""Prices."""
import logging
from functools import lru_cache

log = logging.getLogger("small")
MOST = 10


@lru_cache(maxsize=64)
def price(pieces: int, each: int = 2) -> int:
    """What they cost."""
    log.info("asked for %d", pieces)
    if pieces > MOST:
        raise ValueError("that many are not there")
    return pieces * each


def untested(pieces: int) -> bool:
    return pieces == 1
'''
TESTS = """import pytest
from small.prices import price


def test_prices() -> None:
    assert price(3) == 6


def test_that_fails() -> None:
    assert price(3) == 7


def test_many() -> None:
    assert price(10) == 20
    with pytest.raises(ValueError):
        price(12)
"""


def test_points_are_what_has_an_effect() -> None:
    source = LIBRARY.encode()
    found = [
        (point.line, source[point.start : point.end].decode(), point.new)
        for point in points("small/prices.py", source)
    ]
    assert found == [
        (6, "10", "11"),
        (10, "2", "3"),
        (13, "pieces > MOST", "(pieces >= MOST)"),
        (13, "pieces > MOST", "(True)"),
        (13, "pieces > MOST", "(False)"),
        (14, 'raise ValueError("that many are not there")', "pass"),
        (15, "return pieces * each", "return None"),
        (15, "pieces * each", "(pieces // each)"),
        (19, "return pieces == 1", "return None"),
        (19, "pieces == 1", "(pieces != 1)"),
        (19, "1", "2"),
    ]


def test_what_ends_processes_is_left_alone() -> None:
    assert not list(points("small/ends.py", b"import os\nos.kill(pid + 1, 9)\n"))


@pytest.mark.at_length
def test_a_mutant_is_noticed_by_tests_that_execute_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, text in (("small/__init__", ""), ("small/prices", LIBRARY), ("tests/test_p", TESTS)):
        file = tmp_path / f"{name}.py"
        file.parent.mkdir(exist_ok=True)
        file.write_text(text)
    results = run(
        tmp_path, [Group("all", re.compile("small/"), ("tests",), 1.0)], sample=11, seed=1
    )
    survivors = {each.point.line: each.outcome for each in results if not each.noticed}
    # No test asks for 11 pieces. What no test executes is not noticed.
    assert survivors == {6: "passed", 19: "no tests"}
    assert "tests/test_p.py::test_many" in {each.by for each in results}
    assert "tests/test_p.py::test_that_fails" not in {each.by for each in results}
    assert next(summary(results)).endswith("7 of   11 noticed, 63.6%")
    told = capsys.readouterr().out
    assert "tests/test_p.py::test_that_fails does not pass without a mutant" in told
    assert "small/prices.py:6: constant survives\n-MOST = 10\n+MOST = 11" in told

"""Which tests execute which lines, and so which ones belong to a mutant.

Each test file is run once with coverage, in a process of its own, and its record kept in `.mutants`
until the file, the library or the helpers of the tests change.
"""

from __future__ import annotations

import hashlib
import json
import re
import sqlite3
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from pathlib import Path
from typing import Final

from coverage.numbits import numbits_to_nums

from tools.mutants.points import Point

# What the tests of one mutant may take, by their records: those of the test files that are nearest
# to its file, and those of others, of each for so long at most.
NEAR_FILES: Final = 6
NEAR_S: Final = 20.0
OTHERS_S: Final = 10.0
OTHER_S: Final = 1.0
# What a test file takes to import, about.
FILE_S: Final = 0.3


@dataclass(slots=True)
class _File:
    """What is recorded of a test file: its tests with the seconds that each takes, and the files of
    the library by the share that they have in the lines it executes."""

    tests: dict[str, float] = field(default_factory=dict)
    shares: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Choice:
    """The tests of one mutant, the first to run first, and what they take without it."""

    tests: tuple[str, ...]
    files: tuple[str, ...]
    takes_s: float


class Records:
    """The records of test files, in a folder."""

    def __init__(self, folder: Path, root: Path, library: Iterable[Path]) -> None:
        self._folder = folder
        self._root = root
        shared = hashlib.sha256()
        for path in sorted({*library, *root.glob("tests/support/**/*.py")}):
            shared.update(path.relative_to(root).as_posix().encode() + path.read_bytes())
        self._shared = shared.digest()
        self._paths: dict[str, Path] = {}
        folder.mkdir(exist_ok=True)

    def path(self, test_file: str) -> Path:
        """Of the file as it is when it is asked for first: it may be edited meanwhile."""
        if test_file not in self._paths:
            key = hashlib.sha256(self._shared + (self._root / test_file).read_bytes())
            name = f"{test_file.replace('/', '-')}-{key.hexdigest()[:16]}"
            self._paths[test_file] = self._folder / name
        return self._paths[test_file]

    def missing(self, test_files: Iterable[str]) -> list[str]:
        """Those without a record, the largest first: they take the longest."""
        found = [each for each in test_files if not self._times(each).exists()]
        return sorted(found, key=lambda each: -(self._root / each).stat().st_size)

    def remove_old(self, test_files: Iterable[str]) -> None:
        kept = {path for each in test_files for path in (self.path(each), self._times(each))}
        for path in set(self._folder.iterdir()) - kept:
            path.unlink()

    def times(self, test_file: str) -> dict[str, tuple[float, bool]]:
        path = self._times(test_file)
        found: dict[str, tuple[float, bool]] = json.loads(path.read_text()) if path.exists() else {}
        return found

    def rows(self, test_file: str) -> Iterator[tuple[str, str, bytes]]:
        """Test, file of the library, and lines as coverage packs them."""
        path = self.path(test_file)
        if not path.exists():
            return
        database = sqlite3.connect(path)
        try:
            yield from database.execute(
                "select context.context, file.path, numbits from line_bits"
                " join context on context.id = context_id join file on file.id = file_id"
            )
        finally:
            database.close()

    def _times(self, test_file: str) -> Path:
        path = self.path(test_file)
        return path.with_name(f"{path.name}.json")


class Reach:
    """Which tests belong to mutants, of all that are recorded."""

    def __init__(self, records: Records, test_files: Sequence[str], package: str) -> None:
        self._records = records
        self._test_files = test_files
        self._package = package
        self._files = {each: self._read(each) for each in test_files}
        self.failing = sorted(
            test
            for each in test_files
            for test, (_, passes) in records.times(each).items()
            if not passes
        )

    def choices(self, points: Sequence[Point], sources: Mapping[str, str]) -> list[Choice]:
        """`sources` is the library's text, by file."""
        lines = [_lines(point, sources) for point in points]
        tests = self._executing(lines)
        for at, point in enumerate(points):
            # What only processes execute that tests start: by the names of what is around it.
            if not tests[at]:
                lines[at] = _mentions(_whole_names(point), sources)
        unreached = [at for at in range(len(points)) if not tests[at]]
        for at, found in zip(
            unreached, self._executing([lines[at] for at in unreached]), strict=True
        ):
            tests[at] = found
        return [self._choice(p, found) for p, found in zip(points, tests, strict=True)]

    def _read(self, test_file: str) -> _File:
        file = _File()
        file.tests = {
            test: took_s
            for test, (took_s, passes) in self._records.times(test_file).items()
            if passes
        }
        counts: dict[str, int] = defaultdict(int)
        for _, path, numbits in self._records.rows(test_file):
            counts[self._name(path)] += int.from_bytes(numbits, "little").bit_count()
        total = sum(counts.values())
        file.shares = {path: count / total for path, count in counts.items()}
        return file

    def _name(self, path: str) -> str:
        """Within its copy of the tree, the name of a file."""
        return path[path.rindex(f"/{self._package}/") + 1 :]

    def _executing(self, wanted: Sequence[Mapping[str, set[int]]]) -> list[set[str]]:
        found: list[set[str]] = [set() for _ in wanted]
        by_path: dict[str, list[tuple[int, set[int]]]] = defaultdict(list)
        for at, lines in enumerate(wanted):
            for path, numbers in lines.items():
                by_path[path].append((at, numbers))
        for test_file in self._test_files if by_path else ():
            passing = self._files[test_file].tests
            for test, path, numbits in self._records.rows(test_file):
                if test in passing and (asked := by_path.get(self._name(path))):
                    executed = set(numbits_to_nums(numbits))
                    for at, numbers in asked:
                        if not executed.isdisjoint(numbers):
                            found[at].add(test)
        return found

    def _choice(self, point: Point, tests: set[str]) -> Choice:
        """First those that execute the line, from the test files that are nearest to it; then the
        others of these files, for they may look at what an earlier one has made for all; then the
        fastest of each other file."""
        files = sorted(
            {test.partition("::")[0] for test in tests},
            key=lambda each: -self._files[each].shares.get(point.path, 0.0),
        )
        chosen: dict[str, float] = {}

        def take(among: Sequence[str], executing: bool, left_s: float) -> float:
            """The fastest first, into `chosen`; returns what is left of the time."""
            for each in among:
                for test, took_s in sorted(self._files[each].tests.items(), key=itemgetter(1)):
                    if (test in tests) is executing and took_s <= left_s:
                        chosen[test] = took_s
                        left_s -= took_s
            return left_s

        near, others = files[:NEAR_FILES], files[NEAR_FILES:]
        left_s = take(near, False, take(near, True, NEAR_S)) + OTHERS_S
        for each in others:
            first_s = min(OTHER_S, left_s - FILE_S)
            left_s -= FILE_S + first_s - take([each], True, first_s)
        within = tuple(dict.fromkeys(test.partition("::")[0] for test in chosen))
        return Choice(tuple(chosen), within, sum(chosen.values()) + FILE_S * len(within))


def _lines(point: Point, sources: Mapping[str, str]) -> dict[str, set[int]]:
    if not point.names:
        return {point.path: set(point.lines)}
    # Within a class its field, else the constant or the class itself.
    return _mentions(point.names[-1:], sources)


def _whole_names(point: Point) -> tuple[str, ...]:
    return (*point.names, Path(point.path).stem)


def _mentions(names: Sequence[str], sources: Mapping[str, str]) -> dict[str, set[int]]:
    pattern = re.compile(rf"\b(?:{'|'.join(map(re.escape, names))})\b")
    found: dict[str, set[int]] = defaultdict(set)
    for path, text in sources.items():
        if pattern.search(text):
            for number, line in enumerate(text.splitlines(), 1):
                if pattern.search(line):
                    found[path].add(number)
    return found

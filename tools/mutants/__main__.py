"""python -m tools.mutants: see tools/mutants/__init__.py."""

from __future__ import annotations

import argparse
import difflib
import json
import os
import queue
import random
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tools import working_tree
from tools.mutants.points import Point, points
from tools.mutants.reach import Choice, Reach, Records

ROOT: Final = Path(__file__).resolve().parents[2]
WORKER: Final = Path(__file__).with_name("worker.py")
# A mutant that hangs is noticed after that: many times what its tests take without it, on a busy
# machine.
LIMIT_S: Final = 30.0
LIMIT_TIMES: Final = 6
RECORD_LIMIT_S: Final = 1200.0


@dataclass(frozen=True, slots=True)
class Group:
    """Files of the library, by a pattern of their paths, the folders of the tests that belong to
    them, and which share of the mutants these are to notice."""

    name: str
    sources: re.Pattern[str]
    tests: tuple[str, ...]
    at_least: float


GROUPS: Final = (
    # What decides, in all rooms.
    Group(
        "core", re.compile(r"formation_p2p/(.+/)?core/"), ("tests/unit", "tests/simulations"), 0.92
    ),
    # What meets the world, without commands and Dask: their tests run whole programs.
    Group(
        "shell",
        re.compile(r"formation_p2p/(?!(command|(.+/)?(core|commands|dask))/).+/"),
        ("tests/unit", "tests/host", "tests/system"),
        0.80,
    ),
)


@dataclass(frozen=True, slots=True)
class Result:
    group: str
    point: Point
    outcome: str
    by: str

    @property
    def noticed(self) -> bool:
        return self.outcome not in ("passed", "no tests")


class Worker:
    """A copy of the working tree, and the process that runs jobs in it.

    Root's have a network and process ids of their own: what a mutant sends or ends is there.
    """

    def __init__(self, root: Path, scratch: Path) -> None:
        tree = scratch / "tree"
        for path in working_tree(root):
            (tree / path).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(root / path, tree / path, follow_symlinks=False)
        command = [sys.executable, str(WORKER), str(tree), str(scratch)]
        if os.geteuid() == 0 and shutil.which("unshare") and shutil.which("ip"):
            apart = [
                "unshare",
                "--net",
                "--pid",
                "--mount-proc",
                "--fork",
                "--kill-child",
                "sh",
                "-c",
            ]
            command = [*apart, 'ip link set lo up && exec "$@"', "sh", *command]
        self._process = subprocess.Popen(
            command, cwd=scratch, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def run(
        self,
        files: Sequence[str],
        limit_s: float,
        tests: Sequence[str] = (),
        record: Path | None = None,
        package: str = "",
        path: str = "",
        source: bytes = b"",
    ) -> dict[str, str]:
        job = {
            "files": files,
            "tests": tests,
            "limit_s": limit_s,
            "record": str(record) if record else "",
            "package": package,
            "path": path,
            "source": source.decode(),
        }
        assert self._process.stdin
        assert self._process.stdout
        self._process.stdin.write(json.dumps(job) + "\n")
        self._process.stdin.flush()
        answer: dict[str, str] = json.loads(self._process.stdout.readline())
        return answer

    def close(self) -> None:
        self._process.kill()
        self._process.wait()


@contextmanager
def workers(root: Path, number: int) -> Iterator[list[Worker]]:
    # Short: sockets in it have paths of a hundred characters at most.
    with tempfile.TemporaryDirectory(prefix="mut", ignore_cleanup_errors=True) as folder:
        started = []
        try:
            for each in range(number):
                scratch = Path(folder) / str(each)
                scratch.mkdir()
                started.append(Worker(root, scratch))
            yield started
        finally:
            for worker in started:
                worker.close()


def spread(crew: Sequence[Worker], jobs: Sequence[Any]) -> Iterator[tuple[Any, dict[str, str]]]:
    """Each job, as the keywords of Worker.run, with its answer once that is there."""
    waiting: queue.SimpleQueue[Any] = queue.SimpleQueue()
    answers: queue.SimpleQueue[tuple[Any, dict[str, str]]] = queue.SimpleQueue()
    for job in jobs:
        waiting.put(job)

    def serve(worker: Worker) -> None:
        while True:
            try:
                key, keywords = waiting.get_nowait()
            except queue.Empty:
                return
            answers.put((key, worker.run(**keywords)))

    for worker in crew:
        threading.Thread(target=serve, args=(worker,), daemon=True).start()
    for _ in jobs:
        yield answers.get()


def run(
    root: Path,
    groups: Sequence[Group],
    sample: int,
    seed: int,
    only: str = "",
    beside: int = 2,
) -> list[Result]:
    """A sample of the mutants of each group, by as much as it has points of all."""
    began_s = time.monotonic()
    package = groups[0].sources.pattern.partition("/")[0]
    library = sorted(root.glob(f"{package}/**/*.py"))
    sources = {path.relative_to(root).as_posix(): path.read_text() for path in library}
    found = {
        group: [
            point
            for path, text in sources.items()
            if group.sources.match(path) and not path.endswith("_pb2.py") and only in path
            for point in points(path, text.encode())
        ]
        for group in groups
    }
    total = sum(map(len, found.values()))
    results: list[Result] = []
    with workers(root, beside) as crew:
        for group, all_points in found.items():
            share = min(len(all_points), round(sample * len(all_points) / total))
            drawn = random.Random(f"{seed} {group.name}").sample(all_points, share)
            print(f"{group.name}: {share} of {len(all_points)} mutants, seed {seed}", flush=True)
            reach = _reach(root, group, library, package, crew)
            choices = reach.choices(drawn, sources)
            for number, result in enumerate(_results(crew, group, drawn, choices, sources), 1):
                results.append(result)
                if not result.noticed:
                    print(_told(result, sources[result.point.path]), flush=True)
                if number % 50 == 0:
                    print(f"  {number} of {share}", flush=True)
    print(f"in {(time.monotonic() - began_s) / 60:.1f} min")
    return results


def _reach(
    root: Path, group: Group, library: Sequence[Path], package: str, crew: Sequence[Worker]
) -> Reach:
    test_files = [
        path.relative_to(root).as_posix()
        for folder in group.tests
        for path in sorted(root.glob(f"{folder}/**/test_*.py"))
        if "cpython" not in path.parts
    ]
    records = Records(root / ".mutants", root, library)
    missing = records.missing(test_files)
    if missing:
        print(f"  {len(missing)} test files are recorded first", flush=True)
    limits = {"limit_s": RECORD_LIMIT_S, "package": package}
    jobs = [(each, {"files": [each], "record": records.path(each), **limits}) for each in missing]
    for test_file, answer in spread(crew, jobs):
        if answer["outcome"] not in ("passed", "failed"):
            print(f"  {test_file} {answer['outcome']}:\n{answer['output']}", flush=True)
    reach = Reach(records, test_files, package)
    for test in reach.failing:
        print(f"  {test} does not pass without a mutant, and is left out", flush=True)
    return reach


def _results(
    crew: Sequence[Worker],
    group: Group,
    drawn: Sequence[Point],
    choices: Sequence[Choice],
    sources: dict[str, str],
) -> Iterator[Result]:
    jobs = []
    for at, (point, choice) in enumerate(zip(drawn, choices, strict=True)):
        if not choice.tests:
            yield Result(group.name, point, "no tests", "")
            continue
        jobs.append(
            (
                at,
                {
                    "files": choice.files,
                    "tests": choice.tests,
                    "limit_s": LIMIT_S + LIMIT_TIMES * choice.takes_s,
                    "path": point.path,
                    "source": point.apply(sources[point.path].encode()),
                },
            )
        )
    for at, answer in spread(crew, jobs):
        if answer["outcome"] in ("broken", "no tests"):
            raise RuntimeError(f"{drawn[at]}: {answer['outcome']}: {answer['output']}")
        yield Result(group.name, drawn[at], answer["outcome"], answer["by"])


def _told(result: Result, source: str) -> str:
    """A survivor, as its change of the source."""
    point = result.point
    changed = point.apply(source.encode()).decode()
    lines = difflib.unified_diff(source.splitlines(), changed.splitlines(), n=0, lineterm="")
    told = [line for line in lines if not line.startswith(("---", "+++", "@@"))]
    what = "no test executes it" if result.outcome == "no tests" else "survives"
    return "\n".join((f"{point.path}:{point.line}: {point.kind} {what}", *told))


def summary(results: Sequence[Result]) -> Iterator[str]:
    for name, key in (("group", _group), ("package", _package)):
        of, noticed = Counter(map(key, results)), Counter(key(r) for r in results if r.noticed)
        for each, number in sorted(of.items()):
            share = noticed[each] / number
            yield f"{name:8} {each:32} {noticed[each]:4} of {number:4} noticed, {share:.1%}"


def _group(result: Result) -> str:
    return result.group


def _package(result: Result) -> str:
    return "/".join(result.point.path.split("/")[1:3])


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.mutants", description=__doc__)
    parser.add_argument("--sample", type=int, default=500, help="how many mutants")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--group", choices=[group.name for group in GROUPS], help="of one group only"
    )
    parser.add_argument("--only", default="", help="in files with this in their path")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--points", action="store_true", help="count them, and end")
    arguments = parser.parse_args()
    groups = [each for each in GROUPS if arguments.group in (None, each.name)]
    results = run(ROOT, groups, arguments.sample, arguments.seed, arguments.only, arguments.workers)
    print("\n".join(summary(results)))
    enough = True
    for group in groups:
        own = [each for each in results if each.group == group.name]
        enough &= sum(each.noticed for each in own) >= group.at_least * len(own)
    return 0 if enough else 1


if __name__ == "__main__":
    sys.exit(main())

"""What came of the soak's jobs, from what its processes printed and from the submitters' states."""

import json
import re
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any, Final

from formation_p2p.api.task_result import result_of
from formation_p2p.jobs.core.job_events import TaskEnd
from formation_p2p.state.state import State
from tests.soak.jobs import Drawn

# At the beginning of a line. What tasks raised is in lines of JSON.
TRACEBACK: Final = re.compile(
    r"^(  \+ Exception Group )?Traceback \(most recent call last\)", re.MULTILINE
)
SHOWN_CHARS: Final = 1000


@dataclass
class Account:
    """Jobs, by their ids or names, and one line for each that is not as it should be. `hostile` are
    the ends of hostile tasks by their jobs. `weights` are those of each incarnation that weighs
    itself, by the node's name."""

    kept: set[str] = field(default_factory=set)
    right: set[str] = field(default_factory=set)
    lost: set[str] = field(default_factory=set)
    wrong: set[str] = field(default_factory=set)
    duplicated: set[str] = field(default_factory=set)
    small: list[tuple[float, float]] = field(default_factory=list)
    weights: dict[str, list[list[int]]] = field(default_factory=dict)
    hostile: dict[str, list[str]] = field(default_factory=dict)
    tracebacks: int = 0
    faults: list[str] = field(default_factory=list)

    def read_output(self, path: Path) -> None:
        """Of a process, over all of its incarnations."""
        text = path.read_text(errors="replace")
        for match in TRACEBACK.finditer(text):
            self.tracebacks += 1
            self.faults.append(f"{path.stem}: {text[match.start() :][:SHOWN_CHARS]}")
        for line in _events(text):
            match line:
                case {"event": "kept", "job": job}:
                    self.kept.add(job)
                case {"event": "right", "job": job}:
                    self.right.add(job)
                case {"event": "lost", "job": job, "why": why}:
                    self.lost.add(job)
                    self.faults.append(f"{path.stem}: lost {job}: {why}"[:SHOWN_CHARS])
                case {"event": "wrong", "job": job, "name": name}:
                    self.wrong.add(job)
                    self.faults.append(f"{path.stem}: wrong {job}: {name}")
                case {"event": "hostile", "job": job, "ended": ended}:
                    self.hostile[job] = ended
                case {"event": "duplicated", "tasks": tasks}:
                    self.duplicated.update(tasks)
                    self.faults.append(f"{path.stem}: twice {tasks}")
                case {"event": "goes on"}:
                    self.weights.setdefault(path.stem, []).append([])
                case {"event": "weighed", "bytes": weight}:
                    self.weights[path.stem][-1].append(weight)
                case {"event": "small", "began_s": began_s, "took_s": took_s}:
                    self.small.append((began_s, took_s))
                case _:
                    pass

    def read_state(self, path: Path) -> None:
        """Of a submitter that has ended. Raises StateError."""
        state = State(path)
        try:
            for job in state.summaries():
                ends: Counter[str] = Counter()
                results = []
                for event in state.history(job.job_id):
                    if isinstance(event, TaskEnd):
                        ends[event.task_id] += 1
                        results.append(result_of(event))
                self.duplicated.update(task_id for task_id, count in ends.items() if count > 1)
                whole = len(ends) == job.tasks
                drawn = Drawn.named(job.name)
                if not whole or drawn.failures(results):
                    self.lost.add(job.job_id)
                    self.faults.append(f"{path.stem}: {len(ends)} of {job.tasks} of {job.job_id}")
                    continue
                self.hostile[job.job_id] = drawn.hostile_ends(results)
                if drawn.is_right(results):
                    self.right.add(job.job_id)
                else:
                    self.wrong.add(job.job_id)
                    self.faults.append(f"{path.stem}: wrong in the state: {job.name}")
        finally:
            state.close()

    def settle(self) -> None:
        """What was acknowledged, and is neither right nor known to be wrong, is lost."""
        missing = self.kept - self.right - self.wrong - self.lost
        self.faults += [f"{job} was kept, and is gone" for job in sorted(missing)]
        self.lost |= missing

    def ends_of_hostile_tasks(self) -> dict[str, int]:
        """How many ended in each way."""
        return dict(sorted(Counter(chain.from_iterable(self.hostile.values())).items()))

    def p95_s(self, begin_s: float, end_s: float) -> float:
        """How long small jobs took that began in that time. There are some."""
        took = sorted(took for began, took in self.small if begin_s <= began < end_s)
        return took[min(len(took) - 1, int(len(took) * 0.95))]


def _events(text: str) -> Iterator[dict[str, Any]]:
    for line in text.splitlines():
        if line.startswith('{"event"'):
            with suppress(ValueError):
                yield json.loads(line)

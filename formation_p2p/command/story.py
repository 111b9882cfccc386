"""`formation story`: the way of one task through its scheduler, step by step."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Final

from formation_p2p.command import flags
from formation_p2p.command.words import Json, one_line, put
from formation_p2p.machine.names import named
from formation_p2p.observe.status_json import learn_from

STORY_EPILOG: Final = """
\b
Examples:
  formation story 3f2a/0      the first task of the job whose id begins so
  formation story 3f2a/0 --json | jq -r '.story[].step'
"""


def story(
    task: str = flags.argument(
        "TASK", "Its id: the job's, or how that begins, /NUMBER.", default=...
    ),
    home: Path | None = flags.HOME,
    as_json: bool = flags.JSON,
) -> None:
    """Show the way of one task: who was found, asked and refused, where it ran, and when.

    The node that submitted the task tells it, while it runs from this home. It remembers its last
    tasks, some thousands. Each line says how long after the one before it came.
    """
    from formation_p2p.command.node_socket import answers_of
    from formation_p2p.core.errors import InvalidInput
    from formation_p2p.machine.home_path import home_path

    answers = answers_of(home_path(home), "story", task=task)
    found = next((each for each in answers if each["story"]), None)
    if found is None:
        problem = f"no node that runs here remembers {task}; `formation logs` shows jobs and tasks"
        raise InvalidInput("task", problem)
    if as_json:
        put(found)
        return
    print("\n".join(in_lines(found["story"])))


def in_lines(entries: list[Json]) -> list[str]:
    """A line for each step, with the time since the one before."""
    width = max(len(entry["step"]) for entry in entries)
    for entry in entries:
        learn_from(entry)
    workers = [named(entry["worker"]) if entry["worker"] else "" for entry in entries]
    wide = max(map(len, workers))
    lines: list[str] = []
    before_s = entries[0]["mono_s"]
    for entry, worker in zip(entries, workers, strict=True):
        clock = time.strftime("%H:%M:%S", time.localtime(entry["unix_s"]))
        step = f"{clock}  {_later(entry['mono_s'] - before_s):>9}  {entry['step']:{width}}"
        lines.append(f"{step}  {worker:{wide}}  {one_line(entry['cause'])}")
        before_s = entry["mono_s"]
    return lines


def _later(seconds: float) -> str:
    return f"+{seconds * 1000:.0f} ms" if seconds < 1 else f"+{seconds:.1f} s"

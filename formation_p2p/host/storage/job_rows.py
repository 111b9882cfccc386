"""How a job as it was submitted lies in the tables of a state (sqlite.py)."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping

from formation_p2p.core.errors import InvalidInput
from formation_p2p.core.records.codec import decode, encode, take_int, take_list
from formation_p2p.core.records.resources import decode_requirements
from formation_p2p.core.resources.requirements import Requirements
from formation_p2p.core.workload.hints import NO_HINTS, Hints
from formation_p2p.core.workload.scope import Scope
from formation_p2p.core.workload.task import MAX_TASKS, Job, Task
from formation_p2p.host.policies import parse_policy


def insert_job(
    db: sqlite3.Connection, job: Job, encoded: Mapping[Requirements, bytes], unix_s: float
) -> int:
    """With its needs in CBOR. Returns its number."""
    parts: dict[bytes, int] = {}

    def part(content: bytes) -> int:
        return parts.setdefault(content, len(parts))

    needs = {each: part(content) for each, content in encoded.items()}
    number = db.execute(
        "INSERT INTO jobs"
        " (job_id, name, priority, speculate, deadline_s, max_price_micro, submitted_unix_s,"
        " placement) VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
        (
            job.job_id,
            job.name,
            job.priority,
            job.speculate,
            job.deadline_s,
            job.max_price_micro,
            unix_s,
            encode([job.policy, int(job.scope), job.hints.pack()]),
        ),
    ).lastrowid
    assert number is not None
    places = {task.task_id: place for place, task in enumerate(job.tasks)}
    db.executemany(
        "INSERT INTO tasks (job, task_id, label, needs, shared, payload, timeout_s, max_attempts,"
        " waits_for, kind, more_memory_bytes) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        (
            (
                number,
                task.task_id,
                task.label,
                needs[task.needs],
                part(task.shared),
                task.payload,
                task.timeout_s,
                task.max_attempts,
                encode([places[name] for name in task.after]) if task.after else None,
                task.kind,
                task.more_memory_bytes,
            )
            for task in job.tasks
        ),
    )
    db.executemany(
        "INSERT INTO parts (job, number, content) VALUES (?, ?, ?)",
        ((number, place, content) for content, place in parts.items()),
    )
    return number


def read_job(db: sqlite3.Connection, number: int, unix_s: float) -> Job:
    """Its deadline counts from `unix_s` on."""
    job_id, name, priority, speculate, deadline_s, price_micro, submitted_unix_s, placement = (
        db.execute(
            "SELECT job_id, name, priority, speculate, deadline_s, max_price_micro,"
            " submitted_unix_s, placement FROM jobs WHERE number = ?",
            (number,),
        ).fetchone()
    )
    parts = dict(db.execute("SELECT number, content FROM parts WHERE job = ?", (number,)))
    needs: dict[int, Requirements] = {}
    rows = db.execute(
        "SELECT task_id, label, needs, shared, payload, timeout_s, max_attempts,"
        " waits_for, kind, more_memory_bytes FROM tasks WHERE job = ? ORDER BY number",
        (number,),
    ).fetchall()
    tasks = []
    for task_id, label, place, shared, payload, timeout_s, attempts, waits_for, kind, more in rows:
        if place not in needs:
            needs[place] = decode_requirements(parts[place])
        before = () if waits_for is None else tuple(rows[each][0] for each in _places(waits_for))
        tasks.append(
            Task(
                task_id,
                needs[place],
                payload,
                label,
                timeout_s,
                attempts,
                parts[shared],
                before,
                kind,
                more,
            )
        )
    if deadline_s is not None:
        # A moment, where it has passed: the job is then given up as it would have been.
        deadline_s = max(0.001, deadline_s - max(0.0, unix_s - submitted_unix_s))
    return Job(
        job_id,
        tuple(tasks),
        name,
        priority,
        deadline_s,
        bool(speculate),
        price_micro,
        *_read_placement(placement),
    )


def _read_placement(packed: bytes | None) -> tuple[str, Hints, Scope]:
    """The policy, hints and scope of a job; those of old where an older release stored it."""
    if packed is None:
        return "xor", NO_HINTS, Scope.COMMONS
    match decode(packed, len(packed)):
        case [str(policy), int(scope), hints]:
            parse_policy(policy)  # while the file can still be named for it
            return policy, Hints.unpack(hints), Scope(scope)
        case _:
            raise InvalidInput("placement", "the state holds a job's in a form that is none")


def _places(packed: bytes) -> list[int]:
    places = take_list(decode(packed, len(packed)), "waits_for", MAX_TASKS)
    return [take_int(place, "waits_for", 0, MAX_TASKS) for place in places]

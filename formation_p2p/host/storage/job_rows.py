"""How a job as it was submitted lies in the tables of a state (sqlite.py)."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from dataclasses import replace

from formation_p2p.core.dispatch.job import Job
from formation_p2p.core.placement.task_options import TaskOptions
from formation_p2p.core.records.codec import decode, encode, take_int, take_list
from formation_p2p.core.records.resources import decode_requirements
from formation_p2p.core.resources.requirements import Requirements
from formation_p2p.core.workload.task import MAX_TASKS, Task
from formation_p2p.host.policies import POLICIES


def insert_job(
    db: sqlite3.Connection, job: Job, encoded: Mapping[Requirements, bytes], unix_s: float
) -> int:
    """With its needs in CBOR. Returns its number."""
    parts: dict[bytes, int] = {}

    def part(content: bytes) -> int:
        return parts.setdefault(content, len(parts))

    needs = {each: part(content) for each, content in encoded.items()}
    number = db.execute(
        "INSERT INTO jobs (job_id, name, options, submitted_unix_s) VALUES (?, ?, ?, ?)",
        (job.job_id, job.name, encode(job.options.pack()), unix_s),
    ).lastrowid
    assert number is not None
    places = {task.task_id: place for place, task in enumerate(job.tasks)}
    db.executemany(
        "INSERT INTO tasks (job, task_id, label, needs, shared, payload,"
        " waits_for, kind, more_memory_bytes) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
        (
            (
                number,
                task.task_id,
                task.label,
                needs[task.needs],
                part(task.shared),
                task.payload,
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
    job_id, name, packed, submitted_unix_s = db.execute(
        "SELECT job_id, name, options, submitted_unix_s FROM jobs WHERE number = ?", (number,)
    ).fetchone()
    options = TaskOptions.unpack(decode(packed, len(packed)), POLICIES)
    parts = dict(db.execute("SELECT number, content FROM parts WHERE job = ?", (number,)))
    needs: dict[int, Requirements] = {}
    rows = db.execute(
        "SELECT task_id, label, needs, shared, payload, waits_for, kind,"
        " more_memory_bytes FROM tasks WHERE job = ? ORDER BY number",
        (number,),
    ).fetchall()
    tasks = []
    for task_id, label, place, shared, payload, waits_for, kind, more in rows:
        if place not in needs:
            needs[place] = decode_requirements(parts[place])
        before = () if waits_for is None else tuple(rows[each][0] for each in _places(waits_for))
        tasks.append(
            Task(
                task_id,
                needs[place],
                payload,
                label,
                parts[shared],
                before,
                kind,
                more,
            )
        )
    if options.deadline_s is not None:
        # A moment, where it has passed: the job is then given up as it would have been.
        left_s = options.deadline_s - max(0.0, unix_s - submitted_unix_s)
        options = replace(options, deadline_s=max(0.001, left_s))
    return Job(job_id, tuple(tasks), name, options)


def _places(packed: bytes) -> list[int]:
    places = take_list(decode(packed, len(packed)), "waits_for", MAX_TASKS)
    return [take_int(place, "waits_for", 0, MAX_TASKS) for place in places]

"""The tables of a scheduler's state, and how a job as it was submitted lies in them.

A job's `options` are as placement/core/task_options.py packs them (CBOR). Tasks are numbered in
their order within the job. What they share lies in `parts`, once for each
job: their needs (CBOR, records/core/resources.py) and the drivers' shared bytes. No foreign key
leads there, for one would have to be searched for each part that is deleted. An attempt is
`open_on` its lease until it failed, was lost or was recalled; `failed` counts those of its task
that had failed or were lost by then. `waits_for` has the places within the job of the tasks that
one waits for (CBOR).
"""

from __future__ import annotations

import sqlite3
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import chain
from typing import Any, Final
from zlib import crc32

from formation_p2p.core.units import MIB
from formation_p2p.jobs.core.job import Job
from formation_p2p.machine.core.requirements import Requirements
from formation_p2p.placement.core.task_options import TaskOptions
from formation_p2p.placement.policies import POLICIES
from formation_p2p.records.core.codec import decode, encode, take_int, take_list
from formation_p2p.records.core.resources import decode_requirements
from formation_p2p.state.sqlite import Schema
from formation_p2p.workload.core.inputs_from import emptied
from formation_p2p.workload.core.work import MAX_TASKS, InputFrom, Task

_FIRST: Final = (
    "CREATE TABLE owner (peer_id TEXT NOT NULL)",
    """CREATE TABLE jobs (
        number INTEGER PRIMARY KEY, job_id TEXT NOT NULL UNIQUE, name TEXT NOT NULL,
        options BLOB NOT NULL, submitted_unix_s REAL NOT NULL, ended_unix_s REAL)""",
    """CREATE TABLE parts (
        job INTEGER NOT NULL REFERENCES jobs ON DELETE CASCADE, number INTEGER NOT NULL,
        content BLOB NOT NULL, PRIMARY KEY (job, number))""",
    """CREATE TABLE tasks (
        number INTEGER PRIMARY KEY, job INTEGER NOT NULL REFERENCES jobs ON DELETE CASCADE,
        task_id TEXT NOT NULL, label TEXT NOT NULL,
        needs INTEGER NOT NULL, shared INTEGER NOT NULL, payload BLOB NOT NULL,
        waits_for BLOB, kind TEXT NOT NULL, more_memory_bytes INTEGER NOT NULL,
        UNIQUE (job, task_id))""",
    """CREATE TABLE attempts (
        number INTEGER PRIMARY KEY, task INTEGER NOT NULL REFERENCES tasks ON DELETE CASCADE,
        attempt_id TEXT NOT NULL, worker TEXT NOT NULL,
        lease_id TEXT NOT NULL, open_on TEXT, nearest INTEGER NOT NULL,
        failed INTEGER, why TEXT, lost INTEGER,
        UNIQUE (task, attempt_id))""",
    """CREATE TABLE results (
        task INTEGER PRIMARY KEY REFERENCES tasks ON DELETE CASCADE, ended TEXT NOT NULL,
        worker TEXT, result BLOB NOT NULL, ran_ms INTEGER NOT NULL,
        kind TEXT, told BLOB NOT NULL, waited_for TEXT NOT NULL)""",
    """CREATE TABLE leases (
        lessor TEXT NOT NULL, lease_id TEXT NOT NULL, addresses BLOB NOT NULL,
        needs BLOB NOT NULL, priority INTEGER NOT NULL,
        fence INTEGER NOT NULL, device_ids BLOB NOT NULL,
        PRIMARY KEY (lessor, lease_id)) WITHOUT ROWID""",
)

# Of each input from another task its name, the place of that task, and the name there (CBOR).
_FILES: Final = ("ALTER TABLE tasks ADD COLUMN inputs_from BLOB",)

# Whether what came with the tasks of an ended job is gone.
_EMPTIED: Final = ("ALTER TABLE jobs ADD COLUMN emptied INTEGER NOT NULL DEFAULT 0",)

# Why an attempt is followed by another, as job_events.RetryReason has it.
_REASONS: Final = ("ALTER TABLE attempts ADD COLUMN reason TEXT",)

# Of a job with its tasks as it was submitted, and of a result: what a disk alters is noticed. NULL
# for what an older release wrote, and where an ended job was emptied.
_CHECKED: Final = (
    "ALTER TABLE jobs ADD COLUMN checksum INTEGER",
    "ALTER TABLE results ADD COLUMN checksum INTEGER",
)

# The newest that was held of each task: packed as a worker tells it (workload/core/checkpoint.py).
_CHECKPOINTS: Final = (
    """CREATE TABLE checkpoints (
        task INTEGER PRIMARY KEY REFERENCES tasks ON DELETE CASCADE, packed BLOB NOT NULL)""",
)

# What copies of a task have brought, while it has not ended. `marks` are texts (CBOR).
_ANSWERS: Final = (
    """CREATE TABLE answers (
        number INTEGER PRIMARY KEY, task INTEGER NOT NULL REFERENCES tasks ON DELETE CASCADE,
        attempt_id TEXT NOT NULL, worker TEXT NOT NULL, result BLOB NOT NULL,
        ran_ms INTEGER NOT NULL, marks BLOB NOT NULL, UNIQUE (task, attempt_id))""",
    """CREATE TRIGGER answers_count_no_more AFTER INSERT ON results
        BEGIN DELETE FROM answers WHERE task = NEW.task; END""",
)

# What counts of the worker of a lease where several workers are to agree (CBOR): it has answered
# before the next life of the scheduler has found it again. NULL where that is not known.
_LEASE_MARKS: Final = ("ALTER TABLE leases ADD COLUMN marks BLOB",)

# "forS"
JOBS: Final = Schema(
    "jobs",
    0x666F7253,
    (_FIRST, _FILES, _EMPTIED, _REASONS, _CHECKED, _CHECKPOINTS, _ANSWERS, _LEASE_MARKS),
)

# What a task or a part keeps when its job has ended: well above a command and its arguments.
KEPT_BYTES: Final = 4096
# Emptied in one transaction: some 50 MiB are read, in some 50 ms.
_EMPTIED_AT_ONCE: Final = 100

# Small contents are summed at once: that takes a third of the time.
_JOINED_BYTES: Final = 16 * MIB

_TASK: Final = (
    "task_id, label, needs, shared, payload, waits_for, kind, more_memory_bytes, inputs_from"
)


class Altered(ValueError):
    """What was stored reads as something else."""


def insert_job(
    db: sqlite3.Connection, job: Job, encoded: Mapping[Requirements, bytes], unix_s: float
) -> int:
    """With its needs in CBOR. Returns its number."""
    contents = (*encoded.values(), *(task.shared for task in job.tasks))
    parts = {content: place for place, content in enumerate(dict.fromkeys(contents))}
    places = {task.task_id: place for place, task in enumerate(job.tasks)}
    rows = [
        (
            task.task_id,
            task.label,
            parts[encoded[task.needs]],
            parts[task.shared],
            task.payload,
            encode([places[name] for name in task.after]) if task.after else None,
            task.kind,
            task.more_memory_bytes,
            _packed(task, places) if task.inputs_from else None,
        )
        for task in job.tasks
    ]
    options = encode(job.options.pack())
    checksum = _checksum((job.job_id, job.name, options), rows, tuple(parts))
    number = db.execute(
        "INSERT INTO jobs (job_id, name, options, submitted_unix_s, checksum)"
        " VALUES (?, ?, ?, ?, ?)",
        (job.job_id, job.name, options, unix_s, checksum),
    ).lastrowid
    assert number is not None
    # It was just made, here: no other number is in it.
    db.executemany(
        f"INSERT INTO tasks (job, {_TASK}) VALUES ({number}, ?, ?, ?, ?, ?, ?, ?, ?, ?)", rows
    )
    db.executemany(
        "INSERT INTO parts (job, number, content) VALUES (?, ?, ?)",
        ((number, place, content) for content, place in parts.items()),
    )
    return number


def read_job(db: sqlite3.Connection, number: int, unix_s: float) -> Job:
    """Its deadline counts from `unix_s` on."""
    job_id, name, encoded, submitted_unix_s, checksum = db.execute(
        "SELECT job_id, name, options, submitted_unix_s, checksum FROM jobs WHERE number = ?",
        (number,),
    ).fetchone()
    sql = "SELECT number, content FROM parts WHERE job = ? ORDER BY number"
    parts = dict(db.execute(sql, (number,)))
    needs: dict[int, Requirements] = {}
    sql = f"SELECT {_TASK} FROM tasks WHERE job = ? ORDER BY number"
    rows = db.execute(sql, (number,)).fetchall()
    contents = tuple(parts.values())
    if checksum not in (None, _checksum((job_id, name, encoded), rows, contents)):
        raise Altered(f"job {job_id}, or one of its tasks, is not as it was stored")
    options = TaskOptions.unpack(decode(encoded, len(encoded)), POLICIES)
    tasks = []
    for task_id, label, place, shared, payload, waits_for, kind, more, packed in rows:
        if place not in needs:
            needs[place] = decode_requirements(parts[place])
        before = () if waits_for is None else tuple(rows[each][0] for each in _places(waits_for))
        read = (
            ()
            if packed is None
            else tuple(
                InputFrom(name, rows[maker][0], output) for name, maker, output in _list(packed)
            )
        )
        task = Task(task_id, needs[place], payload, label, parts[shared], before, kind, more, read)
        tasks.append(task)
    if options.deadline_s is not None:
        # A moment, where it has passed: the job is then given up as it would have been.
        left_s = options.deadline_s - max(0.0, unix_s - submitted_unix_s)
        options = replace(options, deadline_s=max(0.001, left_s))
    return Job(job_id, tuple(tasks), name, options)


def empty_some(db: sqlite3.Connection, number: int) -> int:
    """Take the files that came with some tasks of an ended job from their payloads, and what is
    large from what its tasks shared. The job is `emptied` once none is left. Returns how many."""
    job = "SELECT tasks.number, task_id, needs.content, shared.content, payload FROM tasks"
    needs = "JOIN parts AS needs ON needs.job = tasks.job AND needs.number = needs"
    shared = "JOIN parts AS shared ON shared.job = tasks.job AND shared.number = shared"
    large = "WHERE tasks.job = ? AND length(payload) > ? LIMIT ?"
    some = db.execute(f"{job} {needs} {shared} {large}", (number, KEPT_BYTES, _EMPTIED_AT_ONCE))
    rows = some.fetchall()
    cut = 0
    for place, task_id, packed, part, payload in rows:
        left = emptied(Task(task_id, decode_requirements(packed), payload, shared=part))
        kept = left if len(left) <= KEPT_BYTES else b""
        db.execute("UPDATE tasks SET payload = ? WHERE number = ?", (kept, place))
    if len(rows) < _EMPTIED_AT_ONCE:
        # The first bytes stay, by which a module is known.
        beginning = "UPDATE parts SET content = substr(content, 1, 4) WHERE job = ?"
        cut = db.execute(f"{beginning} AND length(content) > ?", (number, KEPT_BYTES)).rowcount
        db.execute("UPDATE jobs SET emptied = 1 WHERE number = ?", (number,))
    if rows or cut:
        db.execute("UPDATE jobs SET checksum = NULL WHERE number = ?", (number,))
    return len(rows)


def _checksum(
    job: tuple[str, str, bytes], rows: Sequence[tuple[Any, ...]], parts: tuple[bytes, ...]
) -> int:
    """Of a row of `jobs`, its rows of `tasks` and its contents of `parts`. Column by column: a
    hundred thousand rows take a tenth of what their storing takes. Raises ValueError, TypeError,
    OverflowError for values of other types than those that are stored."""
    job_id, name, options = job
    task_ids, labels, needs, shared, payloads, waits_for, kinds, more, inputs = zip(
        *rows, strict=True
    )
    texts = "\0".join(chain((job_id, name), task_ids, labels, kinds))
    summed = crc32(texts.encode("utf-8", "surrogatepass"))
    for numbers in (needs, shared, more):
        summed = crc32(array("q", numbers), summed)
    for contents in ((options,), parts, payloads, waits_for, inputs):
        present = contents if None not in contents else [x for x in contents if x is not None]
        lengths = array("q", map(len, present))
        summed = crc32(lengths, summed)
        if sum(lengths) <= _JOINED_BYTES:
            summed = crc32(b"".join(present), summed)
        else:
            for content in present:
                summed = crc32(content, summed)
    return summed


def _packed(task: Task, places: Mapping[str, int]) -> bytes:
    return encode([[each.name, places[each.task_id], each.output] for each in task.inputs_from])


def _list(packed: bytes) -> list[Any]:
    return take_list(decode(packed, len(packed)), "inputs_from", MAX_TASKS)


def _places(packed: bytes) -> list[int]:
    places = take_list(decode(packed, len(packed)), "waits_for", MAX_TASKS)
    return [take_int(place, "waits_for", 0, MAX_TASKS) for place in places]

"""The tables of a scheduler's state: jobs, tasks, attempts, results and leases.

A job's `options` are as core/placement/task_options.py packs them (CBOR). Tasks are numbered in
their order within the job. What they share lies in `parts`, once for each
job: their needs (CBOR, core/records/resources.py) and the drivers' shared bytes. No foreign key
leads there, for one would have to be searched for each part that is deleted. An attempt is
`open_on` its lease until it failed, was lost or was recalled; `failed` counts those of its task
that had failed or were lost by then. `waits_for` has the places within the job of the tasks that
one waits for (CBOR).
"""

from __future__ import annotations

from typing import Final

from formation_p2p.host.storage.sqlite import Schema

_FIRST: Final = (
    "CREATE TABLE owner (peer_id TEXT NOT NULL)",
    """CREATE TABLE jobs (
        number INTEGER PRIMARY KEY,
        job_id TEXT NOT NULL UNIQUE,
        name TEXT NOT NULL,
        options BLOB NOT NULL,
        submitted_unix_s REAL NOT NULL,
        ended_unix_s REAL)""",
    """CREATE TABLE parts (
        job INTEGER NOT NULL REFERENCES jobs ON DELETE CASCADE,
        number INTEGER NOT NULL,
        content BLOB NOT NULL,
        PRIMARY KEY (job, number))""",
    """CREATE TABLE tasks (
        number INTEGER PRIMARY KEY,
        job INTEGER NOT NULL REFERENCES jobs ON DELETE CASCADE,
        task_id TEXT NOT NULL,
        label TEXT NOT NULL,
        needs INTEGER NOT NULL,
        shared INTEGER NOT NULL,
        payload BLOB NOT NULL,
        waits_for BLOB,
        kind TEXT NOT NULL,
        more_memory_bytes INTEGER NOT NULL,
        UNIQUE (job, task_id))""",
    """CREATE TABLE attempts (
        number INTEGER PRIMARY KEY,
        task INTEGER NOT NULL REFERENCES tasks ON DELETE CASCADE,
        attempt_id TEXT NOT NULL,
        worker TEXT NOT NULL,
        lease_id TEXT NOT NULL,
        open_on TEXT,
        nearest INTEGER NOT NULL,
        failed INTEGER,
        why TEXT,
        lost INTEGER,
        UNIQUE (task, attempt_id))""",
    """CREATE TABLE results (
        task INTEGER PRIMARY KEY REFERENCES tasks ON DELETE CASCADE,
        ended TEXT NOT NULL,
        worker TEXT,
        result BLOB NOT NULL,
        ran_ms INTEGER NOT NULL,
        kind TEXT,
        told BLOB NOT NULL,
        waited_for TEXT NOT NULL)""",
    """CREATE TABLE leases (
        lessor TEXT NOT NULL,
        lease_id TEXT NOT NULL,
        addresses BLOB NOT NULL,
        needs BLOB NOT NULL,
        priority INTEGER NOT NULL,
        fence INTEGER NOT NULL,
        device_ids BLOB NOT NULL,
        PRIMARY KEY (lessor, lease_id)) WITHOUT ROWID""",
)

# "forS"
JOBS: Final = Schema("jobs", 0x666F7253, (_FIRST,))

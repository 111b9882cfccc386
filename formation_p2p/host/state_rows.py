"""How jobs, what is told of them, and leases lie in the tables of a state (state_file.py)."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import astuple, dataclass
from typing import Any, Final, get_args

from formation_p2p.dispatch.job_events import (
    Attempt,
    Hold,
    JobEnded,
    JobEvent,
    LetGo,
    TaskCancelled,
    TaskGaveUp,
    TaskPlaced,
    TaskRecalled,
    TaskRetried,
    TaskSucceeded,
    TaskUnplaceable,
)
from formation_p2p.dispatch.saved import SavedLease, SavedTask
from formation_p2p.dispatch.task_run import TaskState
from formation_p2p.effects import Contact
from formation_p2p.errors import InvalidInput
from formation_p2p.identity import PeerId
from formation_p2p.records.codec import decode, encode, take_int, take_list
from formation_p2p.records.resources import decode_requirements, encode_requirements
from formation_p2p.refusals import Refusal
from formation_p2p.resources.requirements import Requirements
from formation_p2p.workload.hints import NO_HINTS, Hints
from formation_p2p.workload.outcome import FailureKind
from formation_p2p.workload.scope import Scope
from formation_p2p.workload.task import MAX_TASKS, Job, Task

# What is told of a task without a result: its attempts, of 16 KiB each at the most, or the
# refusals of all workers that were considered, of 1 KiB (dispatch/group.py bounds them).
MAX_TOLD_BYTES: Final = 4 * 1024 * 1024
# Addresses, or devices: a machine has at most 64 of these (resources/bounds.py).
MAX_LISTED_BYTES: Final = 64 * 1024

Row = tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class JobSummary:
    """`ended` counts those of its `tasks` that have. `ended_unix_s` is None while it is under
    way."""

    job_id: str
    name: str
    tasks: int
    ended: JobEnded
    submitted_unix_s: float
    ended_unix_s: float | None


# -- a job -----------------------------------------------------------------------------------------


# In `attempts.lost`, beside 0 and 1: lost, and the task had no part in that.
_UNCOUNTED: Final = 2


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
            return policy, Hints.unpack(hints), Scope(scope)
        case _:
            raise InvalidInput("placement", "the state holds a job's in a form that is none")


def _places(packed: bytes) -> list[int]:
    places = take_list(decode(packed, len(packed)), "waits_for", MAX_TASKS)
    return [take_int(place, "waits_for", 0, MAX_TASKS) for place in places]


def read_begun(db: sqlite3.Connection, number: int) -> tuple[SavedTask, ...]:
    """Of a job's tasks, those that were placed or have ended."""
    tried: dict[str, int] = {}
    brought_nothing: dict[str, list[Attempt]] = {}
    for task_id, attempt_id, worker, why, lost in db.execute(
        "SELECT task_id, attempt_id, worker, why, lost"
        " FROM tasks JOIN attempts ON task = tasks.number WHERE job = ? ORDER BY task, failed",
        (number,),
    ):
        tried[task_id] = tried.get(task_id, 0) + 1
        if why is not None and lost != _UNCOUNTED:
            attempt = Attempt(attempt_id, PeerId(worker), why, bool(lost))
            brought_nothing.setdefault(task_id, []).append(attempt)
    ended = dict(
        db.execute(
            "SELECT task_id, ended FROM tasks JOIN results ON task = tasks.number WHERE job = ?",
            (number,),
        )
    )
    return tuple(
        SavedTask(
            task_id,
            tried.get(task_id, 0),
            tuple(brought_nothing.get(task_id, ())),
            TaskState(ended[task_id]) if task_id in ended else None,
        )
        for task_id in tried | ended
    )


def read_leases(db: sqlite3.Connection) -> tuple[SavedLease, ...]:
    under_way: dict[tuple[str, str], list[tuple[str, str]]] = {}
    for lessor, lease_id, attempt_id, task_id in db.execute(
        "SELECT worker, open_on, attempt_id, task_id FROM jobs"
        " JOIN tasks ON job = jobs.number JOIN attempts ON task = tasks.number"
        " WHERE ended_unix_s IS NULL AND open_on IS NOT NULL"
        " AND task NOT IN (SELECT task FROM results) ORDER BY attempts.number"
    ):
        under_way.setdefault((lessor, lease_id), []).append((attempt_id, task_id))
    return tuple(
        SavedLease(
            lease_id,
            Contact(PeerId(lessor), _texts(addresses)),
            decode_requirements(needs),
            priority,
            fence,
            _texts(device_ids),
            tuple(under_way.get((lessor, lease_id), ())),
        )
        for lessor, lease_id, addresses, needs, priority, fence, device_ids in db.execute(
            "SELECT lessor, lease_id, addresses, needs, priority, fence, device_ids FROM leases"
        )
    )


def read_summaries(db: sqlite3.Connection) -> tuple[JobSummary, ...]:
    """The oldest first."""
    counts: dict[int, dict[str | None, int]] = {}
    for job, ended, count in db.execute(
        "SELECT job, ended, count(*) FROM tasks LEFT JOIN results ON task = tasks.number"
        " GROUP BY job, ended"
    ):
        counts.setdefault(job, {})[ended] = count
    summaries = []
    for number, job_id, name, submitted_unix_s, ended_unix_s in db.execute(
        "SELECT number, job_id, name, submitted_unix_s, ended_unix_s FROM jobs ORDER BY number"
    ):
        count = counts.get(number, {})
        ended = (count.get(state, 0) for state in _ENDS)
        over = JobEnded(*ended)
        summaries.append(
            JobSummary(job_id, name, sum(count.values()), over, submitted_unix_s, ended_unix_s)
        )
    return tuple(summaries)


def read_history(db: sqlite3.Connection, number: int) -> Iterator[JobEvent]:
    """What was told of a job, task by task in their order. One task is in memory at a time."""
    counts = dict.fromkeys(_ENDS, 0)
    with closing(db.cursor()) as tasks:
        for task, task_id, *end in tasks.execute(
            "SELECT number, task_id, ended, worker, result, ran_ms, results.kind, told, waited_for"
            " FROM tasks LEFT JOIN results ON task = number WHERE job = ? ORDER BY number",
            (number,),
        ):
            for attempt_id, worker, lease_id, nearest, open_on, why, lost in db.execute(
                "SELECT attempt_id, worker, lease_id, nearest, open_on, why, lost"
                " FROM attempts WHERE task = ? ORDER BY number",
                (task,),
            ).fetchall():
                yield TaskPlaced(task_id, attempt_id, worker, lease_id, bool(nearest))
                if why is not None:
                    attempt = Attempt(attempt_id, PeerId(worker), why, bool(lost))
                    yield TaskRetried(task_id, attempt, lost != _UNCOUNTED)
                elif open_on is None:
                    yield TaskRecalled(task_id, attempt_id)
            if end[0] is not None:
                counts[TaskState(end[0])] += 1
                yield _read_end(task_id, *end)
    (ended_unix_s,) = db.execute(
        "SELECT ended_unix_s FROM jobs WHERE number = ?", (number,)
    ).fetchone()
    if ended_unix_s is not None:
        yield JobEnded(*counts.values())


_REFUSALS: Final = {kind.__name__: kind for kind in get_args(Refusal)}
# In the order of JobEnded's fields.
_ENDS: Final = (
    TaskState.SUCCEEDED,
    TaskState.FAILED,
    TaskState.UNPLACEABLE,
    TaskState.CANCELLED,
)


def _read_end(
    task_id: str,
    ended: str,
    worker: str | None,
    result: bytes,
    ran_ms: int,
    kind: str | None,
    told: bytes,
    waited_for: str,
) -> JobEvent:
    match TaskState(ended):
        case TaskState.SUCCEEDED:
            return TaskSucceeded(task_id, PeerId(worker or ""), result, ran_ms)
        case TaskState.FAILED:
            attempts = tuple(Attempt(*each) for each in _told(told))
            failure = None if kind is None else FailureKind(kind)
            return TaskGaveUp(task_id, attempts, failure, result, waited_for)
        case TaskState.UNPLACEABLE:
            reasons = ((PeerId(who), _REFUSALS[kind](*why)) for who, kind, why in _told(told))
            return TaskUnplaceable(task_id, tuple(reasons))
        case _:
            return TaskCancelled(task_id)


def _told(raw: bytes) -> list[Any]:
    return take_list(decode(raw, MAX_TOLD_BYTES), "told", MAX_TOLD_BYTES)


def _texts(raw: bytes) -> tuple[str, ...]:
    return tuple(take_list(decode(raw, MAX_LISTED_BYTES), "list", MAX_LISTED_BYTES))


# -- what happens to it ----------------------------------------------------------------------------

_OF_TASK: Final = "FROM tasks WHERE job = ?1 AND task_id = ?2"
# A result that is there already stays: a life that was cut short had stored it, and the next
# one was told of it again.
_END: Final = (
    "INSERT OR IGNORE INTO results (task, ended, worker, result, ran_ms, kind, told, waited_for)"
    f" SELECT number, ?3, ?4, ?5, ?6, ?7, ?8, ?9 {_OF_TASK}"
)


def _placed(job: int, e: TaskPlaced) -> Row:
    return job, e.task_id, e.attempt_id, e.worker, e.lease_id, e.nearest


def _retried(job: int, e: TaskRetried) -> Row:
    lost = int(e.attempt.lost) if e.counts else _UNCOUNTED
    return job, e.task_id, e.attempt.attempt_id, _plain(e.attempt.why), lost


def _recalled(job: int, e: TaskRecalled) -> Row:
    return job, e.task_id, e.attempt_id


def _succeeded(job: int, e: TaskSucceeded) -> Row:
    return job, e.task_id, TaskState.SUCCEEDED, e.worker, e.result, e.ran_ms, None, b"", ""


def _gave_up(job: int, e: TaskGaveUp) -> Row:
    told = encode([[x.attempt_id, x.worker, _plain(x.why), x.lost] for x in e.attempts])
    return job, e.task_id, TaskState.FAILED, None, e.result, 0, e.kind, told, e.waited_for


def _unplaceable(job: int, e: TaskUnplaceable) -> Row:
    told = encode([[worker, type(why).__name__, list(astuple(why))] for worker, why in e.reasons])
    return job, e.task_id, TaskState.UNPLACEABLE, None, b"", 0, None, told, ""


def _cancelled(job: int, e: TaskCancelled) -> Row:
    return job, e.task_id, TaskState.CANCELLED, None, b"", 0, None, b"", ""


# Of events of jobs: what each adds. The others need no place on the disk.
TOLD: Final[Mapping[type, tuple[str, Callable[[int, Any], Row]]]] = {
    TaskPlaced: (
        "INSERT OR REPLACE INTO attempts"
        " (task, attempt_id, worker, lease_id, open_on, nearest)"
        f" SELECT number, ?3, ?4, ?5, ?5, ?6 {_OF_TASK}",
        _placed,
    ),
    TaskRetried: (
        "UPDATE attempts SET why = ?4, lost = ?5, open_on = NULL, failed ="
        " (SELECT 1 + count(failed) FROM attempts AS other WHERE other.task = attempts.task)"
        f" WHERE task = (SELECT number {_OF_TASK}) AND attempt_id = ?3",
        _retried,
    ),
    TaskRecalled: (
        "UPDATE attempts SET open_on = NULL"
        f" WHERE task = (SELECT number {_OF_TASK}) AND attempt_id = ?3",
        _recalled,
    ),
    TaskSucceeded: (_END, _succeeded),
    TaskGaveUp: (_END, _gave_up),
    TaskUnplaceable: (_END, _unplaceable),
    TaskCancelled: (_END, _cancelled),
}
HOLD: Final = (
    "INSERT OR REPLACE INTO leases"
    " (lessor, lease_id, addresses, needs, priority, fence, device_ids)"
    " VALUES (?, ?, ?, ?, ?, ?, ?)"
)
LET_GO: Final = "DELETE FROM leases WHERE lessor = ? AND lease_id = ?"


def hold_row(hold: Hold) -> Row:
    return (
        hold.lessor.peer_id,
        hold.lease_id,
        encode(list(hold.lessor.addresses)),
        encode_requirements(hold.needs),
        hold.priority,
        hold.fence,
        encode(list(hold.device_ids)),
    )


def let_go_row(let_go: LetGo) -> Row:
    return let_go.worker, let_go.lease_id


def _plain(text: str) -> str:
    """What an exception of this machine says may hold half a character, of a file's name."""
    return text.encode(errors="replace").decode()

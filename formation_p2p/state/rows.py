"""How the events of jobs, and leases, lie in the tables of a state (job_tables.py)."""

from __future__ import annotations

import sqlite3
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import astuple, dataclass
from typing import Any, Final, get_args
from zlib import crc32

from formation_p2p.core.effects import Contact
from formation_p2p.core.identity import PeerId
from formation_p2p.core.refusals import Refusal
from formation_p2p.jobs.core import job_events
from formation_p2p.jobs.core.job import Job
from formation_p2p.jobs.core.saved import SavedLease, SavedTask, files_in, with_outputs
from formation_p2p.jobs.core.task_run import ENDED, TaskState
from formation_p2p.records.core.codec import decode, encode, take_list
from formation_p2p.records.core.resources import decode_requirements, encode_requirements
from formation_p2p.state.job_tables import Altered
from formation_p2p.workload.core.blob import Blob
from formation_p2p.workload.core.checkpoint import Checkpoint
from formation_p2p.workload.core.outcome import FailureKind
from formation_p2p.workload.core.quorum import MAX_COPIES

# What is kept of a task without a result: its attempts, of 16 KiB each at the most, or the
# refusals of all workers that were considered, of 1 KiB (jobs/core/task_group.py bounds them).
MAX_DETAIL_BYTES: Final = 4 * 1024 * 1024
# Addresses, or devices: a machine has at most 64 of these (machine/core/bounds.py).
MAX_LISTED_BYTES: Final = 64 * 1024

Row = tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class JobSummary:
    """`ended` counts those of its `tasks` that have. `ended_unix_s` is None while it is under
    way."""

    job_id: str
    name: str
    tasks: int
    ended: job_events.JobEnded
    submitted_unix_s: float
    ended_unix_s: float | None


# Of the jobs that are not being deleted (`State.prune`): of others, tasks are gone already.
WHOLE: Final = "ended_unix_s IS NOT 0"
# What `attempts.lost` says, by its number: whether the attempt was lost, and whether that counts.
# It does not where the task had no part in it, or had less memory than it is tried again with.
_LOST: Final = (False, True), (True, True), (True, False), (False, False)

_ANSWER: Final = "attempt_id, worker, result, ran_ms, marks"
# The kind of a failure that is none of an attempt's.
_DISAGREED: Final = "disagreed"
_LEASE: Final = "lessor, lease_id, addresses, needs, priority, fence, device_ids, marks"


def read_begun(db: sqlite3.Connection, number: int, job: Job) -> tuple[SavedTask, ...]:
    """Of a job's tasks, those that were placed or have ended."""
    tried: Counter[str] = Counter()
    brought_nothing: defaultdict[str, list[job_events.Attempt]] = defaultdict(list)
    for task_id, attempt_id, worker, why, lost in db.execute(
        "SELECT task_id, attempt_id, worker, why, lost"
        " FROM tasks JOIN attempts ON task = tasks.number WHERE job = ? ORDER BY task, failed",
        (number,),
    ):
        tried[task_id] += 1
        is_lost, counts = _LOST[lost or 0]
        if why is not None and counts:
            attempt = job_events.Attempt(attempt_id, PeerId(worker), why, is_lost)
            brought_nothing[task_id].append(attempt)
    ends = "SELECT task_id, ended FROM tasks JOIN results ON task = tasks.number WHERE job = ?"
    ended = {task_id: TaskState(end) for task_id, end in db.execute(ends, (number,))}
    # Of tasks whose files are still looked after: who keeps them.
    none: tuple[PeerId | None, Mapping[str, Blob]] = (None, {})
    keepers: dict[str, tuple[PeerId | None, Mapping[str, Blob]]] = {}
    result = f"SELECT worker, result FROM results WHERE task = (SELECT number {_OF_TASK})"
    for task_id in with_outputs(job):
        if ended.get(task_id) is TaskState.SUCCEEDED:
            worker, content = db.execute(result, (number, task_id)).fetchone()
            keepers[task_id] = PeerId(worker), files_in(content)
    held = "SELECT task_id, packed FROM tasks JOIN checkpoints ON task = number WHERE job = ?"
    checkpoints = {task_id: Checkpoint.unpack(x) for task_id, x in db.execute(held, (number,))}
    answers: defaultdict[str, list[job_events.Answer]] = defaultdict(list)
    given = (
        f"SELECT task_id, {_ANSWER} FROM tasks JOIN answers ON task = tasks.number WHERE job = ?"
    )
    for task_id, *columns in db.execute(f"{given} ORDER BY answers.number", (number,)):
        answers[task_id].append(_read_answer(*columns))
    return tuple(
        SavedTask(
            task_id,
            tried[task_id],
            tuple(brought_nothing[task_id]),
            ended.get(task_id),
            *keepers.get(task_id, none),
            checkpoint=checkpoints.get(task_id),
            answers=tuple(answers.get(task_id, ())),
        )
        for task_id in {**tried, **ended}
    )


def read_leases(db: sqlite3.Connection) -> tuple[SavedLease, ...]:
    in_flight: defaultdict[tuple[str, str], list[tuple[str, str]]] = defaultdict(list)
    for lessor, lease_id, attempt_id, task_id in db.execute(
        "SELECT worker, open_on, attempt_id, task_id FROM jobs"
        " JOIN tasks ON job = jobs.number JOIN attempts ON task = tasks.number"
        " WHERE ended_unix_s IS NULL AND open_on IS NOT NULL"
        " AND task NOT IN (SELECT task FROM results)"
        " AND (task, attempt_id) NOT IN (SELECT task, attempt_id FROM answers)"
        " ORDER BY attempts.number"
    ):
        in_flight[lessor, lease_id].append((attempt_id, task_id))
    return tuple(
        SavedLease(
            lease_id,
            Contact(PeerId(lessor), _texts(addresses)),
            decode_requirements(needs),
            priority,
            fence,
            _texts(device_ids),
            tuple(in_flight[lessor, lease_id]),
            None if marks is None else _texts(marks),
        )
        for lessor, lease_id, addresses, needs, priority, fence, device_ids, marks in db.execute(
            f"SELECT {_LEASE} FROM leases"
        )
    )


def read_summaries(db: sqlite3.Connection) -> tuple[JobSummary, ...]:
    """The oldest first."""
    counts = ", ".join(f"count(*) FILTER (WHERE ended = '{end}')" for end in ENDED)
    summaries = db.execute(
        f"SELECT job_id, name, submitted_unix_s, ended_unix_s, count(tasks.number), {counts}"
        " FROM jobs LEFT JOIN tasks ON job = jobs.number LEFT JOIN results ON task = tasks.number"
        f" WHERE {WHOLE} GROUP BY jobs.number ORDER BY jobs.number"
    )
    return tuple(
        JobSummary(job_id, name, tasks, job_events.JobEnded(*ended), submitted_unix_s, ended_unix_s)
        for job_id, name, submitted_unix_s, ended_unix_s, tasks, *ended in summaries
    )


def read_history(db: sqlite3.Connection, number: int) -> Iterator[job_events.JobEvent]:
    """As `State.history` has it."""
    ended: Counter[TaskState] = Counter()
    of_job = "FROM answers JOIN tasks ON task = tasks.number WHERE job = ?"
    answers = {
        (task, columns[0]): _read_answer(*columns)
        for task, *columns in db.execute(f"SELECT task, {_ANSWER} {of_job}", (number,))
    }
    with closing(db.cursor()) as tasks:
        for task, task_id, *end in tasks.execute(
            "SELECT number, task_id, ended, worker, result, ran_ms, results.kind, told, waited_for,"
            " checksum FROM tasks LEFT JOIN results ON task = number WHERE job = ? ORDER BY number",
            (number,),
        ):
            for attempt_id, worker, lease_id, nearest, open_on, why, lost, reason in db.execute(
                "SELECT attempt_id, worker, lease_id, nearest, open_on, why, lost, reason"
                " FROM attempts WHERE task = ? ORDER BY number",
                (task,),
            ).fetchall():
                brought = answers.get((task, attempt_id))
                yield job_events.TaskPlaced(task_id, attempt_id, worker, lease_id, bool(nearest))
                if why is not None:
                    is_lost, counts = _LOST[lost]
                    attempt = job_events.Attempt(attempt_id, PeerId(worker), why, is_lost)
                    known = _reason(reason, is_lost=is_lost)
                    yield job_events.TaskRetried(task_id, attempt, counts, known)
                elif brought is not None:
                    yield job_events.TaskAnswered(task_id, brought)
                elif open_on is None:
                    yield job_events.TaskRecalled(task_id, attempt_id)
            if end[0] is not None:
                ended[TaskState(end[0])] += 1
                yield _read_end(task_id, *end)
    is_over = "SELECT 1 FROM jobs WHERE number = ? AND ended_unix_s IS NOT NULL"
    if db.execute(is_over, (number,)).fetchone():
        yield job_events.JobEnded(*(ended[state] for state in ENDED))


def _reason(stored: str | None, *, is_lost: bool) -> job_events.RetryReason:
    if stored is None:  # by a release that did not tell
        reasons = job_events.RetryReason
        return reasons.MAY_HAVE_RUN if is_lost else reasons.FAILED
    return job_events.RetryReason(stored)


_REFUSALS: Final = {kind.__name__: kind for kind in get_args(Refusal)}


def _read_end(task_id: str, *columns: Any) -> job_events.JobEvent:
    *stored, checksum = columns
    if checksum not in (None, _checksum(task_id, *stored)):
        raise Altered(f"the result of {task_id} is not as it was stored")
    ended, worker, result, ran_ms, kind, told, waited_for = stored
    match TaskState(ended):
        case TaskState.SUCCEEDED:
            return job_events.TaskSucceeded(task_id, PeerId(worker or ""), result, ran_ms)
        case TaskState.FAILED if kind == _DISAGREED:
            given, [refused, problem] = decode(result, len(result)), _list(told)
            answers = tuple(
                _read_answer(*each) for each in take_list(given, "answers", MAX_COPIES * 2)
            )
            reasons = ((PeerId(who), _REFUSALS[kind](*why)) for who, kind, why in refused)
            return job_events.TaskDisagreed(task_id, answers, tuple(reasons), problem)
        case TaskState.FAILED:
            attempts = tuple(job_events.Attempt(*each) for each in _list(told))
            failure = None if kind is None else FailureKind(kind)
            return job_events.TaskGaveUp(task_id, attempts, failure, result, waited_for)
        case TaskState.UNPLACEABLE:
            reasons = ((PeerId(who), _REFUSALS[kind](*why)) for who, kind, why in _list(told))
            return job_events.TaskUnplaceable(task_id, tuple(reasons))
        case _:
            return job_events.TaskCancelled(task_id)


def _list(raw: bytes) -> list[Any]:
    return take_list(decode(raw, MAX_DETAIL_BYTES), "told", MAX_DETAIL_BYTES)


def _texts(raw: bytes) -> tuple[str, ...]:
    return tuple(take_list(decode(raw, MAX_LISTED_BYTES), "list", MAX_LISTED_BYTES))


_RESULT: Final = "ended, worker, result, ran_ms, kind, told, waited_for, checksum"
_OF_TASK: Final = "FROM tasks WHERE job = ?1 AND task_id = ?2"
# A result that is there already stays: a process that was killed had stored it, and the next one
# received it again.
_END: Final = (
    f"INSERT OR IGNORE INTO results (task, {_RESULT})"
    f" SELECT number, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10 {_OF_TASK}"
)


def _end(
    event: job_events.TaskEnd,
    ended: TaskState,
    worker: PeerId | None,
    result: bytes,
    ran_ms: int,
    kind: str | None = None,
    told: bytes = b"",
    waited_for: str = "",
) -> Row:
    """The columns of a result, with their checksum."""
    columns = (ended, worker, result, ran_ms, kind, told, waited_for)
    return (*columns, _checksum(event.task_id, *columns))


def _checksum(
    task_id: str,
    ended: str,
    worker: str | None,
    result: bytes,
    ran_ms: int,
    kind: str | None,
    told: bytes,
    waited_for: str,
) -> int:
    """Of a result. Raises TypeError for values of other types than those that are stored."""
    plain = f"{task_id} {ended} {worker} {ran_ms} {kind} {waited_for} {len(result)}"
    summed = crc32(result, crc32(plain.encode("utf-8", "surrogatepass")))
    return crc32(told, summed) if told else summed


def _answer(e: job_events.Answer) -> Row:
    return e.attempt_id, e.worker, e.result, e.ran_ms, encode([*e.marks])


def _read_answer(
    attempt_id: str, worker: str, result: bytes, ran_ms: int, marks: bytes
) -> job_events.Answer:
    return job_events.Answer(attempt_id, PeerId(worker), result, ran_ms, _texts(marks))


def _attempts(e: job_events.TaskGaveUp) -> bytes:
    return encode([[x.attempt_id, x.worker, _plain(x.why), x.lost] for x in e.attempts])


def _refused(e: job_events.TaskUnplaceable | job_events.TaskDisagreed) -> list[list[object]]:
    return [[worker, type(why).__name__, list(astuple(why))] for worker, why in e.reasons]


def _refusals(e: job_events.TaskUnplaceable) -> bytes:
    return encode(_refused(e))


def _disagreed(e: job_events.TaskDisagreed) -> Row:
    answers = encode([_answer(each) for each in e.answers])
    told = encode([_refused(e), _plain(e.problem)])
    return _end(e, TaskState.FAILED, None, answers, 0, _DISAGREED, told)


# Of events of jobs, what each adds: parameters of the statement after the job and the task. The
# other events need no place on the disk.
STORED: Final[Mapping[type, tuple[str, Callable[[Any], Row]]]] = {
    job_events.TaskPlaced: (
        "INSERT OR REPLACE INTO attempts"
        " (task, attempt_id, worker, lease_id, open_on, nearest)"
        f" SELECT number, ?3, ?4, ?5, ?5, ?6 {_OF_TASK}",
        lambda e: (e.attempt_id, e.worker, e.lease_id, e.nearest),
    ),
    job_events.TaskRetried: (
        "UPDATE attempts SET why = ?4, lost = ?5, reason = ?6, open_on = NULL, failed ="
        " (SELECT 1 + count(failed) FROM attempts AS other WHERE other.task = attempts.task)"
        f" WHERE task = (SELECT number {_OF_TASK}) AND attempt_id = ?3",
        lambda e: (
            e.attempt.attempt_id,
            _plain(e.attempt.why),
            _LOST.index((e.attempt.lost, e.counts)),
            e.reason,
        ),
    ),
    job_events.TaskSaved: (
        f"INSERT OR REPLACE INTO checkpoints (task, packed) SELECT number, ?3 {_OF_TASK}",
        lambda e: (e.checkpoint.pack(),),
    ),
    job_events.TaskRecalled: (
        "UPDATE attempts SET open_on = NULL"
        f" WHERE task = (SELECT number {_OF_TASK}) AND attempt_id = ?3",
        lambda e: (e.attempt_id,),
    ),
    job_events.TaskSucceeded: (
        _END,
        lambda e: _end(e, TaskState.SUCCEEDED, e.worker, e.result, e.ran_ms),
    ),
    job_events.TaskGaveUp: (
        _END,
        lambda e: _end(e, TaskState.FAILED, None, e.result, 0, e.kind, _attempts(e), e.waited_for),
    ),
    job_events.TaskAnswered: (
        f"INSERT OR IGNORE INTO answers (task, {_ANSWER})"
        f" SELECT number, ?3, ?4, ?5, ?6, ?7 {_OF_TASK}",
        lambda e: _answer(e.answer),
    ),
    job_events.TaskDisagreed: (_END, _disagreed),
    job_events.TaskUnplaceable: (
        _END,
        lambda e: _end(e, TaskState.UNPLACEABLE, None, b"", 0, None, _refusals(e)),
    ),
    job_events.TaskCancelled: (_END, lambda e: _end(e, TaskState.CANCELLED, None, b"", 0)),
}
# What has ended is still to be done, and what was in flight of it is not known to its worker.
REOPEN: Final = (
    f"UPDATE attempts SET open_on = NULL WHERE task = (SELECT number {_OF_TASK})",
    f"DELETE FROM results WHERE task = (SELECT number {_OF_TASK})",
    f"DELETE FROM checkpoints WHERE task = (SELECT number {_OF_TASK})",
)
PERSIST: Final = f"INSERT OR REPLACE INTO leases ({_LEASE}) VALUES (?, ?, ?, ?, ?, ?, ?, ?)"
FORGET: Final = "DELETE FROM leases WHERE lessor = ? AND lease_id = ?"


def persist_row(lease: job_events.PersistLease) -> Row:
    return (
        lease.lessor.peer_id,
        lease.lease_id,
        encode(list(lease.lessor.addresses)),
        encode_requirements(lease.needs),
        lease.priority,
        lease.fence,
        encode(list(lease.device_ids)),
        None if lease.marks is None else encode([*lease.marks]),
    )


def _plain(text: str) -> str:
    """What an exception of this machine says may hold half a character, of a file's name."""
    return text.encode(errors="replace").decode()

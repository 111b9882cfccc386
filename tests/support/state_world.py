"""A scheduler's state in a small world: alice keeps jobs, bob and carol run them."""

from collections.abc import Iterable
from dataclasses import replace

from formation_p2p.core.effects import Contact
from formation_p2p.core.identity import Identity
from formation_p2p.jobs.core.job import Job
from formation_p2p.jobs.core.job_events import (
    Attempt,
    EmitJobEvent,
    ForgetLease,
    JobEnded,
    JobEvent,
    PersistLease,
    TaskPlaced,
    TaskSucceeded,
)
from formation_p2p.machine.core.requirements import Requirements
from formation_p2p.workload.core.blob import RAW, Blob, Cid, digest_of
from formation_p2p.workload.core.process import ProcessResult
from formation_p2p.workload.core.work import InputFrom, Task, task_id

ALICE, BOB, CAROL = (Identity.from_seed(bytes([n]) * 32).peer_id for n in (1, 2, 3))
NEEDS = Requirements(driver="process")
BOBS = Contact(BOB, ("/ip4/127.0.0.1/tcp/4001",))


def job_of(tasks: int, job_id: str = "a" * 16, *, shared: bytes = b"", size: int = 10) -> Job:
    return Job(
        job_id,
        tuple(
            Task(task_id(job_id, n), NEEDS, b"%08d" % n + b"p" * size, f"n{n}", shared=shared)
            for n in range(tasks)
        ),
        "a job",
    )


def reading_job() -> Job:
    """Of three tasks: the second reads a file that the first makes."""
    job = job_of(3)
    first, second, third = job.tasks
    files = (InputFrom("in", first.task_id, "out"),)
    second = replace(second, after=(first.task_id,), inputs_from=files)
    return replace(job, tasks=(first, second, third))


MADE = ProcessResult(0, outputs={"out": Blob(Cid(RAW, digest_of(b"x")), 1, (BOBS,))})


def reported(job: Job, *events: JobEvent) -> list[EmitJobEvent]:
    return [EmitJobEvent(job.job_id, event, cause="test") for event in events]


def placed(job: Job, n: int, tried: int = 1, lease_id: str = "lease") -> TaskPlaced:
    task = job.tasks[n].task_id
    return TaskPlaced(task, f"{task}#{tried}", BOB, lease_id, nearest=True)


def succeeded(job: Job, n: int, result: bytes = b"done") -> TaskSucceeded:
    return TaskSucceeded(job.tasks[n].task_id, BOB, result, 7)


def attempt(job: Job, n: int, tried: int = 1, *, lost: bool = False) -> Attempt:
    return Attempt(f"{job.tasks[n].task_id}#{tried}", BOB, "exit: code 1", lost)


def all_done(job: Job) -> list[EmitJobEvent]:
    """What is told of a job each of whose tasks succeeds at once."""
    events: Iterable[JobEvent] = (
        event
        for n in range(len(job.tasks))
        for event in (placed(job, n), succeeded(job, n, b"%d" % n))
    )
    return reported(job, *events, JobEnded(len(job.tasks), 0, 0, 0))


def hold(lease_id: str = "lease", marks: tuple[str, ...] | None = None) -> PersistLease:
    return PersistLease(lease_id, BOBS, NEEDS, 5, 17, ("gpu-0",), marks, cause="test")


def let_go(lease_id: str = "lease") -> ForgetLease:
    return ForgetLease(BOB, lease_id, cause="test")

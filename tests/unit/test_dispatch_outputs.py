"""bob's tasks that read files which others of his have made: where they run, and what happens when
the files are lost."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import pytest

from formation_p2p.core.effects import Contact
from formation_p2p.core.errors import InvalidInput
from formation_p2p.core.units import MIB
from formation_p2p.jobs.core.job import Job
from formation_p2p.jobs.core.job_events import (
    JobEnded,
    TaskCancelled,
    TaskGaveUp,
    TaskPlaced,
    TaskReopened,
    TaskRetried,
    TaskSucceeded,
)
from formation_p2p.jobs.core.jobs import Jobs, Outbox
from formation_p2p.jobs.core.task_run import TaskRun, TaskState
from formation_p2p.peer.core.events import Resume
from formation_p2p.workload.core.blob import DAG_CBOR, Blob, Cid, digest_of
from formation_p2p.workload.core.outcome import Failed, FailureKind, Outcome, Succeeded
from formation_p2p.workload.core.process import ProcessResult, ProcessSpec
from formation_p2p.workload.core.work import InputFrom
from simulations.simulator.disk import Disk
from simulations.simulator.executor import Running
from simulations.simulator.node import SimNode
from tests.support.stories import ALICE, CAROL, at, job, name_of, only, peer_of, town

Reads = Mapping[int, Sequence[int]]
"""For each task that reads files, the tasks that make them."""


def reading(reads: Reads, count: int, **terms: object) -> Job:
    """A job of so many tasks. One that reads finds `in-3` for `out` of `job/3`."""
    plain = job(count, **terms)  # type: ignore[arg-type]  # as `job` takes them
    tasks = []
    for number, task in enumerate(plain.tasks):
        makers = [f"job/{each}" for each in reads.get(number, ())]
        inputs = tuple(InputFrom(name.replace("job/", "in-"), name, "out") for name in makers)
        spec = ProcessSpec(("run", str(number)), outputs=("out",))
        tasks.append(replace(task, payload=spec.encode(), after=tuple(makers), inputs_from=inputs))
    return replace(plain, tasks=tuple(tasks))


def made(worker: Contact, what: str, size_bytes: int = 2 * MIB) -> Succeeded:
    blob = Blob(Cid(DAG_CBOR, digest_of(what.encode())), size_bytes, (worker,))
    return Succeeded(ProcessResult(0, outputs={"out": blob}).encode())


class Town:
    """bob, and workers. `missing` says which input a worker cannot have, by its name and the
    attempt's task; a task takes a second."""

    def __init__(
        self,
        missing: Callable[[str, str], str | None] = lambda worker, task: None,
        fails: Callable[[str], bool] = lambda attempt: False,
        sizes: Mapping[str, int] | None = None,
        **cores: int,
    ) -> None:
        self.ran: list[tuple[str, str]] = []  # the attempt and its worker
        self.read: dict[str, dict[str, Blob]] = {}  # by the attempt
        self.missing = missing
        self._fails = fails
        self._sizes = sizes or {}
        self.world = town(5, self._run, **(cores or {"alice": 1, "carol": 1}))
        self.bob: SimNode = self.world.nodes["bob"]

    def _run(self, running: Running) -> tuple[float, Outcome]:
        attempt = running.work.attempt_id
        task = attempt.partition("#")[0]
        (worker,) = (
            e.worker for e in only(self.bob.reported, TaskPlaced) if e.attempt_id == attempt
        )
        name = name_of(self.world, worker)
        self.ran.append((attempt, name))
        self.read[attempt] = dict(ProcessSpec.decode(running.work.payload).inputs)
        if self._fails(attempt):
            return 1.0, Failed(FailureKind.EXIT, "exit code 1")
        lost = self.missing(name, task)
        if lost is not None:
            return 1.0, Failed(FailureKind.INPUT, f"{lost} cannot be had", lost.encode())
        contact = self.world.nodes[name].contact
        return 1.0, made(contact, attempt, self._sizes.get(task, 2 * MIB))

    def told(
        self, kind: type[TaskReopened] | type[TaskSucceeded] | type[TaskCancelled]
    ) -> list[str]:
        return [event.task_id.removeprefix("job/") for event in only(self.bob.reported, kind)]


# -- when all goes well ---------------------------------------------------------------------


def test_a_task_reads_what_another_has_made_and_runs_where_that_is() -> None:
    town = Town()
    town.bob.submit(reading({4: [0], 5: [1], 6: [2], 7: [3]}, 8))
    town.world.elapse(20)
    assert town.bob.reported[-1] == JobEnded(8, 0, 0, 0)
    ran = {attempt.partition("#")[0]: (attempt, worker) for attempt, worker in town.ran}
    for maker in range(4):
        (made_by, keeper), (read_by, worker) = ran[f"job/{maker}"], ran[f"job/{maker + 4}"]
        ((name, blob),) = town.read[read_by].items()
        assert (name, blob.cid.digest) == (f"in-{maker}", digest_of(made_by.encode()))
        assert worker == keeper
    assert {worker for _, worker in ran.values()} == {"alice", "carol"}


def test_one_that_reads_from_several_runs_where_most_of_it_is() -> None:
    town = Town(sizes={"job/0": 2 * MIB, "job/1": 9 * MIB})
    town.bob.submit(reading({2: [0, 1]}, 3))
    town.world.elapse(10)
    where = {attempt.partition("#")[0]: worker for attempt, worker in town.ran}
    assert where["job/0"] != where["job/1"] == where["job/2"]
    assert sorted(town.read["job/2#1"]) == ["in-0", "in-1"]


def needed(town: Town) -> list[str]:
    """Which tasks' files are to be kept now, and by whom."""
    of = {digest_of(attempt.encode()): attempt for attempt, _ in town.ran}
    return sorted(
        f"{of[blob.cid.digest]} {name_of(town.world, worker)}"
        for run in peer_of(town.bob).scheduler.jobs()
        for worker, blob in run.outputs.needed()
    )


def test_a_file_is_needed_until_the_last_that_reads_it_has_ended() -> None:
    town = Town(alice=1)
    town.bob.submit(reading({1: [0], 2: [0, 1]}, 4))
    told = []
    while not only(town.bob.reported, JobEnded):
        told.append((len(only(town.bob.reported, TaskSucceeded)), needed(town)))
        town.world.elapse(0.1)
    by_ended = dict(told)
    assert by_ended[0] == []
    first = min(number for number, kept in told if kept)
    assert by_ended[first] == ["job/0#1 alice"]
    assert ["job/0#1 alice", "job/1#1 alice"] in by_ended.values()
    assert needed(town) == []


def test_a_file_is_needed_again_by_what_is_made_again() -> None:
    town = Town(once("in-1", "job/2"), alice=1)
    town.bob.submit(reading({1: [0], 2: [1]}, 3))
    while not only(town.bob.reported, TaskReopened):
        town.world.elapse(0.1)
    assert town.told(TaskReopened) == ["1"]
    assert needed(town) == ["job/0#1 alice"]
    town.world.elapse(10)
    assert town.bob.reported[-1] == JobEnded(3, 0, 0, 0)


def test_a_file_is_not_needed_by_what_ended_in_another_life() -> None:
    town = Town(alice=1)
    lived_again(town, 2.5, {1: [0], 2: [1]}, 3, then_s=0.3)
    assert needed(town) == ["job/1#1 alice"]


def test_a_job_that_reads_what_it_does_not_wait_for_is_none() -> None:
    plain = reading({1: [0]}, 2)
    with pytest.raises(InvalidInput, match="job/1 reads a file of 'job/0', and does not wait"):
        replace(plain, tasks=(plain.tasks[0], replace(plain.tasks[1], after=())))


@pytest.mark.parametrize("result", [b"nonsense", ProcessResult(0).encode()])
def test_a_result_without_the_files_that_others_read_is_a_failure(result: bytes) -> None:
    town = Town()
    brought = iter([Succeeded(result)])
    town.world.run = lambda running: (1.0, next(brought, made(ALICE, "again")))
    town.bob.submit(reading({1: [0]}, 2))
    town.world.elapse(10)
    assert town.bob.reported[-1] == JobEnded(2, 0, 0, 0)
    (retried,) = only(town.bob.reported, TaskRetried)
    assert retried.attempt.why == "output: files for which other tasks wait are missing"


# -- when files are lost --------------------------------------------------------------------


def once(lost: str, reader: str, times: int = 1) -> Callable[[str, str], str | None]:
    """The first so many attempts of a task miss an input."""
    left = [times]

    def missing(worker: str, task: str) -> str | None:
        if task != reader or not left[0]:
            return None
        left[0] -= 1
        return lost

    return missing


def test_the_files_of_a_worker_that_died_are_made_again_elsewhere() -> None:
    town = Town(alice=1, carol=1, dave=1)
    kept: list[str] = []

    def missing(worker: str, task: str) -> str | None:
        if task == "job/0":
            kept.append(worker)
            return None
        return "in-0" if len(kept) == 1 else None

    town.missing = missing
    town.bob.submit(reading({1: [0]}, 2))
    while not only(town.bob.reported, TaskSucceeded):
        town.world.elapse(0.1)
    town.world.kill(town.world.nodes[kept[0]])
    town.world.elapse(60)
    assert town.bob.reported[-1] == JobEnded(2, 0, 0, 0)
    assert town.told(TaskReopened) == ["0"]
    assert kept[0] not in kept[1:]


def test_all_that_one_worker_kept_is_made_again_and_others_that_wait_read_that() -> None:
    town = Town(once("in-0", "job/2"), alice=1)
    town.bob.submit(reading({2: [0, 1], 3: [1], 4: [0]}, 6))
    town.world.elapse(30)
    assert town.bob.reported[-1] == JobEnded(6, 0, 0, 0)
    assert sorted(town.told(TaskReopened)) == ["0", "1"]
    assert sorted(town.told(TaskSucceeded)) == ["0", "0", "1", "1", "2", "3", "4", "5"]
    last = {attempt.partition("#")[0]: blobs for attempt, blobs in town.read.items()}
    for task, reads in {"job/2": [0, 1], "job/3": [1], "job/4": [0]}.items():
        assert set(last[task]) == {f"in-{each}" for each in reads}
    digests = {blob.cid.digest for blob in last["job/2"].values()}
    assert digests == {digest_of(f"job/{each}#2".encode()) for each in (0, 1)}


def test_what_another_worker_keeps_is_not_made_again() -> None:
    town = Town(once("in-1", "job/2"), sizes={"job/1": 9 * MIB})
    town.bob.submit(reading({2: [0, 1]}, 3))
    town.world.elapse(30)
    assert town.bob.reported[-1] == JobEnded(3, 0, 0, 0)
    assert town.told(TaskReopened) == ["1"]


def test_a_name_that_is_no_file_of_another_task_has_nothing_made_again() -> None:
    town = Town(once("other", "job/1"), alice=1)
    town.bob.submit(reading({1: [0]}, 2))
    town.world.elapse(20)
    assert town.bob.reported[-1] == JobEnded(2, 0, 0, 0)
    assert only(town.bob.reported, TaskReopened) == []


def test_files_of_files_are_made_again_from_the_first_on() -> None:
    """What the one in the middle reads is gone too."""
    town = Town(alice=1)

    def missing(worker: str, task: str) -> str | None:
        attempt = f"{task}#{sum(a.startswith(task) for a, _ in town.ran)}"
        if attempt == "job/2#1":
            return "in-1"
        return "in-0" if attempt == "job/1#2" else None

    town.missing = missing
    town.bob.submit(reading({1: [0], 2: [1]}, 3))
    town.world.elapse(30)
    assert town.bob.reported[-1] == JobEnded(3, 0, 0, 0)
    assert town.told(TaskReopened) == ["1", "0"]
    assert [attempt for attempt, _ in town.ran] == [
        *("job/0#1", "job/1#1", "job/2#1"),
        *("job/1#2", "job/0#2", "job/1#3", "job/2#2"),
    ]


def test_files_that_are_lost_time_and_again_are_given_up() -> None:
    town = Town(once("in-0", "job/1", times=99), alice=1)
    town.bob.submit(reading({1: [0]}, 2))
    town.world.elapse(60)
    assert town.bob.reported[-1] == JobEnded(1, 1, 0, 0)
    (gave_up,) = only(town.bob.reported, TaskGaveUp)
    assert (gave_up.kind, len(gave_up.attempts)) == (FailureKind.INPUT, 5)
    assert town.told(TaskReopened) == ["0"] * 4


def test_what_reads_the_files_of_a_task_that_fails_the_second_time_does_not_run() -> None:
    town = Town(once("in-0", "job/2"), lambda attempt: attempt.startswith("job/0#2"), alice=1)
    town.bob.submit(reading({2: [0], 3: [0, 1], 4: [3]}, 5, attempts=1))
    town.world.elapse(30)
    assert town.bob.reported[-1] == JobEnded(3, 2, 0, 0)
    ends = {e.task_id: e.waited_for for e in only(town.bob.reported, TaskGaveUp)}
    assert ends == {"job/0": "", "job/2": "job/0"}


# -- another incarnation --------------------------------------------------------------------


def lived_again(town: Town, after_s: float, reads: Reads, count: int, then_s: float = 30) -> Disk:
    disk = town.bob.disk = Disk(town.world, lambda: 0.001)
    given = reading(reads, count)
    assert disk.submit(given)
    town.bob.submit(given)
    town.world.elapse(after_s)
    town.world.kill(town.bob)
    disk.crash(written=True)
    town.world.restart(town.bob, Resume(*disk.saved()))
    town.world.elapse(then_s)
    return disk


@pytest.mark.parametrize("after_s", [1.9, 2.5])
def test_another_life_knows_the_files_that_were_made(after_s: float) -> None:
    town = Town(once("in-0", "job/1"), alice=1)
    disk = lived_again(town, after_s, {1: [0], 2: [1]}, 3)
    events = disk.jobs["job"].events
    assert events[-1] == JobEnded(3, 0, 0, 0)
    assert len(only(events, TaskSucceeded)) == 3 + len(only(events, TaskReopened))
    assert all(town.read[attempt] for attempt, _ in town.ran if not attempt.startswith("job/0"))


# -- on their own ---------------------------------------------------------------------------


class Alone:
    """The jobs of a scheduler, without workers."""

    def __init__(self, reads: Reads, count: int) -> None:
        self.jobs = Jobs(Outbox())
        given = reading(reads, count)
        self.job = self.jobs.begin(given, at(0))
        self.runs: dict[str, TaskRun] = {}
        for task in given.tasks:
            run = self.runs[task.task_id] = TaskRun(task, self.job, task.key)
            if task.after:
                run.block(dict.fromkeys(task.after))

    def succeed(self, number: int) -> None:
        run = self.runs[f"job/{number}"]
        run.move("dispatch")
        outcome = made(ALICE, f"{number}-{run.next_attempt()}")
        blobs = self.job.outputs.read(run.task.task_id, outcome.result)
        assert blobs is not None
        self.job.outputs.made(run, ALICE.peer_id, blobs)
        self.jobs.succeeded(run, TaskSucceeded(run.task.task_id, ALICE.peer_id, outcome.result, 1))

    def miss(self, number: int, name: str, worker: Contact = ALICE) -> bool:
        run = self.runs[f"job/{number}"]
        failed = Failed(FailureKind.INPUT, "no peer has it", name.encode())
        return self.jobs.input_lost(run, "x", worker.peer_id, failed)

    def states(self) -> str:
        return " ".join(run.state for run in self.runs.values())


def test_one_that_runs_with_files_that_were_made_again_meanwhile_reads_the_new_ones() -> None:
    alone = Alone({1: [0], 2: [0]}, 3)
    alone.succeed(0)
    for number in (1, 2):
        alone.runs[f"job/{number}"].move("dispatch")
    assert alone.miss(1, "in-0")
    assert alone.states() == "waiting waiting dispatched"
    # What the one that runs misses is being made again already.
    assert alone.miss(2, "in-0")
    assert alone.jobs.take_unbound() == [alone.job]
    assert [run.bind() for run in alone.runs.values()] == [True, False, False]
    assert alone.states() == "waiting blocked blocked"
    alone.succeed(0)
    assert alone.states() == "succeeded waiting waiting"


def test_one_that_missed_files_which_are_there_anew_is_placed_again_with_those() -> None:
    alone = Alone({1: [0], 2: [0]}, 3)
    alone.succeed(0)
    for number in (1, 2):
        alone.runs[f"job/{number}"].move("dispatch")
    alone.miss(1, "in-0")
    alone.succeed(0)
    before = alone.runs["job/2"].inputs
    assert alone.miss(2, "in-0")
    assert alone.runs["job/0"].state is TaskState.SUCCEEDED
    assert alone.runs["job/2"].bind()
    assert alone.runs["job/2"].inputs != before


def test_one_that_waits_for_more_waits_again_for_files_that_were_lost_meanwhile() -> None:
    alone = Alone({2: [0], 3: [0, 1]}, 4)
    alone.succeed(0)
    alone.runs["job/2"].move("dispatch")
    alone.miss(2, "in-0")
    alone.succeed(1)
    assert alone.states() == "waiting succeeded waiting blocked"
    alone.succeed(0)
    assert alone.states() == "succeeded succeeded waiting waiting"


def test_one_that_runs_is_given_up_where_its_files_will_not_be_made_again() -> None:
    alone = Alone({1: [0], 2: [0]}, 3)
    alone.succeed(0)
    for number in (1, 2):
        alone.runs[f"job/{number}"].move("dispatch")
    alone.miss(1, "in-0")
    alone.runs["job/1"].bind()
    alone.jobs.unplaceable(alone.runs["job/0"], ())
    assert not alone.miss(2, "in-0")
    assert alone.states() == "unplaceable failed failed"


def test_one_worker_alone_that_misses_what_another_keeps_is_no_reason() -> None:
    alone = Alone({1: [0]}, 2)
    alone.succeed(0)
    alone.runs["job/1"].move("dispatch")
    assert alone.miss(1, "in-0", CAROL)
    assert alone.states() == "succeeded waiting"
    alone.runs["job/1"].move("dispatch")
    assert alone.miss(1, "in-0", CAROL)
    assert alone.states() == "waiting waiting"


def test_what_is_made_again_of_files_that_are_made_again_waits_for_those() -> None:
    alone = Alone({1: [0], 2: [0, 1]}, 3)
    alone.succeed(0)
    alone.succeed(1)
    alone.runs["job/2"].move("dispatch")
    assert alone.miss(2, "in-1")
    assert alone.states() == "waiting blocked waiting"
    assert not alone.runs["job/2"].bind()
    alone.succeed(0)
    assert alone.states() == "succeeded waiting blocked"
    alone.succeed(1)
    assert alone.states() == "succeeded succeeded waiting"


def test_one_that_waits_for_more_falls_with_files_that_will_not_be_made_again() -> None:
    alone = Alone({2: [0], 3: [0, 1], 4: [3]}, 5)
    alone.succeed(0)
    alone.runs["job/2"].move("dispatch")
    alone.miss(2, "in-0")
    alone.jobs.unplaceable(alone.runs["job/0"], ())
    assert alone.runs["job/3"].state is TaskState.BLOCKED
    alone.succeed(1)
    assert alone.states() == "unplaceable succeeded waiting failed failed"

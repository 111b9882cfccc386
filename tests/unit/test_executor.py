"""How the executor hands calls over: in few jobs, no further ahead than the network takes them in.
The network here is this thread."""

import pickle
import threading
import time
from collections.abc import Mapping
from concurrent.futures import Future, wait
from typing import NoReturn

import pytest

from formation_p2p.api.bridge import Bridge, JobObserver
from formation_p2p.api.calls import BATCH_CALLS
from formation_p2p.api.code import CallCode
from formation_p2p.api.executor import FIRST_WAITING, LAST_WAITING, NodeExecutor
from formation_p2p.api.lifecycle import Lifecycle
from formation_p2p.api.reference import NO_PARCELS
from formation_p2p.core.errors import NodeClosed
from formation_p2p.core.identity import PeerId
from formation_p2p.jobs.core.job import Job
from formation_p2p.jobs.core.job_events import JobEnded, TaskPlaced, TaskSucceeded
from formation_p2p.machine.core.requirements import Requirements
from formation_p2p.placement.core.task_options import TaskOptions
from formation_p2p.workload.core.call_context import CallContext
from formation_p2p.workload.core.parcel import Parcel
from tests.support.parcels import a_packer
from tests.support.waiting import wait_until

ALICE = PeerId("alice")
OPTIONS = TaskOptions(needs=Requirements(driver="python"), attempts=1)
WITHIN_S = 20.0


def nowhere(*given: object) -> NoReturn:
    raise AssertionError("these calls need no code")


CODE = CallCode("main", nowhere, nowhere)


class Network(Bridge):
    """Takes jobs in; places and runs their calls when it is told to, or at once."""

    def __init__(self, at_once: bool = False) -> None:
        self.lifecycle = Lifecycle()
        self.packer = a_packer()
        self.jobs: list[Job] = []
        self.closed = False
        self.taken_back: frozenset[str] = frozenset()
        self._at_once = at_once
        self._observers: list[JobObserver] = []
        self._lock = threading.Lock()

    def begin(
        self,
        job: Job,
        observer: JobObserver,
        parcels: Mapping[str, Parcel] = NO_PARCELS,
        *,
        on_loop: bool = True,
    ) -> None:
        assert not on_loop
        if self.closed:
            raise NodeClosed("it is not running")
        with self._lock:
            self._observers.append(observer)
            self.jobs.append(job)
        if self._at_once:
            self.run(len(self.jobs) - 1)

    def cancel(self, job_id: str, waiting: frozenset[str] = frozenset()) -> None:
        assert waiting, "an executor cancels no job"
        self.taken_back |= waiting

    @property
    def calls(self) -> int:
        with self._lock:
            return sum(len(job.tasks) for job in self.jobs)

    def place(self, number: int) -> None:
        for task in self.jobs[number].tasks:
            placed = TaskPlaced(task.task_id, f"{task.task_id}#1", ALICE, "lease", True)
            self._observers[number].notify(placed)

    def run(self, number: int) -> None:
        self.place(number)
        job, observer = self.jobs[number], self._observers[number]
        for task in job.tasks:
            args, kwargs = pickle.loads(task.payload)
            function = pickle.loads(CallContext.decode(task.shared).function)
            result = pickle.dumps(function(*args, **kwargs))
            observer.notify(TaskSucceeded(task.task_id, ALICE, result, 0))
        observer.notify(JobEnded(len(job.tasks), 0, 0, 0))

    def crash(self, number: int) -> None:
        self._observers[number].fail(NodeClosed("it crashed"))


@pytest.mark.at_length
def test_what_is_submitted_one_after_the_other_goes_out_in_few_jobs() -> None:
    network = Network(at_once=True)
    with NodeExecutor(network, CODE, OPTIONS) as executor:
        futures = [executor.submit(abs, -n) for n in range(5000)]
    assert [future.result() for future in futures] == list(range(5000))
    assert network.calls == 5000
    assert len(network.jobs) < 500
    assert max(len(job.tasks) for job in network.jobs) <= BATCH_CALLS
    assert {job.name for job in network.jobs} == {"abs"}


@pytest.mark.at_length
def test_no_more_is_handed_over_than_waits_for_a_worker_already() -> None:
    network = Network()
    executor = NodeExecutor(network, CODE, OPTIONS)
    futures = [executor.submit(abs, n) for n in range(10_000)]
    wait_until(lambda: network.calls > 0)
    time.sleep(0.05)
    before = network.calls
    assert before <= FIRST_WAITING
    assert [future.cancel() for future in futures[-3:]] == [True] * 3
    done = 0
    while network.calls < 4 * LAST_WAITING // 2 and done < 400:
        wait_until(lambda: len(network.jobs) > done)  # noqa: B023 - it is called at once
        network.place(done)
        done += 1
    # Where they are taken in at once, ever more of them are.
    assert max(len(job.tasks) for job in network.jobs) == BATCH_CALLS
    executor.shutdown(wait=False, cancel_futures=True)
    ran = 0

    def all_done() -> bool:
        nonlocal ran
        while ran < len(network.jobs):
            network.run(ran)
            ran += 1
        return all(future.done() for future in futures)

    wait_until(all_done)
    assert 0 < sum(future.cancelled() for future in futures) < 10_000


def test_what_was_handed_over_can_be_cancelled_until_a_worker_takes_it() -> None:
    network = Network()
    with NodeExecutor(network, CODE, OPTIONS) as executor:
        runs = executor.submit(abs, -1)
        wait_until(lambda: network.calls == 1)
        waits = executor.submit(abs, -2)
        wait_until(lambda: network.calls == 2)
        network.place(0)
        wait_until(runs.running)
        assert not runs.cancel()
        assert waits.cancel()
        assert waits in wait([waits], WITHIN_S).done  # and is not waited for until the worker comes
        wait_until(lambda: network.taken_back == {network.jobs[1].tasks[0].task_id})
        network.run(1)  # it crossed with its cancelling
        network.run(0)
    assert runs.result() == 1


def test_at_most_so_many_are_under_way_as_was_asked_for() -> None:
    network = Network()
    with NodeExecutor(network, CODE, OPTIONS, max_workers=3) as executor:
        futures = [executor.submit(abs, n) for n in range(7)]
        for done in range(3):
            wait_until(lambda: network.calls == min(3 * (done + 1), 7))  # noqa: B023
            for number, job in enumerate(list(network.jobs)):
                if not futures[int(pickle.loads(job.tasks[0].payload)[0][0])].done():
                    network.run(number)
    assert [future.result() for future in futures] == list(range(7))


def test_a_call_that_was_cancelled_is_under_way_until_it_has_ended() -> None:
    network = Network()
    executor = NodeExecutor(network, CODE, OPTIONS, max_workers=1)
    first = executor.submit(abs, -1)
    wait_until(lambda: network.calls == 1)
    second = executor.submit(abs, -2)
    assert first.cancel()
    wait_until(lambda: bool(network.taken_back))
    third = executor.submit(abs, -3)  # has it look once more
    assert third.cancel()
    time.sleep(0.05)
    assert network.calls == 1  # a worker may have been sent the first one
    network.run(0)
    wait_until(lambda: network.calls == 2)
    network.run(1)
    executor.shutdown()
    assert second.result() == 2


def test_where_the_node_is_down_the_futures_say_so() -> None:
    network = Network()
    with NodeExecutor(network, CODE, OPTIONS) as executor:
        crashed: Future[int] = executor.submit(abs, 1)
        wait_until(lambda: network.calls == 1)
        network.crash(0)
        assert isinstance(crashed.exception(WITHIN_S), NodeClosed)
        network.closed = True
        assert isinstance(executor.submit(abs, 1).exception(WITHIN_S), NodeClosed)


def test_a_fault_of_the_executor_itself_leaves_nobody_waiting(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Broken(Network):
        def begin(
            self,
            job: Job,
            observer: JobObserver,
            parcels: Mapping[str, Parcel] = NO_PARCELS,
            *,
            on_loop: bool = True,
        ) -> None:
            raise RuntimeError("a fault")

    executor = NodeExecutor(Broken(), CODE, OPTIONS)
    assert isinstance(executor.submit(abs, 1).exception(WITHIN_S), RuntimeError)
    executor.shutdown()
    assert "the executor failed" in caplog.text
    with pytest.raises(RuntimeError, match="its thread failed"):
        executor.submit(abs, 1)


def test_sizes_that_make_no_sense_are_refused() -> None:
    with pytest.raises(ValueError, match="greater than 0"):
        NodeExecutor(Network(), CODE, OPTIONS, max_workers=0)
    with (
        NodeExecutor(Network(), CODE, OPTIONS) as executor,
        pytest.raises(ValueError, match="chunksize"),
    ):
        executor.map(abs, [1], chunksize=0)
    with (
        NodeExecutor(Network(), CODE, OPTIONS) as executor,
        pytest.raises(ValueError, match="buffersize"),
    ):
        executor.map(abs, [1], buffersize=0)

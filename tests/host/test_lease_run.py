"""What is run under one lease: in order, one at a time, whatever the driver does."""

import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest
import trio
import trio.testing

from formation_p2p.core.identity import PeerId
from formation_p2p.drivers.core.effects import (
    Execute,
    ExecutionOutput,
    ExecutionsEnded,
    ExecutionStarted,
    Work,
)
from formation_p2p.drivers.driver import Driver, Execution, LeaseDriver, Report, Turns
from formation_p2p.leases import lease_runs
from formation_p2p.leases.lease_runs import LeaseEvent, LeaseRun
from formation_p2p.machine.core.requirements import Requirements
from formation_p2p.workload.core.outcome import Failed, FailureKind, Outcome, Succeeded
from tests.support.drivers_world import holds_nothing
from tests.support.waiting import HANGS_S, IDLE_S, in_trio, until

HOLDS = Requirements(memory_bytes=2**28, storage_bytes=7, network_mbps=10, driver="test")
UNDER = Execute("lease", HOLDS, ("GPU-0",), (), PeerId("owner"), cause="a test")


class Sleeper:
    """Payloads are milliseconds to sleep, or what else to do."""

    name = "test"
    started: Callable[[], list[str]]

    def __init__(self) -> None:
        self.ran: list[Execution] = []
        self.scratches: list[Path] = []

    async def run(self, execution: Execution, report: Report) -> Outcome:
        self.ran.append(execution)
        self.scratches.append(execution.scratch)
        assert holds_nothing(execution.scratch)
        (execution.scratch / "file").touch()
        match execution.payload:
            case b"raise":
                raise RuntimeError("out of order")
            case b"print":
                report.output("stdout", b"out")
                report.output("stderr", b"err")
            case b"until it is said":
                await until(lambda: execution.execution_id in self.started())
            case milliseconds:
                await trio.sleep(int(milliseconds) / 1000)
        return Succeeded(execution.payload)

    async def end_lease(self, lease_id: str) -> None:
        raise AssertionError("nobody asked")


class Told:
    """A lease under way with a driver, and what is told of it."""

    def __init__(self, driver: Driver | LeaseDriver | None, root: Path) -> None:
        self.events: list[LeaseEvent] = []
        self.lease = LeaseRun(UNDER, driver, root, self.events.append)
        self._count = 0

    def add(self, *payloads: bytes) -> None:
        work = tuple(Work(f"{self._count + n}", b"", p, None) for n, p in enumerate(payloads))
        self._count += len(payloads)
        self.lease.add(replace(UNDER, work=work, cause="more"))

    @property
    def ended(self) -> dict[str, Outcome]:
        ended = [x for each in self.events if isinstance(each, ExecutionsEnded) for x in each.ended]
        assert len({each.attempt_id for each in ended}) == len(ended), "one ended twice"
        return {each.attempt_id: each.outcome for each in ended}

    @property
    def started(self) -> list[str]:
        return [x.attempt_id for x in self.events if isinstance(x, ExecutionStarted)]

    async def until(self, count: int) -> None:
        await until(lambda: len(self.ended) >= count)


@asynccontextmanager
async def under_way(driver: Driver | LeaseDriver | None, root: Path) -> AsyncIterator[Told]:
    """A lease, which ends with the block. Nothing is left of it then."""
    reported = Told(driver, root)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(reported.lease.run)
        yield reported
        await reported.lease.stop()
    assert holds_nothing(root)


# -- a driver that runs one at a time -------------------------------------------------------


@in_trio
async def test_they_run_in_order_each_in_a_folder_of_its_own(tmp_path: Path) -> None:
    driver = Sleeper()
    async with under_way(driver, tmp_path) as reported:
        reported.add(b"20", b"0")
        reported.add(b"10")
        await reported.until(3)
    assert reported.ended == {"0": Succeeded(b"20"), "1": Succeeded(b"0"), "2": Succeeded(b"10")}
    assert list(reported.ended) == ["0", "1", "2"]
    assert len(set(driver.scratches)) == 3
    first = driver.ran[0]
    assert (first.lease_id, first.cpu_milli, first.memory_bytes) == ("lease", 1000, 2**28)
    assert (first.storage_bytes, first.network) == (7, True)
    assert (first.device_ids, first.timeout_s, first.shared) == (("GPU-0",), None, b"")


@in_trio
async def test_how_long_it_ran_is_told_in_microseconds(tmp_path: Path) -> None:
    async with under_way(Sleeper(), tmp_path) as reported:
        began_s = time.monotonic()
        reported.add(b"30")
        await reported.until(1)
        took_us = 1_000_000 * (time.monotonic() - began_s)
    # A busy machine takes so long that it is said to have started before.
    *_, event = reported.events
    assert isinstance(event, ExecutionsEnded)
    assert 30_000 <= event.ended[0].ran_us <= took_us


@in_trio
async def test_only_what_takes_longer_than_a_moment_is_said_to_have_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Long enough for a busy machine to run what takes none at all.
    monkeypatch.setattr(lease_runs, "SHORT_S", 0.5)
    driver = Sleeper()
    async with under_way(driver, tmp_path) as reported:
        driver.started = lambda: reported.started
        reported.add(b"0", b"until it is said", b"0", b"until it is said")
        await reported.until(4)
    assert reported.started == ["1", "3"]
    kinds = [type(event) for event in reported.events]
    assert kinds.index(ExecutionStarted) < len(kinds) - 1


@in_trio
async def test_what_it_prints_is_passed_on_before_its_end(tmp_path: Path) -> None:
    async with under_way(Sleeper(), tmp_path) as reported:
        reported.add(b"print")
        await reported.until(1)
    *printed, _ = reported.events
    assert printed == [
        ExecutionOutput("lease", "0", False, b"out"),
        ExecutionOutput("lease", "0", True, b"err"),
    ]


@in_trio
async def test_without_a_driver_each_fails_as_the_machines_doing(tmp_path: Path) -> None:
    failed = Failed(FailureKind.DRIVER, "this worker has no driver test")
    async with under_way(None, tmp_path) as reported:
        reported.add(b"0", b"0")
        await reported.until(2)
    assert reported.ended == {"0": failed, "1": failed}


@in_trio
async def test_what_a_driver_raises_ends_its_task_alone(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL, logger="formation_p2p")
    async with under_way(Sleeper(), tmp_path) as reported:
        reported.add(b"0", b"raise", b"0")
        await reported.until(3)
    problem = "the driver test failed: RuntimeError('out of order')"
    assert reported.ended["1"] == Failed(FailureKind.DRIVER, problem)
    assert isinstance(reported.ended["2"], Succeeded)


# -- taking back, killing, pausing, ending --------------------------------------------------


@pytest.mark.parametrize("begun", [True, False])
@in_trio
async def test_what_has_not_begun_is_taken_back_and_never_runs(tmp_path: Path, begun: bool) -> None:
    driver = Sleeper()
    async with under_way(driver, tmp_path) as reported:
        reported.add(b"50", b"0", b"0")
        await until(lambda: bool(driver.ran))
        reported.lease.kill("1", begun=begun)
        assert list(reported.ended) == ["1"]
        reported.lease.kill("no such attempt", begun=True)
        await reported.until(3)
    taken_back = Failed(FailureKind.CANCELLED, "it was taken back before it began")
    assert reported.ended["1"] == taken_back
    assert [each.execution_id for each in driver.ran] == ["0", "2"]


@in_trio
async def test_what_has_begun_is_killed_only_where_that_is_meant(tmp_path: Path) -> None:
    driver = Sleeper()
    async with under_way(driver, tmp_path) as reported:
        reported.add(b"100", b"60000", b"0")
        await until(lambda: len(driver.ran) == 1)
        reported.lease.kill("0", begun=False)
        await until(lambda: len(driver.ran) == 2)
        reported.lease.kill("1", begun=True)
        await reported.until(3)
    assert reported.ended == {
        "0": Succeeded(b"100"),
        "1": Failed(FailureKind.CANCELLED, "it was killed, as its owner asked"),
        "2": Succeeded(b"0"),
    }


@in_trio
async def test_while_it_is_paused_nothing_begins(tmp_path: Path) -> None:
    driver = Sleeper()
    async with under_way(driver, tmp_path) as reported:
        reported.add(b"30", b"0")
        await until(lambda: len(driver.ran) == 1)
        reported.lease.pause()
        await reported.until(1)
        await trio.sleep(0.03)
        assert len(driver.ran) == 1
        reported.lease.go_on()
        await reported.until(2)


@in_trio
async def test_ending_the_lease_waits_until_all_is_dead_and_tells_nothing(tmp_path: Path) -> None:
    class Reluctant(Sleeper):
        died = False

        async def run(self, execution: Execution, report: Report) -> Outcome:
            try:
                return await super().run(execution, report)
            finally:
                with trio.CancelScope(shield=True):
                    await trio.sleep(0.05)
                self.died = True

    driver = Reluctant()
    async with under_way(driver, tmp_path) as reported:
        reported.add(b"60000", b"0")
        await until(lambda: bool(driver.ran))
        await reported.lease.stop()
        assert driver.died
    assert reported.ended == {}
    assert len(driver.ran) == 1


class Farsighted:
    """Runs each until `go`, and looks ahead for as long as the payload says; notes what it did."""

    name = "test"

    def __init__(self) -> None:
        self.done: list[tuple[str, bytes]] = []
        self.go = trio.Semaphore(0)

    async def run(self, execution: Execution, report: Report) -> Outcome:
        self.done.append(("run", execution.payload))
        await self.go.acquire()
        return Succeeded(execution.payload)

    async def look_ahead(self, execution: Execution) -> None:
        payload = execution.payload
        assert execution.owner == UNDER.owner
        self.done.append(("ahead", payload))
        if payload == b"raise":
            raise RuntimeError("out of order")
        if payload == b"for ever":
            try:
                await trio.sleep_forever()
            finally:
                self.done.append(("left", payload))

    async def end_lease(self, lease_id: str) -> None:
        raise AssertionError("nobody asked")


@in_trio
async def test_while_one_runs_the_driver_makes_ready_for_the_next(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    driver = Farsighted()
    async with under_way(driver, tmp_path) as reported:
        reported.add(b"a")
        await until(lambda: len(driver.done) == 1)
        reported.add(b"raise", b"b")
        await until(lambda: len(driver.done) == 2)
        driver.go.release()
        await until(lambda: len(driver.done) == 4)
        driver.go.release()
        driver.go.release()
        await reported.until(3)
    assert driver.done == [
        *(("run", b"a"), ("ahead", b"raise"), ("run", b"raise"), ("ahead", b"b"), ("run", b"b"))
    ]
    assert [each.getMessage() for each in caplog.records] == ["the driver test fails to look ahead"]


@in_trio
async def test_nothing_is_made_ready_for_what_is_taken_back(tmp_path: Path) -> None:
    driver = Farsighted()
    async with under_way(driver, tmp_path) as reported:
        reported.add(b"a", b"for ever", b"b", b"for ever")
        await until(lambda: len(driver.done) == 2)
        reported.lease.kill("1", begun=False)
        await until(lambda: len(driver.done) == 4)
        driver.go.release()
        await until(lambda: ("run", b"b") in driver.done and len(driver.done) == 6)
    assert driver.done == [
        *(("run", b"a"), ("ahead", b"for ever"), ("left", b"for ever"), ("ahead", b"b")),
        *(("run", b"b"), ("ahead", b"for ever"), ("left", b"for ever")),
    ]


@in_trio
async def test_what_is_not_ready_in_time_is_left_to_its_run(tmp_path: Path) -> None:
    driver = Farsighted()
    async with under_way(driver, tmp_path) as reported:
        reported.add(b"a", b"for ever")
        await until(lambda: len(driver.done) == 2)
        driver.go.release()
        await until(lambda: len(driver.done) == 4)  # while the second runs
        driver.go.release()
        await reported.until(2)
    each = ("ahead", "run", "left")
    assert driver.done == [("run", b"a"), *((what, b"for ever") for what in each)]


# -- a driver that takes many at once -------------------------------------------------------


class Batcher:
    """Takes up to three at a time. `script` says what it does with them."""

    name = "test"

    def __init__(self, script: Callable[[Turns, list[Execution]], Awaitable[None]]) -> None:
        self.script = script
        self.served = 0

    async def serve(self, turns: Turns) -> None:
        self.served += 1
        while True:
            await turns.wait()
            taken: list[Execution] = []
            while turns.next_bytes is not None and len(taken) < 3:
                taken.append(turns.take())
            await self.script(turns, taken)


async def run_all(turns: Turns, taken: list[Execution]) -> None:
    for execution in taken:
        turns.begin(execution.execution_id)
        turns.ended(execution.execution_id, Succeeded(execution.payload))
    turns.flush()


@in_trio
async def test_many_are_taken_and_told_at_once(tmp_path: Path) -> None:
    async with under_way(Batcher(run_all), tmp_path) as reported:
        reported.add(b"a", b"b", b"c", b"d")
        await reported.until(4)
    batches = [len(each.ended) for each in reported.events if isinstance(each, ExecutionsEnded)]
    assert batches == [3, 1]
    assert list(reported.ended.values()) == [Succeeded(p) for p in (b"a", b"b", b"c", b"d")]


@in_trio
async def test_its_wait_is_ended_by_what_comes_where_nothing_waits_yet(tmp_path: Path) -> None:
    scopes: list[trio.CancelScope] = []

    def ended_waits() -> list[bool]:
        return [scope.cancel_called for scope in scopes]

    async def script(turns: Turns, taken: list[Execution]) -> None:
        if not scopes:
            *_, second, third = taken
            turns.put_back(third)
            turns.put_back(second)
            with trio.CancelScope() as scope:
                scopes.append(scope)
                turns.watch(scope)
                await trio.sleep(HANGS_S)
            turns.watch(None)
            del taken[1:]
        await run_all(turns, taken)

    async with under_way(Batcher(script), tmp_path) as reported:
        reported.add(b"a", b"b", b"c")
        await until(lambda: bool(scopes))
        reported.add(b"d")
        assert ended_waits() == [False]
        for attempt_id in ("1", "2", "3"):
            reported.lease.kill(attempt_id, begun=False)
        reported.add(b"e")
        assert ended_waits() == [True]
        await reported.until(5)
    succeeded = [a for a, outcome in reported.ended.items() if isinstance(outcome, Succeeded)]
    assert succeeded == ["0", "4"]


@in_trio
async def test_what_is_put_back_is_the_next_again_unless_it_is_unwanted(tmp_path: Path) -> None:
    seen: list[list[str]] = []
    go = trio.Event()

    async def script(turns: Turns, taken: list[Execution]) -> None:
        seen.append([each.execution_id for each in taken])
        if len(seen) > 1:
            await run_all(turns, taken)
            return
        await go.wait()
        assert [turns.is_unwanted(each) for each in taken] == [False, True, True]
        for execution in reversed(taken):
            turns.put_back(execution)

    async with under_way(Batcher(script), tmp_path) as reported:
        reported.add(b"a", b"b", b"c", b"d")
        await until(lambda: bool(seen))
        reported.lease.kill("1", begun=False)
        reported.lease.kill("2", begun=True)
        go.set()
        await reported.until(4)
    assert seen == [["0", "1", "2"], ["0", "3"]]
    taken_back = Failed(FailureKind.CANCELLED, "it was taken back before it began")
    assert [reported.ended["1"], reported.ended["2"]] == [taken_back, taken_back]


@in_trio
async def test_a_kill_reaches_the_one_that_runs_or_waits_for_its_turn(tmp_path: Path) -> None:
    woken: list[tuple[bool, bool]] = []
    watched: list[Execution] = []

    async def script(turns: Turns, taken: list[Execution]) -> None:
        for execution in taken:
            turns.begin(execution.execution_id)
            if not turns.is_killed:
                with trio.CancelScope() as scope:
                    turns.watch(scope)
                    watched.append(execution)
                    await trio.sleep(HANGS_S)
                turns.watch(None)
            woken.append((turns.is_killed, turns.is_paused))
            killed = Failed(FailureKind.CANCELLED, "killed")
            turns.ended(execution.execution_id, killed if turns.is_killed else Succeeded(b""))
        turns.flush()

    async with under_way(Batcher(script), tmp_path) as reported:
        reported.add(b"a", b"b", b"c")
        await until(lambda: len(watched) == 1)
        reported.lease.kill("1", begun=True)  # which wakes it: it may take that back
        await until(lambda: len(watched) == 2)
        reported.lease.pause()
        reported.lease.kill("2", begun=True)
        await reported.until(3)
    assert woken == [(False, False), (True, False), (True, True)]
    assert [type(reported.ended[name]) for name in "012"] == [Succeeded, Failed, Failed]


@pytest.mark.parametrize("how", ["raises", "returns"])
@in_trio
async def test_a_driver_that_goes_home_is_called_again_for_what_comes_next(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, how: str
) -> None:
    class Quitter:
        name = "test"
        served = 0

        async def serve(self, turns: Turns) -> None:
            self.served += 1
            await turns.wait()
            execution = turns.take()
            turns.begin(execution.execution_id)
            if how == "raises":
                raise RuntimeError("enough")

    driver = Quitter()
    caplog.set_level(logging.CRITICAL, logger="formation_p2p")
    async with under_way(driver, tmp_path) as reported:
        reported.add(b"a")
        await reported.until(1)
        await trio.testing.wait_all_tasks_blocked(IDLE_S)
        assert driver.served == 1  # not in circles
        reported.add(b"b")
        await reported.until(2)

    why = "failed: RuntimeError('enough')" if how == "raises" else "stopped"
    assert set(reported.ended.values()) == {Failed(FailureKind.DRIVER, f"the driver test {why}")}

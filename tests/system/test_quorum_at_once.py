"""Copies of a task that go out side by side, to workers that are processes of their own."""

import asyncio
import hashlib
import json
import time
from collections.abc import AsyncIterator, Callable
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import psutil
import pytest
import pytest_asyncio

from formation_p2p import ProcessResult, ProcessSpec, Quorum, TaskPlaced, TaskResult, TaskRetried
from formation_p2p.machine.home import Home
from formation_p2p.trust.core.network import parse_invite
from tests.support.commands import started
from tests.support.network import gate_at, sees
from tests.support.nodes import OpenNode
from tests.support.programs import Program
from tests.support.stillness import LEFT_S
from tests.support.waiting import until
from tests.support.worker_processes import working

pytestmark = pytest.mark.asyncio(loop_scope="module")
# All workers are of one machine, and of one subnet.
AT_ONCE = Quorum(2, of=3, apart=(), at_once=True)
NEEDS = "cpu=0.5,memory=128MiB"
WORKERS = ("alice", "carol", "dave")


@dataclass(frozen=True)
class Electorate:
    """Three workers without a sandbox, by their peer ids, and bob, who submits. Copies leave their
    marks in `folder`."""

    folder: Path
    homes: Path
    running: dict[str, Program]
    bob: OpenNode
    invite: Callable[..., str]

    def argv(self, script: str) -> tuple[str, ...]:
        """It runs in the folder. Each copy leaves a mark there first."""
        mark = 'echo "$here $$" >> marks'
        return ("sh", "-c", f"here=$PWD; cd {self.folder}; {mark}; {script}")

    def task(self, script: str) -> ProcessSpec:
        return ProcessSpec(self.argv(script))

    @property
    def marks(self) -> list[tuple[str, int]]:
        """The worker and the process of each copy, in the order in which they began."""
        path = self.folder / "marks"
        lines = path.read_text().splitlines() if path.exists() else []
        found = [line.rpartition(" ") for line in lines]
        return [(Path(at).relative_to(self.homes).parts[0], int(pid)) for at, _, pid in found]

    def peer_id(self, name: str) -> str:
        return list(self.running)[WORKERS.index(name)]


@asynccontextmanager
async def electorate(folder: Path) -> AsyncIterator[Electorate]:
    async with gate_at(folder) as invitation:
        with ExitStack() as workers:
            options = ("--sandbox", "off")
            running = await working(folder, invitation, WORKERS, workers, options)
            async with OpenNode.join(invitation(), home=folder / "bob", listen=()) as bob:
                await sees(bob, len(WORKERS))
                yield Electorate(folder, folder, running, bob, invitation)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def all_honest(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Electorate]:
    async with electorate(tmp_path_factory.mktemp("electorate")) as voters:
        yield voters


@pytest.fixture
def voters(all_honest: Electorate, tmp_path: Path) -> Electorate:
    """Of the module, with a folder of the test's own."""
    return replace(all_honest, folder=tmp_path)


def printed(result: TaskResult) -> str:
    assert result.status == "succeeded", result
    return ProcessResult.decode(result.result).stdout_tail.decode().strip()


async def test_two_copies_run_side_by_side_and_no_third_where_they_agree(
    voters: Electorate,
) -> None:
    # Neither ends before the other has begun.
    waits = "until [ $(wc -l < marks) -ge 2 ]; do sleep 0.05; done; echo same"
    job = await voters.bob.submit(voters.task(waits), needs=NEEDS, quorum=AT_ONCE)
    (result,) = await job
    assert printed(result) == "same"
    assert len({worker for worker, _ in voters.marks}) == len(voters.marks) == 2


async def test_a_slow_copy_is_overtaken_and_ended_once_two_others_agree(
    voters: Electorate,
) -> None:
    """The one case in which three are in flight. It takes a third worker that is leased and has
    nothing to do, which is a matter of chance: a job in which there is none is cancelled."""
    for number in range(8):
        # The first copy of the last task does not end by itself.
        slow = f'mkdir {number} 2> /dev/null && echo "$$" > {number}/pid && exec sleep 600'
        work = [*[voters.task("echo same")] * 3, voters.task(f"{slow}; echo same")]
        job = await voters.bob.submit(work, needs=NEEDS, quorum=AT_ONCE, speculate=True)
        try:
            async with asyncio.timeout(10):
                events = [each async for each in job.events()]
            break
        except TimeoutError:
            job.cancel()
            assert (await job)[-1].status == "cancelled"
    assert [printed(each) for each in await job] == ["same"] * 4
    placed = [each for each in events if isinstance(each, TaskPlaced)]
    copies = [each.worker for each in placed if each.task_id == placed[-1].task_id]
    assert len(set(copies)) == 3  # one that waits behind another may be placed once more
    pid = int((voters.folder / f"{number}" / "pid").read_text())
    await until(lambda: not psutil.pid_exists(pid))


async def test_a_worker_that_lies_is_outvoted_and_reported(tmp_path: Path) -> None:
    async with electorate(tmp_path) as voters:
        # More than a result holds of it, and the same at its end.
        says = "case $here in */dave/*) echo a lie;; *) echo the truth;; esac; seq 20000"
        tasks = [voters.task(says)] * 12
        job = await voters.bob.submit(tasks, needs=NEEDS, quorum=AT_ONCE)
        truth = "".join(f"{each}\n" for each in ("the truth", *range(1, 20_001))).encode()
        results = [ProcessResult.decode(each.result) for each in await job]
        assert {each.stdout_sha256 for each in results} == {hashlib.sha256(truth).digest()}
        wrong = {str(each.peer_id): each.wrong for each in await voters.bob.trust()}
        dave = voters.peer_id("dave")
        assert wrong.pop(dave) >= 1
        assert not any(wrong.values())


async def test_a_worker_that_is_killed_amid_the_copies_costs_its_copy_alone(tmp_path: Path) -> None:
    async with electorate(tmp_path) as voters:
        waits = "until [ -e go ]; do sleep 0.05; done; echo same"
        job = await voters.bob.submit(voters.task(waits), needs=NEEDS, quorum=AT_ONCE)
        await until(lambda: len(voters.marks) == 2)
        (killed, _), (stays, _) = voters.marks
        voters.running[voters.peer_id(killed)].process.kill()
        await until(lambda: len(voters.marks) == 3)
        (tmp_path / "go").touch()
        events = [each async for each in job.events()]
        (result,) = await job
        assert printed(result) == "same"
        (other,) = {*WORKERS} - {killed, stays}
        assert [worker for worker, _ in voters.marks[2:]] == [other]
        retried = [x.attempt.worker for x in events if isinstance(x, TaskRetried)]
        assert retried == [voters.peer_id(killed)]
        assert not any(each.wrong for each in await voters.bob.trust())


@pytest.mark.parametrize(
    "script",
    [
        # One has answered when the submitter dies, the other while there is none.
        "mkdir first 2> /dev/null || until [ -e go ]; do sleep 0.05; done; echo same",
        # Both answer while there is none.
        "until [ -e go ]; do sleep 0.05; done; echo same",
        # Both run on, and answer to the next one.
        "until [ -e later ]; do sleep 0.05; done; echo same",
    ],
    ids=["one-answered", "both-answer-meanwhile", "both-run-on"],
)
async def test_a_submitter_that_restarts_counts_each_copy_once(
    voters: Electorate, script: str
) -> None:
    home, state, job = (voters.folder / name for name in ("erin", "jobs.db", "job.toml"))
    Home(home).join(parse_invite(voters.invite()))
    options = f'quorum = "{AT_ONCE}"\nneeds = "{NEEDS}"'
    job.write_text(f"{options}\n[[task]]\nargv = {json.dumps(voters.argv(script))}\n")
    with started(home, "submit", str(job), "--state", str(state), "--json") as submitter:
        await until(lambda: len(voters.marks) == 2)
        # They are told once they are on the disk. What is not, the next one places again.
        await until(lambda: submitter.output.count('"placed"') == 2)
        if "first" in script:
            await asyncio.to_thread(submitter.line_with, '"answered"')
        dead_since_s = time.monotonic()
        submitter.process.kill()
        await asyncio.to_thread(submitter.ended)
    (voters.folder / "go").touch()
    with started(home, "resume", "--state", str(state), "--json") as again:
        await asyncio.to_thread(again.line_with, '"placed"')
        (voters.folder / "later").touch()
        assert await asyncio.to_thread(again.ended) == 0, again.output
    told = [json.loads(line) for line in again.lines if line.startswith("{")]
    answered = [x["worker"] for x in told if x["event"] == "answered"]
    assert len(answered) == len(set(answered)) == 1
    assert [x["worker"] for x in told if x["event"] == "succeeded"] == answered
    # Where the next one takes longer to begin, the leases end, and what ran under them.
    late = time.monotonic() - dead_since_s > LEFT_S
    assert len({worker for worker, _ in voters.marks}) == len(voters.marks) == 2 or late

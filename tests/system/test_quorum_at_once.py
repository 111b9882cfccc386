"""Copies of a task that go out side by side, to workers that are processes of their own."""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import pytest_asyncio

from formation_p2p import ProcessResult, ProcessSpec, Quorum, TaskResult
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


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def all_honest(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Electorate]:
    folder = tmp_path_factory.mktemp("electorate")
    async with gate_at(folder) as invitation:
        with ExitStack() as workers:
            options = ("--sandbox", "off")
            running = await working(folder, invitation, WORKERS, workers, options)
            async with OpenNode.join(invitation(), home=folder / "bob", listen=()) as bob:
                await sees(bob, len(WORKERS))
                yield Electorate(folder, folder, running, bob, invitation)


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


@pytest.mark.parametrize(
    "script",
    [
        # One has answered when the submitter dies, the other while there is none.
        "mkdir first 2> /dev/null || until [ -e go ]; do sleep 0.05; done; echo same",
        # Both run on, and answer to the next one.
        "until [ -e later ]; do sleep 0.05; done; echo same",
    ],
    ids=["one-answered", "both-run-on"],
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

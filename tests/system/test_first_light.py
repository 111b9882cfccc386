"""What the first release promises, seen on real nodes over the loopback interface."""

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest
import trio

from formation_demo.local_network import LOOPBACK, LocalNetwork
from formation_p2p import (
    Execution,
    Home,
    Limits,
    Node,
    Outcome,
    Report,
    Right,
    Rights,
    Succeeded,
    TaskBegan,
    TaskPlaced,
    TaskRecalled,
    TaskRetried,
    TaskSucceeded,
    Unauthorized,
    python_calls,
    value_of,
)
from formation_p2p.core.effects import Contact
from formation_p2p.core.identity import Identity, PeerId
from formation_p2p.core.refusals import Denied
from formation_p2p.leases.core import messages as work
from formation_p2p.leases.core.messages import (
    Assignment,
    Dispatch,
    LeaseEnded,
    PlacementRequest,
    RequestRefused,
    WorkMessage,
)
from formation_p2p.machine.core.requirements import Requirements
from formation_p2p.net.handlers import NetworkEvent
from formation_p2p.reach.stack import Stack
from formation_p2p.trust.core.grants import issue
from formation_p2p.trust.core.network import parse_invite
from tests.support.network import sees
from tests.support.waiting import HANGS_S, until

# No story here takes ten seconds on an idle machine.
HOUR_S = 3600


@dataclass
class SmallNetwork:
    gate: Node
    workers: list[Node]
    founder: Home
    folder: Path

    def invite(self, **rights: Any) -> str:
        return self.founder.invite(Rights(int(time.time()) + HOUR_S, **rights))

    def person(self, name: str = "alice", **rights: Any) -> Node:
        """A node that only submits; to be entered."""
        return Node.join(self.invite(**rights), home=self.folder / name, listen=())


@asynccontextmanager
async def small_network(folder: Path, *, workers: int, **serve: Any) -> AsyncIterator[SmallNetwork]:
    founder = Home(folder / "gate")
    founder.create_network()
    async with AsyncExitStack() as nodes:
        gate = await nodes.enter_async_context(Node.join(home=founder.path, listen=[LOOPBACK]))
        founder.add_gate(gate.addresses[0])
        network = SmallNetwork(gate, [], founder, folder)
        for number in range(workers):
            node = Node.join(network.invite(), home=folder / f"worker-{number}", listen=[LOOPBACK])
            await nodes.enter_async_context(node)
            await node.worker(limits=Limits(cpu_milli=1000), **serve)
            network.workers.append(node)
        yield network


async def test_a_worker_killed_in_mid_task_loses_no_result_and_doubles_none(tmp_path: Path) -> None:
    diary, go = tmp_path / "diary", tmp_path / "go"

    def square(number: int) -> int:
        with diary.open("a") as file:
            file.write(f"{number}\n")
        while number > 2 and not go.exists():
            time.sleep(0.05)
        return number * number

    async with (
        LocalNetwork(workers=2, sandbox="off") as network,  # they write where the test reads
        Node.join(network.invite, home=network.home, listen=()) as alice,
    ):
        await network.seen_by(alice)
        job = await alice.submit(python_calls(square, range(10)))
        killed = ""
        events = []
        async for event in job.events():
            events.append(event)
            if isinstance(event, TaskBegan) and not killed and number_of(event.task_id) > 2:
                killed = event.worker
                next(w for w in network.workers if w.peer_id == killed).kill()
                go.touch()
        results = await job

    assert [value_of(result) for result in results] == [n * n for n in range(10)]
    successes = Counter(e.task_id for e in events if isinstance(e, TaskSucceeded))
    assert successes == Counter(task.task_id for task in job.tasks)
    lost = [e for e in events if isinstance(e, TaskRetried)]
    assert lost, "nothing was in flight: the failure did not happen"
    assert all(e.attempt.lost for e in lost)
    assert killed in {e.attempt.worker for e in lost}
    count = Counter(map(type, events))
    assert count[TaskPlaced] == len(job.tasks) + len(lost) + count[TaskRecalled]
    # Only what was lost with its worker was begun twice.
    begun = Counter(map(int, diary.read_text().split()))
    assert {n for n, times in begun.items() if times > 1} <= {number_of(e.task_id) for e in lost}


def number_of(task_id: str) -> int:
    return int(task_id.rpartition("/")[2])


class Tally:
    """A driver that counts what it is asked to run."""

    name = "python"

    def __init__(self) -> None:
        self.ran: list[str] = []

    async def run(self, execution: Execution, report: Report) -> Outcome:
        self.ran.append(execution.execution_id)
        await trio.lowlevel.checkpoint()
        return Succeeded(b"")

    async def end_lease(self, lease_id: str) -> None:
        await trio.lowlevel.checkpoint()


async def test_who_may_not_submit_is_refused_before_anything_runs_and_told_why(
    tmp_path: Path,
) -> None:
    tally = Tally()
    async with (
        small_network(tmp_path, workers=2, drivers={"python": lambda: tally}) as network,
        network.person("mallory", may=frozenset({Right.WORK})) as mallory,
    ):
        await sees(mallory, len(network.workers))
        with pytest.raises(Unauthorized, match="not allowed to submit") as refused:
            await mallory.map(abs, [-1])
        assert set(refused.value.reasons) == {worker.peer_id for worker in network.workers}
    assert tally.ran == []


@dataclass
class Mailbox:
    """What a stack without a node above it was sent."""

    messages: list[WorkMessage]

    def asked(self, sender: Contact, frame: bytes, answer: Callable[[bytes | None], None]) -> None:
        answer(None)

    def received(self, sender: Contact, frame: bytes) -> None:
        self.messages.append(work.parse(frame))

    def feed(self, event: NetworkEvent) -> None: ...


async def tell(worker: Contact, messages: list[WorkMessage]) -> list[WorkMessage]:
    """What a worker answers to a stranger who speaks the protocol by hand; runs under trio."""
    mailbox = Mailbox([])
    stack = Stack(Identity.from_seed(b"mallory" + bytes(25)), ())
    with trio.fail_after(HANGS_S):
        async with trio.open_nursery() as nursery:
            await nursery.start(stack.run, mailbox)
            for message in messages:
                stack.send(worker, work.pack(message))
            await until(lambda: len(mailbox.messages) >= len(messages), HANGS_S)
            await stack.close()
    return mailbox.messages


@pytest.mark.parametrize(
    ("shows", "why"),
    [("nothing", "no grant"), ("another network's grant", "another network"), ("bob's", "peer")],
)
async def test_a_stranger_gets_a_reason_and_no_lease(tmp_path: Path, shows: str, why: str) -> None:
    tally = Tally()
    async with small_network(tmp_path, workers=1, drivers={"python": lambda: tally}) as network:
        (worker,) = network.workers
        address, _, peer_id = worker.addresses[0].rpartition("/p2p/")
        rights = Rights(int(time.time()) + HOUR_S)
        bob = Identity.from_seed(b"bob" + bytes(29)).peer_id
        grant = {
            "nothing": b"",
            "another network's grant": issue(Identity.from_seed(bytes(32)), rights),
            "bob's": parse_invite(network.founder.invite(rights, bob)).grant,
        }[shows]
        needs = Requirements(driver="python")
        answers = await asyncio.to_thread(
            trio.run,
            tell,
            Contact(PeerId(peer_id), (address,)),
            [
                PlacementRequest(7, needs, grant),
                Dispatch("f" * 16, 1, (), (Assignment("a/0#1", 0, b"", 0),)),
            ],
        )
    refused, ended = answers
    assert isinstance(refused, RequestRefused)
    assert isinstance(refused.refusal, Denied)
    assert why in str(refused.refusal)
    assert isinstance(ended, LeaseEnded)
    assert tally.ran == []


async def test_a_worker_that_waits_takes_next_to_nothing() -> None:
    """Once all that its start left to do is done, however busy the machine is."""
    watched_s = 10.0
    async with LocalNetwork(workers=1) as network:
        async with Node.join(network.invite, home=network.home, listen=()) as alice:
            await network.seen_by(alice)
        worker = psutil.Process(network.workers[0].process.pid)

        async def rests() -> bool:
            before = worker.cpu_times()
            await asyncio.sleep(watched_s)
            after = worker.cpu_times()
            busy_s = after.user - before.user + after.system - before.system
            return busy_s / watched_s < 0.02

        await until(rests)
        assert worker.memory_info().rss < 150e6

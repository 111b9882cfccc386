"""What the first release promises, measured on real nodes over the loopback interface."""

from __future__ import annotations

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

from examples.local_network import LOOPBACK, LocalNetwork
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
    TaskRetried,
    TaskSucceeded,
    Unauthorized,
    python_calls,
    value_of,
)
from formation_p2p.core.dht import codec
from formation_p2p.core.dht import messages as kad
from formation_p2p.core.effects import Contact
from formation_p2p.core.identity import Identity, PeerId
from formation_p2p.core.negotiation import messages as work
from formation_p2p.core.negotiation.messages import (
    Assignment,
    Commit,
    Dispatch,
    Leased,
    LeaseEnded,
    Offer,
    PlacementRequest,
    RequestRefused,
    WorkMessage,
)
from formation_p2p.core.refusals import Denied
from formation_p2p.core.resources.requirements import Requirements
from formation_p2p.core.trust.grants import issue
from formation_p2p.core.trust.network import parse_invite
from formation_p2p.host.net import stack as stack_module
from formation_p2p.host.net.handlers import NetworkEvent
from formation_p2p.host.net.stack import Stack
from tests.support.waiting import HANGS_S, until

# No story here takes ten seconds on an idle machine.
STORY_S = HANGS_S
HOUR_S = 3600


# -- a small world: a gate and workers in this process, so that every message can be seen -------


@dataclass(frozen=True)
class Sent:
    """One message on the wire, seen by its sender; the answer to a request by who asked."""

    sender: str
    receiver: str
    message: WorkMessage | kad.Message | None


@pytest.fixture
def wire(monkeypatch: pytest.MonkeyPatch) -> list[Sent]:
    """All that any node of this process sends from here on. Lists take turns by themselves."""
    sent: list[Sent] = []

    class CountingStack(Stack):
        def send(self, to: Contact, frame: bytes, *, urgent: bool = False) -> None:
            sent.append(Sent(self._identity.peer_id, to.peer_id, work.parse(frame)))
            super().send(to, frame, urgent=urgent)

        async def ask(
            self,
            to: Contact,
            frame: bytes,
            *,
            timeout_s: float,
            expects_answer: bool = True,
            dials_back: bool = False,
        ) -> bytes | None:
            request = codec.parse_request(frame)
            sent.append(Sent(self._identity.peer_id, to.peer_id, request))
            raw = await super().ask(
                to,
                frame,
                timeout_s=timeout_s,
                expects_answer=expects_answer,
                dials_back=dials_back,
            )
            if raw is not None:
                reply = codec.parse_reply(raw, request)
                sent.append(Sent(to.peer_id, self._identity.peer_id, reply))
            return raw

    monkeypatch.setattr(stack_module, "Stack", CountingStack)
    return sent


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


async def warm(network: SmallNetwork, person: Node) -> None:
    """Returns once the person's node finds every worker, and nothing is under way any more."""

    async def all_found() -> bool:
        return len(await person.workers()) >= len(network.workers)

    await until(all_found, STORY_S)
    await asyncio.sleep(0.5)


# -- what is promised ---------------------------------------------------------------------------


def read_clock(_: None) -> float:
    return time.monotonic()


# As a program of its own has it: to collect this checkout takes longer than to place a task.
read_clock.__module__ = "__main__"

TRIES = 3


async def test_a_submitted_task_starts_within_a_second_and_four_messages_place_it(
    tmp_path: Path, wire: list[Sent]
) -> None:
    # The messages are the same every time. The second is that of a machine that has one to spare.
    took_s = [await _placed(tmp_path / "0", wire)]
    while min(took_s) > 1.0 and len(took_s) < TRIES:
        took_s.append(await _placed(tmp_path / str(len(took_s)), wire))
    assert 0 < min(took_s) <= 1.0


async def _placed(root: Path, wire: list[Sent]) -> float:
    """Until the task of a small network runs, in seconds."""
    async with (
        asyncio.timeout(STORY_S),
        small_network(root, workers=3) as network,
        network.person() as alice,
    ):
        await warm(network, alice)
        alice_id = alice.peer_id
        wire.clear()
        submitted_s = time.monotonic()
        job = await alice.submit(python_calls(read_clock, [None]))
        events = [event async for event in job.events()]
        (result,) = await job
        # The system's clock, which the worker's interpreter read when the task ran.
        took_s: float = value_of(result) - submitted_s
        sent = list(wire)

    (placed,) = (event for event in events if isinstance(event, TaskPlaced))
    with_chosen = [
        each.message
        for each in sent
        if placed.worker in (each.sender, each.receiver)
        and not isinstance(each.message, kad.Message)
    ]
    to_place = with_chosen[: [type(m) for m in with_chosen].index(Dispatch)]
    assert [type(m) for m in to_place] == [PlacementRequest, Offer, Commit, Leased]
    # Discovery: one round of questions, each peer asked once.
    questions = Counter(
        each.receiver
        for each in sent
        if each.sender == alice_id and isinstance(each.message, kad.GetProviders)
    )
    assert questions.total() <= len(network.workers) + 1
    assert max(questions.values()) == 1
    print(f"the task ran {took_s * 1000:.0f} ms after it was submitted; {len(sent)} messages")
    return took_s


async def test_a_worker_killed_in_mid_task_loses_no_result_and_doubles_none(
    tmp_path: Path,
) -> None:
    diary = tmp_path / "diary"

    def slow_square(number: int) -> int:
        with diary.open("a") as file:
            file.write(f"{number}\n")
        time.sleep(0.4)
        return number * number

    async with (
        asyncio.timeout(STORY_S),
        LocalNetwork(workers=2, sandbox="off") as network,  # they write where the test reads
        Node.join(network.invite, home=network.home, listen=()) as alice,
    ):
        await network.seen_by(alice)
        job = await alice.submit(python_calls(slow_square, range(10)))
        killed = ""
        events = []
        async for event in job.events():
            events.append(event)
            if isinstance(event, TaskBegan) and not killed and len(written(diary)) > 2:
                killed = event.worker
                next(w for w in network.workers if w.peer_id == killed).kill()
        results = await job

    assert [value_of(result) for result in results] == [n * n for n in range(10)]
    successes = Counter(e.task_id for e in events if isinstance(e, TaskSucceeded))
    assert successes == Counter(task.task_id for task in job.tasks)
    lost = [e for e in events if isinstance(e, TaskRetried)]
    assert lost, "nothing was in flight: the failure did not happen"
    assert all(e.attempt.lost and e.attempt.worker == killed for e in lost)
    attempts = [e for e in events if isinstance(e, TaskPlaced)]
    assert len(attempts) == len(job.tasks) + len(lost)
    # Only what ran on the worker that died was begun twice.
    again = {int(n) for n, times in Counter(written(diary)).items() if times > 1}
    lost_numbers = {n for n, task in enumerate(job.tasks) if task.task_id in ids(lost)}
    assert again <= lost_numbers


def written(diary: Path) -> list[str]:
    return diary.read_text().split() if diary.exists() else []


def ids(events: list[TaskRetried]) -> set[str]:
    return {event.task_id for event in events}


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
        asyncio.timeout(STORY_S),
        small_network(tmp_path, workers=2, drivers={"python": lambda: tally}) as network,
        network.person("mallory", may=frozenset({Right.WORK})) as mallory,
    ):
        await warm(network, mallory)
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
    with trio.fail_after(STORY_S):
        async with trio.open_nursery() as nursery:
            await nursery.start(stack.run, mailbox)
            for message in messages:
                stack.send(worker, work.pack(message))
            await until(lambda: len(mailbox.messages) >= len(messages), STORY_S)
            await stack.close()
    return mailbox.messages


@pytest.mark.parametrize(
    ("shows", "why"),
    [("nothing", "no grant"), ("another network's grant", "another network"), ("bob's", "peer")],
)
async def test_a_stranger_gets_a_reason_and_no_lease(tmp_path: Path, shows: str, why: str) -> None:
    tally = Tally()
    async with (
        asyncio.timeout(STORY_S),
        small_network(tmp_path, workers=1, drivers={"python": lambda: tally}) as network,
    ):
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
    watched_s = 10.0
    async with asyncio.timeout(STORY_S), LocalNetwork(workers=1) as network:
        async with Node.join(network.invite, home=network.home, listen=()) as alice:
            await network.seen_by(alice)
        worker = psutil.Process(network.workers[0].process.pid)
        before = worker.cpu_times()
        await asyncio.sleep(watched_s)
        after = worker.cpu_times()
        rss_mb = worker.memory_info().rss / 1e6
    busy_s = after.user - before.user + after.system - before.system
    print(f"{busy_s / watched_s:.2%} of a core, {rss_mb:.0f} MB resident")
    assert busy_s / watched_s < 0.02
    assert rss_mb < 150

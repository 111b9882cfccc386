"""What a running node tells of itself: its status socket and its metrics, over real sockets."""

import asyncio
import re
import socket
import stat
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from formation_p2p import InvalidInput, LocalError, Node, ProcessSpec
from formation_p2p.command.node_socket import answers
from formation_p2p.machine.unix_socket import reachable
from formation_p2p.observe.status import MAX_READERS
from formation_p2p.reach.circuit_settings import RelaySettings
from formation_p2p.rpc.node_socket import MAX_CLIENTS
from formation_p2p.rpc.wire import VERSION, asked, encoded, told
from tests.support.network import SmallNetwork, gate_at, small_network
from tests.support.waiting import HANGS_S, until

SMALL = "cpu=0.5,memory=64MiB"
ROOT = Path(__file__).parents[2]
# Clients that say nothing are sent away after ten seconds, for which a machine may stand still.
TRIES = 5


pytestmark = pytest.mark.asyncio(loop_scope="module")


def observed(folder: Path) -> AbstractAsyncContextManager[SmallNetwork]:
    """One whose nodes tell their metrics."""
    metrics = {"metrics": "127.0.0.1:0"}
    return small_network(folder, alice={**metrics, "relay": RelaySettings()}, bob=metrics)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def world(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[SmallNetwork]:
    async with observed(tmp_path_factory.mktemp("status")) as network:
        yield network


@pytest_asyncio.fixture(loop_scope="module")
async def fresh(tmp_path: Path) -> AsyncIterator[SmallNetwork]:
    """For what counts from the beginning."""
    async with observed(tmp_path) as network:
        yield network


def connected(home: Path) -> socket.socket:
    client = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    client.settimeout(HANGS_S)
    with reachable(home / "node-0.sock") as name:
        client.connect(name)
    return client


def is_there(client: socket.socket) -> bool:
    """Whether its connection is open, and nothing was said on it."""
    client.setblocking(False)
    try:
        client.recv(1)
    except BlockingIOError:
        return True
    return False


async def ask(home: Path, method: str, **question: object) -> Any:
    """The only document of an answer."""
    (found,) = await asyncio.to_thread(lambda: [*answers(home / "node-0.sock", method, **question)])
    return found


async def events(home: Path, job: str = "") -> list[dict[str, Any]]:
    """That a client is told which does not follow."""
    question = {"job": job, "follow": False}
    told = await asyncio.to_thread(
        lambda: [*answers(home / "node-0.sock", "events", None, **question)]
    )
    return [event for each in told for event in each]


def following(home: Path) -> socket.socket:
    question = {"job": "", "follow": True}
    socket_path = home / "node-0.sock"
    return asked(socket_path, "events", question, greets_s=HANGS_S, answers_s=HANGS_S)


async def test_a_socket_far_down_in_folders_can_be_reached(tmp_path: Path) -> None:
    deep = tmp_path / ("x" * 120)
    deep.mkdir()
    with socket.socket(socket.AF_UNIX) as listener, reachable(deep / "s") as name:
        listener.bind(name)
        listener.listen()
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(name)


async def test_a_node_tells_what_it_does(world: SmallNetwork) -> None:
    sleeps = [ProcessSpec(("sleep", "600"))] * 8
    job = await world.bob.submit(sleeps, needs=SMALL, name="naps", labels=[*"abcdefgh"])

    async def four_run() -> bool:
        status = await ask(world.folder / "alice", "status")
        run = sum(each["in_flight"] for each in status["granted"])
        return bool(run >= 4 and status["free"]["cpu_milli"] == 0)

    await until(four_run)
    bobs = await ask(world.folder / "bob", "status")
    alices = await ask(world.folder / "alice", "status")
    job.cancel()
    await job
    after = await ask(world.folder / "bob", "status")
    (shown,) = bobs["jobs"]
    assert (shown["job_id"], shown["name"], shown["tasks"]) == (job.job_id, "naps", 8)
    assert shown["waiting"] + shown["in_flight"] == 8
    assert {lease["worker"] for lease in bobs["held"]} == {world.alice.peer_id}
    assert bobs["free"] is None
    assert {lease["owner"] for lease in alices["granted"]} == {world.bob.peer_id}
    assert sum(lease["in_flight"] for lease in alices["granted"]) >= 4
    assert alices["free"]["cpu_milli"] == 0
    assert (after["jobs"], alices["jobs"], alices["held"]) == ([], [], [])


async def test_it_knows_the_workers_of_the_network(world: SmallNetwork) -> None:
    reported = await ask(world.folder / "bob", "known_workers")
    assert [each["peer_id"] for each in reported["workers"]] == [world.alice.peer_id]


async def test_events_are_told_to_whoever_comes_late_and_to_whoever_stays(
    fresh: SmallNetwork,
) -> None:
    shout = ProcessSpec(("sh", "-c", "echo hello"))
    first = await fresh.bob.submit(shout, needs=SMALL, labels=["shout"])
    await first
    late = await events(fresh.folder / "bob")
    with await asyncio.to_thread(following, fresh.folder / "bob") as client:
        second = await fresh.bob.submit(shout, needs=SMALL)
        stays: list[dict[str, Any]] = []
        while not stays or (stays[-1]["job"], stays[-1]["event"]) != (second.job_id, "ended"):
            stays += (await asyncio.to_thread(told, client))["is"]
    only = await events(fresh.folder / "bob", second.job_id)
    assert [each["event"] for each in late if each["event"] != "began"] == [
        "placed",
        "printed",
        "succeeded",
        "ended",
    ]
    assert {each["task"] for each in late} == {"shout", ""}
    assert next(each["text"] for each in late if each["event"] == "printed") == "hello\n"
    assert {each["job"] for each in stays} == {first.job_id, second.job_id}
    assert {each["job"] for each in only} == {second.job_id}


async def test_the_socket_is_its_owners_alone_and_goes_with_the_node(tmp_path: Path) -> None:
    async with gate_at(tmp_path):
        door = tmp_path / "gate" / "node-0.sock"
        assert stat.S_IMODE(door.stat().st_mode) == 0o600
    assert not door.exists()


async def test_nonsense_and_crowds_at_the_door_harm_nobody(world: SmallNetwork) -> None:
    def crowd() -> None:
        home = world.folder / "bob"
        for nonsense in (b"\0\0\0\1\xff", b"\0\0\0\1\3", b"\0\0\1\0" + b"\x81" * 256, b"x" * 5000):
            with connected(home) as client:
                client.sendall(nonsense)
                with suppress(ConnectionResetError):
                    assert client.recv(1000) == b""
        for nothing in ({}, {"ask": 3}, {"ask": "format"}, {"formation": [], "ask": "_status"}):
            with connected(home) as client:
                client.sendall(encoded(nothing))
                assert told(client) == {"formation": VERSION, "has": False}
        wrong: list[dict[str, object]] = [{}, {"task": 3}, {"shell": 0}, {"task": "x" * 1100}]
        for question in wrong:
            with pytest.raises(LocalError):
                list(answers(home / "node-0.sock", "story", **question))
        with ExitStack() as clients:
            for _ in range(MAX_READERS):
                clients.enter_context(following(home))
            assert one_reader_too_many(home)
        assert any(one_too_many(home) for _ in range(TRIES))

    def one_reader_too_many(home: Path) -> bool:
        with suppress(ConnectionError), following(home) as client:
            return client.recv(1) == b""
        return True

    def one_too_many(home: Path) -> bool:
        """It is sent away while those who ask nothing, and were there before, may stay: where the
        machine stands still, so long that they may not, it may come in."""
        with ExitStack() as clients:
            idlers = [clients.enter_context(connected(home)) for _ in range(MAX_CLIENTS)]
            assert clients.enter_context(connected(home)).recv(1) == b""
            return all(is_there(each) for each in idlers)

    await asyncio.to_thread(crowd)

    async def open_again() -> bool:
        try:
            return bool(await ask(world.folder / "bob", "status"))
        except (LocalError, ValueError):
            return False

    await until(open_again)
    assert await world.bob.map(abs, [-1], needs=SMALL) == [1]


async def test_one_who_leaves_amid_events_does_not_close_the_door(world: SmallNetwork) -> None:
    """With some of them unread, as at the end of `formation logs --follow`."""

    async def is_over() -> bool:
        status = await ask(world.folder / "bob", "status")
        return not status["jobs"]

    for follow in (True, False):
        client = await asyncio.to_thread(connected, world.folder / "bob")
        client.sendall(encoded({"formation": VERSION, "ask": "events"}))
        client.sendall(encoded({"job": "", "follow": follow}))
        await world.bob.map(abs, range(50), needs=SMALL)
        client.recv(1)  # some have arrived
        client.close()
        await until(is_over)


# -- metrics --------------------------------------------------------------------------------------


def status_of(answer: str) -> str:
    return answer.split()[1]


def fetched(node: Node, request: bytes = b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n") -> str:
    with socket.create_connection(node.metrics_address, timeout=HANGS_S) as client:
        client.sendall(request)
        answer = b""
        while received := client.recv(65536):
            answer += received
    return answer.decode()


def value(text: str, sample: str) -> float:
    found = re.search(rf"^{re.escape(sample)} (\S+)$", text, re.MULTILINE)
    assert found is not None, f"no {sample} in\n{text}"
    return float(found[1])


def divide(by: int) -> float:
    return 1 / by


async def test_metrics_count_what_happened(fresh: SmallNetwork) -> None:
    await fresh.bob.map(abs, range(50), needs=SMALL)
    saves = 'echo half > new && mv new "$FORMATION_CHECKPOINT"; false'
    failing = ProcessSpec(("sh", "-c", saves))
    job = await fresh.bob.submit(failing, needs=SMALL, attempts=2)
    await job
    await (await fresh.bob.submit(ProcessSpec(("true",)), needs="memory=1TiB"))
    bobs = await asyncio.to_thread(fetched, fresh.bob)
    alices = await asyncio.to_thread(fetched, fresh.alice)
    assert bobs.startswith("HTTP/1.1 200 OK\r\nContent-Type: text/plain; version=0.0.4")
    assert value(bobs, 'formation_tasks_total{outcome="succeeded"}') == 50
    assert value(bobs, 'formation_tasks_total{outcome="failed"}') == 1
    assert value(bobs, 'formation_tasks_total{outcome="unplaceable"}') == 1
    assert value(bobs, "formation_tasks_submitted_total") == 52
    assert value(bobs, 'formation_attempts_total{outcome="succeeded"}') == 50
    assert value(bobs, 'formation_attempts_total{outcome="failed"}') == 2
    assert value(bobs, "formation_attempts_dispatched_total") >= 52
    assert value(bobs, "formation_checkpoints_held_total") == 2
    assert value(bobs, 'formation_quorum_copies_total{outcome="sent"}') == 0
    assert value(bobs, "formation_negotiation_seconds_count") >= 1
    assert value(bobs, "formation_dispatch_seconds_count") >= 1
    assert value(bobs, "formation_queue_length") == 0
    assert value(bobs, "formation_peers") >= 1
    assert value(bobs, 'formation_bytes_total{direction="sent"}') > 1000
    assert value(alices, 'formation_executions_total{outcome="succeeded"}') == 50
    assert value(alices, 'formation_executions_total{outcome="failed"}') == 2
    assert value(alices, "formation_checkpoints_saved_total") == 2
    assert value(alices, "formation_free_cpu_cores") <= 2


@pytest.mark.parametrize("find", ["notice", "announce"])
async def test_a_worker_that_is_not_asked_offers_what_is_wanted(
    world: SmallNetwork, find: str
) -> None:
    def offers() -> float:
        return value(fetched(world.alice), 'formation_want_offers_total{outcome="sent"}')

    before = await asyncio.to_thread(offers)
    job = await world.bob.submit(ProcessSpec(("true",)), needs=SMALL, find=find)
    (result,) = await job
    after = await asyncio.to_thread(offers)
    assert (result.status, after > before) == ("succeeded", True)


async def test_metrics_and_their_document_agree(world: SmallNetwork) -> None:
    await (await world.bob.submit(ProcessSpec(("true",)), needs="memory=1TiB"))
    text = "".join([await asyncio.to_thread(fetched, n) for n in (world.bob, world.alice)])
    document = (ROOT / "docs/reference/metrics.md").read_text()
    reported = set(re.findall(r"^# TYPE (formation_\w+) (\w+)$", text, re.MULTILINE))
    reported = {pair for pair in reported if not pair[0].endswith("_created")}
    written = set(
        re.findall(r"^\| `(formation_\w+)(?:\{[^`]*\})?` \| (\w+) \|", document, re.MULTILINE)
    )
    assert reported == written


async def test_a_slow_client_and_a_rude_one_do_not_keep_others_from_the_metrics(
    world: SmallNetwork,
) -> None:
    def tried() -> bool:
        """Whether the slow one is there still at the end, so that nobody waited for that."""
        address = world.bob.metrics_address
        with socket.create_connection(address) as slow:
            slow.sendall(b"GET /metr")
            assert status_of(fetched(world.bob, b"GET /secrets HTTP/1.1\r\n\r\n")) == "404"
            assert status_of(fetched(world.bob, b"POST /metrics HTTP/1.1\r\n\r\n")) == "405"
            assert fetched(world.bob, b"x" * 9000) == ""
            assert fetched(world.bob, b"HEAD /metrics HTTP/1.0\r\n\r\n").endswith("\r\n\r\n")
            assert "formation_peers" in fetched(world.bob)
            return is_there(slow)

    for _ in range(TRIES):
        if await asyncio.to_thread(tried):
            return
    pytest.fail("others wait until a slow client is sent away")


async def test_an_address_that_is_taken_or_none_is_refused(world: SmallNetwork) -> None:
    host, port = world.bob.metrics_address
    with pytest.raises(LocalError, match="choose another"):
        async with Node.join(home=world.folder / "alice", metrics=f"{host}:{port}"):
            raise AssertionError("it was entered")
    for address in ("9464", "host:", ":9464", "127.0.0.1:99999"):
        with pytest.raises(InvalidInput, match="metrics"):
            async with Node.join(home=world.folder / "alice", metrics=address):
                raise AssertionError("it was entered")
    async with Node.join(home=world.folder / "alice", listen=()) as silent:
        with pytest.raises(LocalError, match="serves no metrics"):
            _ = silent.metrics_address

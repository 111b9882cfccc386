"""When a node may be used: from where it is entered to where it is closed, in the process and on
the loop that entered it. Anything else is an error at once, which says what to do."""

import asyncio
import gc
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable, Coroutine, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Final

import pytest

from formation_p2p import (
    Home,
    InvalidInput,
    JobHandle,
    Node,
    NodeClosed,
    ProcessSpec,
    ResultTooLarge,
    SyncNode,
)
from formation_p2p.features.services.core.spec import Program, ServiceSpec
from formation_p2p.features.services.core.tending import RunBeside
from formation_p2p.machine.claim import claim
from formation_p2p.workload.core.blob import RAW, Blob, Cid, digest_of
from tests.support.loopback import LISTEN
from tests.support.waiting import HANGS_S, until

# An error at once is not one after a wait; a busy machine may keep a thread for some seconds.
TRUE = ProcessSpec(("true",))
NOTES = ServiceSpec(name="notes", tier=2, port=1, program=Program(argv=("notes",)))
BLOB = Blob(Cid(RAW, digest_of(b"x")), 1)


def one_step(last: None) -> Iterator[int]:
    yield 1


# Each public name of Node and SyncNode, used.
USES: Final[Mapping[str, Callable[[Any], object]]] = {
    "addresses": lambda node: node.addresses,
    "dask": lambda node: node.dask(),
    "discover": lambda node: node.discover("cpu=1"),
    "drain": lambda node: node.drain("notes"),
    "executor": lambda node: node.executor(),
    "explain": lambda node: node.explain("cpu=1"),
    "fetch_result": lambda node: node.fetch_result(ResultTooLarge("it is", "a peer", 1, b"")),
    "gateway": lambda node: node.gateway(),
    "feature": lambda node: node.feature("greetings"),
    "gang": lambda node: node.gang(2),
    "get": lambda node: node.get(BLOB, "a file"),
    "job": lambda node: node.job("a job"),
    "jobs": lambda node: node.jobs(),
    "libp2p_host": lambda node: node.libp2p_host(abs),
    "kept": lambda node: node.kept(),
    "map": lambda node: node.map(abs, [1]),
    "metrics_address": lambda node: node.metrics_address,
    "name": lambda node: node.name,
    "neighbours": lambda node: node.neighbours(),
    "incompatible": lambda node: node.incompatible(),
    "peer_id": lambda node: node.peer_id,
    "measure_rate": lambda node: node.measure_rate("a peer"),
    "ping": lambda node: node.ping("a peer"),
    "pool": lambda node: node.pool(),
    "publish": lambda node: node.publish(NOTES),
    "put": lambda node: node.put("a file"),
    "put_secret": lambda node: node.put_secret(b"secret"),
    "drop_secret": lambda node: node.drop_secret(BLOB),
    "read_services": lambda node: node.read_services(),
    "reached": lambda node: node.reached,
    "renew": lambda node: node.renew(),
    "reopen": lambda node: node.reopen(),
    "offer_charter": lambda node: node.offer_charter(b""),
    "replicas": lambda node: node.replicas(),
    "report_wrong": lambda node: node.report_wrong("a peer"),
    "run": lambda node: node.run(["true"]),
    "service": lambda node: node.service("a-service"),
    "services": lambda node: node.services(),
    "serve_services": lambda node: node.serve_services(["cpu"]),
    "story": lambda node: node.story("a task"),
    "submit": lambda node: node.submit(TRUE),
    "submit_steps": lambda node: node.submit_steps(one_step),
    "tend": lambda node: node.tend(None, RunBeside("notes", b"", ("sh",))),
    "troubles": lambda node: node.troubles(),
    "trust": lambda node: node.trust(),
    "vacate": lambda node: node.vacate(),
    "worker": lambda node: node.worker(),
    "workers": lambda node: node.workers(),
}
# Those of a job that has not ended.
JOB_USES: Final[Mapping[str, Callable[[Any], object]]] = {
    "events": lambda job: anext(job.events()),
    "explain": lambda job: job.explain(),
    "results": lambda job: job.results(),
    "story": lambda job: job.story(),
    "move": lambda job: job.move(),
    "cancel": lambda job: job.cancel(),  # the last, since it then ends
}
# Any thread, and any loop, may use these.
OF_ANY_LOOP: Final = {
    "addresses", "executor", "jobs", "metrics_address", "name", "peer_id", "reached",
}  # fmt: skip


@pytest.fixture
def home(tmp_path: Path) -> Path:
    Home(tmp_path / "home").create_network()
    return tmp_path / "home"


def joined(home: Path) -> Node:
    return Node.join(home=home, listen=LISTEN, metrics="127.0.0.1:0")


def at_once(use: Callable[[Any], object], of: object) -> str:
    """The error of a use, without any waiting: a coroutine must not get further than its first
    step. Empty where there is none."""
    try:
        used = use(of)
        if isinstance(used, Coroutine):
            used.send(None)
            used.close()
        elif hasattr(used, "__await__"):
            next(used.__await__())
    except StopIteration:
        return ""  # the coroutine is done already
    except (NodeClosed, InvalidInput) as error:
        return f"{type(error).__name__}: {error}"
    return ""


def forked(work: Callable[[], object]) -> str:
    """What it returns, as a text, in a fork of this process."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        signal.alarm(int(HANGS_S))  # it must not hang
        try:
            os.write(writer, str(work()).encode())
        finally:
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        said = pipe.read().decode()
    assert os.waitpid(child, 0)[1] == 0, f"it hung, after {said!r}"
    return said


def test_these_are_all_the_uses() -> None:
    names = {name for name in dir(Node) if not name.startswith("_")}
    assert names == {*USES, "join", "close"}


@pytest.mark.parametrize("name", sorted(USES))
def test_a_node_that_was_not_entered_says_how_to_enter_it(home: Path, name: str) -> None:
    said = at_once(USES[name], joined(home))
    assert said.startswith("NodeClosed: the node has not been entered; use `async with Node.join(")


async def test_a_node_is_entered_by_await_and_closed_by_close(home: Path) -> None:
    node = await joined(home)
    assert await node.workers() == ()
    assert await node is node, "it is entered already"
    await asyncio.gather(node.close(), node.close())
    await node.close()
    for name, use in USES.items():
        assert at_once(use, node) == "NodeClosed: the node is closed; join again", name
    with pytest.raises(NodeClosed, match="closed; join again"):
        await node
    claim(Home(home)).release()  # nothing of it is left
    async with await joined(home) as again:
        assert again.addresses
        with pytest.raises(InvalidInput, match=r"entered already, by another `async with`"):
            await again.__aenter__()
        assert await again.workers() == ()
    assert at_once(USES["workers"], again)


async def test_a_node_is_not_used_while_it_is_entered(home: Path) -> None:
    node = joined(home)
    entering = asyncio.ensure_future(node.__aenter__())
    await asyncio.sleep(0)
    for use in (*USES.values(), Node.close, Node.__aenter__):
        assert at_once(use, node) == (
            "NodeClosed: another task is still entering the node; wait until it has"
        )
    await entering
    await node.close()
    never = joined(home)
    await never.close()
    assert at_once(USES["workers"], never) == "NodeClosed: the node is closed; join again"


async def test_jobs_and_executors_end_with_their_node(home: Path) -> None:
    node = await joined(home)
    job, executor = await node.submit(TRUE), node.executor()
    future = executor.submit(abs, 1)
    await node.close()
    with pytest.raises(NodeClosed, match="closed while this was pending"):
        await job
    with pytest.raises(NodeClosed, match="closed while this was pending"):
        await job.results()
    for name in ("story", "explain"):
        assert "the node is closed; join again" in at_once(JOB_USES[name], job)
    job.cancel()  # it is over
    assert isinstance(await asyncio.wrap_future(future_error(future)), NodeClosed)
    with pytest.raises(RuntimeError, match="after the node was closed"):
        executor.submit(abs, 1)
    executor.shutdown()


def future_error(future: Any) -> Any:
    with ThreadPoolExecutor() as pool:
        return pool.submit(future.exception, HANGS_S)


async def test_a_node_is_for_the_loop_that_entered_it(home: Path) -> None:
    node = await joined(home)
    job = await node.submit(TRUE)

    async def uses() -> dict[str, str]:
        said = {name: at_once(use, node) for name, use in USES.items()}
        # The look at its loop is taken where its jobs begin.
        said["map"] = await awaited_error(node.map(abs, [1]))
        said |= {f"job.{name}": at_once(use, job) for name, use in JOB_USES.items()}
        return said | {"close": at_once(Node.close, node), "await": at_once(joins, node)}

    said = await asyncio.to_thread(asyncio.run, uses())
    for name, error in said.items():
        if name in OF_ANY_LOOP or name in ("job.cancel", "job.move"):
            assert error == "", name
        else:
            assert error.startswith("InvalidInput: loop: "), name
            assert "is another than this; call it on its own loop" in error
    await node.close()


async def awaited_error(of: Coroutine[Any, Any, object]) -> str:
    try:
        await of
    except (NodeClosed, InvalidInput) as error:
        return f"{type(error).__name__}: {error}"
    return ""


def joins(node: Node) -> Coroutine[Any, Any, Node]:
    return node.__aenter__()


def test_a_node_whose_loop_was_closed_says_so_and_can_be_closed(home: Path) -> None:
    async def enters() -> tuple[Node, JobHandle]:
        node = await joined(home)
        return node, await node.submit(TRUE)

    node, job = asyncio.run(enters())

    async def uses() -> str:
        assert "its own loop" in at_once(JOB_USES["results"], job)
        return at_once(USES["workers"], node)

    assert "the asyncio loop that entered the node was closed" in asyncio.run(uses())
    asyncio.run(node.close())
    asyncio.run(node.close())
    claim(Home(home)).release()


async def test_a_forked_child_is_told_at_once(home: Path) -> None:
    async with joined(home) as node:
        job, executor = await node.submit(TRUE), node.executor()

        def uses() -> str:
            said = {name: at_once(use, node) for name, use in USES.items()}
            said |= {f"job.{name}": at_once(use, job) for name, use in JOB_USES.items()}
            said["close"] = at_once(Node.close, node)
            said["enter"] = at_once(joins, node)
            said["executor.submit"] = at_once(lambda pool: pool.submit(abs, 1), executor)
            said["executor.map"] = at_once(lambda pool: pool.map(abs, [1]), executor)
            executor.shutdown()  # its own process shuts it
            return str({name for name, each in said.items() if "this is a fork" not in each})

        assert forked(uses) == "set()"
        said = forked(lambda: at_once(USES["workers"], node))
        assert said == (
            f"NodeClosed: the node belongs to process {os.getpid()}, of which this is a fork, and "
            "its threads are there; join a node here, or start processes by `spawn`"
        )
        # What unwinds a block of the parent's leaves its node alone, and so does collecting it.
        assert forked(lambda: at_once(lambda node: node.__aexit__(None), node)) == ""
        assert forked(node.__del__) == "None"
        assert await node.workers() == ()
        assert executor.submit(abs, 1) is not None


def test_a_stream_that_a_fork_goes_on_with_ends_there(home: Path) -> None:
    async def streams() -> str:
        async with joined(home) as node:
            ends = node.map(abs, [1]).__aiter__()
            waiting = asyncio.ensure_future(anext(ends))
            assert await node.workers() == ()  # the stream waits
            said = forked(lambda: at_once(lambda node: node.map(abs, [1]), node))
            waiting.cancel()
            return said

    assert "this is a fork" in asyncio.run(streams())


@pytest.mark.parametrize("by", ["os.fork", "multiprocessing"])
def test_a_script_is_told_in_a_forked_child_too(home: Path, by: str) -> None:
    with SyncNode.join(home=home, listen=LISTEN) as node:
        job, executor = node.submit(TRUE), node.executor()

        def uses() -> str:
            names = {name for name, use in USES.items() if "is a fork" not in at_once(use, node)}
            for name in ("cancel", "explain", "results", "story"):
                if "is a fork" not in at_once(JOB_USES[name], job):
                    names.add(f"job.{name}")
            if "is a fork" not in at_once(lambda job: next(job.events()), job):
                names.add("job.events")
            if "is a fork" not in at_once(lambda pool: pool.submit(abs, 1), executor):
                names.add("executor")
            if "is a fork" not in at_once(SyncNode.close, node):
                names.add("close")
            node.__exit__(None)
            return str(names)

        if by == "os.fork":
            assert forked(uses) == "set()"
        else:
            context = multiprocessing.get_context("fork")
            ours, theirs = context.Pipe()
            child = context.Process(target=sends, args=(theirs, uses))
            child.start()
            assert ours.poll(HANGS_S)
            assert ours.recv() == "set()"
            child.join()
        assert node.workers() == ()


def sends(pipe: Connection, work: Callable[[], str]) -> None:
    signal.alarm(int(HANGS_S))
    pipe.send(work())


def test_a_script_that_keeps_a_fork_may_join_again_as_who_it_was(home: Path) -> None:
    """The fork has the descriptor of the home's lock, too."""
    with SyncNode.join(home=home, listen=LISTEN) as node:
        was = node.peer_id
        child = os.fork()
        if child == 0:
            time.sleep(60)
            os._exit(0)
    try:
        with SyncNode.join(home=home, listen=LISTEN) as again:
            assert again.peer_id == was
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def test_a_script_enters_at_once_and_closes_when_it_is_done(home: Path) -> None:
    node = SyncNode.join(home=home, listen=LISTEN)
    assert node.workers() == ()
    job = node.submit(TRUE)
    with node as same:
        assert same is node
    threads = [threading.Thread(target=node.close) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    closed = "NodeClosed: the node is closed; join again"
    for name, use in USES.items():
        assert at_once(use, node).startswith(closed), name
    assert at_once(lambda node: node.__enter__(), node).startswith(closed)
    for name in ("explain", "results", "story", "cancel"):
        assert at_once(JOB_USES[name], job).startswith(closed)
    assert "formation-sync" not in {each.name for each in threading.enumerate()}


def test_a_callback_of_a_script_cannot_wait_for_its_own_thread(home: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"content")
    said = []
    with SyncNode.join(home=home, listen=LISTEN) as node:
        blob = node.put(tmp_path / "file")

        def progress(done: int, total: int) -> None:
            said.append(at_once(USES["workers"], node))

        node.get(blob, tmp_path / "copy", progress=progress)
    assert said
    assert "called from a callback of the node; hand it to another thread" in said[0]


@pytest.mark.parametrize("kind", [Node, SyncNode])
async def test_a_node_that_is_dropped_warns_and_is_closed(
    home: Path, kind: type[Node | SyncNode], recwarn: pytest.WarningsRecorder
) -> None:
    warnings.simplefilter("always")
    if kind is Node:
        node: Node | SyncNode = await joined(home)
        job = await node.submit(TRUE)  # type: ignore[misc]
    else:
        node = await asyncio.to_thread(SyncNode.join, home=home, listen=LISTEN)
    executor = node.executor()
    del node
    gc.collect()
    assert not [each for each in recwarn if "a node was dropped" in str(each.message)], (
        "its executor lives"
    )
    del executor

    async def ended() -> bool:
        gc.collect()
        return not {"formation", "formation-sync"} & {each.name for each in threading.enumerate()}

    await until(ended)
    (warned,) = [each for each in recwarn if "a node was dropped" in str(each.message)]
    assert "a node was dropped without being closed; use `async with" in str(warned.message)
    if kind is Node:
        with pytest.raises(NodeClosed, match=r"the node (is closed|was dropped)"):
            await job
    claim(Home(home)).release()


def test_a_program_that_ends_without_closing_ends(home: Path) -> None:
    program = f"""
from formation_p2p import SyncNode
node = SyncNode.join(home={str(home)!r}, listen=())
print(node.workers())
"""
    done = subprocess.run(
        [sys.executable, "-W", "always", "-c", program],
        capture_output=True,
        text=True,
        timeout=HANGS_S,
        check=True,
    )
    assert done.stdout == "()\n"
    assert "Traceback" not in done.stderr

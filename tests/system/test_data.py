"""Data that goes with tasks: large files there and back, over real nodes."""

import asyncio
import os
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from formation_p2p import (
    Blob,
    Home,
    Limits,
    Node,
    ProcessResult,
    ProcessSpec,
    TaskPlaced,
    python_calls,
    value_of,
)
from formation_p2p.core.effects import Contact
from formation_p2p.core.errors import InvalidInput, LocalError, Unreachable
from formation_p2p.core.units import MIB
from formation_p2p.peer.shell import Shell
from formation_p2p.trust.core.network import parse_invite
from tests.support.loopback import LISTEN, free_port
from tests.support.network import SmallNetwork, gate_at, small_network
from tests.support.nodes import OpenNode
from tests.support.programs import ROOT
from tests.support.stillness import standing_still
from tests.support.waiting import until

SMALL = "cpu=0.5,memory=64MiB"
MACHINE = Limits(cpu_milli=1000, memory_bytes=512 * MIB)


pytestmark = pytest.mark.asyncio(loop_scope="module")


@dataclass
class World:
    invite: str
    alice: Node
    bob: OpenNode
    folder: Path

    def file(self, name: str, size: int) -> tuple[Path, bytes]:
        content = os.urandom(size)
        (self.folder / name).write_bytes(content)
        return self.folder / name, content


@asynccontextmanager
async def one_worker(
    folder: Path, listen: tuple[str, ...], announce: tuple[str, ...]
) -> AsyncIterator[World]:
    """Alice works; Bob submits, and listens nowhere."""
    async with gate_at(folder) as invitation:
        join = invitation()
        home = folder / "alice"
        async with Node.join(join, home=home, listen=listen, announce=announce) as alice:
            await alice.worker(drivers=("process",), limits=MACHINE)
            joining = OpenNode.join(join, home=folder / "bob", listen=())
            # As on a machine of his own.
            async with OpenNode(replace(joining.config, shares_memory=False)) as bob:
                await until(lambda: sees(bob, 1))
                yield World(join, alice, bob, folder)


@pytest.fixture
def world(apart: SmallNetwork, tmp_path: Path) -> World:
    """With a folder of the test's own."""
    return World(apart.invite, apart.alice, apart.bob, tmp_path)


async def sees(node: Node, workers: int) -> bool:
    return len(await node.workers()) == workers


async def test_an_input_goes_there_and_an_output_comes_back(world: World, tmp_path: Path) -> None:
    path, content = world.file("a.bin", 5 * MIB)
    blob = await world.bob.put(path)
    assert (blob.size_bytes, blob.sources[0].peer_id) == (5 * MIB, world.bob.peer_id)
    script = "cat in/a.bin in/a.bin > result.bin; ls -l in/a.bin"
    result = await world.bob.run(
        ["sh", "-c", script], inputs={"in/a.bin": blob}, outputs=["result.bin"], needs=SMALL
    )
    assert result.stdout_tail.startswith(b"-r-x------")
    target = tmp_path / "here.bin"
    target.write_text("an older one")
    seen: list[tuple[int, int]] = []
    await world.bob.get(
        result.outputs["result.bin"], target, progress=lambda *each: seen.append(each)
    )
    assert target.read_bytes() == content * 2
    await asyncio.sleep(0)
    assert seen[-1] == (10 * MIB, 10 * MIB)


async def test_a_node_gets_what_it_has_put_itself(world: World, tmp_path: Path) -> None:
    path, content = world.file("a.bin", 3 * MIB)
    blob = await world.bob.put(path)
    await world.bob.get(blob, tmp_path / "out")
    assert (tmp_path / "out").read_bytes() == content
    for nowhere, why in ((tmp_path, "is a folder"), (tmp_path / "a" / "b", "is no folder")):
        with pytest.raises(LocalError, match=why):
            await world.bob.get(blob, nowhere)
    path.write_bytes(content[::-1])
    with pytest.raises(Unreachable):
        await world.bob.get(blob, tmp_path / "changed")
    assert not (tmp_path / "changed").exists()


async def test_mistaken_arguments_are_refused_and_harm_nothing(
    world: World, tmp_path: Path
) -> None:
    blob = await world.bob.put(world.file("a.bin", MIB)[0])
    mistaken: Any
    for mistaken in (str(blob.cid), await world.bob.put((1, 2))):
        with pytest.raises(InvalidInput, match="is not a Blob"):
            await world.bob.get(mistaken, tmp_path / "out")
    with pytest.raises(InvalidInput, match="argv: 'ls -l' is one text"):
        await world.bob.run("ls -l")
    with pytest.raises(InvalidInput, match="outputs: 'a' is one text"):
        await world.bob.run(["touch", "a"], outputs="a")
    await world.bob.get(blob, tmp_path / "out")


async def test_whoever_has_put_a_blob_knows_who_has_fetched_it(
    world: World, tmp_path: Path
) -> None:
    path, content = world.file("a.bin", 8 * MIB)
    blob = await world.bob.put(path)
    spec = ProcessSpec(("cmp", "-n", "8", "a.bin", "a.bin"), inputs={"a.bin": blob})
    (result,) = await (await world.bob.submit(spec, needs=SMALL))
    assert result.worker == world.alice.peer_id
    reported = await holders(world.bob, blob)
    assert [each.peer_id for each in reported] == [world.alice.peer_id]
    path.unlink()
    async with Node.join(world.invite, home=tmp_path / "carol", listen=()) as carol:
        await carol.get(replace(blob, sources=reported), tmp_path / "carols.bin")
    assert (tmp_path / "carols.bin").read_bytes() == content


async def holders(node: OpenNode, blob: Blob) -> tuple[Contact, ...]:
    found: asyncio.Future[tuple[Contact, ...]] = asyncio.get_running_loop().create_future()

    def ask(shell: Shell) -> None:
        reported = shell.exchange.who_has(blob.cid)
        found.get_loop().call_soon_threadsafe(found.set_result, reported)

    node.inside.call(ask)
    return await found


async def test_a_person_runs_a_command_on_large_files(world: World, tmp_path: Path) -> None:
    (tmp_path / "here").mkdir()
    path, content = world.file("here/a.bin", 6 * MIB)
    (tmp_path / "here" / "small.txt").write_text("small")
    carol = tmp_path / "carol"
    Home(carol).join(parse_invite(world.invite))
    command = "--in a.bin --in small.txt --out sub/result.bin -- sh -c"
    script = "mkdir sub; cat a.bin small.txt > sub/result.bin"
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "formation_p2p", "run", *command.split(), script),
        env={**os.environ, "FORMATION_HOME": str(carol), "PYTHONPATH": str(ROOT)},
        cwd=path.parent,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert await process.communicate() == (b"", b"")
    assert process.returncode == 0
    assert (tmp_path / "here/sub/result.bin").read_bytes() == content + b"small"


async def test_a_download_that_is_cancelled_leaves_nothing_under_its_name(
    world: World, tmp_path: Path
) -> None:
    # So much that it is under way for some ticks of its progress.
    path = tmp_path / "a.bin"
    path.touch()
    os.truncate(path, 256 * MIB)
    blob = await world.bob.put(path)
    # Bob listens nowhere: Alice reaches him over the connection that he makes for a task.
    await world.bob.run(["true"], needs=SMALL)
    target = tmp_path / "target"

    def progress(done_bytes: int, size_bytes: int) -> None:
        if done_bytes:
            fetching.cancel()

    fetching = asyncio.create_task(world.alice.get(blob, target, progress=progress))
    with pytest.raises(asyncio.CancelledError):
        await fetching
    await asyncio.sleep(0.5)  # in which it would have gone on
    assert not target.exists()
    written_bytes = part_bytes(tmp_path)
    assert 0 < written_bytes < 256 * MIB
    await asyncio.sleep(0.3)
    assert part_bytes(tmp_path) - written_bytes < MIB


def part_bytes(folder: Path) -> int:
    """How much of the one blob under way there is on disk."""
    (part,) = folder.glob(".target.*.part")
    return part.stat().st_blocks * 512


# -- a slow uplink --------------------------------------------------------------------------------

UPLINK_BYTES_PER_S = MIB
# More than a lease lives: it must have been renewed beside the data.
SLOW_BYTES = 14 * MIB


@asynccontextmanager
async def slow_link(target_port: int) -> AsyncIterator[int]:
    """A port that leads to another, with what goes through it throttled."""

    async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(16 * 1024):
            writer.write(data)
            await writer.drain()
            await asyncio.sleep(len(data) / UPLINK_BYTES_PER_S)
        writer.close()

    async def accepted(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection("127.0.0.1", target_port, limit=16 * 1024)
        with_peer = (pump(reader, back), pump(there, writer))
        await asyncio.gather(*with_peer, return_exceptions=True)

    listener = socket.create_server(("127.0.0.1", 0))
    # As a real link has it: what is sent must not vanish into the kernel's buffers.
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 64 * 1024)
    server = await asyncio.start_server(accepted, sock=listener, limit=16 * 1024)
    async with server:
        yield listener.getsockname()[1]
        server.close()


async def test_a_lease_lives_on_while_its_input_fills_a_slow_uplink(tmp_path: Path) -> None:
    port = free_port()
    async with slow_link(port) as link:
        listen, announce = (f"/ip4/127.0.0.1/tcp/{port}",), (f"/ip4/127.0.0.1/tcp/{link}",)
        async with one_worker(tmp_path, listen, announce) as world:
            path, _ = world.file("a.bin", SLOW_BYTES)
            blob = await world.bob.put(path)
            spec = ProcessSpec(("wc", "-c", "a.bin"), inputs={"a.bin": blob})
            began = asyncio.get_running_loop().time()
            job = await world.bob.submit(spec, needs=SMALL)
            with standing_still() as stood_still:
                placed = [each async for each in job.events() if isinstance(each, TaskPlaced)]
            (result,) = await job
            took_s = asyncio.get_running_loop().time() - began
            assert result.status == "succeeded"
            assert len(placed) == 1 or stood_still()
            assert took_s > SLOW_BYTES / UPLINK_BYTES_PER_S * 0.8


@pytest.mark.parametrize("durable", [False, True])
async def test_large_files_of_a_job_travel_by_content_and_are_held_until_it_is_over(
    tmp_path: Path, durable: bool
) -> None:
    state = tmp_path / "jobs.db" if durable else None
    async with small_network(tmp_path, limits=MACHINE, bob={"state": state}) as made:
        content = os.urandom(12 * MIB)  # more than a message carries
        files = {"a": content, "small": b"x"}
        spec = ProcessSpec(("sh", "-c", "cat a small | wc -c"), files_in=files)
        job = await made.bob.submit([spec, spec], needs=SMALL)
        holders = made.bob.inside.blobs
        assert holders.is_holder(job.job_id)
        assert (holders.durable_holders == {job.job_id}) is durable
        assert holders.used_bytes == len(content)
        results = await job
        for result in results:
            printed = ProcessResult.decode(result.result).stdout_tail
            assert int(printed) == len(content) + 1
        await until(lambda: not holders.is_holder(job.job_id))
        if state is not None:
            assert state.stat().st_size < MIB


async def test_what_was_held_for_a_job_that_has_ended_is_released_by_the_next_life(
    tmp_path: Path,
) -> None:
    state = tmp_path / "jobs.db"
    spec = ProcessSpec(("true",), files_in={"a": bytes(MIB)})
    async with small_network(tmp_path, limits=MACHINE) as made:
        join = {"home": tmp_path / "carol", "listen": (), "state": state}
        async with OpenNode.join(made.invite, **join) as carol:  # type: ignore[arg-type]
            job = await carol.submit(spec, needs=SMALL)
            await job
            store = carol.inside.blobs
            await until(lambda: not store.is_holder(job.job_id))
            store.hold(job.job_id, [], durable=True)  # as where it ended before that was noted
            store.hold("unknown", [], durable=True)
        async with OpenNode.join(made.invite, **join) as carol:  # type: ignore[arg-type]
            assert carol.inside.blobs.durable_holders == {"unknown"}


async def test_the_code_of_a_job_is_held_until_it_is_over_also_by_the_next_life(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "project").mkdir()
    (tmp_path / "project" / "priced.py").write_text("def price(n):\n    return 3 * n\n")
    monkeypatch.syspath_prepend(tmp_path / "project")
    price = import_module("priced").price
    join: dict[str, Any] = {"home": tmp_path / "bob", "listen": (), "state": tmp_path / "jobs.db"}
    async with gate_at(tmp_path) as invitation:
        invite = invitation()
        async with OpenNode.join(invite, **join) as bob:
            job = await bob.submit(python_calls(price, [1, 2]), needs=SMALL)
            assert bob.inside.blobs.durable_holders == {job.job_id}
        (tmp_path / "project" / "priced.py").unlink()
        async with OpenNode.join(invite, **join) as bob:
            store = bob.inside.blobs
            (job,) = bob.jobs()
            assert store.durable_holders == {job.job_id}
            async with Node.join(invite, home=tmp_path / "alice", listen=LISTEN) as alice:
                await alice.worker(limits=MACHINE)
                assert [value_of(each) for each in await job] == [3, 6]
                await until(lambda: not store.is_holder(job.job_id))
        async with OpenNode.join(invite, **join) as bob:
            assert bob.inside.blobs.durable_holders == frozenset()


async def test_a_job_that_cannot_be_submitted_holds_nothing(tmp_path: Path) -> None:
    async with small_network(tmp_path, limits=MACHINE) as made:
        specs = [ProcessSpec(("true",), files_in={"a": bytes(MIB)}), ProcessSpec(("x" * 2,))]
        with pytest.raises(InvalidInput):
            await made.bob.submit(specs, needs="cpu=0.5,driver=python")
        store = made.bob.inside.blobs
        await until(lambda: not store._holders._held)


async def test_a_cache_that_is_too_small_says_how_to_make_it_larger(tmp_path: Path) -> None:
    async with small_network(tmp_path, limits=MACHINE, alice={"cache_bytes": 2 * MIB}) as made:
        spec = ProcessSpec(("true",), files_in={"a": bytes(3 * MIB)})
        (result,) = await (await made.bob.submit(spec, needs=SMALL, attempts=1))
        assert "cache of 2MiB" in str(result.error())
        assert "formation worker --cache" in str(result.error())
    with pytest.raises(InvalidInput, match=r"cache: 10 bytes are less than 1MiB.*such as 10GiB"):
        Node.join(home=made.bob.config.home.path, cache_bytes=10)
    with pytest.raises(InvalidInput, match=r"cache: 8388608TiB, and the disk .* has"):
        async with Node.join(home=made.bob.config.home.path, cache_bytes=2**63):
            pass


async def test_outputs_outlive_the_worker_that_made_them(tmp_path: Path) -> None:
    async with gate_at(tmp_path) as invitation, AsyncExitStack() as nodes:
        workers = {}
        for name in ("alice", "carol"):
            home = tmp_path / name
            node = await nodes.enter_async_context(
                Node.join(invitation(), home=home, listen=LISTEN)
            )
            await node.worker(limits=MACHINE)
            workers[node.peer_id] = node
        async with OpenNode.join(invitation(), home=tmp_path / "bob", listen=()) as bob:
            await until(lambda: sees(bob, 2))
            spec = ProcessSpec(("sh", "-c", "printf made > out"), outputs=("out",))
            job = await bob.submit(spec, needs="cpu=1,memory=64MiB", copies=2)
            (done,) = await job
            blob = ProcessResult.decode(done.result).outputs["out"]
            assert {each.peer_id for each in blob.sources} == workers.keys()
            assert done.worker is not None
            await workers[done.worker].close()
            await bob.get(blob, tmp_path / "out")
            assert (tmp_path / "out").read_bytes() == b"made"

"""Calls with large results, on real interpreters: what they return is handed over as memory."""

import contextlib
import fcntl
import math
import os
import sys
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any, cast

import cloudpickle
import numpy as np
import pytest
import trio

from formation_p2p.api.arguments import ArgumentPickler
from formation_p2p.content.arrivals import Arrivals
from formation_p2p.content.memory import PrivateBlobs
from formation_p2p.content.results import KEPT_S, ResultBlobs
from formation_p2p.core.errors import LocalError
from formation_p2p.core.identity import PeerId
from formation_p2p.core.units import KIB, MIB
from formation_p2p.drivers.driver import BlobAccess
from formation_p2p.drivers.python import PythonDriver
from formation_p2p.drivers.python_process import GivenResult
from formation_p2p.drivers.python_session import (
    FLUSH_BYTES,
    FLUSH_S,
    GATHER_S,
    GATHERED,
    Unreported,
)
from formation_p2p.results.answers import parts_of
from formation_p2p.results.load import load_result
from formation_p2p.workload.core.call_context import CallContext
from formation_p2p.workload.core.outcome import Failed, FailureKind, Outcome, Succeeded
from formation_p2p.workload.core.parcel import LARGE_BYTES, Parcel, is_parcel
from tests.support.calls import pickled_function
from tests.support.drivers_world import OWNER, ALease, an_execution, bare_machine, lease_story
from tests.support.parcels import OWNER as WORKER
from tests.support.parcels import a_packer
from tests.support.waiting import told_by

cloudpickle.register_pickle_by_value(sys.modules[__name__])

SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE


class Blobs:
    """The results that this process keeps, as the node does."""

    def __init__(self, root: Path, limit_bytes: int | None, kept_s: float) -> None:
        self.held = PrivateBlobs(limit_bytes)
        self.held.open(root / "kept")
        self.results = ResultBlobs(self.held, lambda: WORKER, kept_s)
        self.keep_result = self.results.keep


class World:
    def __init__(self, root: Path, limit_bytes: int | None, kept_s: float) -> None:
        self.blobs = Blobs(root, limit_bytes, kept_s)
        self.pickler = ArgumentPickler(a_packer())
        driver = PythonDriver(bare_machine())
        driver.blobs = cast("BlobAccess", self.blobs)  # it takes nothing else
        self.lease = ALease(driver, root)

    @property
    def held(self) -> PrivateBlobs:
        return self.blobs.held

    async def outcome(
        self, function: Callable[..., Any], *args: Any, max_bytes: int | None = None
    ) -> Outcome:
        shared = pickled_function(function)
        if max_bytes is not None:
            context = CallContext.decode(shared)
            shared = CallContext(
                context.python, context.function, max_result_bytes=max_bytes
            ).encode()
        payload = self.pickler.dumps(args, {})
        assert isinstance(payload, bytes)
        return await self.lease.outcome(shared, payload)

    def read(self, record: bytes, peer: PeerId | None = None) -> Any:
        parcel = Parcel.decode(record)
        assert parcel.blob is not None
        lent = self.blobs.held.lend(parcel.blob.name, peer)
        assert lent is not None
        content = Arrivals().of_worker(lent.file, parcel.blob.size_bytes)
        lent.done(clean=False)
        pickled, buffers = parts_of(parcel, content.take())
        return load_result(pickled, buffers=buffers)


def story(
    scenario: Callable[[World], Awaitable[None]],
    tmp_path: Path,
    limit_bytes: int | None = None,
    kept_s: float = KEPT_S,
) -> None:
    lease_story(lambda: World(tmp_path, limit_bytes, kept_s), scenario)


in_world = told_by(story)


def filled(count: int) -> Any:
    return {"ones": np.ones(count), "flags": np.zeros(count, bool), "text": "x" * 10}


@in_world
async def test_what_is_large_is_handed_over_and_what_is_small_is_not(world: World, /) -> None:
    small = await world.outcome(filled, 10)
    assert isinstance(small, Succeeded)
    assert not is_parcel(small.result)
    for count in (64 * KIB, 500_001):
        outcome = await world.outcome(filled, count)
        assert isinstance(outcome, Succeeded)
        value = world.read(outcome.result, OWNER)
        assert (value["ones"].sum(), value["flags"].any(), value["text"]) == (
            *(count, False),
            "x" * 10,
        )
        value["ones"][0] = 7  # its own
    texts = await world.outcome(lambda: [str(n) for n in range(100_000)])
    assert isinstance(texts, Succeeded)
    assert world.read(texts.result) == [str(n) for n in range(100_000)]
    assert len(world.blobs.held) == 3
    world.blobs.results.free("lease", [])
    assert len(world.blobs.held) == 3
    world.blobs.results.lease_ended("another")
    world.blobs.results.lease_ended("lease")
    assert len(world.blobs.held) == 0


# So many that some are short, however often the machine turns to another process.
CALLS = 60


@pytest.mark.parametrize(("size", "is_large"), [(10, False), (LARGE_BYTES + 1, True)])
@in_world
async def test_results_are_told_together_while_calls_wait_and_large_ones_at_once(
    world: World, /, size: int, is_large: bool
) -> None:
    def short_call() -> bytes:
        return bytes(size)

    async with trio.open_nursery() as nursery:
        for _ in range(CALLS):
            nursery.start_soon(world.outcome, short_call)
    assert sum(world.lease.told) == CALLS
    assert (world.lease.told == [1] * CALLS) == is_large


def test_results_wait_for_a_few_others_where_calls_wait_and_for_a_moment_else() -> None:
    waiting = Unreported()
    assert waiting.due_s(calls_wait=True) == math.inf
    for count in range(1, GATHERED):
        waiting.add(1, 10.0 + count / 1000)
        assert waiting.due_s(calls_wait=True) == 10.001 + GATHER_S
        assert waiting.due_s(calls_wait=False) == 10.001 + FLUSH_S
    waiting.add(FLUSH_BYTES - GATHERED, 10.02)
    assert waiting.due_s(calls_wait=True) == 10.001 + FLUSH_S
    full = [waiting.is_full]
    waiting.add(1, 10.03)
    full.append(waiting.is_full)
    waiting.clear()
    assert [*full, waiting.is_full] == [False, True, False]
    assert waiting.due_s(calls_wait=False) == math.inf


@in_world
async def test_only_the_owner_of_the_lease_may_read_it_over_the_network(world: World, /) -> None:
    outcome = await world.outcome(filled, 64 * KIB)
    assert isinstance(outcome, Succeeded)
    (blob,) = Parcel.decode(outcome.result).blobs
    assert world.blobs.held.lend(blob.name, PeerId("another")) is None
    assert world.read(outcome.result, OWNER)["ones"].sum() == 64 * KIB
    world.blobs.results.lease_ended("lease")


@told_by(partial(story, limit_bytes=0))
async def test_more_than_memory_has_room_for_goes_to_the_disk(
    world: World, /, tmp_path: Path
) -> None:
    outcome = await world.outcome(filled, 64 * KIB)
    assert isinstance(outcome, Succeeded)
    assert world.blobs.held.memory.used_bytes == 0
    assert len(list((tmp_path / "kept").iterdir())) == 1
    assert world.read(outcome.result)["ones"].sum() == 64 * KIB
    world.blobs.results.lease_ended("lease")
    assert not list((tmp_path / "kept").iterdir())


@in_world
async def test_what_its_call_does_not_allow_is_kept_beyond_the_lease(world: World, /) -> None:
    outcome = await world.outcome(filled, 64 * KIB, max_bytes=100_000)
    assert isinstance(outcome, Failed)
    assert outcome.kind is FailureKind.OUTPUT
    assert "where the call allows 100000" in outcome.message
    small = await world.outcome(lambda: "x" * 100, max_bytes=50)
    assert isinstance(small, Failed)
    world.blobs.results.lease_ended("lease")
    assert world.read(outcome.result, OWNER)["ones"].sum() == 64 * KIB
    assert world.read(small.result) == "x" * 100
    world.blobs.results.trim()
    assert len(world.blobs.held) == 2


@told_by(partial(story, kept_s=0.2))
async def test_an_owner_that_never_fetches_its_results_loses_them(world: World, /) -> None:
    for most in (None, 100_000):
        outcome = await world.outcome(filled, 64 * KIB, max_bytes=most)
        assert len(Parcel.decode(outcome.result).blobs) == 1
    await trio.sleep(0.3)
    world.blobs.results.trim()
    assert len(world.blobs.held) == 0


@in_world
async def test_more_than_the_lease_has_memory_is_not_handed_over(world: World, /) -> None:
    outcome = await world.outcome(lambda: np.zeros(40 * MIB))
    assert isinstance(outcome, Failed)
    assert (outcome.kind, outcome.result) == (FailureKind.OUTPUT, b"")
    assert "of memory leased" in outcome.message
    assert await world.outcome(len, "abc") == Succeeded(b"\x80\x05K\x03.")


@in_world
async def test_memory_that_counts_as_the_interpreters_is_not_what_the_owner_gets(
    world: World, /, tmp_path: Path
) -> None:
    size = 3 * MIB
    file = os.memfd_create("a result", os.MFD_ALLOW_SEALING)
    os.write(file, b"x" * size)
    fcntl.fcntl(file, fcntl.F_ADD_SEALS, SEALS)
    inode = os.fstat(file).st_ino
    async with an_execution(tmp_path, b"") as execution:
        given = GivenResult(b"\x80", 0, (size,), file)
        blobs = cast("BlobAccess", world.blobs)
        outcome = await given.kept(Succeeded(b""), execution, blobs, counted=True)
        short = GivenResult(b"\x80", 0, (size,), os.memfd_create("short"))
        failed = await short.kept(Succeeded(b""), execution, blobs, counted=True)
    (blob,) = Parcel.decode(outcome.result).blobs
    lent = world.blobs.held.lend(blob.name)
    assert lent is not None
    assert os.fstat(lent.file).st_ino != inode
    assert os.pread(lent.file, size, 0) == b"x" * size
    lent.done(clean=True)
    assert isinstance(failed, Failed)
    assert "written something else" in failed.message


@pytest.mark.parametrize("counted", [True, False])
@in_world
async def test_a_result_of_holes_is_not_copied(
    world: World, /, tmp_path: Path, counted: bool
) -> None:
    """It costs its interpreter nothing, and would cost the node a terabyte."""
    size = 1 << 40
    async with an_execution(tmp_path, b"") as execution:
        file = os.memfd_create("holes", os.MFD_ALLOW_SEALING)
        os.ftruncate(file, size)
        fcntl.fcntl(file, fcntl.F_ADD_SEALS, SEALS)
        given = GivenResult(b"\x80", 0, (size,), file)
        blobs = cast("BlobAccess", world.blobs)
        failed = await given.kept(Succeeded(b""), execution, blobs, counted=counted)
    assert isinstance(failed, Failed)
    assert "written something else" in failed.message


FORGED = {
    "no memory": "",
    "memory that can be written to": "file = os.memfd_create('x', os.MFD_ALLOW_SEALING)",
    "a file": "file = os.open('/etc/passwd', os.O_RDONLY)",
}


@pytest.mark.parametrize("forged", FORGED)
@in_world
async def test_a_call_that_answers_in_place_of_its_interpreter_harms_itself_alone(
    world: World, /, forged: str
) -> None:
    def forge(make: str) -> None:
        import socket
        import struct

        kinds: dict[int, int] = {}
        for fd in range(3, 1024):
            with contextlib.suppress(OSError):
                end = socket.socket(fileno=os.dup(fd))
                kinds.setdefault(end.type, fd)
        scope: dict[str, Any] = {"os": os}
        exec(make, scope)
        if "file" in scope:
            with socket.socket(fileno=os.dup(kinds[socket.SOCK_SEQPACKET])) as data:
                socket.send_fds(data, [b"+"], [scope["file"]])
        body = struct.pack("!QIIQ", 0, 1, 1, 1024) + b"\x80"
        reply = struct.pack("!cQ??QQII", b"r", 1, False, False, 0, 0, 0, len(body)) + body
        os.write(kinds[socket.SOCK_STREAM], reply)
        os._exit(1)

    outcome = await world.outcome(forge, FORGED[forged])
    assert isinstance(outcome, Failed)
    assert outcome.kind in (FailureKind.EXIT, FailureKind.OUTPUT), outcome.message
    assert len(world.blobs.held) == 0
    # The first may be given to the interpreter that is about to die.
    again = [await world.outcome(filled, 64 * KIB) for _ in range(2)]
    assert isinstance(again[-1], Succeeded)
    world.blobs.results.lease_ended("lease")


@in_world
async def test_of_what_is_not_allowed_the_oldest_gives_way(
    world: World, /, monkeypatch: pytest.MonkeyPatch
) -> None:
    from formation_p2p.content import results

    monkeypatch.setattr(results, "MAX_UNALLOWED_OF_OWNER_BYTES", 1200 * KIB)
    records = [
        (await world.outcome(lambda n: np.full(64 * KIB, n), n, max_bytes=1000)).result
        for n in range(3)
    ]
    blobs = [Parcel.decode(record).blobs[0] for record in records]
    assert world.blobs.held.lend(blobs[0].name) is None
    assert len(world.blobs.held) == 2
    assert world.read(records[1])[0] == 1
    assert world.read(records[2])[0] == 2
    late = await world.outcome(lambda: np.ones(MIB), max_bytes=1000)
    assert isinstance(late, Failed)
    assert late.result == b""
    assert "too much to be kept" in late.message


@in_world
async def test_a_driver_without_blobs_says_so(world: World, /, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    driver = PythonDriver(bare_machine())
    lease = ALease(driver, tmp_path / "other")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(lease.serve)
        outcome = await lease.outcome(
            pickled_function(filled), cast("bytes", world.pickler.dumps((MIB,), {}))
        )
        with trio.CancelScope(shield=True):
            await lease.end()
    assert isinstance(outcome, Failed)
    assert "no access to private blobs" in outcome.message


def test_what_has_come_and_is_not_read_is_bounded_in_memory(tmp_path: Path) -> None:
    arrivals = Arrivals(3 * MIB)
    with pytest.raises(LocalError, match="was left"):
        arrivals.room(4 * MIB)
    arrivals.folder = tmp_path / "arrivals"
    first, second = arrivals.room(2 * MIB), arrivals.room(2 * MIB)
    assert arrivals.unread_bytes == 2 * MIB  # the second is in a file without a name
    assert not list(arrivals.folder.iterdir())
    second.view[:5] = b"12345"
    assert bytes(second.take()[:6]) == b"12345\0"
    view = first.take()
    assert arrivals.unread_bytes == 0
    dropped = arrivals.room(MIB)
    assert arrivals.unread_bytes == MIB
    del dropped
    assert arrivals.unread_bytes == 0
    assert view.nbytes == 2 * MIB
    short = os.memfd_create("short")
    os.write(short, b"x" * 10)
    with pytest.raises(LocalError, match="shorter than its worker said"):
        arrivals.of_worker(short, 100)
    os.close(short)

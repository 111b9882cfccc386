"""Private blobs over the data protocol, between real stacks on loopback."""

import mmap
import secrets
from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import trio

from formation_p2p.content.core.messages import Opened
from formation_p2p.content.data_stream import _framed
from formation_p2p.content.memory import PrivateBlobs
from formation_p2p.content.remote import MAX_FETCHES, MAX_FETCHES_OF_OWNER
from formation_p2p.core.effects import Contact
from formation_p2p.core.errors import LocalError, RemoteError, Unreachable
from formation_p2p.core.units import KIB, MIB
from formation_p2p.net.transport.frames import read_frame
from formation_p2p.net.transport.stream import MuxedStream
from formation_p2p.workload.core.blob import PrivateBlob
from tests.support.data_world import Holder, Liar
from tests.support.stacks import run, running
from tests.support.waiting import AT_ONCE_S, told_by, until

DATA = secrets.token_bytes(20 * MIB + 300 * KIB)


def story(
    scenario: Callable[[Holder, Holder], Awaitable[None]], tmp_path: Path, patience_s: float = 90.0
) -> None:
    """`alice` owns what `bob` reads."""

    async def bounded() -> None:
        alice = Holder(tmp_path / "alice")
        bob = Holder(tmp_path / "bob", listen=(), patience_s=patience_s)
        async with running(alice, bob):
            await scenario(alice, bob)
        alice.private.close()
        bob.private.close()

    run(bounded, within_s=60)


in_world = told_by(story)


def put(owner: Holder, data: bytes = DATA) -> PrivateBlob:
    name, size = owner.private.put([memoryview(data)])
    return PrivateBlob(name, size, owner.contact)


async def read(reader: Holder, blob: PrivateBlob) -> bytes:
    lent = await reader.exchange.lend(blob)
    try:
        with mmap.mmap(lent.file, blob.size_bytes, prot=mmap.PROT_READ) as view:
            return view[:]
    finally:
        lent.done(clean=True)


@in_world
async def test_a_private_blob_comes_from_its_owner_and_is_not_kept(
    alice: Holder, bob: Holder, /, tmp_path: Path
) -> None:
    blob = put(alice)
    assert (await read(bob, blob))[: len(DATA)] == DATA
    assert len(bob.private) == 0
    bob.private.trim(all_of_it=True)
    assert bob.private.memory.used_bytes == 0
    # What does not fit into memory is a file for as long as it is read.
    bob.private = bob.others.blobs = PrivateBlobs(limit_bytes=0)
    bob.private.open(tmp_path / "files")
    assert (await read(bob, blob))[: len(DATA)] == DATA
    assert list((tmp_path / "files").iterdir()) == []


@in_world
async def test_what_its_owner_has_no_more_is_not_waited_for(alice: Holder, bob: Holder, /) -> None:
    blob = put(alice)
    alice.private.release(blob.name)
    with pytest.raises(RemoteError, match="does not have it"):
        await read(bob, blob)
    assert len(bob.private) == 0


@told_by(partial(story, patience_s=1.0))
async def test_a_blob_that_is_shorter_than_it_was_told_costs_the_call(
    alice: Holder, bob: Holder, /
) -> None:
    blob = put(alice, DATA[: 2 * MIB])
    with pytest.raises((RemoteError, LocalError)):
        await read(bob, replace(blob, size_bytes=4 * MIB))
    assert await read(bob, blob) == DATA[: 2 * MIB]


@in_world
async def test_an_owner_who_brings_nothing_keeps_no_other_waiting(
    alice: Holder, bob: Holder, /
) -> None:
    """As of one's calls on a worker of both, or of what several workers' calls have made."""
    opened = 0

    async def serve(stream: MuxedStream) -> None:
        nonlocal opened
        await read_frame(stream, 4096)
        opened += 1
        await stream.write(_framed(Opened()))
        await trio.sleep_forever()

    mallory = Liar(serve)
    async with trio.open_nursery() as nursery:
        await nursery.start(mallory.stack.run, mallory)
        for number in range(2 * MAX_FETCHES):
            name = number.to_bytes(16, "big")
            nursery.start_soon(read, bob, PrivateBlob(name, MIB, mallory.contact))
        await until(lambda: opened == MAX_FETCHES_OF_OWNER)
        with trio.fail_after(AT_ONCE_S):
            assert await read(bob, put(alice)) == DATA
        nursery.cancel_scope.cancel()


@told_by(partial(story, patience_s=0.5))
async def test_an_owner_that_is_gone_is_given_up_in_the_end(alice: Holder, bob: Holder, /) -> None:
    blob = replace(put(alice), owner=Contact(alice.peer_id, ("/ip4/127.0.0.1/tcp/1",)))
    with pytest.raises(Unreachable, match="cannot be read"):
        await read(bob, blob)


@in_world
async def test_a_connection_that_breaks_is_made_again(alice: Holder, bob: Holder, /) -> None:
    blob = put(alice)
    found: list[bytes] = []

    async def get() -> None:
        found.append(await read(bob, blob))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(get)
        while alice.exchange.server.sent_bytes < MIB:  # noqa: ASYNC110
            await trio.sleep(0.001)
        bob.stack.drop(alice.peer_id, "a test breaks it")
    assert found[0][: len(DATA)] == DATA

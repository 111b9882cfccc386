"""Content that others have had here first, by another reference: by a rule of theirs, in another
size, from sources that bring nothing."""

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import trio

from formation_p2p.content.held_for_others import is_held
from formation_p2p.core.errors import Unreachable
from formation_p2p.core.identity import PeerId
from formation_p2p.drivers.code_cache import CodeCache
from formation_p2p.jobs.checkpoints import MAX_KEEPING, CheckpointKeeper
from formation_p2p.jobs.core.fetch import (
    CheckpointEvent,
    CheckpointSpread,
    CopyOutputs,
    KeepCheckpoint,
    SpreadCheckpoint,
)
from formation_p2p.jobs.output_copies import MAX_COPYING, OutputCopies
from formation_p2p.net.transport.frames import read_frame
from formation_p2p.net.transport.stream import MuxedStream
from formation_p2p.workload.core.blob import Blob
from formation_p2p.workload.core.checkpoint import Checkpoint
from formation_p2p.workload.core.code_bundle import CodeFile, write_bundle
from formation_p2p.workload.core.data_rule import DataRule
from formation_p2p.workload.core.scope import Scope
from tests.host.test_places import SOON_S, Silent
from tests.support.data_world import Holder, content, from_
from tests.support.stacks import running
from tests.support.waiting import in_trio, until

RULE = DataRule(Scope.LOCAL, region="mallory")
CAROL, MALLORY = PeerId("carol"), PeerId("mallory")


@in_trio
async def test_a_rule_of_who_had_it_here_first_keeps_no_other_from_it(tmp_path: Path) -> None:
    alice, bob, carol, mallory = (Holder(tmp_path / x) for x in ("alice", "bob", "carol", "mal"))
    bob.exchange.server.hold = bob.exchange.held_for_others.hold
    async with running(alice, bob, carol, mallory):
        for number, data in enumerate((content(2), b"ok\n")):
            theirs = replace(mallory.put(data), rule=RULE)
            name = number.to_bytes(16, "big")
            sources = theirs.sources
            assert await is_held(
                mallory.stack, mallory.exchange, bob.contact, theirs, name, sources
            )
            path = bob.folder / "made"
            path.write_bytes(data)
            if number == 0:  # it comes as an input
                blob = alice.put(data)
                with pytest.raises(Unreachable):  # who knows its name alone does not read it
                    await bob.exchange.copies([(tmp_path / "no", from_(blob))], CAROL)
                await bob.exchange.copies([(tmp_path / "data", blob)], CAROL)
                assert (tmp_path / "data").read_bytes() == data
            else:  # it is made here
                made = await bob.exchange.keep(os.open(path, os.O_RDWR), path)
                assert await carol.get(made) == data


def other_rule(blob: Blob) -> Blob:
    return replace(blob, rule=RULE)


def other_size(blob: Blob) -> Blob:
    return replace(blob, size_bytes=blob.size_bytes - 1)


def same(blob: Blob) -> Blob:
    return blob


@pytest.mark.parametrize("refer", [same, other_rule, other_size])
@in_trio
async def test_what_is_fetched_by_another_reference_keeps_no_other_waiting(
    tmp_path: Path, refer: Callable[[Blob], Blob]
) -> None:
    alice, bob, silent = Holder(tmp_path / "alice"), Holder(tmp_path / "bob"), Silent()
    async with running(alice, bob, silent), trio.open_nursery() as nursery:
        blob = alice.put(content(1))
        theirs = refer(from_(blob, silent))
        for number in range(10):  # more than may bring sources of their own
            read = [(tmp_path / f"{number}", theirs)]
            nursery.start_soon(bob.exchange.copies, read, silent.contact.peer_id)
            await until(lambda: silent.opened > 0)
        await trio.sleep(0.2)  # they have joined it, or wait
        with trio.fail_after(2 * SOON_S):
            await bob.exchange.copies([(tmp_path / "data", blob)], CAROL)
        nursery.cancel_scope.cancel()


@in_trio
async def test_code_whose_sources_are_slow_keeps_no_other_s_calls_waiting(tmp_path: Path) -> None:
    alice, bob, silent = Holder(tmp_path / "alice"), Holder(tmp_path / "bob"), Silent()
    cache = CodeCache(tmp_path / "code")

    async def hold(blob: Blob, owner: PeerId) -> None:
        async with cache.held(blob, bob.exchange, owner):
            pass

    async with running(alice, bob, silent), trio.open_nursery() as nursery:
        blob = alice.put(write_bundle([CodeFile("a.py", b"x = 1\n")]))
        nursery.start_soon(hold, from_(blob, silent), MALLORY)
        await until(lambda: silent.opened == 1)
        with trio.fail_after(SOON_S):
            await hold(blob, CAROL)
        nursery.cancel_scope.cancel()


class Mute(Silent):
    """Takes what it is asked, and says nothing."""

    async def _serve(self, stream: MuxedStream) -> None:
        await read_frame(stream, 4096)
        self.opened += 1
        await trio.sleep_forever()


@in_trio
async def test_a_holder_that_says_nothing_keeps_no_other_s_copies_waiting(tmp_path: Path) -> None:
    alice, bob, carol = (Holder(tmp_path / x) for x in ("alice", "bob", "carol"))
    mute = Mute()
    carol.exchange.server.hold = carol.exchange.held_for_others.hold
    copies = OutputCopies(bob.stack, bob.exchange, lambda told: None)
    told: list[CheckpointEvent] = []
    keeper = CheckpointKeeper(bob.stack, bob.exchange, None, told.append)
    async with running(alice, bob, carol, mute), trio.open_nursery() as nursery:
        blob = alice.put(content(1))

        def copy(name: str, to: Holder | Mute) -> CopyOutputs:
            blobs = (("out", blob),)
            return CopyOutputs(
                name, alice.peer_id, "l", name, blobs, (to.contact,), 1, cause="test"
            )

        def save(name: str, to: Holder | Mute) -> SpreadCheckpoint:
            return SpreadCheckpoint(name, Checkpoint(1, blob), (to.contact,), 1, cause="test")

        for name in ("good", *map(str, range(MAX_KEEPING))):
            await keeper.perform(KeepCheckpoint(name, "job", Checkpoint(1, blob), cause="test"))
        for number in range(MAX_COPYING):
            nursery.start_soon(copies.perform, copy(f"{number}", mute))
        for number in range(MAX_KEEPING):
            nursery.start_soon(keeper.perform, save(f"{number}", mute))
        await until(lambda: mute.opened >= 2)
        with trio.fail_after(SOON_S):
            await copies.perform(copy("good", carol))
            await keeper.perform(save("good", carol))
        assert told[-1] == CheckpointSpread("good", 1, (carol.contact,))
        nursery.cancel_scope.cancel()

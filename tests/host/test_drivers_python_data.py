"""Calls with large arguments, on real interpreters: what lies in private blobs is mapped there."""

import errno
import pickle
import socket
import sys
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import cloudpickle
import numpy as np
import pytest
import trio
import trio.testing

from formation_p2p.api.arguments import ArgumentPickler
from formation_p2p.api.calls import context_of, packed_function, reference_to
from formation_p2p.content.core.fetch import Manifest
from formation_p2p.content.lent_blob import Lent
from formation_p2p.content.memory import PrivateBlobs
from formation_p2p.content.places import UNKNOWN
from formation_p2p.core.effects import Contact
from formation_p2p.core.errors import RemoteError, Unreachable
from formation_p2p.core.identity import Identity, PeerId
from formation_p2p.core.units import MIB
from formation_p2p.drivers.driver import BlobAccess
from formation_p2p.drivers.python import PythonDriver
from formation_p2p.workload.core.blob import Blob, PrivateBlob
from formation_p2p.workload.core.call_context import CallContext
from formation_p2p.workload.core.outcome import Failed, FailureKind, Outcome, Succeeded
from formation_p2p.workload.core.parcel import Parcel
from tests.support.calls import pickled_function
from tests.support.drivers_world import ALease, bare_machine, lease_story
from tests.support.parcels import OWNER, a_packer
from tests.support.waiting import told_by, until

cloudpickle.register_pickle_by_value(sys.modules[__name__])


class Blobs:
    """The blobs that this process has, as the node's; `go` lets a reader have them."""

    def __init__(self) -> None:
        self.held = PrivateBlobs()
        self.asked = 0
        self.keeps = False
        self._news = trio.Event()
        self.go = trio.Event()
        self.go.set()

    async def until_asked(self, times: int) -> None:
        while self.asked < times:
            self._news = trio.Event()
            await self._news.wait()

    def lend_kept(self, blob: PrivateBlob) -> Lent | None:
        return self.held.lend(blob.name) if self.keeps else None

    async def copies(self, inputs: Iterable[tuple[Path, Blob]], owner: PeerId = UNKNOWN) -> None:
        raise Unreachable("it is nowhere")

    async def fetch_ahead(self, blobs: Iterable[Blob], owner: PeerId = UNKNOWN) -> None:
        raise Unreachable("it is nowhere")

    async def lend(self, blob: PrivateBlob, *, again: bool = False) -> Lent:
        self.asked += 1
        self._news.set()
        await self.go.wait()
        lent = self.held.lend(blob.name)
        if lent is None:
            raise RemoteError("it is not here")
        return lent


class World:
    def __init__(self, root: Path) -> None:
        self.blobs = Blobs()
        self.packer = a_packer(self.blobs.held)
        self.pickler = ArgumentPickler(self.packer)
        driver = PythonDriver(bare_machine())
        driver.blobs = cast("BlobAccess", self.blobs)  # it takes nothing else
        self.lease = ALease(driver, root, owner=OWNER.peer_id)

    @property
    def held(self) -> PrivateBlobs:
        return self.blobs.held

    def packed(self, *args: Any) -> Parcel:
        packed = self.pickler.dumps(args, {})
        assert isinstance(packed, Parcel)
        return packed

    async def outcome(
        self, function: Callable[..., Any], arguments: bytes | Parcel, shared: bytes = b""
    ) -> Outcome:
        payload = arguments.encode() if isinstance(arguments, Parcel) else arguments
        return await self.lease.outcome(shared or pickled_function(function), payload)

    async def value(self, function: Callable[..., Any], *args: Any, shared: bytes = b"") -> Any:
        arguments = self.pickler.dumps(args, {})
        outcome = await self.outcome(function, arguments, shared)
        if isinstance(arguments, Parcel):
            self.packer.release(arguments)
        assert isinstance(outcome, Succeeded), outcome
        return pickle.loads(outcome.result)


def story(scenario: Callable[[World], Awaitable[None]], tmp_path: Path) -> None:
    lease_story(lambda: World(tmp_path), scenario)


in_world = told_by(story)


@in_world
async def test_arrays_are_mapped_and_may_be_written_to(world: World, /) -> None:
    def doubles(pair: Any, text: str) -> Any:
        first, second = pair["first"], pair["second"]
        aligned = all(each.ctypes.data % 64 == 0 for each in (first, second))
        first *= 2
        return float(first.sum()), int(second.sum()), aligned, first.flags.owndata, text

    pair: dict[str, Any] = {"first": np.ones(MIB), "second": np.arange(100_001, dtype=np.int32)}
    for _ in range(3):
        total, whole, aligned, copied, text = await world.value(doubles, pair, "x" * 10)
        assert (total, text) == (2.0 * MIB, "x" * 10)
        assert whole == pair["second"].sum()
        assert (aligned, copied) == (True, False)
    assert pair["first"].sum() == MIB
    assert world.blobs.held.memory.used_bytes < 12 * MIB  # the same memory each time


@in_world
async def test_a_large_pickle_lies_there_too(world: World, /) -> None:
    assert await world.value(len, b"x" * 9_000_000) == 9_000_000
    assert await world.value(len, [str(number) for number in range(100_000)]) == 100_000
    assert await world.value(len, "small") == 5


@in_world
async def test_a_function_brings_what_it_encloses_once(world: World, /) -> None:
    table = np.arange(MIB)

    def entry(number: int) -> int:
        return int(table[number])

    packed = packed_function(entry, world.packer)
    assert packed.parcel is not None
    shared = context_of(packed.function)
    for number in range(5):
        assert await world.value(entry, number, shared=shared) == number
    assert await world.value(lambda a: len(a) + 1, table) == MIB + 1
    assert world.blobs.asked == 2


@in_world
async def test_memory_that_a_call_keeps_is_not_used_again(world: World, /) -> None:
    def keeps(array: Any) -> float:
        import builtins

        kept = builtins.__dict__.setdefault("kept", [])
        kept.append(array)
        return float(kept[0][0])

    def forks(array: Any) -> float:
        import os

        if os.fork() == 0:
            os._exit(0)
        os.wait()
        return float(array[0])

    assert await world.value(keeps, np.full(MIB, 1.0)) == 1
    assert await world.value(keeps, np.full(MIB, 2.0)) == 1
    assert world.blobs.held.memory.used_bytes == 0
    assert await world.value(forks, np.full(MIB, 3.0)) == 3
    assert world.blobs.held.memory.used_bytes == 0


@in_world
async def test_calls_behind_one_that_waits_for_its_data_keep_their_order(world: World, /) -> None:
    def note(number: Any) -> Any:
        import builtins

        noted = builtins.__dict__.setdefault("noted", [])
        noted.append(int(number[0]) if hasattr(number, "dtype") else number)
        return noted

    world.blobs.go = trio.Event()
    found: list[Any] = []

    async def call(argument: Any) -> None:
        found.append(await world.value(note, argument, shared=shared))

    shared = pickled_function(note)
    async with trio.open_nursery() as nursery:
        for number in range(4):
            argument = np.full(MIB, number) if number % 2 else number
            nursery.start_soon(call, argument)
            await trio.testing.wait_all_tasks_blocked()
        await world.blobs.until_asked(1)
        world.blobs.go.set()
    assert max(found, key=len) == [0, 1, 2, 3]


@in_world
async def test_data_that_is_gone_or_wrong_costs_its_call_alone(world: World, /) -> None:
    gone = world.packed(np.ones(MIB))
    world.packer.release(gone)
    outcome = await world.outcome(len, gone)
    assert isinstance(outcome, Failed)
    assert outcome.kind is FailureKind.CALLER
    assert "did not hand over" in outcome.message
    assert "not here" in outcome.message
    for wrong in (b"\x85garbage", gone.encode()[:-1]):
        outcome = await world.outcome(len, wrong)
        assert isinstance(outcome, Failed)
        assert outcome.kind is FailureKind.INVALID
    assert await world.value(len, np.ones(MIB)) == MIB


@pytest.mark.parametrize("behind", [False, True])
@in_world
async def test_data_that_the_kernel_does_not_take_fails_its_call_at_once(
    world: World, /, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, behind: bool
) -> None:
    """Another task of this user may have filled what may be on its way. Behind a call that runs,
    there is time until that is over."""
    send_fds, refused = socket.send_fds, [errno.ETOOMANYREFS]

    def refuses(*arguments: Any) -> int:
        if refused:
            raise OSError(refused.pop(), "Too many references")
        return send_fds(*arguments)

    def first(path: str) -> None:
        import time
        from pathlib import Path as Place

        Place(path + ".begun").touch()
        while not Place(path).exists():
            time.sleep(0.01)

    go = tmp_path / "go"
    async with trio.open_nursery() as nursery:
        if behind:
            nursery.start_soon(world.value, first, str(go))
            await until((tmp_path / "go.begun").exists)
        monkeypatch.setattr(socket, "send_fds", refuses)
        outcomes: list[Outcome] = []

        async def large() -> None:
            outcomes.append(await world.outcome(len, world.packed(np.ones(MIB))))

        nursery.start_soon(large)
        await until(lambda: not refused)
        go.touch()
    (outcome,) = outcomes
    if behind:
        assert isinstance(outcome, Succeeded), outcome
    else:
        assert isinstance(outcome, Failed)
        assert outcome.kind is FailureKind.DRIVER
        assert "cannot be handed over: Too many references" in outcome.message
    assert await world.value(len, np.ones(MIB)) == MIB


@in_world
async def test_a_call_that_is_taken_back_gives_its_data_back(world: World, /) -> None:
    import time

    async with trio.open_nursery() as nursery:
        parcels = [world.packed(np.full(MIB, number)) for number in range(5)]

        async def call(parcel: Parcel) -> None:
            outcome = await world.outcome(lambda array: time.sleep(600), parcel)
            assert isinstance(outcome, Failed)
            assert outcome.kind is FailureKind.CANCELLED

        for parcel in parcels:
            nursery.start_soon(call, parcel)
            await trio.testing.wait_all_tasks_blocked()
        await world.blobs.until_asked(3)
        await trio.sleep(0.2)
        world.lease.kill()
    for parcel in parcels:
        world.packer.release(parcel)
    assert await world.value(len, np.ones(MIB)) == MIB


@in_world
async def test_what_a_call_refers_to_is_the_object_itself(world: World, /) -> None:
    def looks(array: Any, nested: Any, *, table: Any) -> Any:
        (same,) = nested["in"]
        return float(array.sum()), same is array, array.flags.writeable, array.base is None, table

    table = {"a": [1, 2]}
    first, second = (reference_to(each, world.packer) for each in (np.ones(MIB), table))
    for _ in range(2):
        arguments = world.pickler.dumps((first, {"in": [first]}), {"table": second})
        outcome = await world.outcome(looks, arguments)
        assert isinstance(outcome, Succeeded), outcome
        assert pickle.loads(outcome.result) == (float(MIB), True, False, False, table)
    small = reference_to(np.arange(3), world.packer)
    second_of = lambda array: (int(array[1]), array.flags.writeable)  # noqa: E731
    assert await world.value(second_of, small) == (1, False)
    whole = reference_to(b"x" * 1000, world.packer)
    assert await world.value(lambda a, b: len(a) + len(b), whole, b"x" * MIB) == MIB + 1000


@in_world
async def test_what_cannot_change_is_read_once_and_all_else_is_each_calls_own(
    world: World, /
) -> None:
    def identity(value: Any) -> int:
        import builtins

        seen = builtins.__dict__.setdefault("seen", [])
        seen.append(value)
        return len({id(each) for each in seen})

    def grows(values: Any) -> Any:
        values.append(len(values))
        return values

    words = reference_to(tuple(str(number) for number in range(100)), world.packer)
    for _ in range(3):
        assert await world.value(identity, words) == 1
    own = reference_to([5], world.packer)
    for _ in range(3):
        assert await world.value(grows, own) == [5, 1]
    deep: Any = ()
    for _ in range(20):
        deep = (deep,)
    assert [await world.value(identity, reference_to(deep, world.packer))] == [2]


@in_world
async def test_what_a_function_refers_to_is_read_with_it(world: World, /) -> None:
    table = reference_to(np.arange(MIB), world.packer)

    def entry(number: int) -> int:
        return int(table[number])  # type: ignore[index]  # it is the array there

    packed = packed_function(entry, world.packer)
    assert packed.parcel is not None
    shared = context_of(packed.function)
    for number in range(3):
        assert await world.value(entry, number, shared=shared) == number
    world.packer.release(packed.parcel)


@in_world
async def test_an_interpreter_keeps_so_much_of_what_calls_referred_to(world: World, /) -> None:
    def kept(value: Any) -> Any:
        import sys

        parcels: Any = sys.modules["formation_p2p_parcels"]
        parcels.MAX_KEPT = 3
        return len(parcels.kept), sum(part.size_bytes for part in parcels.kept.values())

    references = [reference_to(np.full(MIB, number), world.packer) for number in range(8)]
    for _ in range(2):
        for reference in references:
            count, kept_bytes = await world.value(kept, reference)
    assert (count, kept_bytes) == (3, 3 * 9 * MIB)
    assert (await world.value(kept, references))[0] == 8


@in_world
async def test_data_of_others_is_refused_before_anyone_is_asked(world: World, /) -> None:
    stranger = Contact(Identity.from_seed(b"m" * 32).peer_id)
    own = world.packed(np.ones(MIB))
    assert own.blob is not None
    theirs = replace(own, blob=replace(own.blob, owner=stranger))
    for wrong in (theirs, Parcel(own.pickled, references=(theirs,))):
        outcome = await world.outcome(len, wrong)
        assert isinstance(outcome, Failed)
        assert outcome.kind is FailureKind.INVALID
        assert "not the caller's own" in outcome.message
    assert world.blobs.asked == 0


@in_world
async def test_a_large_function_and_large_arguments_are_not_mixed_up(world: World, /) -> None:
    table = np.arange(MIB)
    for round_ in range(3):

        def entry(numbers: Any, round_: int = round_) -> int:
            return int(table[int(numbers[5])]) + round_

        packed = packed_function(entry, world.packer)
        assert packed.parcel is not None
        shared = context_of(packed.function)
        assert await world.value(entry, np.arange(MIB), shared=shared) == 5 + round_
        world.packer.release(packed.parcel)


@in_world
async def test_calls_with_what_is_kept_here_do_not_wait_for_each_other(world: World, /) -> None:
    def second_of(values: Any, number: int) -> Any:
        return values[1] + number

    reference = reference_to([1, 2], world.packer)
    parcels = [world.packed(reference, number) for number in range(100)]
    shared = pickled_function(second_of)
    world.blobs.keeps = True
    found: dict[int, Any] = {}

    async def call(number: int) -> None:
        outcome = await world.outcome(second_of, parcels[number], shared)
        assert isinstance(outcome, Succeeded), outcome
        found[number] = pickle.loads(outcome.result)

    async with trio.open_nursery() as nursery:
        for number in range(100):
            nursery.start_soon(call, number)
    assert found == {number: 2 + number for number in range(100)}
    assert world.blobs.asked == 0
    for parcel in parcels:
        world.packer.release(parcel)


@in_world
async def test_code_that_the_caller_does_not_hand_over_is_not_the_machines_failure(
    world: World, /
) -> None:
    context = CallContext.decode(pickled_function(len))
    missing = replace(context, code=Manifest.of(b"a bundle").blob)
    outcome = await world.outcome(len, b"", missing.encode())
    assert isinstance(outcome, Failed)
    assert outcome.kind is FailureKind.CALLER
    assert outcome.message.endswith("it is nowhere")

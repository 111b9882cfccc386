"""Who runs a job, as the person who submits it says, over real libp2p."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
import pytest_asyncio

from formation_p2p import (
    Candidate,
    Hints,
    InvalidInput,
    Limits,
    Node,
    Policy,
    ProcessSpec,
    Score,
    TaskView,
    Trusted,
    Unplaceable,
    Unwanted,
)
from formation_p2p.core.units import MIB
from tests.support.loopback import LISTEN
from tests.support.network import gate_at, sees
from tests.support.waiting import until

NEEDS = "cpu=1,memory=64MiB"
TRUE = ProcessSpec(("true",))


@dataclass(frozen=True)
class World:
    """alice is cheap, carol is dear; bob has work, and another home where he keeps jobs."""

    alice: Node
    carol: Node
    bob: Node
    invite: str


pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def world(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[World]:
    tmp_path = tmp_path_factory.mktemp("placement")
    limits = Limits(cpu_milli=1000, memory_bytes=256 * MIB)
    async with (
        gate_at(tmp_path) as invite,
        Node.join(invite(), home=tmp_path / "alice", listen=LISTEN) as alice,
        Node.join(invite(), home=tmp_path / "carol", listen=LISTEN) as carol,
        Node.join(invite(), home=tmp_path / "bob", listen=()) as bob,
    ):
        await alice.worker(limits=limits, price_micro=10_000)
        await carol.worker(limits=limits, price_micro=90_000, labels={"region": "eu"})
        await sees(bob, 2)
        yield World(alice, carol, bob, invite())


@dataclass(frozen=True)
class Dearest(Policy):
    """One's own, and nobody's who has to pay."""

    def scores(self, task: TaskView, candidates: Sequence[Candidate]) -> Sequence[Score]:
        most = max((each.profile.price_micro for each in candidates), default=1)
        return [Score(each.profile.price_micro / most) for each in candidates]


class NamedLikeAnother(Dearest):
    def __str__(self) -> str:
        return "xor"


async def test_a_policy_is_a_name_or_an_object(world: World) -> None:
    for number in range(3):  # wherever the tasks fall by their keys
        (cheap,) = await (await world.bob.submit(TRUE, needs=NEEDS, policy="cheapest"))
        (dear,) = await (await world.bob.submit(TRUE, needs=NEEDS, policy=Dearest()))
        assert (cheap.worker, dear.worker) == (world.alice.peer_id, world.carol.peer_id), number


async def test_maps_and_executors_are_placed_as_said(world: World) -> None:
    hints = "require region=eu"
    assert await world.bob.map(abs, [-1, -2], needs=NEEDS, hints=hints) == [1, 2]
    with pytest.raises(Unplaceable, match="region"):
        await world.bob.map(abs, [-1], needs=NEEDS, hints="require region=us")
    with world.bob.executor(needs=NEEDS, policy="cheapest") as executor:
        assert await asyncio.wrap_future(executor.submit(abs, -3)) == 3


async def test_a_job_explains_its_tasks_before_and_after(world: World) -> None:
    job = await world.bob.submit(
        [TRUE, TRUE], needs=NEEDS, policy="cheapest", hints=Hints(avoid=(world.alice.peer_id,))
    )
    await job

    async def has_room_again() -> bool:
        return all(each.lacking is None for each in (await job.explain(1)).ranked)

    await until(has_room_again)
    decision = await job.explain(1)
    assert decision.policy == "cheapest"
    assert [each.profile.peer_id for each in decision.ranked] == [
        world.carol.peer_id,
        world.alice.peer_id,
    ]
    assert str(decision) == str(await job.explain(job.tasks[1].task_id))
    assert "avoid" in str(decision)
    with pytest.raises(InvalidInput, match="none of the 2"):
        await job.explain(2)
    with pytest.raises(InvalidInput, match="none of the 2"):
        await job.explain("another")


async def test_what_a_policy_of_ones_own_gets_wrong_is_told(world: World) -> None:
    class Broken(Dearest):
        def scores(self, task: TaskView, candidates: Sequence[Candidate]) -> Sequence[Score]:
            raise LookupError("no such column")

    (result,) = await (await world.bob.submit(TRUE, needs=NEEDS, policy=Broken()))
    assert result.status == "unplaceable"
    assert {why for _, why in result.refusals} == {
        Unwanted("policy", "it failed: LookupError('no such column')")
    }
    (done,) = await (await world.bob.submit(TRUE, needs=NEEDS))
    assert done.status == "succeeded"


async def test_a_policy_that_is_none_is_refused_with_those_that_there_are(world: World) -> None:
    with pytest.raises(InvalidInput, match="balanced"):
        await world.bob.submit(TRUE, policy="nearest")


async def test_a_state_keeps_how_a_job_is_placed_and_only_what_has_a_name(
    world: World, tmp_path: Path
) -> None:
    state = tmp_path / "jobs.db"
    hints = Hints(region="eu", required=frozenset({"region"}))
    async with Node.join(world.invite, home=tmp_path / "d", listen=(), state=state) as dave:
        for own in (Dearest(), Trusted() & Dearest(), NamedLikeAnother()):
            with pytest.raises(
                InvalidInput, match="policy: the node's state keeps named policies only"
            ):
                await dave.submit(TRUE, needs=NEEDS, policy=own)
        job = await dave.submit(TRUE, needs="cpu=64", policy="cheapest", hints=hints, scope="org")
        job_id = job.job_id
    async with Node.join(home=tmp_path / "d", listen=(), state=state) as dave:
        kept = await dave.job(job_id)
        decision = await kept.explain()
        assert decision.policy == "cheapest"
        assert {type(why).__name__ for _, why in decision.rejected} <= {"OutOfScope", "Unwanted"}
        kept.cancel()

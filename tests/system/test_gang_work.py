"""Work divided among the members of real gangs: parts, slices, rounds; what they use; sizes."""

import asyncio
import json
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import cloudpickle
import pytest
from click.testing import CliRunner

from examples import gang_pipeline
from formation_p2p import GangEnded, GangFormed, MemberLost, MemberReplaced, Part, Repartitioned
from formation_p2p.command.main import app
from formation_p2p.features.gangs.api.gang import Gang
from formation_p2p.features.gangs.api.pool import Autoscaling
from formation_p2p.features.gangs.core.resizing import Phase
from tests.support.network import gate_at, sees, three_workers
from tests.support.nodes import OpenNode
from tests.support.waiting import until
from tests.support.worker_processes import working

# As a script's own functions: interpreters need not import this module, and all that it imports.
cloudpickle.register_pickle_by_value(sys.modules[__name__])

NEEDS = "cpu=0.5,memory=128MiB"
# A member that spins has more of a core, also where many others want it.
IDLE_MILLI = 20


def rank_of(member: Any, name: str) -> int:
    rank: int = member.rank
    return rank


def sliced(member: Any, item: int) -> tuple[int, int]:
    """Rank 0 does not come to the end of its first item before the others have done all others."""
    if member.rank:
        member.store.add("done", 1)
        return member.rank, item * item
    turn = member.store.add("turn", 1)
    while member.store.add("done", 0) < 5 * turn:
        time.sleep(0.05)
    return 0, item * item


def batch(member: Any, shared: int, samples: int) -> int:
    return shared + samples


def spins(member: Any, seconds: float) -> bytes:
    """A quarter of a core, and 50 MB."""
    data, until_s = b"x" * 50_000_000, time.monotonic() + seconds
    while time.monotonic() < until_s:
        busy_until_s = time.process_time() + 0.02
        while time.process_time() < busy_until_s:
            pass
        time.sleep(0.06)
    return data[:1]


async def test_a_gang_divides_its_work_and_says_what_it_uses(tmp_path: Path) -> None:
    async with three_workers(tmp_path) as (bob, _):
        pool = await bob.pool()
        assert len(pool.members) == 3
        async with bob.gang(3, needs=NEEDS) as gang:
            assert gang.pool.reserved.cpu_milli == 1500
            assert gang.pool.total.cpu_milli == pool.total.cpu_milli
            found = gang.partition([Part(f"p{n}") for n in range(6)])
            assert await gang.work(rank_of, found) == dict(found.assigned)
            spinning = [gang.call(rank, spins, 600.0) for rank in range(3)]
            await until(lambda: _all_busy(gang))
            assert gang.pool.used.cpu_milli == sum(each.cpu_milli for each in gang.usage())
            await asyncio.to_thread(_shown, tmp_path, gang)
            for call in spinning:
                call.cancel()
            by_round = await gang.slices(sliced, range(6), rounds=2)
            assert [[value for _, value in each] for each in by_round] == [[0, 1, 4, 9, 16, 25]] * 2
            assert [sum(rank == 0 for rank, _ in each) for each in by_round] == [1, 1]
            play = gang.rounds(batch, target=60, rounds=2, samples=5, shared=1)
            async for each in play:
                assert each.samples >= 60 or each.number == 0
                assert {x for one in each.results.values() for x in one} == {play.shared + 5}
                play.shared += 1
            assert play.shared == 3


def _shown(folder: Path, gang: Gang) -> None:
    """What `formation gangs` and `formation top` say of a busy gang, at both ends."""
    for command in ("gangs", "top --once"):
        said = CliRunner().invoke(app, [*command.split(), "--home", str(folder / "bob")]).stdout
        assert gang.gang_id in said
        assert "formed" in said
    (told,) = shown_gangs(folder / "bob")
    assert [each["worker"] for each in told["gangs"][0]["members"]] == [
        each.peer_id for each in gang.members
    ]
    assert all(each["cpu_milli"] > IDLE_MILLI for each in told["gangs"][0]["members"])
    (told,) = shown_gangs(folder / "alice")
    (member,) = told["hosted"]
    assert (member["gang_id"], member["size"]) == (gang.gang_id, 3)
    assert member["memory_bytes"] > 50_000_000
    assert told["gangs"] == []
    (told,) = shown_gangs(folder / "gate")
    assert told["gangs"] == told["hosted"] == []


def shown_gangs(home: Path) -> list[dict[str, Any]]:
    said = CliRunner().invoke(app, ["gangs", "--json", "--home", str(home)]).stdout
    nodes: list[dict[str, Any]] = json.loads(said)["nodes"]
    return nodes


async def _all_busy(gang: Gang) -> bool:
    used = gang.usage()
    spin = (each.cpu_milli > IDLE_MILLI and each.memory_bytes > 50_000_000 for each in used)
    return len(used) == 3 and all(spin)


def slow_part(member: Any, name: str) -> tuple[int, bytes | None]:
    """Its rank, and from what it went on. Rank 1 does not come to an end."""
    restored: bytes | None = member.restored
    if member.rank == 1:
        member.checkpoint(name.encode())
        time.sleep(600)
    return member.rank, restored


async def test_the_parts_of_a_lost_member_go_on_with_those_that_are_left(tmp_path: Path) -> None:
    async with three_workers(tmp_path) as (bob, workers):
        while True:
            async with bob.gang(2, needs=NEEDS) as gang:
                found = gang.partition([Part(f"p{n}") for n in range(4)])
                work = asyncio.create_task(gang.work(slow_part, found, recovery="repartition"))
                await until(lambda g=gang, w=work: _saved_or_done(g, w))  # type: ignore[misc]
                if work.done():
                    continue  # the machine stood still, and rank 1 was lost before it had saved
                lost = gang.members[1].peer_id
                (worker,) = [each for each in workers if each.peer_id == lost]
                await worker.close()
                done = await work
                assert set(done) == {f"p{n}" for n in range(4)}
                assert {rank for rank, _ in done.values()} == {0}
                from_saved = {name for name, (_, saved) in done.items() if saved == name.encode()}
                assert len(from_saved) == 1  # the other one of rank 1 had not begun
                assert from_saved < set(found.of(1))
                await until(lambda g=gang: len(g.members) == 2)  # type: ignore[misc]
                assert gang.members[1].peer_id != lost
                break
        events = [event async for event in gang.events()]
    kinds = [type(event) for event in events]
    assert (kinds[:2], kinds[-1]) == ([GangFormed, MemberLost], GangEnded)
    assert {*kinds[2:-1]} == {Repartitioned, MemberReplaced}  # whichever is the first
    (told,) = (each for each in events if isinstance(each, Repartitioned))
    assert {(move.part, move.target) for move in told.moves} == {(x, 0) for x in found.of(1)}


def counted(member: Any, name: str) -> tuple[int, int]:
    """Its rank, and where it began to count. Rank 1 comes to no end but where it goes on."""
    first = int(member.restored or b"0")
    for number in range(first, 12 if member.rank else 0):
        member.checkpoint(b"%d" % (number + 1))
        while not first:
            time.sleep(0.1)
    return member.rank, first


async def test_the_part_of_a_killed_worker_goes_on_at_the_same_rank(tmp_path: Path) -> None:
    async with gate_at(tmp_path) as invitation:
        with ExitStack() as workers:
            running = await working(tmp_path, invitation, ("alice", "carol", "dave"), workers)
            async with OpenNode.join(invitation(), home=tmp_path / "bob", listen=()) as bob:
                await sees(bob, 3)
                async with bob.gang(2, needs=NEEDS) as gang:
                    found = gang.partition([Part("a"), Part("b")])
                    work = asyncio.create_task(gang.work(counted, found, recovery="checkpoint"))
                    await until(lambda: _saved_by(gang, 1))
                    lost = gang.members[1].peer_id
                    running[lost].process.kill()
                    done = await work
                    assert gang.members[1].peer_id != lost
    (part,) = found.of(1)
    rank, began = done.pop(part)
    assert (rank, began) == (1, 1)
    assert [rank for rank, _ in done.values()] == [0]


async def _saved_or_done(gang: Gang, work: asyncio.Task[Any]) -> bool:
    return work.done() or await _saved_by(gang, 1)


async def _saved_by(gang: Gang, count: int) -> bool:
    return len(await gang.saved()) == count


async def test_a_gang_grows_while_its_members_are_busy(tmp_path: Path) -> None:
    async with three_workers(tmp_path) as (bob, _):
        forming = bob.gang(1, needs=NEEDS)
        async with forming as gang:
            busy = gang.call(0, spins, 600.0)
            # So little that one that spins has more, also where many others want the processor.
            scaled = gang.autoscale(most=2, target_percent=3, out_cooldown_s=0.0)
            async with scaled as scaling:

                async def is_grown() -> bool:
                    await scaling.look(1e6)
                    return gang.size == 2

                await until(is_grown)
                await until(lambda: len(gang.members) == 2)
                await until(lambda: _is(scaling, Phase.COMPLETED))
                await scaling.look(1e6)  # it is as large as it may be
                assert gang.size == 2
            busy.cancel()


def _is(scaling: Autoscaling, phase: Phase) -> bool:
    change = scaling.resizing.current
    return change is not None and change.phase is phase


async def test_a_model_in_three_stages_computes_what_it_does_on_one_machine(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async with three_workers(tmp_path) as (bob, _):
        await gang_pipeline.main(bob)
    said = capsys.readouterr().out
    assert said.startswith("pipeline: a step takes")
    assert "the same as on one machine: True" in said

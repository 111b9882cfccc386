"""Parts, slices and rounds on a gang whose members are tasks of this process: they come and go at
the moment that a story says."""

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

from formation_p2p.features.gangs.api.work import GangWork
from formation_p2p.features.gangs.core.events import (
    GangEvent,
    GangMember,
    MemberLost,
    MemberReplaced,
)
from formation_p2p.features.gangs.core.part import Part
from formation_p2p.machine.core.requirements import parse_requirements
from tests.support.stories import contact

HANGS_S = 60.0


class TasksGang(GangWork):
    """Functions are coroutines, which are called with the name of the worker."""

    def __init__(self, *workers: str) -> None:
        super().__init__()
        self._workers = dict(enumerate(workers))

    @property
    def members(self) -> tuple[GangMember, ...]:
        return tuple(_member(rank, name) for rank, name in sorted(self._workers.items()))

    @property
    def size(self) -> int:
        return 2

    @property
    def is_over(self) -> bool:
        return False

    def call(
        self, rank: int, function: Callable[..., Any], *args: Any, **kwargs: Any
    ) -> asyncio.Task[Any]:
        return asyncio.create_task(function(self._workers[rank], *args))

    def begin_part(
        self,
        rank: int,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        begun: Callable[[str], None],
        goes_on_from: str = "",
    ) -> asyncio.Task[Any]:
        begun(f"{args[0]} at {rank}")
        return self.call(rank, function, *args)

    async def saved(self) -> Mapping[str, int]:
        await asyncio.sleep(0)  # it asks another thread
        return {}

    async def resize(self, size: int) -> None:
        raise NotImplementedError

    async def close(self) -> None:
        raise NotImplementedError

    def notify(self, event: GangEvent) -> None:
        self.watched(event)

    def lose(self, rank: int) -> None:
        lost = _member(rank, self._workers.pop(rank))
        self.notify(MemberLost(rank, lost.peer_id, "its worker is gone"))

    def replace(self, rank: int, worker: str) -> None:
        self._workers[rank] = worker
        self.notify(MemberReplaced(_member(rank, worker)))


def _member(rank: int, worker: str) -> GangMember:
    return GangMember(rank, contact(worker), parse_requirements("cpu=1,memory=64MiB"), "lease", 1)


async def test_the_rest_takes_the_parts_over_also_where_the_rank_has_a_worker_again() -> None:
    gang = TasksGang("alice", "carol")
    begun = asyncio.Event()

    async def works(worker: str, name: str) -> str:
        if worker != "alice":
            begun.set()
            await asyncio.Event().wait()
        return worker

    parts = gang.partition([Part(f"p{n}") for n in range(4)])
    work = asyncio.create_task(gang.work(works, parts, recovery="repartition"))
    await begun.wait()
    gang.lose(1)
    gang.replace(1, "dave")
    done: dict[str, Any] = await work
    assert done == dict.fromkeys(("p0", "p1", "p2", "p3"), "alice")


async def test_what_a_member_said_as_it_was_lost_is_asked_again_of_another() -> None:
    gang = TasksGang("alice", "carol")

    async def works(worker: str, *_: object) -> str:
        if worker == "carol":  # it has said so by then, and what it said is read after that
            asyncio.get_running_loop().call_soon(gang.lose, 1)
        return worker

    sliced: list[list[Any]] = await gang.slices(works, range(5))
    assert sliced == [["alice"] * 5]

    gang = TasksGang("alice", "carol")
    (played,) = [each async for each in gang.rounds(works, target=5, rounds=1, samples=1)]
    assert set(played.results) == {0}


async def test_a_round_goes_on_with_those_that_are_there_as_it_begins() -> None:
    gang = TasksGang("alice", "carol")

    async def works(worker: str, shared: None, samples: int) -> str:
        return worker

    workers: list[set[Any]] = []
    async for each in gang.rounds(works, target=4, rounds=3, samples=1):
        workers.append({worker for said in each.results.values() for worker in said})
        if each.number == 0:
            gang.lose(1)
        else:
            gang.replace(1, "dave")
    assert workers == [{"alice", "carol"}, {"alice"}, {"alice", "dave"}]


async def test_a_round_whose_last_member_was_lost_goes_on_with_the_one_in_its_place() -> None:
    gang = TasksGang("alice")

    async def works(worker: str, shared: None, samples: int) -> str:
        if worker == "alice":
            asyncio.get_running_loop().call_soon(gang.replace, 0, "dave")
            gang.lose(0)
        return worker

    (played,) = [each async for each in gang.rounds(works, target=3, rounds=1, samples=1)]
    said: set[Any] = set(played.results[0])
    assert said == {"dave"}

"""Dask's messages over unix sockets, as members of a gang have them: no node takes part."""

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from distributed import Client, Scheduler, Security, Worker, wait
from distributed.comm import connect, listen
from distributed.comm.core import CommClosedError
from distributed.protocol import to_serialize

from formation_p2p.core.errors import TaskFailed
from formation_p2p.features.dask.cluster import MAX_STARTS, ClusterSpec, FormationCluster
from formation_p2p.features.dask.comm import (
    GANG,
    GANG_ID,
    PREFIX,
    RANK,
    FormationBackend,
    Place,
    own_place,
    owned,
    place_for,
)
from formation_p2p.features.dask.door import Door, Pair
from formation_p2p.features.dask.member import SCHEDULER_PORT, MemberWorker
from formation_p2p.features.dask.scheduler import FormationScheduler
from formation_p2p.machine.core.requirements import Requirements

GANG_NAME = "0" * 32


@pytest.fixture
def member(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Place]:
    """This process is rank 1 of a gang, whose folder has a long path."""
    folder = tmp_path / ("long" * 30)
    (folder / "services").mkdir(parents=True)
    monkeypatch.setenv(GANG, str(folder))
    monkeypatch.setenv(RANK, "1")
    monkeypatch.setenv(GANG_ID, GANG_NAME)
    yield own_place()
    owned.clear()


async def echo(comm: Any) -> None:
    try:
        while True:
            await comm.write({"back": to_serialize(await comm.read())})
    except CommClosedError:
        return


async def test_arrays_go_there_and_back(member: Place) -> None:
    async with listen(PREFIX, echo) as listener:
        assert listener.contact_address.startswith(f"formation://m1.{GANG_NAME}:")
        comm = await connect(listener.contact_address)
        sent = np.arange(3_000_000)
        await comm.write({"array": to_serialize(sent)})
        answer = await comm.read()
        np.testing.assert_array_equal(answer["back"]["array"], sent)
        assert comm.local_address == f"formation://m1.{GANG_NAME}:0"
        await comm.close()
    assert not list((member.folder / "services").iterdir())


@pytest.mark.parametrize("host", ["0.0.0.0", "[::]", ""])
async def test_a_listener_on_all_addresses_is_reached_as_its_member(
    member: Place, host: str
) -> None:
    async with listen(PREFIX + host, echo) as listener:
        assert listener.contact_address.startswith(f"formation://{member.host}:")
        comm = await connect(listener.contact_address)
        await comm.write("hello")
        assert await comm.read() == {"back": "hello"}
        await comm.close()


async def test_what_a_killed_process_left_is_replaced(member: Place) -> None:
    listener, port = member.listening(40_404, 8)
    with pytest.raises(OSError, match="in use"):
        member.listening(port, 8)
    listener.close()
    again, _ = member.listening(port, 8)
    again.close()


async def test_security_is_refused(member: Place) -> None:
    security = Security.temporary()
    with pytest.raises(RuntimeError, match="leave out security="):
        listen(PREFIX, echo, **security.get_listen_args("worker"))
    with pytest.raises(RuntimeError, match="leave out security="):
        await connect(
            f"formation://m0.{GANG_NAME}:1", timeout=1, **security.get_connection_args("client")
        )


async def test_nothing_listens_outside_a_gang() -> None:
    with pytest.raises(RuntimeError, match=r"node.dask"):
        await listen(PREFIX, echo)


class Streams:
    """Those of a gang that has one member, which is here."""

    gang_id = GANG_NAME
    ranks: tuple[int, ...] = (1,)

    def __init__(self, place: Place) -> None:
        self._place = place

    async def connect(self, rank: int, service: str, *, wait_s: float) -> Pair:
        if rank not in self.ranks:
            raise ConnectionError(f"member {rank} is being replaced")
        connection = await self._place.connected("services", service)
        return await asyncio.open_unix_connection(sock=connection)


async def test_the_owner_reaches_members_by_its_door(member: Place) -> None:
    async with listen("formation://:8787", echo) as listener:
        door = await Door(Streams(member), 8787, trust_results=True).open()
        try:
            assert place_for(f"m1.{GANG_NAME}").host == f"owner.{GANG_NAME}"
            connector = FormationBackend().get_connector()
            with pytest.raises(CommClosedError, match="member 0 is being replaced"):
                await connector.connect(f"m0.{GANG_NAME}:8786")
            with pytest.raises(CommClosedError, match="not the host of a member"):
                await connector.connect(f"gate.{GANG_NAME}:8786")
            comm = await connect(listener.contact_address)
            await comm.write("hello")
            assert await comm.read() == {"back": "hello"}
            assert comm.local_address == f"formation://owner.{GANG_NAME}:0"
            await comm.close()
        finally:
            await door.close()
        assert not owned


async def test_a_scheduler_and_a_worker_work_over_it(member: Place) -> None:
    async with (
        Scheduler(protocol="formation", port=0, dashboard_address="127.0.0.1:0") as scheduler,
        Worker(scheduler.address, nthreads=1, dashboard_address="127.0.0.1:0") as worker,
        Client(scheduler.address, asynchronous=True) as client,
    ):
        assert worker.address.startswith(f"formation://m1.{GANG_NAME}:")
        assert await client.submit(sum, [1, 2, 3]) == 6


@pytest.mark.parametrize("name", ["<img src=x onerror=alert(1)>", "1", 2])
async def test_a_worker_has_no_other_name_than_its_rank(member: Place, name: object) -> None:
    local = "127.0.0.1:0"
    async with FormationScheduler(
        protocol="formation", port=0, dashboard_address=local
    ) as scheduler:
        with pytest.raises(RuntimeError, match="failed to start"):
            await Worker(scheduler.address, name=name, dashboard_address=local)
        assert not scheduler.workers
        async with Worker(scheduler.address, name=1, dashboard_address=local):
            assert [each.name for each in scheduler.workers.values()] == [1]


async def test_a_worker_that_is_paused_for_good_hands_over_its_results_and_ends(
    member: Place,
) -> None:
    options = {"nthreads": 1, "dashboard_address": "127.0.0.1:0"}
    async with (
        Scheduler(protocol="formation", port=0, dashboard_address="127.0.0.1:0") as scheduler,
        MemberWorker(scheduler.address, memory_limit=2**60, look_s=0.05, **options) as full,
        Client(scheduler.address, asynchronous=True) as client,
    ):
        kept = client.submit(sum, [4, 5, 6])
        await wait(kept)
        # This process, which is the worker's, has no results that could be spilled for it.
        full.memory_manager.memory_limit = int(psutil.Process().memory_info().rss / 0.9)
        async with Worker(scheduler.address, memory_limit=2**60, **options):
            await full.finished()
            assert full.address not in scheduler.workers
            assert await kept == 15
            assert await client.submit(sum, [7, 8]) == 15


class Dies(FormationScheduler):
    """Once it is asked who has joined."""

    def identity(self, n_workers: int = -1) -> Any:
        asyncio.get_running_loop().create_task(self.close())
        raise CommClosedError("the member is lost")


class Members(Streams):
    """A gang whose members run Dask in this process. The first scheduler dies."""

    ranks = (0, 1)
    size = 2

    def __init__(self, place: Place) -> None:
        super().__init__(place)
        self.lives: list[str] = []
        self.failing = 0
        self.workers: list[Worker] = []

    def call(self, rank: int, *_: object) -> asyncio.Task[None]:
        return asyncio.create_task(self._life(rank))

    async def _life(self, rank: int) -> None:
        local, address = "127.0.0.1:0", f"{PREFIX}{self._place.host}"
        if rank:
            if self.failing:
                self.failing -= 1
                raise TaskFailed("the machine is short of something")
            kind: Any = Worker
            options = {"scheduler_ip": f"{address}:{SCHEDULER_PORT}", "name": rank, "nthreads": 1}
        else:
            kind = FormationScheduler if self.lives else Dies
            options = {"port": SCHEDULER_PORT}
            self.lives.append(kind.__name__)
        async with kind(host=address, dashboard_address=local, **options) as server:
            self.workers += [server] if rank else []
            await server.finished()

    async def resize(self, size: int) -> None: ...

    async def close(self) -> None: ...


async def test_a_cluster_outlives_its_first_scheduler_and_workers_that_fail(member: Place) -> None:
    gang = Members(member)

    async def form(size: int) -> Members:
        return gang

    needs = Requirements(cpu_milli=1000, memory_bytes=2**30)
    spec = ClusterSpec(1, 1, needs, trust_results=True)
    loop = asyncio.get_running_loop()
    async with (
        FormationCluster(form, spec, loop, asynchronous=True) as cluster,
        Client(cluster, asynchronous=True) as client,
    ):
        assert await client.submit(sum, [1, 2, 3]) == 6
        # Later a worker that fails at once is tried again, however often.
        gang.failing = MAX_STARTS
        await gang.workers[-1].close()
        assert await client.submit(sum, [4, 5, 6]) == 15
    assert gang.lives == ["Dies", "FormationScheduler"]


def test_a_member_returns_the_memory_of_freed_arrays() -> None:
    program = """
import numpy as np, psutil
from formation_p2p.features.dask.member import return_freed_memory
return_freed_memory()
used = psutil.Process().memory_info
np.ones(2**21)  # 16 MiB; glibc takes further ones of this size from its heap by default
before = used().rss
arrays = [np.ones(2**21) for _ in range(8)]
del arrays[:-1]
print(used().rss - before)
"""
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
    assert int(said.stdout) < 2 * 2**24

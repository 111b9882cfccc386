"""What members of a gang share, on whole nodes: the store, a barrier, a network, an environment."""

import asyncio
import os
import socket
import sys
from pathlib import Path
from typing import Any

import cloudpickle
import pytest

import examples.allreduce
from formation_p2p import InvalidInput, Node, ProcessSpec
from formation_p2p.drivers.assembly import set_up_drivers
from formation_p2p.features.gangs.api.store import StoreTimeout
from formation_p2p.features.gangs.core.network import NETWORK_LABEL
from tests.host.test_gang_devices import needs_devices
from tests.support.network import small_network
from tests.system.test_gang import SMALL

cloudpickle.register_pickle_by_value(sys.modules[__name__])
cloudpickle.register_pickle_by_value(examples.allreduce)


def meets(member: Any) -> tuple[int, bytes, str]:
    member.store.add("started", 1)
    member.barrier()
    started = int(member.store.get("started"))
    said = member.store.get("said")
    return started, said, os.environ["WORLD_SIZE"]


def calls_rank_0(member: Any) -> str:
    """Over whatever network there is."""
    host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    if member.rank == 0:
        with socket.create_server((host, port)) as server:
            member.barrier()
            end, (address, _) = server.accept()
            with end:
                end.sendall(b"hello")
            return str(address)
    member.barrier()
    with socket.create_connection((host, port)) as end:
        return end.recv(100).decode()


@pytest.mark.asyncio(loop_scope="module")
async def test_members_and_their_owner_share_a_store(owner: Node) -> None:
    async with owner.gang(2, needs=SMALL) as gang:
        running = asyncio.create_task(gang.run(meets))
        await gang.store.wait(["started"])
        assert await gang.store.compare_set("said", b"", "by the owner") == b"by the owner"
        assert await running == [(2, b"by the owner", "2")] * 2
        assert await gang.store.read("started") == b"2"
        assert await gang.store.num_keys() == 2
        with pytest.raises(StoreTimeout):
            await gang.store.get("nothing", 0.01)
        # The tasks of programs, in whatever language, say lines.
        script = (
            "import os, socket\n"
            "end = socket.socket(socket.AF_UNIX)\n"
            "os.chdir(os.environ['FORMATION_GANG'])\n"
            "end.connect('store')\n"
            "end.sendall(b'add programs 1\\n')\n"
            "assert end.recv(100).startswith(b'number ')\n"
        )
    async with owner.gang(2, needs=SMALL, driver="process") as gang:
        job = await gang.submit([ProcessSpec(("python3", "-c", script))] * 2)
        assert [each.status for each in await job] == ["succeeded", "succeeded"]
        assert await gang.store.add("programs", 0) == 2


@pytest.mark.asyncio(loop_scope="module")
@needs_devices
async def test_members_are_hosts_in_a_network_of_their_own(owner: Node) -> None:
    async with owner.gang(2, needs=SMALL, network="gang") as gang:
        assert await gang.run(calls_rank_0) == ["10.77.0.2", "hello"]
    with pytest.raises(InvalidInput, match="is not known"):
        owner.gang(2, needs=SMALL, network="lan")
    with pytest.raises(InvalidInput, match="can have none"):
        owner.gang(2, needs=SMALL, network="gang", driver="wasm")
    with pytest.raises(InvalidInput, match="reaches no other"):
        owner.gang(2, needs=f"{SMALL},network=1", network="gang")


@pytest.mark.asyncio(loop_scope="module")
@needs_devices
async def test_mpi_as_it_comes_sums_over_the_network_of_a_gang(owner: Node) -> None:
    needs = "cpu=0.5,memory=512MiB"
    async with owner.gang(2, needs=needs, network="gang") as gang:
        first, second = await gang.run(examples.allreduce.allreduce)
        assert first.startswith("2 ranks; the sum is 3; ")
        assert second == ""


@needs_devices
async def test_drivers_that_were_set_up_before_have_networks_of_gangs(tmp_path: Path) -> None:
    """As those of `formation worker` are."""
    made = await asyncio.to_thread(set_up_drivers, ["process"], tmp_path / "alice")
    async with small_network(tmp_path, drivers=made) as network:
        (worker,) = await network.bob.workers()
        assert NETWORK_LABEL in worker.labels

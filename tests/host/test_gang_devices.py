"""The network of a gang: real sandboxes with a TUN device each, on nodes of their own."""

import socket
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest
import trio

from formation_p2p.core.units import MIB
from formation_p2p.drivers.core.limits import TaskLimits
from formation_p2p.drivers.driver import Output
from formation_p2p.drivers.launch import Launch
from formation_p2p.drivers.machine import Machine, base_environment
from formation_p2p.drivers.supervised import Supervised
from formation_p2p.features.gangs.core.network import address_of
from formation_p2p.features.gangs.core.roster import OWNER, Roster
from formation_p2p.features.gangs.core.tunnel import TunnelError
from formation_p2p.features.gangs.host import device
from formation_p2p.features.gangs.host.device import MemberDevice
from formation_p2p.features.gangs.host.network import SERVICE, GangNetworks, MemberNetwork
from tests.support.gangs import TunnelNode, gang_of
from tests.support.waiting import in_trio

# A machine whose administrator allows no namespaces, or no TUN device, offers no such network, and
# says why.
CANNOT = device.why_none(Path.home() / ".formation")
needs_devices = pytest.mark.skipif(CANNOT is not None, reason=str(CANNOT))
MIB_SENT = 16

LISTEN = """
import os, socket
with socket.create_server(("m0", 5000)) as server:
    caller, (address, _) = server.accept()
    size = 0
    while data := caller.recv(1 << 20):
        size += len(data)
    caller.sendall(b"thanks")
    print(address, size, socket.gethostname(), sorted(os.listdir("/sys/class/net")))
"""
CALL = f"""
import socket, time
for _ in range(100):
    try:
        server = socket.create_connection(("m0", 5000), 1)
        server.settimeout(None)
        break
    except OSError:
        time.sleep(0.05)
for _ in range({MIB_SENT}):
    server.sendall(bytes(1 << 20))
server.shutdown(socket.SHUT_WR)
print(server.recv(100))
"""
LOOK = """
import socket
for target in ("192.0.2.1", "10.77.0.9", "10.77.0.77"):
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as udp:
        try:
            udp.sendto(b"x", (target, 9))
            print("sent")
        except OSError as problem:
            print(problem.strerror)
"""


class Heard:
    def __init__(self) -> None:
        self.text = bytearray()
        self.output = Output(lambda _, data: self.text.extend(data))


async def ran(program: str, folder: Path, network: MemberNetwork) -> str:
    """What a task prints that runs it in that network."""
    machine = Machine.found(folder / "home", "required")
    work = folder / f"task-{network.rank}"
    work.mkdir()
    argv = (sys.executable, "-I", "-c", program)
    limits = TaskLimits(1000, 256 * MIB)
    launch = Launch(argv, base_environment(work), work, limits, network=MemberDevice(network))
    heard = Heard()
    task = await Supervised.start(machine, launch)
    try:
        ending = await task.run_to_end(heard.output, 30)
    finally:
        await task.close()
    assert (ending.how, ending.number) == ("exit", 0), heard.text.decode()
    return heard.text.decode()


def networks_of(node: TunnelNode) -> GangNetworks:
    def do(task: Callable[[], Awaitable[None]]) -> None:
        node.nursery.start_soon(task)

    return GangNetworks(node.tunnels, do)


@asynccontextmanager
async def networks(*nodes: TunnelNode) -> AsyncIterator[tuple[Roster, list[GangNetworks]]]:
    """A gang that shares one."""
    ours = [networks_of(each) for each in nodes]
    async with gang_of(*nodes) as roster:
        newer = replace(roster, sequence=2, has_network=True)
        for rank, node in enumerate(nodes):
            node.tunnels.join(rank, newer)
        yield newer, ours


def relay(ours: list[GangNetworks], roster: Roster, rank: int) -> MemberNetwork:
    found = ours[rank].of(roster.gang_id, rank)
    assert found is not None
    return found


def test_a_machine_without_a_sandbox_says_why_it_cannot(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert device.why_none(tmp_path) == "bwrap is not on PATH; install the package bubblewrap"


@needs_devices
@in_trio
async def test_programs_reach_each_other_by_name_and_only_through_the_relay(tmp_path: Path) -> None:
    async with networks(TunnelNode(), TunnelNode()) as (roster, ours):
        first, second = (relay(ours, roster, rank) for rank in range(2))
        printed: dict[int, str] = {}

        async def take(rank: int, program: str, network: MemberNetwork) -> None:
            printed[rank] = await ran(program, tmp_path, network)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(take, 0, LISTEN, first)
            nursery.start_soon(take, 1, CALL, second)
        assert printed[1] == "b'thanks'\n"
        assert printed[0] == f"{address_of(1)} {MIB_SENT * MIB} m0 ['gang0', 'lo']\n"
        # All of it, and the headers of some packets.
        for passed in (second.sent_bytes, first.received_bytes):
            assert MIB_SENT * MIB < passed < 1.05 * MIB_SENT * MIB


@needs_devices
@in_trio
async def test_the_network_leads_nowhere_else(tmp_path: Path) -> None:
    async with networks(TunnelNode(), TunnelNode()) as (roster, ours):
        alone = relay(ours, roster, 0)
        printed = await ran(LOOK, tmp_path, alone)
        assert printed.splitlines() == ["Network is unreachable", "sent", "sent"]
        assert alone.dropped >= 2
        assert alone.sent_bytes == 0


def packet(source: str, target: str, body: bytes = b"hello") -> bytes:
    ends = socket.inet_aton(source) + socket.inet_aton(target)
    return b"\x45\x00" + (20 + len(body)).to_bytes(2) + bytes(8) + ends + body


@in_trio
async def test_what_a_member_sends_in_another_name_is_dropped() -> None:
    async with networks(TunnelNode(), liar := TunnelNode(), TunnelNode()) as (roster, ours):
        target = relay(ours, roster, 0)
        here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        here.setblocking(False)
        with there:
            detach = target.attach(here.detach())
            tunnel = await liar.tunnels.open(roster.gang_id, 1, 0, SERVICE)
            good = packet(address_of(1), address_of(0))
            for sent in (
                packet(address_of(2), address_of(0)),
                packet(address_of(1), address_of(2)),
                b"nonsense" * 3,
                good,
            ):
                await tunnel.write(len(sent).to_bytes(2) + sent)
            await trio.lowlevel.wait_readable(there.fileno())
            assert there.recv(100) == good
            assert (target.received_bytes, target.dropped) == (25, 3)
            detach()


@in_trio
async def test_the_owner_and_a_gang_without_a_network_are_refused() -> None:
    owner = TunnelNode()
    node = TunnelNode()
    ours = networks_of(node)
    async with gang_of(node, owner=owner) as roster:
        assert ours.of(roster.gang_id, 0) is None
        tunnel = await owner.tunnels.open(roster.gang_id, OWNER, 0, SERVICE)
        with pytest.raises(TunnelError):
            await tunnel.read()
        node.tunnels.join(0, replace(roster, sequence=2, has_network=True))
        assert ours.of(roster.gang_id, 0) is not None
        assert ours.of(roster.gang_id, OWNER) is None
        tunnel = await owner.tunnels.open(roster.gang_id, OWNER, 0, SERVICE)
        with pytest.raises(TunnelError):
            await tunnel.read()

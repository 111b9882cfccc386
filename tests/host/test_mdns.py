"""Multicast DNS over real sockets, on interfaces that lead nowhere."""

import socket
import struct
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from ipaddress import ip_interface
from pathlib import Path

import pytest
import trio

from formation_p2p.core.effects import Contact
from formation_p2p.core.identity import PeerId
from formation_p2p.net.transport.addresses import TcpAddress
from formation_p2p.reach.core import mdns
from formation_p2p.reach.mdns import OFF, Interface, interfaces, is_wanted, run_mdns
from formation_p2p.trust.core.grant_form import MAX_EXPIRY_UNIX_S
from formation_p2p.trust.core.grants import Rights, issue
from formation_p2p.trust.core.network import Network
from tests.support.dht_world import person
from tests.support.own_network import in_own_network
from tests.support.waiting import told_by, until

ALICE, BOB = (person(name).peer_id for name in ("alice", "bob"))
PORT = 4001
ANYWHERE = (TcpAddress.parse(f"/ip4/0.0.0.0/tcp/{PORT}"), TcpAddress.parse(f"/ip6/::/tcp/{PORT}"))
GATE = f"/ip4/203.0.113.7/tcp/{PORT}/p2p/{ALICE}"
LOCAL_GATE = f"/ip4/127.0.0.1/tcp/{PORT}/p2p/{ALICE}"
STRANGER = "10.1.0.66"


def network(*gates: str) -> Network:
    key = person("root")
    return Network(key.public_key, gates, issue(key, Rights(MAX_EXPIRY_UNIX_S)))


@pytest.mark.parametrize(
    ("listen", "gates", "wanted"),
    [
        (("/ip4/0.0.0.0/tcp/0",), (), True),
        (("/ip4/0.0.0.0/tcp/0",), (LOCAL_GATE,), True),
        (("/ip4/127.0.0.1/tcp/0",), (), False),
        (("/ip4/127.0.0.1/tcp/0", "/ip6/::1/tcp/0"), (GATE,), False),
        ((), (), True),
        ((), (GATE,), True),
        ((), (LOCAL_GATE,), False),
        ((), (LOCAL_GATE, f"/dns/gate.example.org/tcp/1/p2p/{ALICE}"), True),
    ],
)
def test_nodes_of_one_machine_alone_do_not_look_on_its_lan(
    listen: tuple[str, ...], gates: tuple[str, ...], wanted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(OFF, raising=False)
    assert is_wanted(listen, network(*gates)) is wanted
    monkeypatch.setenv(OFF, "1")
    assert not is_wanted(listen, network(*gates))
    monkeypatch.setenv(OFF, "0")
    assert is_wanted(listen, network(*gates)) is wanted


def test_on_each_link_its_own_addresses_are_told() -> None:
    ips = (ip_interface("10.1.0.1/24"), ip_interface("fd01::1/64"))
    link = Interface("eth0", socket.AF_INET, "10.1.0.1", ips)
    assert link.listening(ANYWHERE) == ("/ip4/10.1.0.1/tcp/4001", "/ip6/fd01::1/tcp/4001")
    elsewhere = [TcpAddress.parse(f"/ip4/{host}/tcp/1") for host in ("127.0.0.1", "10.2.0.1")]
    assert link.listening(elsewhere) == ()
    here = [TcpAddress.parse("/ip4/10.1.0.1/tcp/1")]
    assert link.listening(here) == ("/ip4/10.1.0.1/tcp/1",)


def plug(name: str, *addresses: str) -> None:
    """An interface whose cable ends in this network, at one without an address."""
    ip(
        f"link add {name} type veth peer name {name}end",
        f"link set {name}end up",
        f"link set {name} up",
        *(f"address add {address} dev {name} nodad" for address in addresses if ":" in address),
        *(f"address add {address} dev {name}" for address in addresses if ":" not in address),
    )


def ip(*commands: str) -> None:
    for command in commands:
        subprocess.run(["ip", *command.split()], check=True, timeout=10)


@asynccontextmanager
async def looking(*peers: PeerId) -> AsyncIterator[dict[PeerId, set[str]]]:
    """Nodes that look for each other: what the first of them has found."""
    found: dict[PeerId, set[str]] = {}

    def note(contacts: tuple[Contact, ...]) -> None:
        for contact in contacts:
            found.setdefault(contact.peer_id, set()).update(contact.addresses)

    def ignore(contacts: tuple[Contact, ...]) -> None:
        assert contacts

    async with trio.open_nursery() as nursery:
        for peer in peers:
            told = note if peer == peers[0] else ignore
            nursery.start_soon(run_mdns, peer, network(), ANYWHERE, told)
        yield found
        nursery.cancel_scope.cancel()


@told_by(in_own_network)
async def test_nodes_find_each_other_on_every_link_also_one_that_comes_later() -> None:
    plug("lan0", "10.1.0.1/24", "fd01::1/64")
    async with looking(ALICE, BOB) as found:
        first = {f"/ip4/10.1.0.1/tcp/{PORT}", f"/ip6/fd01::1/tcp/{PORT}"}
        await until(lambda: found.get(BOB) == first)
        plug("lan1", "10.2.0.1/24")
        await until(lambda: found[BOB] == first | {f"/ip4/10.2.0.1/tcp/{PORT}"})
    assert set(found) == {BOB}


def is_joined() -> bool:
    """Whether somebody in this network listens to the group."""
    return "FB0000E0" in Path("/proc/self/net/igmp").read_text()


@told_by(in_own_network)
async def test_a_stranger_on_the_lan_fills_nothing_and_hides_nobody() -> None:
    def record(service: mdns.Name, name: str) -> bytes:
        text = f"dnsaddr=/ip4/{STRANGER}/tcp/1/p2p/{person(name).peer_id}".encode()
        told = mdns.Record((b"x", *service), mdns.TXT, 120, texts=(text,))
        return mdns.encode(mdns.Message(True, (), (told,)))

    plug("lan0", "10.1.0.1/24", f"{STRANGER}/24")
    service = mdns.service_name(network().network_id)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as stranger:
        stranger.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        stranger.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        stranger.bind((STRANGER, mdns.PORT))
        group = struct.pack("@4s4s", socket.inet_aton(mdns.GROUP_4), bytes(4))
        source = group[:4] + socket.inet_aton(STRANGER)
        stranger.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, source[4:])
        async with looking(ALICE) as found:
            await until(is_joined)
            stranger.sendto(record(service, "alone"), ("10.1.0.1", mdns.PORT))
            for number in range(300):
                stranger.sendto(record(service, f"{number}"), (mdns.GROUP_4, mdns.PORT))
                stranger.sendto(b"\xff" * 40 + service[0], (mdns.GROUP_4, mdns.PORT))
            await until(lambda: len(found) == mdns.MAX_FOUND_PER_SENDER)
            async with looking(BOB):
                await until(lambda: BOB in found)
    assert len(found) == mdns.MAX_FOUND_PER_SENDER + 1
    assert person("alone").peer_id not in found  # what is for this machine alone is not heard


@told_by(in_own_network)
async def test_what_others_say_of_other_services_hides_nobody() -> None:
    """1,500 messages at once: at 128 a second, the last was read 8 s later."""
    plug("lan0", "10.1.0.1/24", f"{STRANGER}/24")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as stranger:
        source = socket.inet_aton(STRANGER)
        stranger.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, source)
        async with looking(ALICE) as found:
            await until(is_joined)
            for _ in range(15):
                for _ in range(100):
                    stranger.sendto(bytes(40), (mdns.GROUP_4, mdns.PORT))
                await trio.sleep(0.02)  # the kernel drops none of them
            async with looking(BOB):
                with trio.fail_after(6):
                    await until(lambda: BOB in found)


@told_by(in_own_network)
async def test_the_loopback_interface_and_those_that_are_down_are_left_out() -> None:
    plug("lan0", "10.1.0.1/24")
    plug("lan1", "10.2.0.1/24")
    ip("link set lan1 down")
    plug("lan2")
    assert {each.name for each in interfaces()} == {"lan0"}

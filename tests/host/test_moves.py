"""Where others reach a node: what its interfaces have, and what others see."""

import errno
import gc
import socket
import subprocess
import sys
import warnings
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from ipaddress import IPv6Address
from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from formation_p2p.assembly import PeerEvent
from formation_p2p.core.effects import Contact
from formation_p2p.core.errors import LocalError
from formation_p2p.core.identity import PeerId
from formation_p2p.dht.core import messages as kad
from formation_p2p.dht.core import rpc
from formation_p2p.net.connection import PROOF_S, Connection
from formation_p2p.net.identify import PUSH_PROTOCOL
from formation_p2p.net.transport.addresses import TcpAddress
from formation_p2p.net.transport.interfaces import Ip, all_ips, lasting, watch
from formation_p2p.net.transport.stream import MuxedStream
from formation_p2p.peer.core.events import AddressesChanged
from formation_p2p.peer.performer import DhtRequests
from formation_p2p.reach.moves import Moves
from tests.support.loopback import tcp
from tests.support.own_network import in_own_network
from tests.support.stacks import Node, run, running
from tests.support.waiting import AT_ONCE_S, IDLE_S, in_mocked_time, in_trio, told_by, until


def hosts(addresses: Iterable[str]) -> set[str]:
    return {address.split("/")[2] for address in addresses}


HERE, THERE = "10.1.2.3", "10.9.8.7"
HERE6, THERE6 = "2a00:1::3", "2a00:9::7"


def ip(change: str, address: str) -> None:
    subprocess.run(["ip", "address", change, address, "dev", "lo"], check=True)


@told_by
def on_one_network(story: Callable[[], Awaitable[None]]) -> None:
    """A test on a machine that may leave its network."""
    in_own_network(story, f"{HERE}/24", f"{HERE6}/64")


@on_one_network
async def test_a_node_that_changes_its_network_says_so_and_ends_what_was_bound_to_the_old_one() -> (
    None
):
    """Of two connections, the one from the address that goes breaks at once."""
    alice, bob = Node(listen=("/ip4/0.0.0.0/tcp/0", "/ip6/::/tcp/0")), Node()
    async with running(alice, bob):
        before = alice.stack.addresses
        assert hosts(before) == {HERE, HERE6}
        await bob.ask(Contact(alice.peer_id, before[:1]), b"hello")
        await alice.ask(bob, b"hello")  # over that connection
        begun_s = trio.current_time()
        ip("add", f"{THERE}/24")
        ip("del", f"{HERE}/24")
        ip("add", f"{THERE6}/64")
        ip("del", f"{HERE6}/64")
        await until(lambda: alice.gone and bob.gone)
        await until(lambda: alice.moved and THERE in str(alice.moved[-1]))
        # Long before a silent connection is given up.
        assert trio.current_time() - begun_s < AT_ONCE_S
        await until(lambda: THERE6 in str(alice.moved[-1]) and HERE6 not in str(alice.moved[-1]))
        direct, announced = alice.moved[-1]
        await bob.ask(Contact(alice.peer_id, direct[:1]), b"there?")
        assert len(alice.moved) <= 4
    assert hosts(direct) == hosts(announced) == {THERE, THERE6}
    ports = {address.rsplit("/", 1)[1] for address in before}
    assert {address.rsplit("/", 1)[1] for address in direct} == ports


@on_one_network
async def test_an_address_that_was_named_is_told_while_the_machine_has_it() -> None:
    alice = Node(listen=(f"/ip4/{HERE}/tcp/0", "/ip4/127.0.0.1/tcp/0"))
    async with running(alice):
        before = alice.stack.addresses
        ip("del", f"{HERE}/24")
        await until(lambda: alice.moved)
        ip("add", f"{HERE}/24")
        await until(lambda: len(alice.moved) == 2)
        bob = Node()
        async with running(bob):
            await bob.ask(Contact(alice.peer_id, before[:1]), b"back?")
    (gone, _), (back, _) = alice.moved
    assert hosts(gone) == {"127.0.0.1"}
    assert back == before


@on_one_network
async def test_a_machine_without_ipv6_listens_on_the_rest() -> None:
    """The kernel has it turned off, as some machines do."""
    await trio.run_process(["sysctl", "-qw", "net.ipv6.conf.all.disable_ipv6=1"])
    both = Node(listen=("/ip4/0.0.0.0/tcp/0", "/ip6/::/tcp/0"))
    async with running(both):
        assert hosts(both.stack.addresses) == {HERE}


@in_trio
async def test_a_kernel_without_ipv6_is_no_error_while_there_is_another_family(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    opened = trio.open_tcp_listeners

    async def refused(port: int, *, host: str, backlog: int) -> Any:
        if host == "::":
            raise OSError(errno.EAFNOSUPPORT, "Address family not supported by protocol")
        return await opened(port, host=host, backlog=backlog)

    monkeypatch.setattr(trio, "open_tcp_listeners", refused)
    both = Node(listen=("/ip4/127.0.0.1/tcp/0", "/ip6/::/tcp/0"))
    async with running(both):
        assert hosts(both.stack.bound) == {"127.0.0.1"}
    alone = Node(listen=("/ip6/::/tcp/0",))
    with pytest.raises(LocalError, match="has no IPv6"):
        await alone.stack.run(alone)


@in_trio
async def test_both_families_have_one_port_where_it_is_free() -> None:
    alice = Node(listen=("/ip4/0.0.0.0/tcp/0", "/ip6/::/tcp/0"))
    async with running(alice):
        assert len({address.rsplit("/", 1)[1] for address in alice.stack.bound}) == 1
        # IPv4 is not accepted on the socket of IPv6: that one would take its port.
        again = Node(listen=alice.stack.bound)
    async with running(again):
        assert again.stack.bound == alice.stack.bound
    with socket.create_server(("::", again.port), family=socket.AF_INET6):
        other = Node(listen=(alice.stack.bound[0], "/ip6/::/tcp/0"))
        async with running(other):
            assert other.stack.bound[1] != alice.stack.bound[1]


@asynccontextmanager
async def silent_once(there: int) -> AsyncIterator[tuple[int, trio.Event]]:
    """A port that leads to another one, until the event is set: from then on nothing passes any
    more, without a word, as where a router has forgotten the connection."""
    silent = trio.Event()

    async def copy(source: trio.SocketStream, sink: trio.SocketStream) -> None:
        async for data in source:
            if not silent.is_set():
                await sink.send_all(data)

    async def joined(client: trio.SocketStream) -> None:
        async with trio.open_nursery() as pair:
            onward = await trio.open_tcp_stream("127.0.0.1", there)
            pair.start_soon(copy, client, onward)
            pair.start_soon(copy, onward, client)

    async with trio.open_nursery() as nursery:
        (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
        nursery.start_soon(trio.serve_listeners, joined, [listener])
        yield listener.socket.getsockname()[1], silent
        nursery.cancel_scope.cancel()


@in_mocked_time
async def test_a_connection_that_is_dead_ends_soon_once_the_peer_dials_anew() -> None:
    alice, bob = Node(), Node()
    async with running(alice, bob), silent_once(bob.port) as (port, silent):
        await alice.ask(Contact(bob.peer_id, (tcp(port),)), b"hello")
        (old,) = bob.stack.connections()
        silent.set()
        begun_s = trio.current_time()
        swarm = alice.stack.swarm
        fresh = await swarm.dialler.dial_address(TcpAddress.parse(tcp(bob.port)), bob.peer_id)
        swarm.adopt(fresh)
        await until(lambda: old.is_closed, every_s=0.1)
        assert PROOF_S <= trio.current_time() - begun_s < PROOF_S + AT_ONCE_S
        assert "not heard" in str(old.muxer.broken)
        # The new one is well, and one that is well stays.
        (new,) = bob.stack.connections()
        await new.prove()
        assert not new.is_closed
        assert bob.gone == []


@in_mocked_time
async def test_a_connection_that_is_dead_ends_soon_once_a_request_on_it_is_not_answered() -> None:
    alice, bob = Node(), Node()
    told: list[PeerEvent] = []
    async with (
        running(alice, bob),
        silent_once(bob.port) as (port, silent),
        trio.open_nursery() as nursery,
    ):
        to = Contact(bob.peer_id, (tcp(port),))
        await alice.ask(to, b"hello")
        (old,) = alice.stack.connections()
        requests = DhtRequests(alice.stack, nursery.start_soon, told.append)
        silent.set()
        begun_s = trio.current_time()
        requests.carry_out(rpc.SendRequest(1, to, kad.Ping(), 0.5, cause="test"))
        await until(lambda: old.is_closed, every_s=0.1)
        assert trio.current_time() - begun_s < PROOF_S + AT_ONCE_S
        assert "not heard" in str(old.muxer.broken)
        assert [type(each) for each in told] == [rpc.RequestFailed]


@in_trio
async def test_where_the_kernel_does_not_tell_of_changes_they_are_looked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("sys.platform", "elsewhere")
    told: list[frozenset[Ip]] = []
    here = [all_ips()]
    async with trio.open_nursery() as nursery:
        looks = 0

        def look() -> frozenset[Ip]:
            nonlocal looks
            looks += 1
            return here[0]

        nursery.start_soon(watch, here[0], told.append, look, 0.01)
        await until(lambda: looks > 5)
        assert told == []
        here[0] = frozenset()
        await until(lambda: told)
        nursery.cancel_scope.cancel()
    assert told == [frozenset()]


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere nothing tells of changes")
def test_what_tells_of_changes_is_closed_in_the_end() -> None:
    async def main() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(watch, all_ips(), lambda ips: None)
            await trio.testing.wait_all_tasks_blocked()
            nursery.cancel_scope.cancel()

    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        run(main)
        gc.collect()
    assert [each.message for each in warned if each.category is ResourceWarning] == []


def test_addresses_that_soon_change_are_told_only_where_there_are_no_others(tmp_path: Path) -> None:
    table = tmp_path / "if_inet6"
    names = {"stable": "2a00::1", "temporary": "2a00::2", "deprecated": "2a00::3"}
    ips = {name: IPv6Address(text) for name, text in names.items()}
    flags = {"stable": "80", "temporary": "01", "deprecated": "21"}
    rows = [f"{int(ips[name]):032x} 02 40 00 {flags[name]} eth0" for name in names]
    table.write_text("\n".join(rows))
    assert lasting(list(ips.values()), table) == [ips["stable"]]
    assert lasting([ips["temporary"], ips["deprecated"]], table) == [ips["temporary"]]
    table.write_text("nonsense")
    assert lasting(list(ips.values()), table) == list(ips.values())
    table.unlink()
    assert lasting(list(ips.values()), table) == list(ips.values())


@in_mocked_time
async def test_peers_that_see_another_address_each_second_have_few_changes_told() -> None:
    """And what a gate says, or the node itself finds, is told at once meanwhile."""
    moves = Moves((), ())
    moves.own.listening(("/ip4/10.0.0.2/tcp/4001",))
    liars = [(PeerId(f"liar {n}"), f"{n}.0.0.1") for n in (11, 12, 13)]
    told_s: list[float] = []
    calls: Counter[str] = Counter()

    def note(event: AddressesChanged) -> None:
        told_s.append(trio.current_time() - begun_s)

    begun_s = trio.current_time()
    async with trio.open_nursery() as nursery:
        push, elsewhere = (lambda: calls.update(["push"])), (lambda: calls.update(["else"]))
        nursery.start_soon(moves.tell, note, push, elsewhere)
        for n in range(600):
            for peer, host in liars:
                seen = f"/ip4/9.0.{n // 250}.{n % 250}/tcp/4001"
                moves.own.observed(peer, host, seen, is_exact=True)
                moves.seen()
            await trio.sleep(1)
        lies = len(told_s)
        assert 10 < lies < 20
        assert calls == {"push": lies, "else": lies}
        moves.own.circuits(("/ip4/11.0.0.1/tcp/1/p2p/gate/p2p-circuit",))
        moves.changed()
        await trio.sleep(0.1)
        assert len(told_s) == lies + 1
        nursery.cancel_scope.cancel()


@in_trio
async def test_a_peer_that_was_told_the_same_is_not_told_again() -> None:
    alice, bob = Node(), Node()
    async with running(alice, bob):
        served, pushes = bob.stack.served.by_protocol[PUSH_PROTOCOL], 0

        async def counted(stream: MuxedStream, connection: Connection) -> None:
            nonlocal pushes
            pushes += 1
            await served(stream, connection)

        bob.stack.served.by_protocol[PUSH_PROTOCOL] = counted
        await alice.ask(bob, b"hello")
        await until(lambda: pushes)
        before = pushes
        alice.stack.push()
        await wait_all_tasks_blocked(IDLE_S)
        assert pushes == before
        alice.stack.advertise(False)
        await until(lambda: pushes > before)
        await wait_all_tasks_blocked(IDLE_S)
        assert pushes == before + 1


@pytest.mark.parametrize("listen", ["/ip4/127.0.0.1/tcp/0", "/ip6/::1/tcp/0"])
@in_trio
async def test_peers_tell_where_they_see_each_other(listen: str) -> None:
    alice, bob = Node(listen=(listen,)), Node(listen=(listen,))
    async with running(alice, bob):
        await alice.ask(bob, b"hello")
        dialled = alice.stack.swarm.connection_to(bob.peer_id)
        accepted = bob.stack.swarm.connection_to(alice.peer_id)
        assert dialled is not None
        assert accepted is not None
        await until(lambda: dialled.observed and accepted.observed)
        host = listen.split("/")[2]
        assert dialled.local is not None
        family = "ip6" if ":" in host else "ip4"
        assert dialled.observed == f"/{family}/{host}/tcp/{dialled.local[1]}"
        assert accepted.observed == bob.stack.addresses[0]
        assert accepted.local == (host, bob.port)
        # Of this machine alone: nobody outside is told.
        assert alice.stack.own.seen_hosts == ()
        assert alice.moved == []
        # The other's port is its own, so that a port of ours was seen.
        assert alice.stack.contact(Contact(bob.peer_id)).addresses == bob.stack.addresses

"""Who can be dialled, and what becomes of who cannot: real shells and stacks on loopback."""

from __future__ import annotations

import logging
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from formation_p2p.content.exchange import Exchange
from formation_p2p.content.store import BlobStore
from formation_p2p.core.effects import Contact
from formation_p2p.core.identity import Identity
from formation_p2p.core.units import GIB
from formation_p2p.dht.core import messages
from formation_p2p.dht.core import messages as kad
from formation_p2p.dht.core.reachability import Reach
from formation_p2p.machine.core.capability import Capability
from formation_p2p.net.connection import Connection
from formation_p2p.net.dialler import MAX_DIALLED_BACK
from formation_p2p.net.identify import Identified
from formation_p2p.net.limits import counted
from formation_p2p.net.transport.addresses import (
    TcpAddress,
    dial_back,
    is_this_machine,
    told_by,
)
from formation_p2p.net.transport.yamux import Muxer
from formation_p2p.peer.core.events import Serve
from formation_p2p.peer.runtime_config import RuntimeConfig
from formation_p2p.peer.shell import Shell
from formation_p2p.reach.stack import KAD_PROTOCOL, Stack
from formation_p2p.trust.core.grants import Rights, issue
from formation_p2p.trust.core.network import Network
from tests.support.loopback import LOOPBACK, free_port, tcp
from tests.support.stacks import Node, running
from tests.support.waiting import AT_ONCE_S, HANGS_S, IDLE_S, in_trio, until

ROOT = Identity.from_seed(bytes(range(32)))
A_MACHINE = Serve(Capability(cpu_milli=1000, memory_bytes=GIB), ("process",))


class Host:
    """A whole node but for its thread."""

    def __init__(
        self,
        folder: Path,
        gates: tuple[Contact, ...] = (),
        *,
        listen: tuple[str, ...] = (LOOPBACK,),
        announce: tuple[str, ...] = (),
    ) -> None:
        self.identity = Identity.from_seed(os.urandom(32))
        granted = issue(ROOT, Rights(2**32), self.identity.peer_id)
        network = Network(ROOT.public_key, _addresses(gates), granted)
        self.stack = Stack(self.identity, listen, announce=announce)
        config = RuntimeConfig(
            identity=self.identity,
            network=network,
            listen=listen,
            announce=announce,
            scratch_root=folder,
            blobs=BlobStore(folder),
        )
        exchange = Exchange(config.blobs, self.stack, self.identity.peer_id, network)
        self.shell = Shell(config, self.stack, exchange, lambda effect: None)

    @property
    def contact(self) -> Contact:
        return Contact(self.identity.peer_id, self.stack.announced)

    @property
    def reach(self) -> Reach:
        return self.shell.performer.reach

    def knows(self, other: Host) -> bool:
        return other.identity.peer_id in self.shell.peer.dht.table


def _addresses(gates: tuple[Contact, ...]) -> tuple[str, ...]:
    return tuple(f"{gate.addresses[0]}/p2p/{gate.peer_id}" for gate in gates)


@asynccontextmanager
async def up(*hosts: Host) -> AsyncIterator[None]:
    async with trio.open_nursery() as nursery:
        for host in hosts:
            await nursery.start(host.shell.run)
        yield
        for host in hosts:
            await host.shell.leave()


# -- whole nodes --------------------------------------------------------------------------------


@in_trio
async def test_who_can_be_dialled_is_a_server_in_no_time_and_so_is_the_gate_it_dialled(
    tmp_path: Path,
) -> None:
    gate = Host(tmp_path / "gate")
    async with up(gate):
        assert gate.reach is Reach.UNKNOWN  # nobody was there to ask
        alice = Host(tmp_path / "alice", (gate.contact,))
        with trio.fail_after(AT_ONCE_S):
            async with up(alice):
                await until(lambda: alice.reach is gate.reach is Reach.SERVER)
                await until(lambda: alice.knows(gate) and gate.knows(alice))


@in_trio
async def test_who_cannot_be_dialled_stays_a_client_and_gets_into_nobodys_table(
    tmp_path: Path,
) -> None:
    gate = Host(tmp_path / "gate")
    async with up(gate):
        bob = Host(tmp_path / "bob", (gate.contact,))
        nowhere = tcp(free_port())
        alice = Host(tmp_path / "alice", (gate.contact,), announce=(nowhere,))
        async with up(bob):
            await until(lambda: gate.knows(bob))
            async with up(alice):
                await until(lambda: alice.reach is Reach.CLIENT)
                assert alice.knows(gate)
                assert alice.knows(bob)
                await wait_all_tasks_blocked(IDLE_S)
                assert not gate.knows(alice)
                assert not bob.knows(alice)
                # It is answered all the same, and answers on what it has opened itself.
                asked = messages.encode(kad.FindNode(b"anything"))
                assert await gate.stack.ask(alice.contact, asked, timeout_s=HANGS_S) is not None
                assert not gate.knows(alice)


@in_trio
async def test_a_worker_whom_nobody_can_dial_says_so_once_and_what_to_do(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def warned() -> list[str]:
        return [r.getMessage() for r in caplog.records if r.levelno == logging.WARNING]

    for serves_first in (True, False):
        caplog.clear()
        client = Host(tmp_path / "client", listen=())
        if serves_first:
            client.shell.performer.serves(None)
        async with up(client):
            client.shell.serve(A_MACHINE, {})
            client.shell.performer.serves(None)
            await until(lambda: warned())
            await wait_all_tasks_blocked(IDLE_S)
            (said,) = warned()
            assert "does not listen" in said
            assert "gets no work from others" in said


# -- what goes over the wire --------------------------------------------------------------------


@in_trio
async def test_identify_tells_of_the_dht_only_while_others_may_be_sent_here() -> None:
    alice, bob = Node(), Node()
    async with running(alice, bob):
        bob.stack.advertise(False)
        await alice.ask(bob, b"hello")
        connection = alice.stack.swarm.connection_to(bob.peer_id)
        assert connection is not None
        await connection.wait_identified()
        assert KAD_PROTOCOL not in connection.protocols
        assert "/ipfs/id/1.0.0" in connection.protocols
        bob.stack.advertise(True)
        await until(lambda: KAD_PROTOCOL in connection.protocols)
        assert alice.met == [bob.contact]
        bob.stack.advertise(True)  # nothing new: nobody is told
        bob.stack.advertise(False)
        await until(lambda: len(alice.met) == 2)
        # We dialled it there, so that others can as well, whatever it says of itself.
        assert alice.met[1] == bob.contact


@in_trio
async def test_who_asks_and_does_not_say_that_it_serves_is_known_without_addresses() -> None:
    alice, bob = Node(), Node()
    async with running(alice, bob):
        alice.stack.advertise(False)
        await alice.ask(bob, b"one")
        alice.stack.advertise(True)
        await until(lambda: bob.met)
        await alice.ask(bob, b"two")
        senders = [sender for sender, _ in bob.requests]
        assert senders == [Contact(alice.peer_id), alice.contact]
        assert bob.met == [alice.contact]


@in_trio
async def test_a_push_is_news_unless_it_introduces_a_peer_or_repeats_what_it_said() -> None:
    """Other implementations do not introduce themselves when they dial."""
    alice, bob = Node(), Node(listen=())
    async with running(alice, bob):
        address = TcpAddress.parse(alice.stack.addresses[0])
        muxer = (await bob.stack.swarm.dialler.dial_address(address, alice.peer_id)).muxer
        assert isinstance(muxer, Muxer)
        client = Identified((), frozenset({"/other"}))
        server = Identified((), frozenset({"/other", KAD_PROTOCOL}))
        dialled = Connection(muxer, inbound=False)
        assert [dialled.pushed(client)] == [True]
        ours = Connection(muxer, inbound=True)
        assert [ours.pushed(said) for said in (client, client, server)] == [False, True, True]
        foreign = Connection(muxer, inbound=True)
        foreign.identified(client)  # which we had asked for
        assert foreign.pushed(client) is False
        changed = Connection(muxer, inbound=True)
        changed.identified(client)
        assert changed.pushed(server) is True
        await muxer.close()


@in_trio
async def test_a_dial_back_is_a_new_connection_that_is_closed_again() -> None:
    alice, bob = Node(), Node()
    async with running(alice, bob):
        await alice.ask(bob, b"hello")
        assert await bob.stack.dial_back(alice.peer_id, timeout_s=HANGS_S)
        await until(lambda: alice.dialled == [(bob.peer_id, "127.0.0.1")])
        await until(lambda: len(list(alice.stack.swarm.all())) == 1)
        assert alice.gone == []
        assert await alice.ask(bob, b"still there") == b"re:still there"


@in_trio
async def test_no_stream_is_opened_on_what_is_closed_soon() -> None:
    alice, bob = Node(), Node()
    async with running(alice, bob):
        await alice.ask(bob, b"hello")
        swarm = alice.stack.swarm
        usual = swarm.connection_to(bob.peer_id)
        with counted(swarm.dialler.dialling_back, bob.peer_id):
            address = TcpAddress.parse(alice.stack.addresses[0])
            fresh = await bob.stack.swarm.dialler.dial_address(address, alice.peer_id)
            await until(lambda: alice.dialled)
        assert len(list(swarm.all())) == 2
        assert swarm.connection_to(bob.peer_id) is usual
        await fresh.muxer.close()
        assert not swarm.dialler.dialling_back


@in_trio
async def test_a_request_that_dials_back_holds_up_no_other() -> None:
    alice, bob = Node(), Node()
    bob.respond = lambda frame, answer: None if frame == b"slow" else answer(frame)
    async with running(alice, bob), trio.open_nursery() as nursery:
        await alice.ask(bob, b"warm")

        async def slow() -> None:
            await alice.stack.ask(bob.contact, b"slow", timeout_s=HANGS_S, dials_back=True)

        nursery.start_soon(slow)
        await until(lambda: bob.requests[-1][1] == b"slow")
        assert await alice.ask(bob, b"quick") == b"quick"
        nursery.cancel_scope.cancel()


@in_trio
async def test_nobody_is_dialled_but_who_asks() -> None:
    """Or a peer could have others dial whomever it likes."""
    alice, bob = Node(), Node()
    (victim,) = await trio.open_tcp_listeners(0, host="127.0.0.2")
    port = victim.socket.getsockname()[1]
    async with running(alice, bob):
        await alice.ask(bob, b"hello")
        connection = bob.stack.swarm.connection_to(alice.peer_id)
        assert connection is not None
        dialled: list[str] = []
        dial = bob.stack.swarm.dialler.dial_address

        async def watched(address: TcpAddress, peer: str, **how: bool) -> object:
            dialled.append(str(address))
            return await dial(address, alice.peer_id, **how)

        bob.stack.swarm.dialler.dial_address = watched  # type: ignore[assignment,method-assign]
        connection.remote_host = "192.0.2.7"  # as if it came from elsewhere
        third_parties = (f"/ip4/127.0.0.2/tcp/{port}", "/ip4/192.0.2.8/tcp/22")
        connection.contact = Contact(alice.peer_id, third_parties)
        connection.claimed = third_parties
        assert await bob.stack.dial_back(alice.peer_id, timeout_s=2) is False
        assert dialled == []
        many = tuple(f"/ip4/192.0.2.7/tcp/{port}" for port in range(1, 9))
        connection.contact = Contact(alice.peer_id, many)
        await bob.stack.dial_back(alice.peer_id, timeout_s=1)
        assert sorted(dialled) == list(many[:MAX_DIALLED_BACK])
    await victim.aclose()


@in_trio
async def test_who_is_not_connected_or_does_not_run_is_not_dialled_back() -> None:
    alice, bob = Node(), Node()
    async with running(alice):
        assert await alice.stack.dial_back(bob.peer_id, timeout_s=1) is None
    assert await alice.stack.dial_back(bob.peer_id, timeout_s=1) is None
    alice.stack.advertise(True)


@in_trio
async def test_a_peer_behind_a_router_is_told_so_and_of_a_mere_name_nobody_can_tell() -> None:
    alice, bob = Node(), Node()
    async with running(alice, bob):
        await alice.ask(bob, b"hello")
        connection = bob.stack.swarm.connection_to(alice.peer_id)
        assert connection is not None
        connection.remote_host = "8.8.4.4"
        for claimed, reached in [((AT_HOME,), False), ((NAMED,), True), ((), None)]:
            connection.contact = Contact(alice.peer_id)
            connection.identified(Identified(claimed, frozenset()))
            if reached:  # at the host that it comes from, which here is on the internet
                assert connection.contact.addresses == ("/ip4/8.8.4.4/tcp/1",)
            else:
                assert await bob.stack.dial_back(alice.peer_id, timeout_s=HANGS_S) is reached
        connection.remote_host = "192.168.1.7"
        connection.contact = Contact(alice.peer_id)
        connection.identified(Identified((NAMED,), frozenset()))
        assert await bob.stack.dial_back(alice.peer_id, timeout_s=2) is None


# -- whom to believe ----------------------------------------------------------------------------


ALICE = Identity.from_seed(bytes(32)).peer_id
AT_HOME, OUTSIDE, ELSEWHERE = "/ip4/192.168.1.5/tcp/1", "/ip4/8.8.4.4/tcp/1", "/ip4/9.9.9.9/tcp/1"
NAMED = "/dns4/alice.example/tcp/1"


@pytest.mark.parametrize(
    ("reported", "seen_from", "believed"),
    [
        ((AT_HOME, OUTSIDE), "8.8.4.4", (OUTSIDE,)),
        ((ELSEWHERE, OUTSIDE), "8.8.4.4", (OUTSIDE, ELSEWHERE)),
        ((AT_HOME,), "8.8.4.4", ()),
        ((NAMED, OUTSIDE, ELSEWHERE), "8.8.4.4", (OUTSIDE, ELSEWHERE)),
        ((NAMED,), "192.168.1.9", ()),
        ((ELSEWHERE,), "8.8.4.4", ()),
        ((AT_HOME, OUTSIDE), "192.168.1.9", (AT_HOME, OUTSIDE)),
    ],
)
def test_from_a_public_address_only_public_ones_are_believed_and_only_with_that_one(
    reported: tuple[str, ...], seen_from: str, believed: tuple[str, ...]
) -> None:
    assert told_by(ALICE, reported, seen_from) == believed


def test_who_asks_is_dialled_where_it_comes_from_and_on_this_machine_anywhere_on_it() -> None:
    def dialled(seen_from: str | None, *addresses: str) -> list[str]:
        return [str(address) for address in dial_back(Contact(ALICE, addresses), seen_from)]

    local = "/ip4/127.0.0.1/tcp/1"
    assert dialled("8.8.4.4", AT_HOME, OUTSIDE, ELSEWHERE, local) == [OUTSIDE]
    assert dialled("192.168.1.5", AT_HOME, OUTSIDE, "/dns4/a.example/tcp/1") == [AT_HOME]
    assert dialled("127.0.0.1", local, ELSEWHERE) == [local]
    assert dialled(None, local, OUTSIDE) == []
    assert is_this_machine("::1")
    assert not is_this_machine("8.8.8.8")

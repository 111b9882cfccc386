"""Circuit relay v2 with go-libp2p and js-libp2p: our gate for their peers, and theirs for ours."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest
import trio

from formation_p2p.core.effects import Contact
from formation_p2p.core.identity import PeerId
from formation_p2p.core.units import KIB
from formation_p2p.reach.circuit_settings import RelaySettings
from formation_p2p.reach.core.paths import Path as ConnectionPath
from formation_p2p.reach.core.relay import RelayFor
from tests.interop import p2pd, peers
from tests.support.circuits import circuits, relaying, reserved
from tests.support.cut_jobs import job_through
from tests.support.stacks import Node, run, running
from tests.support.waiting import until

STORY_S = 90.0
ANYONE = RelaySettings(RelayFor.ANYONE)
PING = "/ipfs/ping/1.0.0"


# -- theirs ----------------------------------------------------------------------------------------


@contextmanager
def go_relay() -> Iterator[Contact]:
    flags = ("-relay=1", "-relayService=1", "-forceReachabilityPublic")
    with p2pd.daemons(1, *flags) as [daemon]:
        yield daemon.contact


@contextmanager
def js_relay() -> Iterator[Contact]:
    with peers.js("circuit", "relay") as relay:
        yield relay.contact


@contextmanager
def go_hidden(gate: str) -> Iterator[PeerId]:
    """A peer that is reached through that gate."""
    flags = ("-relay=1", "-autoRelay", f"-trustedRelays={gate}", "-forceReachabilityPrivate")
    with p2pd.daemons(1, *flags) as [daemon]:
        address, _, peer = gate.rpartition("/p2p/")
        daemon.connect(PeerId(peer), (address,))
        yield daemon.peer_id


@contextmanager
def js_hidden(gate: str) -> Iterator[PeerId]:
    with peers.js("circuit", gate) as hidden:
        yield hidden.contact.peer_id


def go_dials(to: Contact) -> None:
    with p2pd.daemons(1, "-relay=1") as [daemon]:
        daemon.connect(to.peer_id, to.addresses)
        assert to.peer_id in [each.peer_id for each in daemon.connected()]


def js_dials(to: Contact) -> None:
    with peers.js("circuit") as dialler:
        pinged = dialler.do("ping", peer=to.peer_id, addresses=to.addresses)
        assert "/p2p-circuit" in pinged["address"]


RELAYS = {"go": go_relay, "js": js_relay}
HIDDEN = {"go": go_hidden, "js": js_hidden}
DIAL: dict[str, Callable[[Contact], None]] = {"go": go_dials, "js": js_dials}


class _InThread:
    """A context of theirs blocks; our stacks go on meanwhile."""

    def __init__(self, context: AbstractContextManager[PeerId]) -> None:
        self._context = context

    async def __aenter__(self) -> PeerId:
        return await trio.to_thread.run_sync(self._context.__enter__)

    async def __aexit__(self, *_: object) -> None:
        await trio.to_thread.run_sync(self._context.__exit__, None, None, None)


# -- our gate --------------------------------------------------------------------------------------


@pytest.mark.parametrize("hidden", HIDDEN)
def test_their_peers_are_reached_through_our_gate(hidden: str) -> None:
    """By ours, and by each of them."""

    async def story() -> None:
        gate, bob = Node(circuits=circuits(ANYONE)), Node(listen=())
        async with running(gate, bob):
            address = f"{gate.stack.addresses[0]}/p2p/{gate.peer_id}"
            async with _InThread(HIDDEN[hidden](address)) as peer:
                await reserved(gate, peer)
                to = Contact(peer, (f"{address}/p2p-circuit",))
                connection = await bob.stack.swarm.dialler.dial(to)
                assert connection.path is ConnectionPath.RELAYED
                stream = await connection.open(PING)
                await stream.write(bytes(32))
                assert await stream.read(32) == bytes(32)
                for dials in DIAL.values():
                    await trio.to_thread.run_sync(dials, to)

    run(story, STORY_S)


@pytest.mark.parametrize("dials", DIAL)
def test_their_peers_dial_ours_through_our_gate(dials: str) -> None:
    async def story() -> None:
        gate = Node(circuits=circuits(ANYONE))
        async with running(gate):
            worker = Node(circuits=circuits(gates=(gate.contact,)))
            async with running(worker):
                await reserved(gate, worker.peer_id)
                circuit = f"{gate.stack.addresses[0]}/p2p/{gate.peer_id}/p2p-circuit"
                to = Contact(worker.peer_id, (circuit,))
                await trio.to_thread.run_sync(DIAL[dials], to)
                assert relaying(gate).relayed_bytes > 0

    run(story, STORY_S)


# -- their relays ----------------------------------------------------------------------------------


@pytest.mark.parametrize("relay", RELAYS)
def test_ours_are_reached_through_their_relays(relay: str) -> None:
    """By ours, for more than the 128 KiB after which they cut a circuit, and by each of them."""

    async def story(gate: Contact) -> None:
        worker, bob = Node(circuits=circuits(gates=(gate,))), Node(listen=())
        async with running(worker, bob):
            await until(lambda: worker.stack.announced[-1].endswith("/p2p-circuit"))
            to = Contact(worker.peer_id, worker.stack.announced[-1:])
            for _ in range(40):
                assert await bob.ask(to, bytes(8 * KIB)) is not None
            assert worker.gone == []
            for dials in DIAL.values():
                await trio.to_thread.run_sync(dials, to)

    with RELAYS[relay]() as gate:
        run(lambda: story(gate), STORY_S)


@pytest.mark.parametrize("relay", RELAYS)
def test_a_job_completes_through_a_relay_that_cuts_its_circuits(relay: str, tmp_path: Path) -> None:
    with RELAYS[relay]() as foreign:
        story = job_through(f"{foreign.addresses[0]}/p2p/{foreign.peer_id}", tmp_path)
        asyncio.run(asyncio.wait_for(story, STORY_S))

"""Peers that wear a node out through the DHT, or through what stands around it."""

import logging
import os
import random
from pathlib import Path

import pytest
import trio

from formation_p2p.core.effects import Contact
from formation_p2p.core.identity import Identity
from formation_p2p.dht.core import messages
from formation_p2p.dht.core import messages as kad
from formation_p2p.net import identify as net_identify
from formation_p2p.net.handlers import PUSHES_PER_S
from formation_p2p.net.protocols.kad import MAX_ECHOES
from formation_p2p.net.transport.frames import encode_frame
from formation_p2p.net.transport.parameters import NetParameters
from formation_p2p.net.transport.stream import MuxedStream
from formation_p2p.net.transport.token_bucket import BURST_S
from formation_p2p.reach.stack import KAD_PROTOCOL, MAX_DROPS_TOLD
from tests.host import mallory
from tests.host.test_reachability import Host, up
from tests.support.fuzz import kad_message
from tests.support.stacks import Answer, Node, running
from tests.support.waiting import in_trio, until
from tests.support.working import compute


@in_trio
async def test_whoever_asks_for_what_takes_long_gets_less_of_it() -> None:

    def take_long(frame: bytes, answer: Answer) -> None:
        compute(0.01)
        answer(b"")

    victim = Node(parameters=NetParameters(kad_frames_per_s=25))
    victim.respond = take_long
    async with running(victim):
        hand = await mallory.muxed(victim)
        await hand.open(1, KAD_PROTOCOL)
        await hand.data(1, encode_frame(b"dear") * 100)
        await until(lambda: victim.requests)
        await trio.sleep(1.5)
        assert len(victim.requests) < 20  # of a hundred, for which it has the tokens


@in_trio
async def test_answers_to_what_has_none_are_not_read_without_end() -> None:
    async def chatter(stream: MuxedStream, connection: object) -> None:
        while True:
            await stream.write(encode_frame(b"?") * 100)

    alice, bob = Node(), Node()
    async with running(alice, bob):
        bob.stack.served.by_protocol[KAD_PROTOCOL] = chatter
        await alice.stack.ask(bob.contact, b"keep this", timeout_s=2, expects_answer=False)
        assert MAX_ECHOES > 1
        await until(lambda: not alice.stack.kad.lines, within_s=8)


@in_trio
async def test_peers_that_are_dropped_again_and_again_do_not_fill_the_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "formation_p2p")
    alice = Node()
    async with running(alice):
        for _ in range(100):
            alice.stack.drop(Identity.from_seed(os.urandom(32)).peer_id, "a bad frame")
    alice.stack.drop(alice.peer_id, "it is closed, and has nobody to drop")
    assert len(caplog.records) == MAX_DROPS_TOLD


@in_trio
async def test_who_moves_all_the_time_is_listened_to_now_and_then() -> None:
    alice, bob = Node(), Node()
    async with running(alice, bob):
        await alice.ask(bob, b"hello")
        bob.met.clear()
        began_s = trio.current_time()
        connection = alice.stack.swarm.connection_to(bob.peer_id)
        assert connection is not None
        for number in range(30):
            here = (f"/ip4/192.0.2.{number}/tcp/4001",)
            stream = await connection.open(net_identify.PUSH_PROTOCOL)
            await stream.write(net_identify.message(b"", here, (), stream))
            await stream.close()
        await until(lambda: bob.met)
        await trio.sleep(1)
        lasted_s = trio.current_time() - began_s
        assert len(bob.met) <= (BURST_S + lasted_s + 1) * PUSHES_PER_S


@in_trio
async def test_a_whole_node_answers_on_whatever_it_is_asked_and_logs_no_fault(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    rng = random.Random(1)
    victim, good = Host(tmp_path / "victim"), Node(listen=())
    async with up(victim), running(good):
        contact = Contact(victim.identity.peer_id, victim.stack.announced)
        door = Node()
        door.identity, door.stack = victim.identity, victim.stack
        find = messages.encode(kad.FindNode(b"anything"))
        for _ in range(10):
            hand = await mallory.muxed(door)
            for sid in range(1, 41, 2):
                await hand.open(sid, KAD_PROTOCOL)
                await hand.data(sid, encode_frame(kad_message(rng)))
            assert await good.stack.ask(contact, find, timeout_s=2) is not None
            await hand.pipe.close()
        assert not victim.shell.peer.dht.records.load  # type: ignore[attr-defined]
    assert not [each for each in caplog.records if each.levelno >= logging.ERROR]

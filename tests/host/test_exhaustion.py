"""Strangers who would wear a node out with little: many small frames, names that never resolve."""

import os
import socket
import threading
from collections import Counter
from typing import Any

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from formation_p2p.core.effects import Contact
from formation_p2p.core.errors import Unreachable
from formation_p2p.core.identity import Identity
from formation_p2p.core.units import KIB
from formation_p2p.net.transport.frames import encode_frame
from formation_p2p.net.transport.parameters import NetParameters
from formation_p2p.net.transport.stream import WINDOW_BYTES
from formation_p2p.net.transport.yamux import STRANGERS_UNREAD_BYTES
from formation_p2p.reach.stack import KAD_PROTOCOL
from tests.host import mallory
from tests.support.stacks import Answer, Node, run, running
from tests.support.waiting import HANGS_S, IDLE_S, in_trio, until


@in_trio
async def test_a_window_full_of_tiny_frames_stops_nobody() -> None:
    def hand_is_heard(victim: Node) -> bool:
        connections = list(victim.stack.swarm.all())
        return any(connection.muxer.streams for connection in connections)

    victim = Node()
    async with running(victim):
        turns = [0]
        answered_in: Counter[int] = Counter()

        def respond(frame: bytes, answer: Answer) -> None:
            answered_in[turns[0]] += 1
            answer(frame)

        victim.respond = respond

        async def take_turns() -> None:
            while True:
                await trio.lowlevel.checkpoint()
                turns[0] += 1

        hand = await mallory.muxed(victim)
        async with trio.open_nursery() as nursery:
            await hand.open(1, KAD_PROTOCOL)
            await until(lambda: hand_is_heard(victim))
            nursery.start_soon(take_turns)
            size = WINDOW_BYTES - 4 * 1024  # the negotiation took of the window
            await hand.data(1, bytes(size))
            await until(lambda: len(victim.requests) > 500)
            nursery.cancel_scope.cancel()
        assert max(answered_in.values()) < 10


@in_trio
async def test_little_is_kept_unread_of_strangers_and_more_of_who_shares_a_lease() -> None:
    """Requests are answered one after the other; meanwhile what else was sent lies here."""
    victim = Node(parameters=NetParameters(kad_frames_per_s=1, identify_wait_s=0.0))
    async with running(victim):
        hand = await mallory.muxed(victim)
        for sid in range(1, 33, 2):
            await hand.open(sid, KAD_PROTOCOL)

        async def push() -> None:
            for _ in range(4):
                for sid in range(1, 33, 2):
                    await hand.data(sid, encode_frame(bytes(100)) * 600)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(push)
            [connection] = victim.stack.swarm.all()
            await until(lambda: connection.muxer.unread_bytes > STRANGERS_UNREAD_BYTES / 2)
            await wait_all_tasks_blocked(IDLE_S)
            assert connection.muxer.unread_bytes <= STRANGERS_UNREAD_BYTES + 64 * KIB
            victim.stack.note_lease(hand.peer_id)
            await until(lambda: connection.muxer.unread_bytes > 2 * STRANGERS_UNREAD_BYTES)
            nursery.cancel_scope.cancel()


def test_names_that_never_resolve_leave_threads_for_the_tasks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """trio has 40 threads for all, and a lookup that was given up keeps its own."""
    woken = threading.Event()
    asked: list[object] = []
    given_up: list[Contact] = []
    real = socket.getaddrinfo

    def never(host: Any, *rest: Any) -> Any:
        flags = rest[4] if len(rest) > 4 else 0
        if host not in (b"tarpit.example", "tarpit.example") or flags & socket.AI_NUMERICHOST:
            return real(host, *rest)
        asked.append(host)
        woken.wait(HANGS_S)
        raise socket.gaierror(socket.EAI_AGAIN, "never")

    async def story() -> None:
        node = Node()
        names = tuple(f"/dns4/tarpit.example/tcp/{port}" for port in range(1, 9))
        async with running(node), trio.open_nursery() as nursery:

            async def ask(stranger: Contact) -> None:
                with pytest.raises(Unreachable):
                    await node.ask(stranger, b"?", timeout_s=0.5)
                given_up.append(stranger)

            for _ in range(8):
                peer = Identity.from_seed(os.urandom(32)).peer_id
                nursery.start_soon(ask, Contact(peer, names))
            await until(lambda: len(given_up) == 8)
            assert asked
            await trio.to_thread.run_sync(lambda: None)
            assert not woken.is_set()
            woken.set()

    monkeypatch.setattr(socket, "getaddrinfo", never)
    try:
        run(story)
    finally:
        woken.set()

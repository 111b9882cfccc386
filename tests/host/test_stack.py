"""Two or three nodes talk."""

import logging
import os
import signal
import subprocess
import sys
import textwrap
from contextlib import suppress
from typing import Any

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from formation_p2p.core.effects import Contact
from formation_p2p.core.errors import (
    InvalidInput,
    NodeClosed,
    ProtocolViolation,
    Unreachable,
)
from formation_p2p.core.identity import Identity
from formation_p2p.core.units import KIB
from formation_p2p.core.version import VERSION
from formation_p2p.dht.core.reachability import Reach
from formation_p2p.net.handlers import NetworkEvent
from formation_p2p.net.identify import WORK_PROTOCOL
from formation_p2p.net.transport.frames import (
    MAX_KAD_FRAME_BYTES,
    MAX_KAD_REQUEST_BYTES,
    MAX_WORK_FRAME_BYTES,
)
from formation_p2p.net.transport.parameters import NetParameters
from formation_p2p.reach.stack import KAD_PROTOCOL, MAX_INCOMPATIBLE, Stack
from tests.support.loopback import LOOPBACK, free_port, tcp
from tests.support.stacks import Answer, Node, run, running
from tests.support.waiting import AT_ONCE_S, HANGS_S, IDLE_S, in_trio, until

# -- kad ----------------------------------------------------------------------------------------


@in_trio
async def test_a_request_is_answered_and_the_asker_is_known_with_its_address() -> None:
    alice, bob = Node(), Node()
    async with running(alice, bob):
        assert await alice.ask(bob, b"who is near?") == b"re:who is near?"
        assert bob.requests == [(alice.contact, b"who is near?")]


@in_trio
async def test_requests_share_one_stream_and_may_be_pipelined() -> None:
    alice, bob = Node(), Node()
    async with running(alice, bob):
        answers: dict[int, bytes | None] = {}

        async def ask(i: int) -> None:
            answers[i] = await alice.ask(bob, b"%d" % i)

        await alice.ask(bob, b"first")
        async with trio.open_nursery() as nursery:
            for i in range(50):
                nursery.start_soon(ask, i)
        assert answers == {i: b"re:%d" % i for i in range(50)}
        # once identify's are closed
        (connection,) = bob.stack.swarm.all()
        await until(lambda: len(connection.muxer.streams) == 1)


@in_trio
async def test_a_request_without_an_answer_ends_once_it_is_written() -> None:
    alice, bob = Node(), Node()
    bob.respond = lambda frame, answer: answer(None if frame == b"tell" else frame)
    async with running(alice, bob):
        for _ in range(3):
            answer = await alice.stack.ask(
                bob.contact, b"tell", timeout_s=HANGS_S, expects_answer=False
            )
            assert answer is None
        assert await alice.ask(bob, b"ask") == b"ask"
        await until(lambda: len(bob.requests) == 4)
        # Two streams, which have no order between them.
        assert sorted(frame for _, frame in bob.requests) == [b"ask"] + [b"tell"] * 3


@in_trio
async def test_an_answer_may_come_later() -> None:
    alice, bob = Node(), Node()
    answers: list[Answer] = []
    bob.respond = lambda frame, answer: answers.append(answer)
    async with running(alice, bob), trio.open_nursery() as nursery:
        nursery.start_soon(alice.ask, bob, b"slow")
        await until(lambda: answers)
        answers[0](b"at last")


@in_trio
async def test_the_largest_frames_pass_and_larger_ones_are_refused_here() -> None:
    alice, bob = Node(), Node()
    bob.respond = lambda frame, answer: answer(frame)
    async with running(alice, bob):
        largest = os.urandom(MAX_KAD_REQUEST_BYTES)
        assert await alice.ask(bob, largest) == largest
        bob.respond = lambda frame, answer: answer(bytes(MAX_KAD_FRAME_BYTES))
        assert await alice.ask(bob, b"all you have") == bytes(MAX_KAD_FRAME_BYTES)
        with pytest.raises(InvalidInput):
            await alice.ask(bob, largest + b"x")
        with pytest.raises(InvalidInput):
            alice.stack.send(bob.contact, bytes(MAX_WORK_FRAME_BYTES + 1))


@in_trio
async def test_a_request_that_nobody_answers_ends_in_time_and_the_next_one_works() -> None:
    alice, bob = Node(), Node()
    bob.respond = lambda frame, answer: None if frame == b"hang" else answer(frame)
    async with running(alice, bob):
        with pytest.raises(Unreachable, match="within"):
            await alice.ask(bob, b"hang", timeout_s=0.3)
        assert await alice.ask(bob, b"again") == b"again"


@in_trio
async def test_a_request_survives_that_another_one_on_its_stream_is_given_up() -> None:
    alice, bob = Node(), Node()
    bob.respond = lambda frame, answer: None if frame == b"hang" else answer(frame)
    async with running(alice, bob), trio.open_nursery() as nursery:
        await alice.ask(bob, b"warm")

        async def hang() -> None:
            with pytest.raises(Unreachable):
                await alice.ask(bob, b"hang", timeout_s=0.3)

        nursery.start_soon(hang)
        await until(lambda: bob.requests[-1][1] == b"hang")
        assert await alice.ask(bob, b"behind it") == b"behind it"


@in_trio
async def test_a_request_that_is_given_up_amid_a_write_leaves_the_connection_in_order() -> None:
    """A write that is cancelled half-way would leave half a message on the wire."""
    alice, bob = Node(), Node()
    bob.respond = lambda frame, answer: answer(frame[:1])
    async with running(alice, bob):
        await alice.ask(bob, b"warm")
        for _ in range(3):  # so that the socket is full of what is written below
            alice.stack.send(bob.contact, bytes(MAX_WORK_FRAME_BYTES))
        for steps in range(30):

            async def ask() -> None:
                with suppress(Unreachable):
                    await alice.ask(bob, bytes(16 * KIB))

            async with trio.open_nursery() as nursery:
                nursery.start_soon(ask)
                for _ in range(steps):
                    await trio.lowlevel.checkpoint()
                nursery.cancel_scope.cancel()
        assert await alice.ask(bob, b"hello") == b"h"
        await until(lambda: len(bob.frames) == 3)
        assert alice.gone == []


@in_trio
async def test_a_response_that_is_no_frame_is_a_violation() -> None:
    alice, bob = Node(), Node()
    async with running(alice, bob):

        async def babble(stream: Any, connection: object) -> None:
            await stream.write(b"\xff" * 16)
            await trio.sleep_forever()

        bob.stack.served.by_protocol[KAD_PROTOCOL] = babble
        with pytest.raises(ProtocolViolation):
            await alice.ask(bob, b"hello")


@in_trio
async def test_a_handler_that_fails_costs_its_stream_alone(
    caplog: pytest.LogCaptureFixture,
) -> None:
    alice, bob = Node(), Node()

    def respond(frame: bytes, answer: Answer) -> None:
        if frame == b"bad":
            raise RuntimeError("a bug of the shell")
        answer(frame)

    bob.respond = respond
    async with running(alice, bob):
        with pytest.raises(Unreachable):
            await alice.ask(bob, b"bad")
        assert await alice.ask(bob, b"good") == b"good"
        assert bob.gone == []
    assert "a bug of the shell" in caplog.text


# -- work ---------------------------------------------------------------------------------------


@in_trio
async def test_frames_go_both_ways_on_one_stream_and_in_order() -> None:
    alice, bob = Node(), Node()
    async with running(alice, bob):
        for i in range(200):
            alice.stack.send(bob.contact, b"a%d" % i)
        await until(lambda: len(bob.frames) == 200)
        for i in range(200):
            bob.stack.send(bob.frames[0][0], b"b%d" % i)
        await until(lambda: len(alice.frames) == 200)
        assert bob.payloads == [b"a%d" % i for i in range(200)]
        assert alice.payloads == [b"b%d" % i for i in range(200)]
        assert bob.frames[0][0] == alice.contact
        (session,) = bob.stack.work.sessions.values()
        assert len(session.streams) == 1


@in_trio
async def test_a_session_outlives_the_first_frame_however_short_that_is() -> None:
    alice, bob = Node(), Node()
    async with running(alice, bob):
        for i in range(30):  # trio's order of tasks is random
            alice.stack.send(bob.contact, b"first")
            await until(lambda n=2 * i: len(bob.frames) > n)  # type: ignore[misc]
            alice.stack.send(bob.contact, b"second")
            await until(lambda n=2 * i: len(bob.frames) > n + 1)  # type: ignore[misc]
            (session,) = bob.stack.work.sessions.values()
            assert len(session.streams) == 1
            alice.stack.drop(bob.peer_id, "once more")
            await until(lambda n=i: len(alice.gone) == len(bob.gone) == n + 1)  # type: ignore[misc]


@in_trio
async def test_both_may_open_at_once() -> None:
    alice, bob = Node(), Node()
    async with running(alice, bob):
        for i in range(100):
            alice.stack.send(bob.contact, b"%d" % i)
            bob.stack.send(alice.contact, b"%d" % i)
        await until(lambda: len(alice.frames) == len(bob.frames) == 100)
        assert alice.payloads == bob.payloads == [b"%d" % i for i in range(100)]
        assert alice.lost == bob.lost == []


@in_trio
async def test_the_largest_work_frame_arrives_whole() -> None:
    alice, bob = Node(), Node()
    async with running(alice, bob):
        largest = os.urandom(MAX_WORK_FRAME_BYTES)
        alice.stack.send(bob.contact, largest)
        alice.stack.send(bob.contact, b"after it")
        await until(lambda: len(bob.frames) == 2)
        assert bob.payloads == [largest, b"after it"]


@in_trio
async def test_a_small_request_is_not_held_back_by_large_frames() -> None:
    alice, bob = Node(), Node()
    async with running(alice, bob):
        await alice.ask(bob, b"warm")
        alice.stack.send(bob.contact, bytes(MAX_WORK_FRAME_BYTES))
        await until(lambda: bob.stack.limits.large_frame_bytes, every_s=0)  # it has begun
        await alice.ask(bob, b"small")
        assert bob.frames == []


@in_trio
async def test_an_urgent_frame_overtakes_large_ones() -> None:
    alice, bob = Node(), Node()
    async with running(alice, bob):
        large = [bytes([number]) * (MAX_WORK_FRAME_BYTES // 2) for number in range(4)]
        for frame in large:
            alice.stack.send(bob.contact, frame)
        alice.stack.send(bob.contact, b"renew", urgent=True)
        await until(lambda: len(bob.frames) == 5)
        assert [frame for frame in bob.payloads if frame != b"renew"] == large
        assert bob.payloads.index(b"renew") < 4
        alice.stack.send(bob.contact, b"more", urgent=True)
        await until(lambda: bob.payloads[5:] == [b"more"])
        (session,) = bob.stack.work.sessions.values()
        assert len(session.streams) == 2


@in_trio
async def test_frames_to_an_unreachable_peer_are_undelivered_not_lost_silently() -> None:
    alice = Node()
    nobody = Contact(Identity.from_seed(os.urandom(32)).peer_id, ("/ip4/127.0.0.1/tcp/1",))
    async with running(alice):
        alice.stack.send(nobody, b"one")
        alice.stack.send(nobody, b"two")
        assert alice.lost == []  # never from inside `send`
        await until(lambda: alice.lost)
        ((to, reason),) = alice.lost
        assert to == nobody.peer_id
        assert "refused" in reason


@in_trio
async def test_a_queue_that_overflows_is_given_up_as_a_whole() -> None:
    alice, bob = Node(parameters=NetParameters(max_queued_frames=10)), Node()
    async with running(alice, bob):
        for i in range(20):
            alice.stack.send(bob.contact, b"%d" % i)
        await until(lambda: alice.lost)
        assert "queued" in alice.lost[0][1]
        alice.stack.send(bob.contact, b"afterwards")
        await until(lambda: bob.frames)
        assert bob.payloads == [b"afterwards"]
        assert len(alice.lost) == 1


@in_trio
async def test_a_failing_receiver_resets_the_stream_and_the_sender_is_told() -> None:
    alice, bob = Node(), Node()

    def take(frame: bytes) -> None:
        if frame == b"bad":
            raise RuntimeError("a bug of the shell")

    bob.take = take
    async with running(alice, bob):
        alice.stack.send(bob.contact, b"bad")
        await until(lambda: alice.lost)
        alice.stack.send(bob.contact, b"good")
        await until(lambda: bob.payloads == [b"bad", b"good"])
        assert alice.gone == []


# -- who is there -------------------------------------------------------------------------------


@in_trio
async def test_a_node_that_does_not_listen_can_ask_and_be_sent_to() -> None:
    alice, bob = Node(listen=()), Node()
    async with running(alice, bob):
        assert alice.stack.addresses == ()
        await alice.ask(bob, b"hello")
        assert bob.requests[0][0] == Contact(alice.peer_id)
        bob.stack.send(Contact(alice.peer_id), b"over your connection")
        await until(lambda: alice.frames)


@in_trio
async def test_identify_tells_the_dialler_where_else_the_peer_listens() -> None:
    alice = Node()
    bob = Node(listen=(LOOPBACK, LOOPBACK.replace("127.0.0.1", "127.0.0.2")))
    async with running(alice, bob):
        one = Contact(bob.peer_id, bob.stack.addresses[:1])
        await alice.ask(one, b"hello")
        await until(lambda: alice.stack.contact(one).addresses == bob.stack.addresses)


@in_trio
async def test_announced_addresses_are_told_in_place_of_those_listened_on() -> None:
    alice, bob = Node(), Node()
    public = "/ip4/192.0.2.7/tcp/4001"
    bob.stack = Stack(bob.identity, [LOOPBACK], announce=[public])
    async with running(alice, bob):
        assert bob.stack.announced == (public,)
        await alice.ask(bob, b"hello")
        await until(lambda: alice.stack.contact(bob.contact).addresses == (public,))


@in_trio
async def test_a_change_of_the_addresses_is_told_to_the_shell_and_to_all_peers() -> None:
    alice, bob = Node(), Node()
    circuit = "/ip4/192.0.2.7/tcp/4001"
    async with running(alice, bob):
        await alice.ask(bob, b"hello")
        here = bob.contact.addresses
        bob.stack.own.circuits([circuit])
        bob.stack.addresses_changed()
        await until(lambda: alice.stack.contact(bob.contact).addresses == (*here, circuit))
        assert bob.moved == [(here, (*here, circuit))]
        bob.stack.addresses_changed()  # nothing new
        bob.stack.own.reach(Reach.CLIENT)
        bob.stack.addresses_changed()
        bob.stack.own.circuits([])
        bob.stack.addresses_changed()
        await until(lambda: alice.stack.contact(bob.contact).addresses == here)
        assert bob.moved[1:] == [(here, here)]


@in_trio
async def test_another_peer_at_the_address_is_not_taken_for_the_one_wanted() -> None:
    alice, mallory = Node(), Node()
    bob = Identity.from_seed(os.urandom(32)).peer_id
    async with running(alice, mallory):
        with pytest.raises(Unreachable, match=r"PeerID|in place of"):
            await alice.ask(Contact(bob, mallory.stack.addresses), b"for bob")
        assert mallory.requests == []


@in_trio
async def test_a_node_does_not_dial_itself() -> None:
    alice = Node()
    async with running(alice):
        with pytest.raises(Unreachable, match="itself"):
            await alice.ask(alice, b"hello?")


@pytest.mark.parametrize("addresses", [(), ("/ip4/127.0.0.1/udp/4001/quic-v1", "nonsense")])
@in_trio
async def test_a_peer_without_a_usable_address_is_unreachable(addresses: tuple[str, ...]) -> None:
    alice = Node()
    bob = Contact(Identity.from_seed(os.urandom(32)).peer_id, addresses)
    async with running(alice):
        with pytest.raises(Unreachable, match="no address"):
            await alice.ask(bob, b"hello?")


@in_trio
async def test_many_who_want_a_peer_dial_it_once() -> None:
    alice, bob = Node(), Node()
    async with running(alice, bob):
        async with trio.open_nursery() as nursery:
            for _ in range(20):
                nursery.start_soon(alice.ask, bob, b"hello")
        assert len(list(bob.stack.swarm.all())) == 1


@in_trio
async def test_whoever_dials_in_vain_is_content_with_a_connection_from_the_peer() -> None:
    (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
    silent = f"/ip4/127.0.0.1/tcp/{listener.socket.getsockname()[1]}"
    alice, bob = Node(), Node()
    async with running(alice, bob), trio.open_nursery() as nursery:
        nursery.start_soon(alice.ask, Contact(bob.peer_id, (silent,)), b"by any way")
        alice.stack.send(Contact(bob.peer_id, (silent,)), b"by any way")
        dialled = await listener.accept()
        assert await bob.ask(alice, b"hello") == b"re:hello"
        await until(lambda: bob.requests and bob.frames, within_s=AT_ONCE_S)
        await dialled.aclose()
    await listener.aclose()


@in_trio
async def test_two_who_dial_each_other_at_once_both_succeed() -> None:
    for _ in range(10):
        alice, bob = Node(), Node()
        async with running(alice, bob):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(alice.ask, bob, b"hello")
                nursery.start_soon(bob.ask, alice, b"hello")
            await alice.ask(bob, b"still there?")
            await bob.ask(alice, b"still there?")
            await wait_all_tasks_blocked(IDLE_S)
            assert alice.gone == bob.gone == []


# -- ends ---------------------------------------------------------------------------------------


@in_trio
async def test_both_ends_of_a_connection_measure_how_far_the_other_is() -> None:
    alice, bob = Node(), Node()
    async with running(alice, bob):
        await alice.ask(bob, b"hello")
        await until(lambda: alice.rtts_us and bob.rtts_us)
        (to_bob_us,), (to_alice_us,) = alice.rtts_us[bob.peer_id], bob.rtts_us[alice.peer_id]
        assert 0 < to_bob_us < AT_ONCE_S * 1_000_000
        assert 0 < to_alice_us < AT_ONCE_S * 1_000_000


@in_trio
async def test_both_hear_of_the_end_of_a_connection_once() -> None:
    alice, bob = Node(), Node()
    async with running(alice, bob):
        await alice.ask(bob, b"hello")
        alice.stack.drop(bob.peer_id, "misbehaves")
        await until(lambda: alice.gone and bob.gone)
        assert alice.gone == [bob.peer_id]
        assert bob.gone == [alice.peer_id]
        await alice.ask(bob, b"again")


@in_trio
async def test_a_shell_that_fails_at_bad_news_does_not_stop_the_network(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Fragile(Node):
        def feed(self, event: NetworkEvent) -> None:
            super().feed(event)
            raise RuntimeError(f"cannot bear {event}")

    alice, bob = Fragile(), Node()
    async with running(alice, bob):
        alice.stack.send(bob.contact, b"frame")
        await until(lambda: bob.frames)
        bob.stack.drop(alice.peer_id, "enough")
        await until(lambda: alice.gone and alice.lost)
        assert await alice.ask(bob, b"still works") == b"re:still works"
    assert "cannot bear Disconnected" in caplog.text
    assert "cannot bear Undelivered" in caplog.text


CHILD = textwrap.dedent(
    """
    import sys, trio
    sys.path[:0] = sys.argv[1:]
    from tests.support.stacks import Node

    async def main():
        node = Node(seed=bytes(range(32)))
        async with trio.open_nursery() as nursery:
            await nursery.start(node.stack.run, node)
            print(node.stack.addresses[0], flush=True)

    trio.run(main)
    """
)


def test_a_killed_peer_is_missed_at_once() -> None:
    paths = [p for p in sys.path if p]
    child = subprocess.Popen([sys.executable, "-c", CHILD, *paths], stdout=subprocess.PIPE)
    try:

        async def story() -> None:
            assert child.stdout is not None
            address = (await trio.to_thread.run_sync(child.stdout.readline)).decode().strip()
            bob = Contact(Identity.from_seed(bytes(range(32))).peer_id, (address,))
            alice = Node()
            async with running(alice):
                await alice.ask(bob, b"hello")
                alice.stack.send(bob, b"frame")
                child.send_signal(signal.SIGKILL)
                await until(lambda: alice.gone == [bob.peer_id], within_s=AT_ONCE_S)
                await until(
                    lambda: [to for to, _ in alice.lost] == [bob.peer_id], within_s=AT_ONCE_S
                )
                with pytest.raises(Unreachable):
                    await alice.ask(bob, b"still there?")

        run(story)
    finally:
        child.kill()
        child.wait()


@in_trio
async def test_a_peer_that_comes_back_is_reached_at_once() -> None:
    alice, bob = Node(), Node(listen=(tcp(free_port()),), seed=bytes(32))
    async with running(alice):
        async with running(bob):
            await alice.ask(bob, b"hello")
            contact = bob.contact
        with pytest.raises(Unreachable):
            await alice.ask(contact, b"gone?")
        again = Node(listen=contact.addresses, seed=bytes(32))
        async with running(again):
            assert again.stack.addresses == contact.addresses
            assert await alice.ask(again, b"hello") == b"re:hello"


@in_trio
async def test_a_stack_that_breaks_raises_and_what_is_pending_ends() -> None:
    alice, bob = Node(listen=(tcp(free_port()),)), Node()
    bob.respond = lambda frame, answer: None
    ends: list[str] = []

    async def ask() -> None:
        try:
            await alice.ask(bob, b"hang")
        except NodeClosed:
            ends.append("ask")

    async def serve() -> None:
        with pytest.RaisesGroup(
            pytest.RaisesExc(RuntimeError, match="broke"), flatten_subgroups=True
        ):
            await alice.stack.run(alice)
        ends.append("run")

    async def broken() -> None:
        raise RuntimeError("libp2p broke")

    async with running(bob), trio.open_nursery() as nursery:
        nursery.start_soon(serve)
        await until(lambda: alice.stack.addresses)
        nursery.start_soon(ask)
        await until(lambda: bob.requests)
        address = alice.stack.addresses
        alice.stack.swarm.nursery.start_soon(broken)
        await until(lambda: len(ends) == 2, within_s=AT_ONCE_S)
        with pytest.raises(NodeClosed):
            await alice.ask(bob, b"more")
        with pytest.raises(NodeClosed):
            alice.stack.send(bob.contact, b"more")
        again = Node(listen=address, seed=alice.identity.seed)
        bob.respond = lambda frame, answer: answer(frame)
        async with running(again):
            assert await again.ask(bob, b"restarted") == b"restarted"


# -- listening ----------------------------------------------------------------------------------


@in_trio
async def test_listening_on_all_interfaces_tells_the_real_ones() -> None:
    alice, bob = Node(), Node(listen=("/ip4/0.0.0.0/tcp/0",))
    async with running(alice, bob):
        assert bob.stack.addresses
        assert all("/0.0.0.0/" not in address for address in bob.stack.addresses)
        assert await alice.ask(bob, b"hello") == b"re:hello"


@pytest.mark.parametrize("listen", ["/ip4/127.0.0.1/udp/1/quic-v1", "/dns4/a.example/tcp/1", "x"])
def test_what_cannot_be_listened_on_is_refused_at_once(listen: str) -> None:
    with pytest.raises(InvalidInput):
        Stack(Identity.from_seed(bytes(32)), [listen])


def test_the_program_that_embeds_it_keeps_its_logging_and_pays_for_what_it_uses() -> None:
    script = textwrap.dedent(
        """
        import logging, sys, trio
        sys.path[:0] = sys.argv[1:]
        import formation_p2p, formation_p2p.command.main
        assert "noise" not in sys.modules  # for those who run a network
        from tests.support.stacks import Node, running

        async def main():
            alice, bob = Node(), Node()
            async with running(alice, bob):
                await alice.ask(bob, b"hello")
                alice.stack.send(bob.contact, b"frame")

        trio.run(main)
        assert logging.getLogger().handlers == []
        # py-libp2p takes 1.2 s of CPU and 48 MB; the others are some of what it brings along.
        heavy = {"aioquic", "grpc", "httpx", "httpx2", "libp2p", "requests", "zeroconf"}
        assert not heavy & set(sys.modules), heavy & set(sys.modules)
        """
    )
    paths = [p for p in sys.path if p]
    done = subprocess.run(
        [sys.executable, "-c", script, *paths], capture_output=True, timeout=HANGS_S, check=True
    )
    assert done.stderr == b""


# -- versions -----------------------------------------------------------------------------------


@pytest.mark.parametrize(("version", "where"), [(VERSION - 1, "there"), (VERSION + 1, "here")])
@in_trio
async def test_nodes_of_two_versions_refuse_each_other_and_say_which_to_upgrade(
    version: int, where: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    alice, bob, carol = Node(), Node(), Node()
    async with running(alice, bob, carol):
        served = bob.stack.served.by_protocol
        served[f"/formation/work/{version}.0.0"] = served.pop(WORK_PROTOCOL)
        for asker, asked in ((alice, bob), (bob, carol)):
            with suppress(Unreachable):  # it may be answered before it is known who asks
                await asker.ask(asked, b"who is near?")
        await until(lambda: bool(alice.stack.incompatible and carol.stack.incompatible))
        for node in (alice, carol):
            ((peer_id, why),) = node.stack.incompatible.items()
            assert peer_id == bob.peer_id
            assert why.startswith(f"it speaks version {version} of Formation's protocols, and")
            assert why.endswith(f"upgrade formation_p2p {where}")
        await until(lambda: alice.gone == [bob.peer_id])
        assert await alice.ask(carol, b"who is near?") == b"re:who is near?"
        with suppress(Unreachable):
            await alice.ask(bob, b"who is near?")
        await until(lambda: alice.gone == [bob.peer_id] * 2)
    assert caplog.text.count("upgrade formation_p2p") == 2, "alice and carol say so once"


@in_trio
async def test_of_nodes_of_other_versions_the_latest_are_remembered() -> None:
    alice = Node()
    async with running(alice):
        for _ in range(MAX_INCOMPATIBLE + 3):
            bob = Node()
            async with running(bob):
                served = bob.stack.served.by_protocol
                served["/formation/work/1.0.0"] = served.pop(WORK_PROTOCOL)
                with suppress(Unreachable):
                    await alice.ask(bob, b"hello")
                await until(lambda: bob.peer_id in alice.stack.incompatible)  # noqa: B023
        assert len(alice.stack.incompatible) == MAX_INCOMPATIBLE

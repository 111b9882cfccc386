"""What the specification demands of a DHT server and client, frame by frame, of our plain node."""

from collections.abc import Awaitable, Callable, Iterator

import pytest
import trio

from formation_p2p.core.effects import Contact
from formation_p2p.core.errors import FormationError
from formation_p2p.core.identity import Identity, peer_id_to_bytes
from formation_p2p.dht.core import kad_pb2, messages
from formation_p2p.dht.core import messages as kad
from formation_p2p.reach.stack import Stack
from tests.interop import peers, records
from tests.interop.plain_node import KAD_PROTOCOL
from tests.support import stacks
from tests.support.loopback import LISTEN
from tests.support.waiting import until, wait_until


class ByHand(stacks.Node):
    """A peer whose frames are written by hand, and that writes down what it is asked."""

    def __init__(self) -> None:
        super().__init__()
        self.stack = Stack(self.identity, LISTEN, kad_protocol=KAD_PROTOCOL)


@pytest.fixture(scope="module")
def ours() -> Iterator[peers.Ours]:
    with peers.ours() as node:
        yield node


def by_hand(story: Callable[[ByHand], Awaitable[None]]) -> None:
    async def with_peer() -> None:
        peer = ByHand()
        async with stacks.running(peer):
            await story(peer)

    stacks.run(with_peer, within_s=30)


def other_id() -> bytes:
    return peer_id_to_bytes(Identity.from_seed(records.content()[:32]).peer_id)


def text(word: str) -> bytes:
    return f"/text/{records.content().hex()}/{word}".encode()


async def refused(peer: ByHand, to: Contact, frame: bytes) -> None:
    """The stream is reset, and the connection lives: the next question is answered."""
    with pytest.raises(FormationError):
        await peer.ask(to, frame, timeout_s=5)
    connection = peer.stack.swarm.connection_to(to.peer_id)
    assert await peer.ask(to, messages.encode(kad.FindNode(b"x"))) is not None
    assert peer.stack.swarm.connection_to(to.peer_id) is connection
    assert peer.gone == []


def test_a_stranger_is_probed_by_find_node_and_never_by_ping(ours: peers.Ours) -> None:
    async def story(peer: ByHand) -> None:
        def answer(frame: bytes, respond: stacks.Answer) -> None:
            wire = kad_pb2.Message.FromString(frame)
            if wire.type == kad_pb2.Message.PING:
                respond(None)  # as a server whose handler fails
            else:
                respond(messages.encode(kad.Nodes(())))

        peer.respond = answer
        assert await peer.ask(ours.contact, messages.encode(kad.FindNode(b"x"))) is not None
        await until(lambda: peer.requests)
        await trio.to_thread.run_sync(wait_until, lambda: ours.knows(peer.peer_id))
        kinds = {kad_pb2.Message.FromString(frame).type for _, frame in peer.requests}
        assert kad_pb2.Message.PING not in kinds

    by_hand(story)


def test_of_several_providers_the_sender_is_recorded(ours: peers.Ours) -> None:
    name = records.content()

    async def story(peer: ByHand) -> None:
        wire = kad_pb2.Message(type=kad_pb2.Message.ADD_PROVIDER, key=name)
        wire.providerPeers.add(id=other_id())
        wire.providerPeers.add(id=peer_id_to_bytes(peer.peer_id))
        await peer.stack.ask(
            ours.contact, wire.SerializeToString(), timeout_s=5, expects_answer=False
        )
        await trio.to_thread.run_sync(wait_until, lambda: ours.held_providers(name))
        assert [each.peer_id for each in ours.held_providers(name)] == [peer.peer_id]

    by_hand(story)


def test_what_is_no_message_costs_the_stream_alone(ours: peers.Ours) -> None:
    async def story(peer: ByHand) -> None:
        long = kad_pb2.Message(type=kad_pb2.Message.PUT_VALUE, key=b"/text/long")
        long.record.key, long.record.value = b"/text/long", bytes(4097)
        for frame in (
            b"\xff" * 16,
            long.SerializeToString(),
            kad_pb2.Message(type=kad_pb2.Message.GET_VALUE, key=bytes(129)).SerializeToString(),
        ):
            # A request that breaks its stream is asked twice, and three are within what is borne.
            await refused(peer, ours.contact, frame)
            await trio.sleep(2)

    by_hand(story)


def test_a_value_under_another_key_is_refused_and_not_kept(ours: peers.Ours) -> None:
    name, other = text("a"), text("b")

    async def story(peer: ByHand) -> None:
        wire = kad_pb2.Message(type=kad_pb2.Message.PUT_VALUE, key=name)
        wire.record.key, wire.record.value = other, b"value"
        await refused(peer, ours.contact, wire.SerializeToString())

    by_hand(story)
    assert ours.held_value(name) is None
    assert ours.held_value(other) is None


def test_a_value_that_is_not_valid_is_refused_by_a_reset(ours: peers.Ours) -> None:
    async def story(peer: ByHand) -> None:
        put = kad.PutValue(b"/nowhere/" + records.content(), b"value")
        await refused(peer, ours.contact, messages.encode(put))

    by_hand(story)


def test_a_value_is_told_with_when_it_came(ours: peers.Ours) -> None:
    name = text("c")

    async def story(peer: ByHand) -> None:
        put = messages.encode(kad.PutValue(name, b"value"))
        assert await peer.ask(ours.contact, put) is not None
        raw = await peer.ask(ours.contact, messages.encode(kad.GetValue(name)))
        record = kad_pb2.Message.FromString(raw or b"").record
        assert (record.key, record.value) == (name, b"value")
        assert record.timeReceived.startswith("20")
        assert record.timeReceived.endswith("Z")

    by_hand(story)


@pytest.mark.parametrize("kind", peers.FOREIGN)
def test_who_lacks_a_value_that_was_found_is_given_it(kind: str) -> None:
    name, value = records.VALUE_OF[kind]()
    with peers.ours() as reader, peers.ours() as holder, peers.FOREIGN[kind]() as foreign:
        holder.join(foreign.contact)
        reader.join(foreign.contact)
        wait_until(lambda: reader.knows(holder.contact.peer_id))
        assert holder.put_only(holder.contact, name, value) == (holder.contact.peer_id,)
        assert reader.get_value(name) == value

        async def story(peer: ByHand) -> None:
            async def is_held() -> bool:
                raw = await peer.ask(foreign.contact, messages.encode(kad.GetValue(name)))
                return kad_pb2.Message.FromString(raw or b"").record.value == value

            await until(is_held)

        by_hand(story)

"""What other implementations need to hear, and how they say things; each was met on the wire."""

import random
from collections.abc import Sequence
from datetime import UTC, datetime

import pytest

from formation_p2p.core.effects import Contact
from formation_p2p.core.errors import ProtocolViolation
from formation_p2p.core.identity import peer_id_to_bytes
from formation_p2p.dht.core import kad_pb2
from formation_p2p.dht.core.kademlia import Kademlia
from formation_p2p.dht.core.messages import (
    AddProvider,
    FindNode,
    GetProviders,
    GetValue,
    Nodes,
    Provider,
    Providers,
    PutValue,
    Stored,
    Value,
    encode,
)
from formation_p2p.dht.core.operations import Searched
from formation_p2p.dht.core.rpc import RequestReceived, ResponseReceived, SendRequest, SendResponse
from tests.interop.plain_records import Found, PlainRecords, ValueRecord
from tests.support import dht_world as world
from tests.support.dht_messages import parse_reply, parse_request
from tests.support.dht_world import NOW, Alone

ALICE, BOB, CAROL = map(world.contact, ("alice", "bob", "carol"))


def test_a_value_is_told_with_its_name_which_go_and_js_compare_with_what_they_asked_for() -> None:
    name = b"/pk/" + peer_id_to_bytes(ALICE.peer_id)
    records = PlainRecords()
    dht: Kademlia[Found] = Kademlia(BOB.peer_id, records, random.Random(0))
    records.keep(CAROL, PutValue(name, name[6:]), NOW)
    dht.handle(RequestReceived(1, CAROL, GetValue(name)), NOW)
    [reply] = [effect.message for effect in dht.take()[0] if isinstance(effect, SendResponse)]
    assert reply == Value(name[6:], ())
    assert reply is not None
    record = kad_pb2.Message.FromString(encode(reply)).record
    assert (record.key, record.value) == (name, name[6:])
    assert record.timeReceived == datetime.fromtimestamp(NOW.unix_s, UTC).isoformat()[:-6] + "Z"


def test_of_several_providers_the_one_that_sends_them_counts() -> None:
    wire = kad_pb2.Message(type=kad_pb2.Message.ADD_PROVIDER, key=b"name")
    for contact in (ALICE, BOB, CAROL):
        wire.providerPeers.add(id=peer_id_to_bytes(contact.peer_id))
    raw = wire.SerializeToString()
    request = parse_request(raw, BOB.peer_id)
    assert request == AddProvider(b"name", Provider(Contact(BOB.peer_id)))
    for sender in (world.contact("dave").peer_id, None):
        with pytest.raises(ProtocolViolation, match="none of them its sender"):
            parse_request(raw, sender)


def test_a_value_under_another_key_than_its_own_is_no_request() -> None:
    wire = kad_pb2.Message.FromString(encode(PutValue(b"name", b"value")))
    wire.record.key = b"another"
    with pytest.raises(ProtocolViolation, match="another key"):
        parse_request(wire.SerializeToString())


def test_the_nearest_that_have_no_value_or_a_worse_one_are_given_the_best() -> None:
    class Greatest:
        def validate(self, name: bytes, value: bytes) -> bool:
            return True

        def select(self, name: bytes, values: Sequence[bytes]) -> int:
            return values.index(max(values))

    values = (b"2", b"1", None)
    dht: Kademlia[Found] = Kademlia(
        ALICE.peer_id, PlainRecords({b"n": Greatest()}), random.Random(0)
    )
    crowd = {world.contact(name): value for name, value in zip("abc", values, strict=True)}
    for contact in crowd:
        dht.table.saw(contact, NOW.mono_s)
    name = b"/n/x"
    operation = dht.search(GetValue(name), NOW, "a test")
    ended: list[object] = []
    corrections = []
    while not ended:
        effects, ended = dht.take()  # type: ignore[assignment]
        for sent in effects:
            assert isinstance(sent, SendRequest)
            if isinstance(sent.message, PutValue):
                corrections.append(sent)
            else:
                reply = Value(crowd[sent.to], (), name)
                dht.handle(ResponseReceived(sent.request_id, sent.to, reply), NOW)
    [searched] = ended
    assert isinstance(searched, Searched)
    assert searched.operation == operation
    assert searched.found == (ValueRecord(name, b"2"),)
    assert {sent.to: sent.message for sent in corrections} == {
        contact: PutValue(name, b"2") for contact, value in crowd.items() if value != b"2"
    }
    # How they took it is of no consequence.
    for sent in corrections:
        dht.handle(ResponseReceived(sent.request_id, sent.to, Stored(name, b"2")), NOW)
    assert dht.take() == ([], [])


def test_addresses_that_end_in_the_peers_own_id_are_read_without_it() -> None:
    with_id = Contact(BOB.peer_id, tuple(f"{each}/p2p/{BOB.peer_id}" for each in BOB.addresses))
    raw = encode(Providers((Provider(with_id),), (with_id,)))
    assert parse_reply(raw, GetProviders(b"name")) == Providers((Provider(BOB),), (BOB,))


def test_who_is_asked_for_itself_names_itself_which_go_wants_before_it_takes_anyone_in() -> None:
    alice = Alone()
    itself = Contact(ALICE.peer_id)
    name = peer_id_to_bytes(ALICE.peer_id)
    assert alice.reply_to(FindNode(name)) == Nodes((itself,))
    crowd = tuple(world.contact(f"peer {number}") for number in range(20))
    crowded = Alone(knows=crowd)
    closer = crowded.reply_to(FindNode(name))
    assert isinstance(closer, Nodes)
    assert closer.closer[0] == itself
    assert len(closer.closer) == 20

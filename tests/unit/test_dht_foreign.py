"""What other implementations need to hear, and how they say things; each was met on the wire."""

import random

from formation_p2p.core.dht import kad_pb2
from formation_p2p.core.dht.codec import encode, parse_reply
from formation_p2p.core.dht.kademlia import Kademlia
from formation_p2p.core.dht.messages import (
    FindNode,
    GetProviders,
    GetValue,
    Nodes,
    Provider,
    Providers,
    PutValue,
    Value,
)
from formation_p2p.core.dht.rpc import RequestReceived, SendResponse
from formation_p2p.core.effects import Contact
from formation_p2p.core.identity import peer_id_to_bytes
from tests.interop.plain_records import Found, PlainRecords
from tests.support import dht_world as world
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

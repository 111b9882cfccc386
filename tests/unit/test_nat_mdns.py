"""A node on one link of a LAN: whom it finds, what it tells, how often, and what it ignores."""

import ipaddress
import itertools
import random

from hypothesis import given
from hypothesis import strategies as st

from formation_p2p.core.effects import Contact
from formation_p2p.core.identity import PeerId
from formation_p2p.reach.core import mdns
from formation_p2p.reach.core.mdns import Link
from formation_p2p.records.core.addresses import MAX_ADDRESSES
from tests.support.dht_world import person

SERVICE = mdns.service_name(b"n" * 32)
SUBNETS = (ipaddress.ip_network("10.0.0.0/24"), ipaddress.ip_network("fd00::/64"))
HERE, THERE, AWAY = map(ipaddress.ip_address, ("10.0.0.1", "10.0.0.2", "192.0.2.1"))
ALICE, BOB, CAROL = (person(name).peer_id for name in ("alice", "bob", "carol"))


def link(
    own: PeerId = ALICE, addresses: tuple[str, ...] = ("/ip4/10.0.0.1/tcp/1",), now_s: float = 0.0
) -> Link:
    return Link(own, SERVICE, SUBNETS, addresses, random.Random(7), now_s)


def said(link: Link, until_s: float) -> list[tuple[float, mdns.Message]]:
    """What it says by then, and when."""
    messages = []
    while link.at_s <= until_s:
        now_s = link.at_s
        messages += [(now_s, mdns.parse(raw)) for raw in link.due(now_s)]
    return messages


def told(link: Link, until_s: float) -> list[float]:
    return [at_s for at_s, message in said(link, until_s) if message.is_response]


def response(*texts: str, name: mdns.Name = (b"x", *SERVICE), ttl_s: int = 120) -> bytes:
    record = mdns.Record(name, mdns.TXT, ttl_s, texts=tuple(map(str.encode, texts)))
    return mdns.encode(mdns.Message(True, (), (record,)))


def of(peer: PeerId, address: str = "/ip4/10.0.0.2/tcp/4001") -> str:
    return f"dnsaddr={address}/p2p/{peer}"


def query(kind: int = mdns.PTR, name: mdns.Name = SERVICE, *known: mdns.Record) -> bytes:
    return mdns.encode(mdns.Message(False, (mdns.Question(name, kind),), known))


def hear(link: Link, raw: bytes, now_s: float = 1.0) -> tuple[Contact, ...]:
    return link.received(raw, THERE, mdns.PORT, now_s)


def test_two_nodes_find_each_other_at_once() -> None:
    alice, bob = link(), link(BOB, ("/ip4/10.0.0.2/tcp/2", "/ip6/fd00::2/tcp/2"))
    found: list[Contact] = []
    for node, other in ((alice, bob), (bob, alice)):
        sender = HERE if node is alice else THERE
        for raw in (each for _ in range(2) for each in node.due(node.at_s)):
            found += other.received(raw, sender, mdns.PORT, 0.2)
    assert found == [
        Contact(ALICE, ("/ip4/10.0.0.1/tcp/1",)),
        Contact(BOB, ("/ip4/10.0.0.2/tcp/2", "/ip6/fd00::2/tcp/2")),
    ]


def test_the_name_of_the_service_tells_networks_apart_and_fits_in_a_label() -> None:
    other = mdns.service_name(b"o" * 32)
    assert other != SERVICE
    assert (other[0][:5], other[1:]) == (b"_p2p-", (b"_udp", b"local"))
    assert len(other[0]) <= mdns.MAX_LABEL_BYTES
    assert hear(link(), response(of(BOB), name=(b"x", *other))) == ()


def test_it_asks_when_it_starts_and_ever_more_rarely() -> None:
    asked = [at_s for at_s, each in said(link(addresses=()), 20_000) if not each.is_response]
    waits = [round(after - before) for before, after in itertools.pairwise(asked)]
    assert waits[:12] == [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048]
    assert set(waits[12:]) == {mdns.LAST_QUERY_S}


def test_it_tells_of_itself_twice_when_it_starts() -> None:
    first, second = told(link(), 60.0)
    assert first <= mdns.DELAY_S[1]
    assert second == first + mdns.AGAIN_S


def test_it_answers_those_who_ask_once_a_second_at_most() -> None:
    alice = link()
    said(alice, 10.0)
    for step in range(100):
        hear(alice, query(), 10 + step / 100)
    hear(alice, query(mdns.ANY), 10.99)
    at_s = told(alice, 60.0)
    assert len(at_s) == 1
    hear(alice, query(), at_s[0])
    assert told(alice, 60.0) == [at_s[0] + mdns.AGAIN_S]


def test_it_says_nothing_where_it_is_known_or_does_not_listen_or_is_not_asked() -> None:
    alice = link()
    ((_, about),) = [each for each in said(alice, 0.5) if each[1].is_response]
    said(alice, 10.0)
    known = next(each for each in about.records if each.kind == mdns.PTR)
    hear(alice, query(mdns.PTR, SERVICE, known), 10.0)
    hear(alice, query(mdns.TXT), 10.0)
    hear(alice, query(mdns.PTR, (b"x", *SERVICE)), 10.0)
    assert told(alice, 20.0) == []
    old = mdns.Record(known.name, known.kind, mdns.TTL_S // 2 - 1, target=known.target)
    hear(alice, query(mdns.PTR, SERVICE, old), 20.0)
    assert len(told(alice, 30.0)) == 1
    silent = link(addresses=())
    hear(silent, query(), 1.0)
    assert told(silent, 60.0) == []


def test_who_is_not_on_the_link_gets_no_answer_and_is_not_believed() -> None:
    alice = link()
    said(alice, 10.0)
    alice.received(query(), AWAY, mdns.PORT, 10.0)
    assert told(alice, 20.0) == []
    assert alice.received(response(of(BOB)), AWAY, mdns.PORT, 10.0) == ()
    assert alice.received(response(of(BOB)), THERE, 5354, 10.0) == ()  # RFC 6762, section 6
    neighbour = ipaddress.ip_address("fe80::1")
    assert alice.received(response(of(BOB)), neighbour, mdns.PORT, 10.0) != ()


def test_only_addresses_of_the_link_are_taken() -> None:
    contacts = hear(
        link(),
        response(
            of(BOB),
            of(BOB, "/ip6/fd00:0::9/tcp/04001"),
            of(BOB, "/ip4/192.0.2.1/tcp/4001"),  # a third party's
            of(BOB, "/ip4/127.0.0.1/tcp/4001"),
            of(BOB, "/ip4/10.0.0.2/tcp/0"),
            of(BOB, "/ip4/10.0.0.2/tcp/65536"),
            of(BOB, "/ip6/10.0.0.2/tcp/4001"),
            of(BOB, "/ip4/10.0.0.999/tcp/4001"),
            of(BOB, "/ip4/10.0.0.2/udp/4001"),
            of(BOB, "/dns4/example.org/tcp/4001"),
            of(PeerId("12D3KooWnobody")),
            of(ALICE),
            "dnsaddr=",
            "other=x",
        ),
    )
    assert contacts == (Contact(BOB, ("/ip4/10.0.0.2/tcp/4001", "/ip6/fd00::9/tcp/4001")),)


def test_what_does_not_name_the_network_is_told_at_a_glance() -> None:
    alice = link()
    assert alice.is_of_service(response(of(BOB)))
    assert alice.is_of_service(query().upper())
    assert not alice.is_of_service(query(mdns.PTR, mdns.service_name(b"o" * 32)))


def test_what_is_no_record_of_a_peer_is_ignored() -> None:
    alice = link()
    assert hear(alice, response(of(BOB), ttl_s=0)) == ()  # it leaves
    assert hear(alice, response(of(BOB), name=(b"x", b"y", *SERVICE))) == ()
    assert hear(alice, response(of(BOB))[:-1]) == ()
    pointer = mdns.Record(SERVICE, mdns.PTR, 120, target=(b"x", *SERVICE))
    assert hear(alice, mdns.encode(mdns.Message(True, (), (pointer,)))) == ()


def test_a_peer_is_told_of_again_after_a_while_or_at_another_address() -> None:
    alice = link()
    assert len(hear(alice, response(of(BOB)), 1.0)) == 1
    assert hear(alice, response(of(BOB)), 2.0) == ()
    assert len(hear(alice, response(of(BOB, "/ip4/10.0.0.3/tcp/1")), 3.0)) == 1
    assert len(hear(alice, response(of(BOB)), 1.0 + mdns.FOUND_AGAIN_S)) == 1


def test_one_message_tells_of_a_few_peers_and_addresses() -> None:
    alice = link()
    peers = [person(f"peer {number}").peer_id for number in range(6)]
    contacts = hear(alice, response(*map(of, peers), of(peers[0], "/ip4/10.0.0.9/tcp/1")))
    assert [each.peer_id for each in contacts] == peers[: mdns.MAX_PEERS_PER_MESSAGE]
    assert len(contacts[0].addresses) == 2
    many = (of(BOB, f"/ip4/10.0.0.{number}/tcp/1") for number in range(10, 25))
    (bob,) = hear(alice, response(*many))
    assert len(bob.addresses) == MAX_ADDRESSES


def test_a_stranger_who_names_any_number_of_peers_costs_a_few_dials_a_minute() -> None:
    alice = link()

    def named_by(host: str, count: int, at_s: float) -> int:
        sender = ipaddress.ip_address(host)
        names = (response(of(person(f"{host} {n} {at_s}").peer_id)) for n in range(count))
        return sum(len(alice.received(raw, sender, mdns.PORT, at_s)) for raw in names)

    assert named_by("10.0.0.66", 20, 1.0) == mdns.MAX_FOUND_PER_SENDER
    assert named_by("10.0.0.67", 1, 1.0) == 1
    others = sum(named_by(f"10.0.0.{host}", 9, 2.0) for host in range(100, 120))
    assert others == mdns.MAX_FOUND - mdns.MAX_FOUND_PER_SENDER - 1
    assert named_by("10.0.0.66", 20, 90.0) == mdns.MAX_FOUND_PER_SENDER


@given(st.binary(max_size=200), st.sampled_from([0x0000, 0x8400]), st.integers(0, 3))
def test_any_bytes_are_survived(tail: bytes, flags: int, count: int) -> None:
    alice = link()
    head = bytes(2) + flags.to_bytes(2, "big") + bytes((0, count, 0, count)) + bytes(4)
    name = b"".join(bytes((len(label),)) + label for label in SERVICE) + b"\0"
    contacts = hear(alice, head + name + tail)
    assert all(contact.peer_id != ALICE for contact in contacts)
    assert len(said(alice, 100.0)) < 12

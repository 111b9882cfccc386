"""Networks of all four implementations."""

from contextlib import ExitStack
from functools import partial
from itertools import pairwise

from formation_p2p.core.identity import PeerId, key_of_peer
from formation_p2p.core.keyspace import distance
from tests.interop import peers, records
from tests.support.waiting import wait_until

KINDS = {"ours": peers.ours, **peers.FOREIGN}


def test_a_lookup_through_nodes_of_every_kind_finds_the_nearest() -> None:
    with ExitStack() as stack:
        # A chain in which nobody knows more than who came before: ours, go, js, py, ours, …
        nodes: list[peers.Node] = [
            stack.enter_context(start()) for start in [*KINDS.values(), *KINDS.values()]
        ]
        for before, node in pairwise(nodes):
            node.join(before.contact)
        everybody = {node.contact.peer_id for node in nodes}
        target = nodes[0].contact.peer_id
        for node in nodes:
            wait_until(partial(finds, node, target, everybody - {node.contact.peer_id}))
        ours = nodes[4]
        nearest = sorted(
            everybody - {ours.contact.peer_id},
            key=lambda peer_id: distance(key_of_peer(peer_id), key_of_peer(target)),
        )
        assert list(ours.closest(target)) == nearest


def test_what_one_implementation_stores_another_finds_through_us() -> None:
    provided = {kind: records.content() for kind in peers.FOREIGN}
    providers = {}
    values = {}
    with peers.ours() as ours:
        for kind, start in peers.FOREIGN.items():
            with start() as writer:
                writer.join(ours.contact)
                writer.provide(provided[kind])
                providers[kind] = writer.contact
                values[kind] = [records.VALUE_OF[kind]()]
                if kind == "js":
                    values[kind].append(records.text())  # for py, which reads no other
                for name, value in values[kind]:
                    writer.put_value(name, value)
                wait_until(partial(ours.held_providers, provided[kind]))
        # The writers are gone: what is found now was kept by our node.
        for kind, start in peers.FOREIGN.items():
            with start() as reader:
                reader.join(ours.contact)
                for writer_kind, name in provided.items():
                    found = {each.peer_id for each in reader.find_providers(name)}
                    assert found == {providers[writer_kind].peer_id}, f"{kind} of {writer_kind}"
                for written in values.values():
                    for name, value in written:
                        if readable(kind, name):
                            assert reader.get_value(name) == value


def finds(node: peers.Node, target: PeerId, others: set[PeerId]) -> bool:
    return others <= set(node.closest(target))


def readable(kind: str, name: bytes) -> bool:
    """See `records.VALUE_OF`."""
    return kind == "js" or name.startswith(b"/pk/") == (kind == "go")

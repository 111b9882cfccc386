"""Every request of the DHT between our node and each of the others, in both directions."""

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass

import pytest

from tests.interop import peers, records
from tests.support.waiting import wait_until


@dataclass
class World:
    """Two foreign nodes know each other, and ours joined through the first of them."""

    kind: str
    ours: peers.Ours
    first: peers.Node
    second: peers.Node

    def value(self) -> tuple[bytes, bytes]:
        return records.VALUE_OF[self.kind]()


@pytest.fixture(scope="module", params=peers.FOREIGN)
def world(request: pytest.FixtureRequest) -> Iterator[World]:
    start = peers.FOREIGN[request.param]
    with ExitStack() as stack:
        first, second = stack.enter_context(start()), stack.enter_context(start())
        ours = stack.enter_context(peers.ours())
        second.join(first.contact)
        wait_until(lambda: first.knows(second.contact.peer_id))
        ours.join(first.contact)
        wait_until(lambda: ours.knows(second.contact.peer_id))
        yield World(request.param, ours, first, second)


# -- our node asks ---------------------------------------------------------------------------------


def test_we_find_a_node_that_another_tells_of(world: World) -> None:
    with peers.ours() as newcomer:
        newcomer.join(world.first.contact)
        assert newcomer.knows(world.second.contact.peer_id)


def test_we_put_a_value(world: World) -> None:
    name, value = world.value()
    first = world.first.contact
    assert world.ours.put_only(first, name, value) == (first.peer_id,)
    assert world.ours.held_value(name) is None  # so that only the other can tell
    assert world.first.get_value(name) == value


def test_we_get_a_value(world: World) -> None:
    name, value = world.value()
    world.first.put_value(name, value)
    with peers.ours() as newcomer:
        newcomer.join(world.first.contact)
        assert newcomer.held_value(name) is None
        assert newcomer.get_value(name) == value


def test_we_provide(world: World) -> None:
    name = records.content()
    first = world.first.contact
    assert world.ours.provide_only(first, name) == (first.peer_id,)
    assert world.ours.held_providers(name) == ()  # so that only the other can tell
    wait_until(lambda: world.ours.contact in world.first.find_providers(name))


def test_we_find_providers(world: World) -> None:
    name = records.content()
    world.first.provide(name)
    with peers.ours() as newcomer:
        newcomer.join(world.first.contact)
        assert newcomer.held_providers(name) == ()
        wait_until(lambda: world.first.contact in newcomer.find_providers(name))


# -- our node is asked -----------------------------------------------------------------------------


def test_another_finds_a_node_that_we_tell_of(world: World) -> None:
    with peers.FOREIGN[world.kind]() as newcomer:
        newcomer.join(world.ours.contact)
        wait_until(lambda: newcomer.knows(world.second.contact.peer_id))


def test_another_puts_a_value_to_us(world: World) -> None:
    name, value = world.value()
    world.first.put_value(name, value)
    wait_until(lambda: world.ours.held_value(name) == value)


def test_another_gets_a_value_from_us(world: World) -> None:
    name, value = world.value()
    ours = world.ours.contact
    assert world.ours.put_only(ours, name, value) == (ours.peer_id,)
    assert world.first.get_value(name) == value


def test_another_provides_to_us(world: World) -> None:
    name = records.content()
    world.first.provide(name)
    wait_until(lambda: world.ours.held_providers(name) == (world.first.contact,))


def test_another_finds_providers_with_us(world: World) -> None:
    name = records.content()
    ours = world.ours.contact
    assert world.ours.provide_only(ours, name) == (ours.peer_id,)
    assert ours in world.first.find_providers(name)

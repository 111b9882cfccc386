"""Streams that break as the contract of the work protocol allows, and no worse."""

from __future__ import annotations

import random
from typing import Any

import pytest

from formation_p2p.leases.core.messages import Release
from formation_p2p.leases.core.session import Disconnected, Received, Undelivered
from formation_p2p.peer.core.effects import PeerEffect
from formation_p2p.peer.core.events import PeerEvent
from simulations.simulator.node import SimNode
from simulations.simulator.streams import DEAD_S, OPEN_S, UNSURE_S, Streams
from simulations.simulator.world import LATENCY_S, World


class Net:
    """alice and bob, who say numbers to each other, and what each hears."""

    def __init__(self, seed: int = 1) -> None:
        self.world = World(seed, lean=True)
        self.streams = self.world.streams = Streams(self.world, random.Random(seed))
        self.alice, self.bob = self.world.add("alice"), self.world.add("bob")
        self.world.elapse(2)
        self.heard: list[tuple[float, str, PeerEvent]] = []
        self.world.witness = self._saw

    def _saw(self, node: SimNode, event: PeerEvent, effects: list[PeerEffect]) -> None:
        if isinstance(event, Received | Undelivered | Disconnected):
            self.heard.append((self.world.now_s, node.name, event))

    def say(self, sender: SimNode, receiver: SimNode, *numbers: int) -> None:
        for number in numbers:
            self.streams.send(sender, receiver, Release(str(number)))

    def numbers(self, name: str) -> list[int]:
        return [
            int(event.message.lease_id)
            for _, who, event in self.heard
            if who == name and isinstance(event, Received) and isinstance(event.message, Release)
        ]

    def reported(self, name: str, kind: type[Any]) -> list[Any]:
        return [event for _, who, event in self.heard if who == name and isinstance(event, kind)]


@pytest.fixture
def net() -> Net:
    return Net()


def test_both_use_the_stream_that_one_has_opened(net: Net) -> None:
    net.say(net.alice, net.bob, 1)
    net.world.elapse(1)
    net.say(net.bob, net.alice, 2)
    net.world.elapse(1)
    net.streams.lose(net.alice, net.bob)
    net.world.elapse(1)
    assert len(net.reported("alice", Undelivered)) == len(net.reported("bob", Undelivered)) == 1


def test_two_who_open_one_at_once_have_two(net: Net) -> None:
    net.say(net.alice, net.bob, 1)
    net.say(net.bob, net.alice, 2)
    net.world.elapse(1)
    assert (net.numbers("alice"), net.numbers("bob")) == ([2], [1])
    [streams] = net.streams._streams.values()
    assert len(streams) == 2


def test_a_stream_that_breaks_loses_the_last_frames_and_no_others() -> None:
    kept = set()
    for seed in range(20):
        net = Net(seed)
        net.say(net.alice, net.bob, *range(10))
        net.streams.lose(net.alice, net.bob)
        net.world.elapse(5)
        heard = list(dict.fromkeys(net.numbers("bob")))
        assert heard == list(range(len(heard)))
        [lost] = net.reported("alice", Undelivered)
        assert lost.to == net.bob.identity.peer_id
        assert net.reported("bob", Undelivered) == net.reported("alice", Disconnected) == []
        kept.add(len(heard))
    assert len(kept) > 3


@pytest.mark.at_length
def test_what_a_broken_stream_still_brings_may_come_after_the_next_and_twice() -> None:
    late = twice = False
    for seed in range(100):  # one frame in fifty comes twice
        net = Net(seed)
        net.say(net.alice, net.bob, *range(5))
        net.streams.lose(net.alice, net.bob)
        net.say(net.alice, net.bob, *range(5, 10))
        net.world.elapse(5)
        heard = net.numbers("bob")
        assert [number for number in heard if number >= 5] == list(range(5, 10))
        late |= list(dict.fromkeys(heard)) != sorted(set(heard))
        twice |= len(heard) > len(set(heard))
    assert late
    assert twice


def test_who_said_nothing_for_long_is_not_told(net: Net) -> None:
    net.say(net.alice, net.bob, 1)
    net.world.elapse(UNSURE_S + 1)
    net.streams.lose(net.alice, net.bob)
    net.world.elapse(1)
    assert net.reported("alice", Undelivered) == []


def test_when_a_connection_breaks_both_are_told(net: Net) -> None:
    net.say(net.alice, net.bob, 1)
    net.world.elapse(1)
    net.streams.disconnect(net.alice, net.bob)
    net.world.elapse(1)
    assert len(net.reported("alice", Disconnected)) == len(net.reported("bob", Disconnected)) == 1


def test_what_was_sent_into_a_cut_arrives_when_it_is_healed_soon(net: Net) -> None:
    net.say(net.alice, net.bob, 1)
    net.world.elapse(1)
    net.world.cut(net.alice, net.bob)
    net.say(net.alice, net.bob, 2, 3)
    net.world.elapse(DEAD_S / 2)
    assert net.numbers("bob") == [1]
    net.world.heal(net.alice, net.bob)
    net.say(net.alice, net.bob, 4)
    net.world.elapse(DEAD_S)
    assert net.numbers("bob") == [1, 2, 3, 4]
    assert net.reported("alice", Undelivered) == []


def test_what_flies_while_it_is_cut_and_healed_arrives_once(net: Net) -> None:
    net.say(net.alice, net.bob, 1)
    net.world.cut(net.alice, net.bob)
    net.world.heal(net.alice, net.bob)
    net.world.heal(net.alice, net.bob)  # of what is not cut: nothing
    net.world.elapse(1)
    assert net.numbers("bob") == [1]


def test_a_cut_that_lasts_breaks_the_connection(net: Net) -> None:
    net.say(net.alice, net.bob, 1)
    net.world.elapse(1)
    net.world.cut(net.alice, net.bob)
    net.world.elapse(1)
    net.say(net.alice, net.bob, 2)
    net.world.elapse(DEAD_S + 1)
    assert len(net.reported("alice", Undelivered)) == 1
    assert len(net.reported("bob", Disconnected)) == 1
    net.say(net.alice, net.bob, 3)  # no session can be opened
    net.world.elapse(OPEN_S + 1)
    assert len(net.reported("alice", Undelivered)) == 2
    net.world.heal(net.alice, net.bob)
    net.say(net.alice, net.bob, 4)
    net.world.elapse(1)
    assert net.numbers("bob") == [1, 4]


def test_who_dies_is_missed_at_once_and_whose_machine_does_later(net: Net) -> None:
    net.say(net.alice, net.bob, 1)
    net.world.elapse(1)
    net.world.kill(net.bob)
    net.world.elapse(1)
    assert len(net.reported("alice", Undelivered)) == len(net.reported("alice", Disconnected)) == 1
    net.say(net.alice, net.bob, 2)
    net.world.elapse(3 * LATENCY_S)
    assert len(net.reported("alice", Undelivered)) == 2

    net = Net(2)
    net.say(net.alice, net.bob, 1)
    net.world.elapse(1)
    net.world.vanish(net.bob)
    net.world.elapse(1)
    net.say(net.alice, net.bob, 2)
    net.world.elapse(DEAD_S - 2)
    assert net.reported("alice", Undelivered) == []
    net.world.elapse(2)
    assert len(net.reported("alice", Undelivered)) == 1


def test_the_next_life_knows_nothing_of_the_last_ones_streams(net: Net) -> None:
    net.say(net.alice, net.bob, 1)
    net.say(net.bob, net.alice, 1)
    net.world.elapse(1)
    net.world.vanish(net.bob)
    net.say(net.alice, net.bob, 2)
    net.world.elapse(1)
    net.world.restart(net.bob)
    net.world.elapse(1)
    assert len(net.reported("alice", Undelivered)) == 1
    net.say(net.alice, net.bob, 3)
    net.world.elapse(DEAD_S + 1)
    assert net.numbers("bob") == [1, 3]
    assert net.reported("bob", Undelivered) == net.reported("bob", Disconnected) == []


def test_a_life_that_began_behind_a_cut_is_found_out_when_it_heals(net: Net) -> None:
    net.say(net.alice, net.bob, 1)
    net.world.elapse(1)
    net.world.cut(net.alice, net.bob)
    net.world.kill(net.bob)
    net.world.restart(net.bob)
    net.world.elapse(1)
    assert net.reported("alice", Undelivered) == []
    net.world.heal(net.alice, net.bob)
    net.world.elapse(1)
    assert len(net.reported("alice", Undelivered)) == 1


def test_what_a_broken_stream_brings_never_reaches_another_life() -> None:
    for seed in range(10):
        net = Net(seed)
        net.say(net.alice, net.bob, *range(10))
        net.streams.lose(net.alice, net.bob)
        net.world.kill(net.bob)
        net.world.restart(net.bob)
        net.world.elapse(5)
        assert net.numbers("bob") == []

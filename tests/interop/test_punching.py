"""Hole punching with go-libp2p: our node and p2pd, each behind a router that lets in answers alone.
One dials the other over a circuit through our gate, and the connection becomes direct.

p2pd believes where others see it come from once four of them agree, and punches then.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import pytest

from formation_p2p.core.effects import Contact
from formation_p2p.core.identity import PeerId
from simulations import spaces
from simulations.nat.lab import WAN, Forbidden, Lab
from tests.interop import fetch, p2pd, peers
from tests.support.routers import REQUIRED
from tests.support.waiting import wait_until

ANYWHERE: Final = "/ip4/0.0.0.0/tcp/4001"
# Beside the gate, each of its own address.
OBSERVERS: Final = 3
# Its roles are reversed: where ours listens, both ends serve, until ours becomes the client after a
# second, and the next round comes after half a minute. Where ours dials, two attempts fail at once,
# and the third has the roles swapped; on a busy machine that may fail too, and p2pd may end the
# circuit. It tries no more on that connection then, but on another one.
DIRECT_S: Final = 100.0
ROUND_S: Final = 15.0
ROUNDS: Final = 8
COUNTED_S: Final = 10.0
LOOK_S: Final = 0.05
# Until a gate has given a place, and a daemon believes that it is behind a router.
START_S: Final = 60.0
PUNCHER: Final = ("-relay=1", "-autoRelay", "-forceReachabilityPrivate", "-autonat")


@dataclass(frozen=True)
class World:
    lab: Lab
    gate: peers.Program

    @property
    def gate_address(self) -> str:
        return f"{self.gate.contact.addresses[0]}/p2p/{self.gate.contact.peer_id}"

    def circuit_to(self, peer: PeerId) -> Contact:
        return Contact(peer, (f"{self.gate_address}/p2p-circuit",))

    @contextmanager
    def ours(self, name: str) -> Iterator[tuple[peers.Program, str]]:
        """Behind a router, with the address of that."""
        router = self.lab.router(f"{name}-r", "cone")
        gate = self.gate.contact
        arguments = ("node", gate.addresses[0], gate.peer_id)
        with peers.punching(router.host(name).inside, *arguments) as node:
            wait_until(
                lambda: node.do("announced")[-1].endswith("/p2p-circuit"),
                within_s=START_S,
                every_s=LOOK_S,
            )
            yield node, f"/ip4/{router.address}/tcp/4001"

    @contextmanager
    def theirs(self, name: str) -> Iterator[p2pd.Daemon]:
        """Likewise, once it punches holes."""
        inside = self.lab.router(f"{name}-r", "cone").host(name).inside
        flags = (*PUNCHER, f"-trustedRelays={self.gate_address}")
        with p2pd.daemons(1, *flags, listen=ANYWHERE, inside=inside) as [daemon]:
            observers = map(peers.contact_of, self.gate.do("observers"))
            for each in (*observers, self.gate.contact):
                daemon.connect(each.peer_id, each.addresses)
            for what in ("is_reserved", "punches"):
                wait_until(
                    partial(self.gate.do, what, peer=daemon.peer_id),
                    within_s=START_S,
                    every_s=LOOK_S,
                )
            yield daemon


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    fetch.p2pd()
    try:
        with Lab(latency_ms=20) as lab:
            machine = lab.host("gate")
            others = [str(each) for each in WAN.hosts()][-OBSERVERS:]
            more = (f"address add {each}/{WAN.prefixlen} dev eth0" for each in others)
            spaces.ip(machine.space, *more)
            with peers.punching(machine.inside, "gate", machine.address, *others) as gate:
                yield World(lab, gate)
    except Forbidden as error:
        if REQUIRED in os.environ:
            raise
        pytest.skip(str(error))


def test_p2pd_dials_ours_and_the_connection_becomes_direct(world: World) -> None:
    with world.ours("ours-1") as (node, address), world.theirs("p2pd-1") as daemon:
        to = world.circuit_to(node.contact.peer_id)
        daemon.connect(to.peer_id, to.addresses)
        becomes_direct(node, address, daemon)


def test_ours_dials_p2pd_and_the_connection_becomes_direct(world: World) -> None:
    for number in range(ROUNDS):
        # Another daemon, too: one whose attempts have failed resets its connections to the gate at
        # times, and asks that one for no place for an hour.
        with (
            world.theirs(f"p2pd-2{number}") as daemon,
            world.ours(f"ours-2{number}") as (node, address),
        ):
            to = world.circuit_to(daemon.peer_id)
            assert node.do("dial", peer=to.peer_id, addresses=to.addresses) == "relayed"
            with suppress(AssertionError):
                wait_until(partial(is_direct, node, daemon), ROUND_S, LOOK_S)
            if number == ROUNDS - 1 or is_direct(node, daemon):
                becomes_direct(node, address, daemon)
                return


def reached(node: peers.Program, daemon: p2pd.Daemon) -> dict[str, Any]:
    found: dict[str, Any] = node.do("reached", peer=daemon.peer_id)
    return found


def is_direct(node: peers.Program, daemon: p2pd.Daemon) -> bool:
    """Not so either while the two are not connected."""
    return reached(node, daemon)["path"] in {"direct", "punched"}


def becomes_direct(node: peers.Program, address: str, daemon: p2pd.Daemon) -> None:
    wait_until(partial(is_direct, node, daemon), DIRECT_S, LOOK_S, otherwise=lambda: node.log)
    # A round is counted at its end, when the connection has been there for a second.
    wait_until(
        lambda: reached(node, daemon)["counts"].get("punched"),
        within_s=COUNTED_S,
        every_s=LOOK_S,
        otherwise=lambda: node.log,
    )
    now = reached(node, daemon)
    assert (now["path"], now["counts"]["punched"]) == ("punched", 1), node.log
    assert node.do("echo", peer=daemon.peer_id)
    assert Contact(node.contact.peer_id, (address,)) in daemon.connected()

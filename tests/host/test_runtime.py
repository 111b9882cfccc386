"""The node's thread: it starts, it stops, and what crashes in it starts again as it was."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest
import trio

from formation_p2p.core.effects import Effect
from formation_p2p.core.errors import LocalError, NodeClosed
from formation_p2p.core.identity import PeerId
from formation_p2p.core.negotiation.session import Undelivered
from formation_p2p.core.peer.events import PeerEvent, Tick
from formation_p2p.host.blobs.store import BlobStore
from formation_p2p.host.machine.claim import Claim, claim
from formation_p2p.host.machine.home import Home
from formation_p2p.host.runtime import Runtime
from formation_p2p.host.shell import Shell
from tests.support.loopback import LISTEN
from tests.support.waiting import wait_until


@pytest.fixture
def claimed(tmp_path: Path) -> Iterator[Claim]:
    home = Home(tmp_path / "home")
    home.create_network()
    taken = claim(home)
    yield taken
    taken.release()


class Watched:
    """A runtime, with what it told."""

    def __init__(self, claimed: Claim, listen: tuple[str, ...] = LISTEN) -> None:
        self.crashes: list[BaseException] = []
        self.shells: list[Shell] = []
        self.effects: list[Effect] = []
        self.events: list[PeerEvent] = []
        self.runtime = Runtime(
            claimed.identity,
            claimed.network,
            listen,
            (),
            claimed.scratch,
            BlobStore(claimed.blobs),
            tell=self.effects.extend,
            crashed=self.crashes.append,
            started=self.shells.append,
            observers=(lambda event, effects, now: self.events.append(event),),
        )


async def explode() -> None:
    raise RuntimeError("a fault inside the network stack")


def _of_the_shell(shell: Shell) -> trio.Nursery:
    assert shell._nursery is not None
    return shell._nursery


def _of_the_stack(shell: Shell) -> trio.Nursery:
    assert shell._stack._network is not None
    return shell._stack._network._nursery


def _of_the_swarm(shell: Shell) -> trio.Nursery:
    assert shell._stack._network is not None
    return shell._stack._network.swarm._nursery


@pytest.mark.parametrize("nursery", [_of_the_shell, _of_the_stack, _of_the_swarm])
def test_what_fails_in_a_crash_is_not_blamed_on_peers(
    claimed: Claim, nursery: Callable[[Shell], trio.Nursery]
) -> None:
    """A lease would be given up for it, on the disk as well, and its task be run once more."""
    watched = Watched(claimed)
    watched.runtime.start()

    def crash(shell: Shell) -> None:
        async def fails_with_it() -> None:
            try:
                await trio.sleep_forever()
            finally:
                shell.undelivered(PeerId("bob"), "the network is closing")

        nursery(shell).start_soon(fails_with_it)
        nursery(shell).start_soon(explode)

    try:
        watched.runtime.call(crash)
        wait_until(lambda: len(watched.shells) == 2)
        assert Undelivered not in {type(event) for event in watched.events}
    finally:
        watched.runtime.stop()


def test_a_crashed_stack_starts_again_with_the_same_identity_and_port(claimed: Claim) -> None:
    watched = Watched(claimed)
    watched.runtime.start()
    try:
        addresses = watched.runtime.addresses
        assert len(addresses) == 1
        watched.runtime.call(lambda shell: shell._start(explode))
        wait_until(lambda: len(watched.shells) == 2)
        assert [type(error) for error in watched.crashes] != []
        assert watched.runtime.addresses == addresses
        ran = threading.Event()
        watched.runtime.call(lambda shell: ran.set())
        assert ran.wait(5)
    finally:
        watched.runtime.stop()


def test_while_the_stack_is_down_a_call_says_so_at_once(claimed: Claim) -> None:
    watched = Watched(claimed)
    watched.runtime.start()
    try:
        watched.runtime.call(lambda shell: shell._start(explode))
        wait_until(lambda: bool(watched.crashes))
        with pytest.raises(NodeClosed):
            watched.runtime.call(lambda shell: shell.feed(Tick()))
    finally:
        watched.runtime.stop()


def test_a_port_that_is_taken_is_told_to_whoever_starts_the_node(
    claimed: Claim, tmp_path: Path
) -> None:
    first = Watched(claimed)
    first.runtime.start()
    other = Home(tmp_path / "other")
    other.create_network()
    taken = claim(other)
    try:
        with pytest.raises(LocalError):
            Watched(taken, first.runtime.addresses).runtime.start()
    finally:
        taken.release()
        first.runtime.stop()


def test_after_a_stop_the_thread_is_gone_and_calls_are_refused(claimed: Claim) -> None:
    watched = Watched(claimed)
    watched.runtime.start()
    watched.runtime.stop()
    watched.runtime.stop()
    assert not watched.runtime._thread.is_alive()
    with pytest.raises(NodeClosed):
        watched.runtime.call(lambda shell: shell.feed(Tick()))


def test_while_a_node_closes_nothing_is_due_over_and_over(
    claimed: Claim, monkeypatch: pytest.MonkeyPatch
) -> None:
    watched = Watched(claimed)
    watched.runtime.start()
    asked: list[float] = []

    def overdue() -> float:
        asked.append(time.monotonic())
        return asked[-1]

    def prepare(shell: Shell) -> None:
        monkeypatch.setattr(shell._stack, "close", partial(closes_slowly, shell))

    async def closes_slowly(shell: Shell) -> None:
        shell._stack._closing.set()
        monkeypatch.setattr(shell._peer, "next_timeout", overdue)
        shell._timer.deadline = trio.current_time()
        await trio.sleep(0.3)

    watched.runtime.call(prepare)
    watched.runtime.stop()
    assert len(asked) <= 1


def test_a_fault_of_the_peer_costs_the_event_and_not_the_node(
    claimed: Claim, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    watched = Watched(claimed)
    watched.runtime.start()
    try:
        handled = threading.Event()

        def feed(shell: Shell) -> None:
            monkeypatch.setattr(shell._peer, "handle", _fails)
            shell.feed(Tick())
            handled.set()

        watched.runtime.call(feed)
        assert handled.wait(5)
        assert "the peer failed on Tick" in caplog.text
        assert watched.crashes == []
    finally:
        monkeypatch.undo()
        watched.runtime.stop()


def _fails(*_: object) -> list[Effect]:
    raise ZeroDivisionError("a fault in the core")

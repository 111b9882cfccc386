"""The node's thread: it starts, it stops, and what crashes in it starts again as it was."""

import inspect
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

import pytest
import trio

from formation_p2p.assembly import Peer, PeerEvent
from formation_p2p.content.store import BlobStore
from formation_p2p.core.effects import Effect
from formation_p2p.core.errors import LocalError, NodeClosed
from formation_p2p.core.identity import PeerId
from formation_p2p.leases.core.session import Undelivered
from formation_p2p.machine.claim import Claim, claim
from formation_p2p.machine.home import Home
from formation_p2p.peer.core.events import Tick
from formation_p2p.peer.runtime import Runtime
from formation_p2p.peer.runtime_config import RuntimeConfig
from formation_p2p.peer.shell import Shell
from formation_p2p.reach.stack import Stack
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

    def __init__(
        self, claimed: Claim, listen: tuple[str, ...] = LISTEN, *, start_s: float = 30.0
    ) -> None:
        self.crashes: list[BaseException] = []
        self.shells: list[Shell] = []
        self.effects: list[Effect] = []
        self.events: list[PeerEvent] = []
        config = RuntimeConfig(
            identity=claimed.identity,
            network=claimed.network,
            listen=listen,
            announce=(),
            scratch_root=claimed.scratch,
            blobs=BlobStore(claimed.blobs),
            observers=(lambda event, effects, now: self.events.append(event),),
            start_s=start_s,
        )
        self.runtime = Runtime(
            config,
            notify=self.effects.extend,
            crashed=self.crashes.append,
            started=self.shells.append,
        )


def is_hosted() -> bool:
    return "formation" in {thread.name for thread in threading.enumerate()}


async def explode() -> None:
    raise RuntimeError("a fault inside the network stack")


@pytest.fixture
def nurseries(monkeypatch: pytest.MonkeyPatch) -> dict[str, trio.Nursery]:
    """The last nursery that each module has opened."""
    found: dict[str, trio.Nursery] = {}
    open_nursery = trio.open_nursery

    @asynccontextmanager
    async def recorded(module: str) -> AsyncIterator[trio.Nursery]:
        async with open_nursery() as nursery:
            found[module] = nursery
            yield nursery

    def opens() -> AbstractAsyncContextManager[trio.Nursery]:
        frame = inspect.currentframe()
        assert frame is not None
        assert frame.f_back is not None
        return recorded(frame.f_back.f_globals["__name__"])

    monkeypatch.setattr(trio, "open_nursery", opens)
    return found


@pytest.mark.parametrize("module", ["formation_p2p.peer.shell", "formation_p2p.reach.stack"])
def test_what_fails_in_a_crash_is_not_blamed_on_peers(
    claimed: Claim, nurseries: dict[str, trio.Nursery], module: str
) -> None:
    """A lease would be given up for it, on the disk as well, and its task be run once more."""
    watched = Watched(claimed)
    watched.runtime.start()

    def crash(shell: Shell) -> None:
        async def fails_with_it() -> None:
            try:
                await trio.sleep_forever()
            finally:
                shell.feed(Undelivered(PeerId("bob"), "the network is closing"))

        nurseries[module].start_soon(fails_with_it)
        nurseries[module].start_soon(explode)

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
        watched.runtime.call(lambda shell: shell.do(explode))
        wait_until(lambda: len(watched.shells) == 2)
        assert [type(error) for error in watched.crashes] != []
        assert watched.runtime.addresses == addresses
        ran = threading.Event()
        watched.runtime.call(lambda shell: ran.set())
        assert ran.wait(60)
    finally:
        watched.runtime.stop()


def test_while_the_stack_is_down_a_call_says_so_at_once(claimed: Claim) -> None:
    watched = Watched(claimed)
    watched.runtime.start()
    try:
        watched.runtime.call(lambda shell: shell.do(explode))
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
    assert not is_hosted()
    with pytest.raises(NodeClosed):
        watched.runtime.call(lambda shell: shell.feed(Tick()))


def test_a_start_that_takes_too_long_can_be_stopped(
    claimed: Claim, monkeypatch: pytest.MonkeyPatch
) -> None:
    may_start, run = threading.Event(), trio.run

    def late(hosted: Callable[[], Awaitable[None]]) -> None:
        assert may_start.wait(60)
        run(hosted)

    monkeypatch.setattr(trio, "run", late)
    watched = Watched(claimed, start_s=0.0)
    with pytest.raises(LocalError, match="did not start within 0 s"):
        watched.runtime.start()
    assert is_hosted()
    threading.Timer(0.1, may_start.set).start()
    watched.runtime.stop()
    assert not is_hosted()
    assert watched.shells == []  # what it was to host was never used


def test_a_runtime_that_never_started_can_be_stopped(claimed: Claim) -> None:
    Watched(claimed).runtime.stop()


def test_while_a_node_closes_nothing_is_due_over_and_over(
    claimed: Claim, monkeypatch: pytest.MonkeyPatch
) -> None:
    watched = Watched(claimed)
    watched.runtime.start()
    asked: list[float] = []

    def overdue() -> float:
        asked.append(time.monotonic())
        return asked[-1]

    async def closes_slowly(stack: Stack) -> None:
        monkeypatch.setattr(Peer, "next_timeout", lambda peer: overdue())
        watched.shells[0].feed(Tick())  # so that the timer is due
        monkeypatch.setattr(Stack, "stopping", True)
        await trio.sleep(0.3)

    monkeypatch.setattr(Stack, "close", closes_slowly)
    watched.runtime.stop()
    assert len(asked) == 1


def test_a_fault_of_the_peer_costs_the_event_and_not_the_node(
    claimed: Claim, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    watched = Watched(claimed)
    watched.runtime.start()
    try:
        handled = threading.Event()

        def feed(shell: Shell) -> None:
            monkeypatch.setattr(Peer, "handle", _fails)
            shell.feed(Tick())
            handled.set()

        watched.runtime.call(feed)
        assert handled.wait(60)
        assert "the peer failed on Tick" in caplog.text
        assert watched.crashes == []
    finally:
        monkeypatch.undo()
        watched.runtime.stop()


def _fails(*_: object) -> list[Effect]:
    raise ZeroDivisionError("a fault in the core")

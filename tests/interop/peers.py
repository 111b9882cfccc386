"""Nodes of the four implementations, each in processes of its own, all under one set of verbs.

Every call blocks, at most `CALL_S`; all processes end with the `with` that began them.
"""

import json
import os
import selectors
import shutil
import subprocess
import sys
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Final

from formation_p2p.core.effects import Contact
from formation_p2p.core.identity import PeerId, parse_peer_id, peer_id_to_bytes
from tests.interop import fetch, p2pd
from tests.support.waiting import wait_until

START_S: Final = 30.0
CALL_S: Final = 20.0
END_S: Final = 5.0
ROOT: Final = Path(__file__).resolve().parents[2]


class Refused(Exception):
    """The node says that it could not, in its own words."""


class Node(ABC):
    @property
    @abstractmethod
    def contact(self) -> Contact:
        """Who and where it is."""

    @abstractmethod
    def connect(self, to: Contact) -> None:
        """Get to know a peer."""

    def join(self, through: Contact) -> None:
        """Connect, and wait until the peer is in the routing table: all but ours take their time
        for that."""
        self.connect(through)
        wait_until(lambda: self.knows(through.peer_id))

    def knows(self, peer_id: PeerId) -> bool:
        """Whether a lookup of the id finds its owner."""
        try:
            return peer_id in self.closest(peer_id)
        except (Refused, p2pd.DaemonError):
            return False  # go refuses to look anything up while its table is empty

    @abstractmethod
    def closest(self, peer_id: PeerId) -> tuple[PeerId, ...]:
        """The nearest peers to an id, by a lookup; it itself is not among them, or may be."""

    @abstractmethod
    def provide(self, name: bytes) -> None: ...
    @abstractmethod
    def find_providers(self, name: bytes) -> tuple[Contact, ...]: ...
    @abstractmethod
    def put_value(self, name: bytes, value: bytes) -> None: ...
    @abstractmethod
    def get_value(self, name: bytes) -> bytes | None: ...


class Program(Node):
    """A node that obeys lines (`lines.py`)."""

    def __init__(self, process: subprocess.Popen[bytes], log: Path) -> None:
        self._process = process
        self._log = log
        self._unread = b""

    @cached_property
    def contact(self) -> Contact:
        """Waits until it has started."""
        return contact_of(self._line(START_S))

    def connect(self, to: Contact) -> None:
        self.do("connect", peer=to.peer_id, addresses=to.addresses)

    def closest(self, peer_id: PeerId) -> tuple[PeerId, ...]:
        return tuple(map(parse_peer_id, self.do("closest", peer=peer_id)))

    def provide(self, name: bytes) -> None:
        self.do("provide", name=name.hex())

    def find_providers(self, name: bytes) -> tuple[Contact, ...]:
        return tuple(map(contact_of, self.do("find_providers", name=name.hex())))

    def put_value(self, name: bytes, value: bytes) -> None:
        self.do("put_value", name=name.hex(), value=value.hex())

    def get_value(self, name: bytes) -> bytes | None:
        value = self.do("get_value", name=name.hex())
        return None if value is None else bytes.fromhex(value)

    def do(self, what: str, **arguments: object) -> Any:
        assert self.contact
        line = json.dumps({"do": what, **arguments}) + "\n"
        assert self._process.stdin is not None
        self._process.stdin.write(line.encode())
        self._process.stdin.flush()
        answer = self._line(CALL_S)
        if "failed" in answer:
            raise Refused(f"{what}: {answer['failed']}\n{self.log}")
        return answer["done"]

    @property
    def log(self) -> str:
        """The end of what it wrote to stderr."""
        return self._log.read_text(errors="replace")[-4000:]

    def _line(self, within_s: float) -> dict[str, Any]:
        ends_at = time.monotonic() + within_s
        assert self._process.stdout is not None
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            while b"\n" not in self._unread:
                if not selector.select(ends_at - time.monotonic()):
                    raise TimeoutError(f"no answer within {within_s:.0f} s\n{self.log}")
                more = os.read(self._process.stdout.fileno(), 65_536)
                if not more:
                    raise ConnectionResetError(f"the process ended\n{self.log}")
                self._unread += more
        line, _, self._unread = self._unread.partition(b"\n")
        answer: dict[str, Any] = json.loads(line)
        return answer


class Ours(Program):
    """`plain_node.py`, which tells more than the others."""

    def put_only(self, to: Contact, name: bytes, value: bytes) -> tuple[PeerId, ...]:
        """Put a value at one peer, which may be the node itself. Returns who took it."""
        return tuple(self.do("put_value", name=name.hex(), value=value.hex(), only=[_written(to)]))

    def provide_only(self, to: Contact, name: bytes) -> tuple[PeerId, ...]:
        return tuple(self.do("provide", name=name.hex(), only=[_written(to)]))

    def held_value(self, name: bytes) -> bytes | None:
        value = self.do("held", name=name.hex())["value"]
        return None if value is None else bytes.fromhex(value)

    def held_providers(self, name: bytes) -> tuple[Contact, ...]:
        return tuple(map(contact_of, self.do("held", name=name.hex())["providers"]))


class Go(Node):
    """go-libp2p-kad-dht in `p2pd`, by its control protocol."""

    def __init__(self, daemon: p2pd.Daemon) -> None:
        self._daemon = daemon

    @property
    def contact(self) -> Contact:
        return self._daemon.contact

    def connect(self, to: Contact) -> None:
        self._daemon.connect(to.peer_id, to.addresses)

    def closest(self, peer_id: PeerId) -> tuple[PeerId, ...]:
        return self._daemon.get_closest_peers(peer_id_to_bytes(peer_id))

    def provide(self, name: bytes) -> None:
        self._daemon.provide(p2pd.cid_of(name))

    def find_providers(self, name: bytes) -> tuple[Contact, ...]:
        return self._daemon.find_providers(p2pd.cid_of(name))

    def put_value(self, name: bytes, value: bytes) -> None:
        self._daemon.put_value(name, value)

    def get_value(self, name: bytes) -> bytes | None:
        return self._daemon.get_value(name)


@contextmanager
def ours() -> Iterator[Ours]:
    with _running([sys.executable, "-m", "tests.interop.plain_node"], ROOT) as (process, log):
        yield Ours(process, log)


@contextmanager
def py_libp2p(*arguments: str) -> Iterator[Node]:
    """As the head of `py_node.py` says."""
    command = [sys.executable, "-m", "tests.interop.py_node", *arguments]
    with _running(command, ROOT) as (process, log):
        yield Program(process, log)


@contextmanager
def js(name: str, *arguments: str) -> Iterator[Program]:
    """js-libp2p, as the head of `js/NAME.mjs` says."""
    node, folder = fetch.js()
    # Modules are looked for beside the script.
    for each in (script := f"{name}.mjs", "lines.mjs"):
        shutil.copy(fetch.JS_SOURCE / each, folder)
    with _running([str(node), str(folder / script), *arguments], folder) as (process, log):
        yield Program(process, log)


@contextmanager
def go_libp2p() -> Iterator[Node]:
    with p2pd.daemons(1) as [daemon]:
        yield Go(daemon)


@contextmanager
def punching(
    inside: Callable[[Sequence[str]], list[str]], role: str, *arguments: str
) -> Iterator[Program]:
    """As `punching_node.py` says, on a machine of a lab."""
    command = [sys.executable, "-m", "tests.interop.punching_node", role, *arguments]
    with _running(inside(command), ROOT) as (process, log):
        yield Program(process, log)


FOREIGN: Final[Mapping[str, Callable[[], AbstractContextManager[Node]]]] = {
    "go": go_libp2p,
    "js": partial(js, "node"),
    "py": py_libp2p,
    "hosted": partial(py_libp2p, "--hosted"),
}


@contextmanager
def _running(
    command: Sequence[str], folder: Path
) -> Iterator[tuple[subprocess.Popen[bytes], Path]]:
    with tempfile.TemporaryDirectory(prefix="interop-") as scratch:
        log = Path(scratch) / "log"
        with log.open("wb") as stderr:
            process = subprocess.Popen(
                command,
                cwd=folder,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stderr,
            )
        try:
            yield process, log
        finally:
            assert process.stdin is not None
            process.stdin.close()  # it ends when there is nobody left to obey
            try:
                process.wait(END_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            assert process.stdout is not None
            process.stdout.close()


def contact_of(reported: dict[str, Any]) -> Contact:
    return Contact(parse_peer_id(reported["peer"]), tuple(reported["addresses"]))


def _written(contact: Contact) -> dict[str, object]:
    return {"peer": contact.peer_id, "addresses": contact.addresses}

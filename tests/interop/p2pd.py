"""go-libp2p's daemon, `p2pd`, and a client of our own for its control protocol.

    with daemons(3) as [one, two, three]:
        two.connect(one.peer_id, one.addresses)
        two.provide(cid)
        [provider] = three.find_providers(cid, count=1)

Every call blocks, and has a deadline; a daemon serves one call at a time, so for several at once
take several threads, each with a `Daemon.another()`. The daemons listen on the loopback
interface alone, unless they are told where, and know nobody before they are told.

What is said on its unix socket is in `daemon_messages.py`.
"""

from __future__ import annotations

import os
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from formation_p2p.core.effects import Contact
from formation_p2p.core.identity import PeerId, peer_id_from_bytes, peer_id_to_bytes
from tests.interop import fetch
from tests.interop.daemon_messages import (
    Dht,
    Fields,
    Part,
    Request,
    addresses_in,
    contact_in,
    fields_of,
    one_bytes,
    one_integer,
    peer_info,
)
from tests.support.protobuf import integer, octets, varint

START_S: Final = 20.0
CALL_S: Final = 15.0
END_S: Final = 5.0
LOOPBACK: Final = "/ip4/127.0.0.1/tcp/0"

FLAGS: Final = ("-dhtServer", "-q", "-relay=0", "-relayService=0", "-relayDiscovery=0")


class DaemonError(Exception):
    """The daemon says no, in its own words: `routing: not found`."""


class Daemon:
    """One running daemon. Raises DaemonError where it refuses, OSError where it does not answer."""

    def __init__(self, control: Path) -> None:
        self._control = control
        self._socket: socket.socket | None = None
        identify = fields_of(one_bytes(self._call(Request.IDENTIFY), 4))
        self.peer_id: PeerId = peer_id_from_bytes(one_bytes(identify, 1))
        self.addresses: tuple[str, ...] = addresses_in(identify, 2)

    @property
    def contact(self) -> Contact:
        return Contact(self.peer_id, self.addresses)

    def another(self) -> Daemon:
        """A further client of the same daemon."""
        return Daemon(self._control)

    def connect(self, peer_id: PeerId, addresses: Sequence[str], timeout_s: float = CALL_S) -> None:
        request = peer_info(Contact(peer_id, tuple(addresses)))
        request += integer(3, max(1, round(timeout_s)))
        self._call(Request.CONNECT, octets(2, request), timeout_s)

    def disconnect(self, peer_id: PeerId) -> None:
        self._call(Request.DISCONNECT, octets(7, octets(1, peer_id_to_bytes(peer_id))))

    def connected(self) -> tuple[Contact, ...]:
        """Whom it is connected to."""
        response = self._call(Request.LIST_PEERS)
        return tuple(contact_in(peer) for peer in response.get(6, []))

    def find_peer(self, peer_id: PeerId, timeout_s: float = CALL_S) -> Contact:
        """Where a peer is, by asking the DHT if need be."""
        wanted = octets(2, peer_id_to_bytes(peer_id))
        return contact_in(one_bytes(self._dht(Dht.FIND_PEER, wanted, timeout_s), 2))

    def get_closest_peers(self, name: bytes, timeout_s: float = CALL_S) -> tuple[PeerId, ...]:
        """The peers whose keys are nearest to the name's SHA-256, by a lookup."""
        return tuple(
            peer_id_from_bytes(one_bytes(each, 3))
            for each in self._dht_stream(Dht.CLOSEST, octets(4, name), timeout_s)
        )

    def provide(self, cid: bytes, timeout_s: float = CALL_S) -> None:
        """Returns when the nearest peers were told. `cid` as `cid_of` makes it."""
        self._dht(Dht.PROVIDE, octets(3, cid), timeout_s)

    def find_providers(
        self, cid: bytes, count: int = 20, timeout_s: float = CALL_S
    ) -> tuple[Contact, ...]:
        """At most `count`; it looks no further once it has that many."""
        request = octets(3, cid) + integer(6, count)
        return tuple(
            contact_in(one_bytes(each, 2))
            for each in self._dht_stream(Dht.FIND_PROVIDERS, request, timeout_s)
        )

    def put_value(self, name: bytes, value: bytes, timeout_s: float = CALL_S) -> None:
        self._dht(Dht.PUT_VALUE, octets(4, name) + octets(5, value), timeout_s)

    def get_value(self, name: bytes, timeout_s: float = CALL_S) -> bytes:
        return one_bytes(self._dht(Dht.GET_VALUE, octets(4, name), timeout_s), 3)

    def close(self) -> None:
        """This client alone; the daemon goes on."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    # -- the control protocol ----------------------------------------------------------------

    def _dht(self, kind: int, fields: bytes, timeout_s: float) -> Fields:
        response = self._call(Request.DHT, _dht_request(kind, fields, timeout_s), timeout_s)
        return fields_of(one_bytes(response, 5)) if 5 in response else {}

    def _dht_stream(self, kind: int, fields: bytes, timeout_s: float) -> list[Fields]:
        ends_at = time.monotonic() + timeout_s
        first = self._dht(kind, fields, timeout_s)
        assert one_integer(first, 1) == Part.BEGIN
        answers = []
        while one_integer(answer := fields_of(self._read(ends_at)), 1) != Part.END:
            assert one_integer(answer, 1) == Part.VALUE
            answers.append(answer)
        return answers

    def _call(self, kind: int, fields: bytes = b"", timeout_s: float = CALL_S) -> Fields:
        ends_at = time.monotonic() + timeout_s
        request = integer(1, kind) + fields
        if self._socket is None:
            self._socket = socket.socket(socket.AF_UNIX)
            self._socket.settimeout(timeout_s)
            self._socket.connect(str(self._control))
        self._socket.settimeout(timeout_s)
        try:
            self._socket.sendall(varint(len(request)) + request)
        except OSError:
            self.close()
            raise
        response = fields_of(self._read(ends_at))
        if one_integer(response, 1) != 0:
            raise DaemonError(one_bytes(fields_of(one_bytes(response, 2)), 1).decode())
        return response

    def _read(self, ends_at: float) -> bytes:
        try:
            length, shift = 0, 0
            while (byte := self._receive(1, ends_at)[0]) & 0x80:
                length |= (byte & 0x7F) << shift
                shift += 7
            return self._receive(length | byte << shift, ends_at)
        except OSError:
            self.close()  # the rest of the answer would be taken for the next one's
            raise

    def _receive(self, size: int, ends_at: float) -> bytes:
        assert self._socket is not None
        received = b""
        while len(received) < size:
            self._socket.settimeout(max(0.001, ends_at - time.monotonic()))
            more = self._socket.recv(size - len(received))
            if not more:
                raise ConnectionResetError("the daemon closed its control socket")
            received += more
        return received


@contextmanager
def daemons(
    count: int,
    *flags: str,
    listen: str = LOOPBACK,
    inside: Callable[[Sequence[str]], list[str]] = list,
) -> Iterator[list[Daemon]]:
    """So many daemons, full members of the DHT, with nobody known; ended with the block. `inside`
    makes the command that runs one on a machine of a lab, where `listen` is."""
    binary = fetch.p2pd()
    # A unix socket's path has at most 108 bytes.
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="p2pd-", dir="/tmp")))
        # All are started first, and then waited for.
        started = [
            stack.enter_context(_running(inside, binary, folder / str(number), listen, flags))
            for number in range(count)
        ]
        clients = []
        for each in started:
            clients.append(each.wait())
            stack.callback(clients[-1].close)
        yield clients


@dataclass(frozen=True, slots=True)
class _Starting:
    process: subprocess.Popen[bytes]
    control: Path
    log: Path

    def wait(self) -> Daemon:
        ends_at = time.monotonic() + START_S
        while time.monotonic() < ends_at and self.process.poll() is None:
            try:
                return Daemon(self.control)
            except (FileNotFoundError, ConnectionRefusedError):
                time.sleep(0.02)
        raise DaemonError(f"p2pd did not start:\n{self.log.read_text(errors='replace')[-2000:]}")


@contextmanager
def _running(
    inside: Callable[[Sequence[str]], list[str]],
    binary: Path,
    stem: Path,
    listen: str,
    flags: Sequence[str],
) -> Iterator[_Starting]:
    control, log = stem.with_suffix(".sock"), stem.with_suffix(".log")
    places = (f"-listen=/unix{control}", f"-hostAddrs={listen}")
    with log.open("wb") as output:
        process = subprocess.Popen(
            inside([str(binary), *places, *FLAGS, *flags]),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            # go-libp2p's own log, for whoever asks for it.
            env={key: os.environ[key] for key in ("PATH", "GOLOG_LOG_LEVEL") if key in os.environ},
        )
    try:
        yield _Starting(process, control, log)
    finally:
        process.terminate()
        try:
            process.wait(END_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def cid_of(multihash: bytes) -> bytes:
    """A CID of version 1 with raw content (codec 0x55); its multihash is the name in the DHT."""
    return b"\x01\x55" + multihash


def _dht_request(kind: int, fields: bytes, timeout_s: float) -> bytes:
    return octets(5, integer(1, kind) + fields + integer(7, max(1, round(timeout_s))))

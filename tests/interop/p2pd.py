"""go-libp2p's daemon, `p2pd`, and a client of our own for its control protocol.

    with daemons(3) as [one, two, three]:
        two.connect(one.peer_id, one.addresses)
        two.provide(cid)
        [provider] = three.find_providers(cid, count=1)

Every call blocks, and has a deadline; a daemon serves one call at a time, so for several at once
take several threads, each with a `Daemon.another()`. The daemons listen on the loopback
interface alone and know nobody before they are told.

On its unix socket each message is a protobuf with its length before it, as a varint (`p2pd.proto`
in the wheel that the binary comes from).
"""

from __future__ import annotations

import os
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from formation_p2p.core.effects import Contact
from formation_p2p.core.identity import PeerId, peer_id_from_bytes, peer_id_to_bytes
from formation_p2p.core.records.addresses import address_bytes, read_addresses
from tests.interop import fetch

START_S: Final = 20.0
CALL_S: Final = 15.0
END_S: Final = 5.0
LOOPBACK: Final = "/ip4/127.0.0.1/tcp/0"

FLAGS: Final = ("-dhtServer", "-q", "-relay=0", "-relayService=0", "-relayDiscovery=0")

# Request.Type
_IDENTIFY, _CONNECT, _DHT, _LIST_PEERS, _DISCONNECT = 0, 1, 4, 5, 7
# DHTRequest.Type
_FIND_PEER, _FIND_PROVIDERS, _CLOSEST = 0, 2, 3
_GET_VALUE, _PUT_VALUE, _PROVIDE = 5, 7, 8
# DHTResponse.Type
_BEGIN, _VALUE, _END = 0, 1, 2

Fields = dict[int, list[bytes | int]]


class DaemonError(Exception):
    """The daemon says no, in its own words: `routing: not found`."""


class Daemon:
    """One running daemon. Raises DaemonError where it refuses, OSError where it does not answer."""

    def __init__(self, control: Path) -> None:
        self._control = control
        self._socket: socket.socket | None = None
        identify = _fields(_one_bytes(self._call(_IDENTIFY), 4))
        self.peer_id: PeerId = peer_id_from_bytes(_one_bytes(identify, 1))
        self.addresses: tuple[str, ...] = _addresses(identify, 2)

    @property
    def contact(self) -> Contact:
        return Contact(self.peer_id, self.addresses)

    def another(self) -> Daemon:
        """A further client of the same daemon."""
        return Daemon(self._control)

    def connect(self, peer_id: PeerId, addresses: Sequence[str], timeout_s: float = CALL_S) -> None:
        request = _bytes(1, peer_id_to_bytes(peer_id))
        request += b"".join(_bytes(2, address_bytes(address)) for address in addresses)
        request += _integer(3, max(1, round(timeout_s)))
        self._call(_CONNECT, _bytes(2, request), timeout_s)

    def disconnect(self, peer_id: PeerId) -> None:
        self._call(_DISCONNECT, _bytes(7, _bytes(1, peer_id_to_bytes(peer_id))))

    def connected(self) -> tuple[Contact, ...]:
        """Whom it is connected to."""
        response = self._call(_LIST_PEERS)
        return tuple(_contact(peer) for peer in response.get(6, []))

    def find_peer(self, peer_id: PeerId, timeout_s: float = CALL_S) -> Contact:
        """Where a peer is, by asking the DHT if need be."""
        wanted = _bytes(2, peer_id_to_bytes(peer_id))
        return _contact(_one_bytes(self._dht(_FIND_PEER, wanted, timeout_s), 2))

    def get_closest_peers(self, name: bytes, timeout_s: float = CALL_S) -> tuple[PeerId, ...]:
        """The peers whose keys are nearest to the name's SHA-256, by a lookup."""
        return tuple(
            peer_id_from_bytes(_one_bytes(each, 3))
            for each in self._dht_stream(_CLOSEST, _bytes(4, name), timeout_s)
        )

    def provide(self, cid: bytes, timeout_s: float = CALL_S) -> None:
        """Returns when the nearest peers were told. `cid` as `cid_of` makes it."""
        self._dht(_PROVIDE, _bytes(3, cid), timeout_s)

    def find_providers(
        self, cid: bytes, count: int = 20, timeout_s: float = CALL_S
    ) -> tuple[Contact, ...]:
        """At most `count`; it looks no further once it has that many."""
        request = _bytes(3, cid) + _integer(6, count)
        return tuple(
            _contact(_one_bytes(each, 2))
            for each in self._dht_stream(_FIND_PROVIDERS, request, timeout_s)
        )

    def put_value(self, name: bytes, value: bytes, timeout_s: float = CALL_S) -> None:
        self._dht(_PUT_VALUE, _bytes(4, name) + _bytes(5, value), timeout_s)

    def get_value(self, name: bytes, timeout_s: float = CALL_S) -> bytes:
        return _one_bytes(self._dht(_GET_VALUE, _bytes(4, name), timeout_s), 3)

    def close(self) -> None:
        """This client alone; the daemon goes on."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    # -- the control protocol ----------------------------------------------------------------

    def _dht(self, kind: int, fields: bytes, timeout_s: float) -> Fields:
        response = self._call(_DHT, _dht_request(kind, fields, timeout_s), timeout_s)
        return _fields(_one_bytes(response, 5)) if 5 in response else {}

    def _dht_stream(self, kind: int, fields: bytes, timeout_s: float) -> list[Fields]:
        ends_at = time.monotonic() + timeout_s
        first = self._dht(kind, fields, timeout_s)
        assert _integer_of(first, 1) == _BEGIN
        answers = []
        while _integer_of(answer := _fields(self._read(ends_at)), 1) != _END:
            assert _integer_of(answer, 1) == _VALUE
            answers.append(answer)
        return answers

    def _call(self, kind: int, fields: bytes = b"", timeout_s: float = CALL_S) -> Fields:
        ends_at = time.monotonic() + timeout_s
        request = _integer(1, kind) + fields
        if self._socket is None:
            self._socket = socket.socket(socket.AF_UNIX)
            self._socket.settimeout(timeout_s)
            self._socket.connect(str(self._control))
        self._socket.settimeout(timeout_s)
        try:
            self._socket.sendall(_varint(len(request)) + request)
        except OSError:
            self.close()
            raise
        response = _fields(self._read(ends_at))
        if _integer_of(response, 1) != 0:
            raise DaemonError(_one_bytes(_fields(_one_bytes(response, 2)), 1).decode())
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
def daemons(count: int, *flags: str) -> Iterator[list[Daemon]]:
    """So many daemons, full members of the DHT, with nobody known; ended with the block."""
    binary = fetch.p2pd()
    # A unix socket's path has at most 108 bytes.
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="p2pd-", dir="/tmp")))
        # All are started first, and then waited for.
        started = [
            stack.enter_context(_running(binary, folder / str(number), flags))
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
def _running(binary: Path, stem: Path, flags: Sequence[str]) -> Iterator[_Starting]:
    control, log = stem.with_suffix(".sock"), stem.with_suffix(".log")
    with log.open("wb") as output:
        process = subprocess.Popen(
            [str(binary), f"-listen=/unix{control}", f"-hostAddrs={LOOPBACK}", *FLAGS, *flags],
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


# -- protobuf, as far as it is needed here -------------------------------------------------------


def _dht_request(kind: int, fields: bytes, timeout_s: float) -> bytes:
    return _bytes(5, _integer(1, kind) + fields + _integer(7, max(1, round(timeout_s))))


def _varint(number: int) -> bytes:
    low = b""
    while number > 0x7F:
        low += bytes([number & 0x7F | 0x80])
        number >>= 7
    return low + bytes([number])


def _integer(field: int, value: int) -> bytes:
    return _varint(field << 3) + _varint(value)


def _bytes(field: int, value: bytes) -> bytes:
    return _varint(field << 3 | 2) + _varint(len(value)) + value


def _fields(message: bytes) -> Fields:
    """All fields, of which the daemon has varints and bytes alone, in order."""
    fields: Fields = {}
    at = 0

    def varint() -> int:
        nonlocal at
        number, shift = 0, 0
        while True:
            byte = message[at]
            at += 1
            number |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return number

    while at < len(message):
        tag = varint()
        number = varint()
        value: bytes | int = number
        if tag & 7 == 2:
            value = message[at : at + number]
            at += number
        fields.setdefault(tag >> 3, []).append(value)
    return fields


def _one_bytes(fields: Fields, field: int) -> bytes:
    [value] = fields[field]
    assert isinstance(value, bytes)
    return value


def _integer_of(fields: Fields, field: int) -> int:
    [value] = fields[field]
    assert isinstance(value, int)
    return value


def _addresses(fields: Fields, field: int) -> tuple[str, ...]:
    """Without a trailing `/p2p/…`, as Contact has them."""
    raws = [raw for raw in fields.get(field, []) if isinstance(raw, bytes)]
    return tuple(text.partition("/p2p/")[0] for text in read_addresses(raws))


def _contact(peer: bytes | int) -> Contact:
    assert isinstance(peer, bytes)
    fields = _fields(peer)
    return Contact(peer_id_from_bytes(_one_bytes(fields, 1)), _addresses(fields, 2))

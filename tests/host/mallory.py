"""A peer that means harm, and the tools it needs: every layer of a connection, by hand."""

import os
import struct
from typing import Protocol

import trio

from formation_p2p.core.identity import Identity, PeerId
from formation_p2p.net.transport import negotiation as net_negotiation
from formation_p2p.net.transport import noise
from formation_p2p.net.transport.frames import encode_frame
from formation_p2p.net.transport.noise import NoiseKeys
from formation_p2p.net.transport.raw import ByteStream
from formation_p2p.net.transport.tcp import TcpStream
from formation_p2p.net.transport.upgrade import NoiseStream

NOBODY = PeerId("")
HEADER = struct.Struct("!BBHII")
DATA, WINDOW_UPDATE, PING, GO_AWAY = range(4)
SYN, ACK, FIN, RST = 1, 2, 4, 8


async def propose(stream: ByteStream, protocol: str) -> None:
    await net_negotiation.offer(stream, protocol)
    await net_negotiation.confirm(stream, protocol)


class Victim(Protocol):
    @property
    def peer_id(self) -> PeerId: ...
    @property
    def port(self) -> int: ...


class Pipe(Protocol):
    async def read(self, n: int) -> bytes: ...
    async def write(self, data: bytes) -> None: ...
    async def close(self) -> None: ...


class Secured:
    """A Noise session, read in just the pieces that are asked for. `tcp` is what is below."""

    def __init__(self, session: NoiseStream, tcp: TcpStream) -> None:
        self.tcp = tcp
        self._session = session

    async def read(self, n: int | None = None) -> bytes:
        assert n is not None
        data = b""
        while len(data) < n:
            data += await self._session.read(n - len(data))
        return data

    async def write(self, data: bytes) -> None:
        await self._session.write(data)

    async def close(self) -> None:
        await self._session.close()


class Hand:
    """A peer that speaks yamux frame by frame. It is the initiator."""

    def __init__(self, pipe: Pipe, peer_id: PeerId = NOBODY) -> None:
        self.pipe = pipe
        self.peer_id = peer_id

    async def send(self, kind: int, flags: int, sid: int, value: int, data: bytes = b"") -> None:
        await self.pipe.write(HEADER.pack(0, kind, flags, sid, value) + data)

    async def frame(self) -> tuple[int, int, int, int]:
        """Type, flags, stream and length of the next frame; its data is dropped."""
        _, kind, flags, sid, value = HEADER.unpack(await self.pipe.read(12))
        if kind == DATA and value:
            await self.pipe.read(value)
        return kind, flags, sid, value

    async def until(self, kind: int, flags: int = 0) -> tuple[int, int, int, int]:
        while True:
            frame = await self.frame()
            if frame[0] == kind and frame[1] & flags == flags:
                return frame

    async def open(self, sid: int, protocol: str) -> None:
        """A stream that speaks `protocol`; what comes back is left unread."""
        await self.send(WINDOW_UPDATE, SYN, sid, 0)
        for message in (net_negotiation.HEADER, protocol):
            await self.data(sid, encode_frame(message.encode() + b"\n"))

    async def data(self, sid: int, data: bytes) -> None:
        await self.send(DATA, 0, sid, len(data), data)

    async def identify(self, message: bytes) -> None:
        """Answer the victim's question who we are. Its first stream to us has the id 2."""
        while (await self.until(WINDOW_UPDATE, SYN))[2] != 2:
            pass
        for answer in (net_negotiation.HEADER, "/ipfs/id/1.0.0"):
            await self.data(2, encode_frame(answer.encode() + b"\n"))
        await self.data(2, message)


async def tcp(victim: Victim, host: str = "127.0.0.1") -> trio.SocketStream:
    """From that address."""
    return await trio.open_tcp_stream("127.0.0.1", victim.port, local_address=host)


async def secured(
    victim: Victim, keys: NoiseKeys | None = None, host: str = "127.0.0.1"
) -> Secured:
    """A connection as far as Noise, under a new identity, or with the `keys` of one."""
    stream = TcpStream(await tcp(victim, host))
    await propose(stream, noise.PROTOCOL)
    keys = keys or NoiseKeys.of(Identity.from_seed(os.urandom(32)))
    session = await noise.handshake(stream, keys, victim.peer_id)
    return Secured(NoiseStream(session, stream, is_initiator=True), stream)


async def muxed(victim: Victim, host: str = "127.0.0.1") -> Hand:
    """A connection as far as yamux."""
    me = Identity.from_seed(os.urandom(32))
    connection = await secured(victim, NoiseKeys.of(me), host)
    await propose(connection, "/yamux/1.0.0")
    return Hand(connection, me.peer_id)

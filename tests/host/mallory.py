"""A peer that means harm, and the tools it needs: every layer of a connection, by hand."""

from __future__ import annotations

import os
import struct
from typing import Protocol

import trio
from libp2p.abc import ISecureConn
from libp2p.crypto.ed25519 import create_new_key_pair
from libp2p.crypto.keys import KeyPair
from libp2p.crypto.x25519 import create_new_key_pair as create_new_noise_key_pair
from libp2p.io.abc import ReadWriteCloser
from libp2p.network.connection.raw_connection import RawConnection
from libp2p.peer.id import ID
from libp2p.security.noise.transport import Transport as NoiseTransport

from formation_p2p.core.identity import PeerId, peer_id_from_bytes, peer_id_to_bytes
from formation_p2p.host.net.protocols.frames import encode_frame
from formation_p2p.host.net.transport import negotiation as net_negotiation
from formation_p2p.host.net.transport.tcp import TcpStream

NOBODY = PeerId("")
HEADER = struct.Struct("!BBHII")
DATA, WINDOW_UPDATE, PING, GO_AWAY = range(4)
SYN, ACK, FIN, RST = 1, 2, 4, 8


async def propose(stream: ReadWriteCloser, protocol: str) -> None:
    await net_negotiation.offer(stream, protocol)
    await net_negotiation.confirm(stream, protocol)


class Victim(Protocol):
    @property
    def peer_id(self) -> PeerId: ...
    @property
    def port(self) -> int: ...


class _Wire(Protocol):
    async def read(self, n: int | None = None) -> bytes: ...
    async def write(self, data: bytes) -> None: ...
    async def close(self) -> None: ...


class Hand:
    """A peer that speaks yamux frame by frame. It is the initiator."""

    def __init__(self, pipe: _Wire, peer_id: PeerId = NOBODY) -> None:
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


async def tcp(victim: Victim) -> trio.SocketStream:
    return await trio.open_tcp_stream("127.0.0.1", victim.port)


async def secured(victim: Victim, keys: KeyPair | None = None) -> ISecureConn:
    """A connection as far as Noise, under a new identity, or that of `keys`."""
    noise = NoiseTransport(
        keys or create_new_key_pair(os.urandom(32)), create_new_noise_key_pair().private_key
    )
    raw = RawConnection(TcpStream(await tcp(victim)), True)
    await propose(raw, "/noise")
    return await noise.secure_outbound(raw, ID(peer_id_to_bytes(victim.peer_id)))


async def muxed(victim: Victim) -> Hand:
    """A connection as far as yamux."""
    connection = await secured(victim)
    await propose(connection, "/yamux/1.0.0")
    return Hand(connection, peer_id_from_bytes(connection.get_local_peer().to_bytes()))

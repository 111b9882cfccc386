"""A bare connection made secure and muxed: the two handshakes, and the Noise session after them.

The one who dials proposes Noise together with its first message, and yamux together with the last
one and with whatever the first streams have to say. So a dial takes two round trips, for TCP and
for Noise, and the first request one more. Nothing is said to a peer before it has proved, in the
second message of Noise, that it is the one who was dialled.

Source: libp2p noise specification, "Wire format".
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import trio
from libp2p.io.exceptions import ConnectionClosedError
from libp2p.network.connection.raw_connection import RawConnection
from libp2p.network.exceptions import SwarmException
from libp2p.security.noise.io import MAX_PLAINTEXT_LENGTH, NoiseTransportReadWriter
from libp2p.security.noise.transport import PROTOCOL_ID as NOISE_PROTOCOL
from libp2p.security.secure_session import SecureSession

from formation_p2p.core.identity import peer_id_from_bytes
from formation_p2p.host.net.parameters import NetParameters
from formation_p2p.host.net.transport import negotiation as net_negotiation
from formation_p2p.host.net.transport import yamux as net_yamux
from formation_p2p.host.net.transport.tcp import TcpStream
from formation_p2p.host.net.transport.yamux import Muxer

if TYPE_CHECKING:
    from libp2p.abc import ISecureConn
    from libp2p.peer.id import ID
    from libp2p.security.noise.transport import Transport as NoiseTransport

_LENGTH_BYTES: Final = 2


class NoiseStream(SecureSession):
    """Takes the place of the session that the handshake made, straight on the socket.

    py-libp2p 0.8.1's own (`libp2p/security/secure_session.py:135` on `security/noise/io.py:81`)
    goes to the socket twice for each message, for its length and for the rest, through six layers
    each time: a third of what a small request costs. Here messages that have arrived are opened
    without another wait, and where they lie; a small one is written by the task that has it,
    without a task in between.
    """

    def __init__(self, session: ISecureConn, tcp: TcpStream) -> None:
        assert isinstance(session, SecureSession)
        noise = session.conn
        assert isinstance(noise, NoiseTransportReadWriter)
        super().__init__(
            local_peer=session.local_peer,
            local_private_key=session.local_private_key,
            remote_peer=session.remote_peer,
            remote_permanent_pubkey=session.remote_permanent_pubkey,
            is_initiator=session.is_initiator,
            conn=noise,
        )
        self._tcp = tcp
        # Past the library's own checks, which take nothing but `bytes`.
        self._encrypt = noise.noise_state.noise_protocol.cipher_state_encrypt.encrypt_with_ad
        self._decrypt = noise.noise_state.noise_protocol.cipher_state_decrypt.decrypt_with_ad
        # What was opened while the muxer was agreed on, and is its first.
        self._opened = session._drain(None)

    async def read(self, n: int | None = None) -> bytes:
        """Whatever is there, up to `n` bytes, and waits for something."""
        while not self._opened:
            message = self._tcp.take_prefixed(_LENGTH_BYTES)
            if message is None:
                await self._tcp.fill()
                continue
            # Raises what the cipher does for a message that was altered.
            self._opened = self._decrypt(None, message)
            if not self._opened:
                raise ConnectionClosedError("an empty message")
        if n is None or n >= len(self._opened):
            taken, self._opened = self._opened, b""
            return taken
        taken = self._opened[:n]
        self._opened = self._opened[n:]
        return taken

    async def write(self, data: bytes) -> None:
        for start in range(0, len(data), MAX_PLAINTEXT_LENGTH):
            taken = self.write_now(data[start : start + MAX_PLAINTEXT_LENGTH])
            while not taken:
                taken = await self.flush()

    def write_now(self, *messages: bytes) -> bool:
        """Hand short messages to the kernel, if it takes all of them at once. False where it
        takes part of them or none: then `flush`, before anything else is written.

        Raises ConnectionClosedError.
        """
        return self._tcp.write_now(*(part for each in messages for part in self._sealed(each)))

    def _sealed(self, data: bytes) -> tuple[bytes, bytes]:
        message: bytes = self._encrypt(None, data)
        return len(message).to_bytes(_LENGTH_BYTES, "big"), message

    async def flush(self) -> bool:
        """Wait until the kernel takes more of what `write_now` left over. Returns whether that is
        all of it. Raises ConnectionClosedError."""
        return await self._tcp.flush()

    def hold_unsent(self, size: int) -> None:
        """See TcpStream."""
        self._tcp.hold_unsent(size)


class _Proposing(RawConnection):
    """Proposes Noise with the first that is written, and has it confirmed before the first read."""

    def __init__(self, tcp: TcpStream) -> None:
        super().__init__(tcp, True)
        self._unsaid = net_negotiation.proposal(NOISE_PROTOCOL)
        self._confirmed = False

    async def write(self, data: bytes) -> None:
        unsaid, self._unsaid = self._unsaid, b""
        await super().write(unsaid + data)

    async def read(self, n: int | None = None) -> bytes:
        if not self._confirmed:
            self._confirmed = True
            await net_negotiation.confirm(self, NOISE_PROTOCOL)
        return await super().read(n)


async def upgrade(
    noise: NoiseTransport,
    parameters: NetParameters,
    tcp: TcpStream,
    peer_id: ID | None,
    *,
    confirmed: bool = False,
) -> Muxer:
    """Both handshakes, with `peer_id` if we dialled it. Then the muxer has yamux confirmed,
    unless it shall be `confirmed` before.

    In place of `libp2p/stream_muxer/muxer_multistream.py:137`, which builds its own Yamux whatever
    it is given. Raises SwarmException, with `tcp` closed. All that waits in it waits for the
    peer, so one deadline covers it.
    """
    try:
        with trio.fail_after(parameters.handshake_s):
            if peer_id is None:
                await net_negotiation.agree(tcp, (NOISE_PROTOCOL,))
                secured = await noise.secure_inbound(RawConnection(tcp, False))
            else:
                secured = await noise.secure_outbound(_Proposing(tcp), peer_id)
            remote = secured.get_remote_peer()
            peer_id_from_bytes(remote.to_bytes())  # raises for the id of a secp256k1 key
            if peer_id not in (None, remote):
                raise SwarmException(f"{remote} answers in place of {peer_id}")
            if peer_id is None:
                await net_negotiation.agree(secured, (net_yamux.PROTOCOL,))
            else:
                await net_negotiation.offer(secured, net_yamux.PROTOCOL)
            straight = NoiseStream(secured, tcp)
            muxer = Muxer(straight, remote, parameters, unconfirmed=peer_id is not None)
            if confirmed:
                await muxer.confirm()
            return muxer
    except BaseException as error:
        await tcp.close()
        if isinstance(error, SwarmException) or not isinstance(error, Exception):
            raise
        # Noise, its cipher and protobuf raise what they like on what a stranger sends.
        raise SwarmException(f"the handshake fails: {error!r}") from error

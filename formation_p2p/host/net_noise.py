"""A Noise session once its handshake is over, straight on the socket.

py-libp2p 0.8.1's own (`libp2p/security/secure_session.py:135` on `security/noise/io.py:81`) goes
to the socket twice for each message, for its length and for the rest, through six layers each
time: a third of what a small request costs. Here all messages that have arrived are opened at
once, and a small one is written by whoever has it, without a task in between.

Source: libp2p noise specification, "Wire format".
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from libp2p.io.exceptions import ConnectionClosedError
from libp2p.network.connection.raw_connection import RawConnection
from libp2p.security.noise.io import MAX_PLAINTEXT_LENGTH, NoiseTransportReadWriter
from libp2p.security.secure_session import SecureSession

from formation_p2p.host.net_tcp import TcpStream

if TYPE_CHECKING:
    from libp2p.abc import ISecureConn

_LENGTH_BYTES: Final = 2


class NoiseStream(SecureSession):
    """Takes the place of the session that the handshake made."""

    def __init__(self, session: SecureSession, noise: NoiseTransportReadWriter, tcp: TcpStream):
        super().__init__(
            local_peer=session.local_peer,
            local_private_key=session.local_private_key,
            remote_peer=session.remote_peer,
            remote_permanent_pubkey=session.remote_permanent_pubkey,
            is_initiator=session.is_initiator,
            conn=noise,
        )
        self._tcp = tcp
        self._encrypt = noise.noise_state.encrypt
        self._decrypt = noise.noise_state.decrypt
        # What was opened while the muxer was agreed on, and is its first.
        self._opened = session._drain(None)

    async def read(self, n: int | None = None) -> bytes:
        """Whatever is there, up to `n` bytes, and waits for something."""
        while not self._opened:
            self._opened = self._open_all()
            if not self._opened:
                await self._tcp.fill()
        taken = self._opened if n is None else self._opened[:n]
        self._opened = self._opened[len(taken) :]
        return taken

    async def write(self, data: bytes) -> None:
        for start in range(0, len(data), MAX_PLAINTEXT_LENGTH):
            await self._tcp.write(self._sealed(data[start : start + MAX_PLAINTEXT_LENGTH]))

    def write_now(self, data: bytes) -> bool:
        """Hand a short message to the kernel, if it takes all of it at once. False where it takes
        part of it or none: then `flush`, before anything else is written.

        Raises ConnectionClosedError.
        """
        return self._tcp.write_now(self._sealed(data))

    async def flush(self) -> None:
        """Write what `write_now` left over. Raises ConnectionClosedError."""
        await self._tcp.flush()

    def _sealed(self, data: bytes) -> bytes:
        message: bytes = self._encrypt(data)
        return len(message).to_bytes(_LENGTH_BYTES, "big") + message

    def _open_all(self) -> bytes:
        """Raises what the cipher does for a message that was altered."""
        opened: list[bytes] = []
        while (message := self._tcp.take_prefixed(_LENGTH_BYTES)) is not None:
            plain = self._decrypt(message)
            if not plain:
                raise ConnectionClosedError("an empty message")
            opened.append(plain)
        return b"".join(opened)


def straight(session: ISecureConn) -> ISecureConn:
    """The session without the layers, where it is Noise on a TCP connection of ours."""
    if isinstance(session, SecureSession) and isinstance(session.conn, NoiseTransportReadWriter):
        raw = session.conn.read_writer.read_write_closer
        if isinstance(raw, RawConnection) and isinstance(raw.stream, TcpStream):
            return NoiseStream(session, session.conn, raw.stream)
    return session

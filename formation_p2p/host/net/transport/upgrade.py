"""A bare connection made secure and muxed: the two handshakes.

The one who dials proposes Noise together with its first message, and yamux together with the last
one and with whatever the first streams have to say. So a dial takes two round trips, for TCP and
for Noise, and the first request one more. Nothing is said to a peer before it has proved, in the
second message of Noise, that it is the one who was dialled.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import trio
from libp2p.network.connection.raw_connection import RawConnection
from libp2p.network.exceptions import SwarmException
from libp2p.security.noise.transport import PROTOCOL_ID as NOISE_PROTOCOL

from formation_p2p.host.net.parameters import NetParameters
from formation_p2p.host.net.transport import negotiation as net_negotiation
from formation_p2p.host.net.transport import yamux as net_yamux
from formation_p2p.host.net.transport.noise import straight
from formation_p2p.host.net.transport.yamux import Muxer

if TYPE_CHECKING:
    from libp2p.abc import ISecureConn
    from libp2p.peer.id import ID
    from libp2p.security.noise.transport import Transport as NoiseTransport


class _Proposing(RawConnection):
    """Proposes Noise with the first that is written, and has it confirmed before the first read."""

    def __init__(self, raw_conn: RawConnection) -> None:
        super().__init__(raw_conn.stream, True)
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


class Upgrader:
    """Noise and yamux, agreed on by our own negotiation.

    `libp2p/stream_muxer/muxer_multistream.py:137` builds its own Yamux whatever it is given.
    """

    def __init__(self, noise: NoiseTransport, parameters: NetParameters) -> None:
        self._noise = noise
        self._parameters = parameters

    async def upgrade_security(
        self, raw_conn: RawConnection, is_initiator: bool, peer_id: ID | None = None
    ) -> ISecureConn:
        if not is_initiator:
            await net_negotiation.agree(raw_conn, (NOISE_PROTOCOL,))
            return await self._noise.secure_inbound(raw_conn)
        if peer_id is None:
            raise ValueError("an outbound connection needs the peer id that is expected")
        return await self._noise.secure_outbound(_Proposing(raw_conn), peer_id)

    async def upgrade_connection(self, conn: ISecureConn, peer_id: ID) -> Muxer:
        if conn.is_initiator:
            await net_negotiation.offer(conn, net_yamux.PROTOCOL)
        else:
            await net_negotiation.agree(conn, (net_yamux.PROTOCOL,))
        return Muxer(straight(conn), peer_id, self._parameters, unconfirmed=conn.is_initiator)

    async def upgrade(self, raw_conn: RawConnection, peer_id: ID | None) -> Muxer:
        """Both handshakes, with `peer_id` if we dialled it. Then the muxer has yamux confirmed.

        Raises SwarmException, with `raw_conn` closed. All that waits in it waits for the peer,
        so one deadline covers it.
        """
        try:
            with trio.fail_after(self._parameters.handshake_s):
                secured = await self.upgrade_security(raw_conn, peer_id is not None, peer_id)
                remote = secured.get_remote_peer()
                if peer_id is not None and remote != peer_id:
                    raise SwarmException(f"{remote} answers in place of {peer_id}")
                return await self.upgrade_connection(secured, remote)
        except SwarmException:
            await raw_conn.close()
            raise
        except Exception as error:
            await raw_conn.close()
            # Noise, its cipher and protobuf raise what they like on what a stranger sends.
            raise SwarmException(f"the handshake fails: {error!r}") from error
        except BaseException:
            await raw_conn.close()
            raise

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
from formation_p2p.host.net.transport.noise import NoiseStream
from formation_p2p.host.net.transport.tcp import TcpStream
from formation_p2p.host.net.transport.yamux import Muxer

if TYPE_CHECKING:
    from libp2p.peer.id import ID
    from libp2p.security.noise.transport import Transport as NoiseTransport


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
    noise: NoiseTransport, parameters: NetParameters, tcp: TcpStream, peer_id: ID | None
) -> Muxer:
    """Both handshakes, with `peer_id` if we dialled it. Then the muxer has yamux confirmed.

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
            if peer_id not in (None, remote):
                raise SwarmException(f"{remote} answers in place of {peer_id}")
            if peer_id is None:
                await net_negotiation.agree(secured, (net_yamux.PROTOCOL,))
            else:
                await net_negotiation.offer(secured, net_yamux.PROTOCOL)
            straight = NoiseStream(secured, tcp)
            return Muxer(straight, remote, parameters, unconfirmed=peer_id is not None)
    except BaseException as error:
        await tcp.close()
        if isinstance(error, SwarmException) or not isinstance(error, Exception):
            raise
        # Noise, its cipher and protobuf raise what they like on what a stranger sends.
        raise SwarmException(f"the handshake fails: {error!r}") from error

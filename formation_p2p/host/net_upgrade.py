"""A bare connection made secure and muxed: the two handshakes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import trio
from libp2p.network.exceptions import SwarmException
from libp2p.security.noise.transport import PROTOCOL_ID as NOISE_PROTOCOL
from libp2p.transport.upgrader import TransportUpgrader

from formation_p2p.host import net_negotiation, net_yamux
from formation_p2p.host.net_noise import straight
from formation_p2p.host.net_yamux import Muxer

if TYPE_CHECKING:
    from libp2p.abc import IRawConnection, ISecureConn
    from libp2p.peer.id import ID
    from libp2p.security.noise.transport import Transport as NoiseTransport

# Five round trips, and a busy peer.
HANDSHAKE_S: Final = 8.0


class Upgrader(TransportUpgrader):
    """Noise and yamux, agreed on by our own negotiation.

    `libp2p/stream_muxer/muxer_multistream.py:137` builds its own Yamux whatever it is given.
    """

    def __init__(self, noise: NoiseTransport) -> None:
        super().__init__({NOISE_PROTOCOL: noise}, {})
        self._noise = noise

    async def upgrade_security(
        self, raw_conn: IRawConnection, is_initiator: bool, peer_id: ID | None = None
    ) -> ISecureConn:
        if not is_initiator:
            await net_negotiation.agree(raw_conn, (NOISE_PROTOCOL,))
            return await self._noise.secure_inbound(raw_conn)
        if peer_id is None:
            raise ValueError("an outbound connection needs the peer id that is expected")
        await net_negotiation.propose(raw_conn, NOISE_PROTOCOL)
        return await self._noise.secure_outbound(raw_conn, peer_id)

    async def upgrade_connection(self, conn: ISecureConn, peer_id: ID) -> Muxer:
        if conn.is_initiator:
            await net_negotiation.propose(conn, net_yamux.PROTOCOL)
        else:
            await net_negotiation.agree(conn, (net_yamux.PROTOCOL,))
        return Muxer(straight(conn), peer_id)

    async def upgrade(self, raw_conn: IRawConnection, peer_id: ID | None) -> Muxer:
        """Both handshakes, with `peer_id` if we dialled it.

        Raises SwarmException, with `raw_conn` closed. All that waits in it waits for the peer,
        so one deadline covers it.
        """
        try:
            with trio.fail_after(HANDSHAKE_S):
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

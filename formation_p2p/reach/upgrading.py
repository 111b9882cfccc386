"""From a circuit to a direct connection, while all goes on: what is opened from then on goes
directly; work and DHT streams move; what fetches blobs is cut, and goes on where it was; tunnels
stay; and the circuit is closed once nothing is left on it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import trio

from formation_p2p.core.identity import PeerId
from formation_p2p.workload.core.blob import CHUNK_BYTES

if TYPE_CHECKING:
    from formation_p2p.net.connection import Connection
    from formation_p2p.net.swarm import Swarm

log = logging.getLogger(__name__)

# What fetches blobs is cut once it has brought more than a chunk, as what is long has, or after a
# time: what is as short as a question ends by itself. The gate still carries what is under way,
# which is a window at the most.
SHORT_BYTES: Final = CHUNK_BYTES
CUT_AFTER_S: Final = 0.5
CUT_LOOK_S: Final = 0.02
# Nothing was on a circuit at two looks so far apart: it is closed. A peer that has opened a stream
# on it just before it learned of the direct connection is heard.
LOOK_S: Final = 0.5
# After which a circuit ends whatever is on it, but for tunnels, which may stay for as long as a
# lease: work moves within seconds, and what is written by then, and not confirmed, is told to be
# lost.
SUPERSEDED_S: Final = 600.0


@dataclass(eq=False)
class Upgrading:
    """`streams` are told of each peer whose streams can move. The times are as those above."""

    swarm: Swarm
    streams: tuple[Callable[[PeerId], None], ...]
    cut_after_s: float = CUT_AFTER_S
    superseded_s: float = SUPERSEDED_S
    retiring: set[Connection] = field(default_factory=set, init=False)
    """Circuits, each with one task: a peer may connect directly again and again."""

    def __post_init__(self) -> None:
        self.swarm.on_upgraded = self.upgraded

    def upgraded(self, peer: PeerId) -> None:
        """There is a direct connection beside a circuit."""
        log.info("%s is reached directly now, and by a circuit no more", peer)
        for move in self.streams:
            move(peer)
        for connection in self.swarm.connections_to(peer):
            if connection.via is not None and connection not in self.retiring:
                self.retiring.add(connection)
                self.swarm.nursery.start_soon(self._retire, connection)

    async def _retire(self, circuit: Connection) -> None:
        began_s = trio.current_time()
        empty = 0
        try:
            while self._is_superseded(circuit):
                lasted_s = trio.current_time() - began_s
                is_short = lasted_s < self.cut_after_s
                for stream in list(circuit.muxer.streams.values()):
                    is_long = not is_short or stream.arrived_bytes > SHORT_BYTES
                    if stream.takes_much and not stream.inbound and is_long:
                        stream.abort("there is a direct connection now: ask there")
                if not is_short:
                    empty = 0 if circuit.muxer.streams else empty + 1
                is_over = lasted_s > self.superseded_s and not circuit.muxer.has_tunnels
                if empty == 2 or is_over:
                    await circuit.muxer.close()
                    return
                await trio.sleep(CUT_LOOK_S if is_short else LOOK_S)
        finally:
            self.retiring.discard(circuit)

    def _is_superseded(self, circuit: Connection) -> bool:
        return not circuit.is_closed and self.swarm.direct_to(circuit.peer) is not None

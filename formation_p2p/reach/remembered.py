"""The peers that the nodes of a home have met lately, to be dialled where no gate answers.

They lie in the file `peers` of the home's folder, as JSON. Nothing is believed of what stands there
but where to dial: who answers proves its identity, and its records are checked, as those of any
other peer. So the file is no secret, and where it is damaged it is begun anew.

A gate dials those that it remembers when it starts, so that they learn that it is back.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

import trio

from formation_p2p.core.effects import Contact
from formation_p2p.core.identity import PeerId, key_of_peer, parse_peer_id
from formation_p2p.dht.core.routing import RoutingTable
from formation_p2p.machine.clock import moment
from formation_p2p.machine.whole_file import read_rows, write_whole
from formation_p2p.net.transport.addresses import MAX_ADDRESS_CHARS, dialable
from formation_p2p.records.core.addresses import MAX_ADDRESSES
from formation_p2p.trust.core.network import Network

log = logging.getLogger(__name__)

FILE: Final = "peers"
# One that answers is enough, and of so many machines one is still there.
MAX_PEERS: Final = 32
# A machine that was not met for so long is gone, or has another address.
MAX_AGE_S: Final = 30 * 24 * 3600.0
# A gate that is killed soon after its workers came is to find them again.
LOOK_EVERY_S: Final = 2.0
# While they stay the same they are written again this often, so that they do not age.
AGAIN_S: Final = 3600.0
_MAX_FILE_BYTES: Final = MAX_PEERS * (MAX_ADDRESSES * (MAX_ADDRESS_CHARS + 4) + 200)


class RememberedPeers:
    """Of one network. For one thread at a time; other nodes of the home may use the file, and each
    adds to what the others wrote."""

    def __init__(self, home: Path, network: Network, own: PeerId) -> None:
        self._path = home / FILE
        self._network_id = network.network_id
        self._gates = {gate.peer_id for gate in network.contacts()}  # which are known anyway
        self._own = key_of_peer(own)
        self._written: frozenset[Contact] = frozenset()
        self._written_unix_s = float("-inf")

    def load(self, now_unix_s: float) -> tuple[Contact, ...]:
        """The one that was met last comes last. Empty where nothing can be read."""
        rows = self._read(now_unix_s)
        self._written = frozenset(contact for contact, _ in rows)
        self._written_unix_s = min((at for _, at in rows), default=float("-inf"))
        return tuple(contact for contact, _ in rows)

    async def keep(self, table: RoutingTable) -> None:
        """Until it is cancelled, write down who enters the table."""
        try:
            while True:
                await trio.sleep(LOOK_EVERY_S)
                self._look_at(table)
        finally:
            self._look_at(table)

    def _look_at(self, table: RoutingTable) -> None:
        nearest = table.closest(self._own, MAX_PEERS + len(self._gates))
        met = [each for each in nearest if each.peer_id not in self._gates]
        self.save(met[:MAX_PEERS], moment().unix_s)

    def save(self, met: Iterable[Contact], now_unix_s: float) -> None:
        """These are met now. Does nothing where that was written before, and not long ago."""
        direct = (_direct(each.peer_id, each.addresses) for each in met)
        contacts = frozenset(each for each in direct if each.addresses)
        is_old = now_unix_s >= self._written_unix_s + AGAIN_S
        if not contacts or (contacts <= self._written and not is_old):
            return
        known = {each.peer_id: (each, at) for each, at in self._read(now_unix_s)}
        for contact in sorted(contacts, key=lambda each: each.peer_id):
            known.pop(contact.peer_id, None)
            known[contact.peer_id] = (contact, now_unix_s)
        rows = [
            [contact.peer_id, list(contact.addresses[:MAX_ADDRESSES]), int(at)]
            for contact, at in list(known.values())[-MAX_PEERS:]
        ]
        try:
            write_whole(self._path, json.dumps({"network": self._network_id.hex(), "peers": rows}))
        except OSError as error:
            # It costs a node nothing now, and tomorrow's may have to wait for a gate.
            log.warning("%s could not be written: %s", self._path, error.strerror or error)
        else:
            self._written, self._written_unix_s = contacts, now_unix_s

    def _read(self, now_unix_s: float) -> list[tuple[Contact, float]]:
        rows = read_rows(
            self._path,
            "peers",
            _row,
            self._network_id,
            max_bytes=_MAX_FILE_BYTES,
            max_rows=MAX_PEERS,
        )
        return [row for row in rows if 0 <= now_unix_s - row[1] <= MAX_AGE_S]


def _row(peer: Any, addresses: Any, unix_s: Any) -> tuple[Contact, float]:
    """Raises ValueError, TypeError."""
    peer_id = PeerId(parse_peer_id(peer))
    if not isinstance(addresses, list) or not all(isinstance(each, str) for each in addresses):
        raise ValueError("its addresses are no list of texts")
    return _direct(peer_id, addresses[:MAX_ADDRESSES]), float(unix_s)


def _direct(peer: PeerId, addresses: Iterable[str]) -> Contact:
    """Without circuits, which end with the reservation."""
    return Contact(peer, tuple(map(str, dialable(addresses, peer))))

"""Which replica a client of HTTP comes back to: a cookie that each gateway of the network reads.

A gateway signs it with its node's key, and puts its grant beside that: another gateway of the
network takes its word, and keeps nothing. A client cannot choose a replica by itself, so that
strangers do not gather where they like.

    fgr1_<base64url of an envelope of CBOR [network, service, replica, expires, grant]>

A gateway without a network, which is on loopback, takes its own alone.
"""

from __future__ import annotations

import base64
import os
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final, TypeVar

from formation_p2p.core.errors import FormationError
from formation_p2p.core.identity import Identity, PeerId
from formation_p2p.records.core import codec, envelope
from formation_p2p.records.core.profile import MAX_GRANT_BYTES
from formation_p2p.trust.core.charter import Charter
from formation_p2p.trust.core.grants import check, read_grant
from formation_p2p.trust.core.network import Network

COOKIE: Final = "formation_replica"
# A visit. A client that comes later goes where there is less to do.
LIFE_S: Final = 86_400
# One that was made is given to others for so long, and one that was read is believed again.
FRESH_S: Final = 3_600
# Of each kind: those of the clients of a minute on a busy gateway, some 2 KiB each.
MAX_KEPT: Final = 1024
MAX_RAW_BYTES: Final = MAX_GRANT_BYTES + 1024
_PREFIX: Final = "fgr1_"
_DOMAIN: Final = "formation-gateway-replica"
_TYPE: Final = b"/formation/gateway-replica"
_MAX_UNIX_S: Final = 2**40
_MAX_NAME_CHARS: Final = 64
_NETWORK_ID_BYTES: Final = 32
_REPLICA: Final = re.compile(r"[A-Za-z0-9]{1,64}")

K = TypeVar("K")
V = TypeVar("V")


@dataclass(frozen=True, slots=True)
class _Said:
    """What a cookie says, its signature verified; it is believed `until_unix_s`, while the charter
    bans neither its author nor the invitation that he came by."""

    service: str
    replica: str
    until_unix_s: float
    author: PeerId
    invitation: str = ""


class Sticky:
    """Of one gateway: `identity` is its node's. `charter` is what counts at each request."""

    def __init__(
        self,
        network: Network | None = None,
        identity: Identity | None = None,
        charter: Callable[[], Charter | None] = lambda: None,
    ) -> None:
        self._network = network
        self._charter = charter
        self._identity = identity or Identity.from_seed(os.urandom(32))
        self._made: dict[tuple[str, str], tuple[str, float]] = {}
        self._read: dict[str, _Said] = {}

    def cookie(self, service: str, replica: str, now_unix_s: float) -> str:
        """The value that brings its client back to this replica."""
        made = self._made.get((service, replica))
        if made is not None and now_unix_s < made[1]:
            return made[0]
        network_id, grant = bytes(_NETWORK_ID_BYTES), b""
        if self._network is not None:
            network_id, grant = self._network.network_id, self._network.grant
        body = [network_id, service, replica, int(now_unix_s) + LIFE_S, grant]
        raw = envelope.seal(self._identity, _DOMAIN, _TYPE, codec.encode(body))
        text = _PREFIX + base64.urlsafe_b64encode(raw).decode().rstrip("=")
        _keep(self._made, (service, replica), (text, now_unix_s + FRESH_S))
        return text

    def replica(self, service: str, cookie: str, now_unix_s: float) -> str | None:
        """The one that a member of this network has named to the client for this service."""
        said = self._read.get(cookie)
        if said is None or now_unix_s >= said.until_unix_s:
            said = self._opened(cookie, now_unix_s)
            if said is None:
                return None
            _keep(self._read, cookie, said)
        charter = self._charter()
        is_banned = charter is not None and charter.bans(said.author, said.invitation) is not None
        return None if is_banned or said.service != service else said.replica

    def _opened(self, cookie: str, now_unix_s: float) -> _Said | None:
        encoded = cookie.removeprefix(_PREFIX)
        if encoded == cookie or len(encoded) > MAX_RAW_BYTES * 4 // 3 + 4:
            return None
        try:
            padded = encoded + "=" * (-len(encoded) % 4)
            raw = base64.b64decode(padded, altchars="-_", validate=True)
            author, payload = envelope.open_envelope(raw, _DOMAIN, _TYPE, MAX_RAW_BYTES)
            match codec.decode(payload, MAX_RAW_BYTES):
                case [network_id, service, replica, expires, grant]:
                    network = codec.take_bytes(network_id, "network", _NETWORK_ID_BYTES)
                    expires_unix_s = codec.take_int(expires, "expires", 0, _MAX_UNIX_S)
                    said = _Said(
                        codec.take_text(service, "service", _MAX_NAME_CHARS),
                        codec.take_text(replica, "replica", _MAX_NAME_CHARS),
                        min(expires_unix_s, now_unix_s + FRESH_S),
                        author,
                    )
                    shown = codec.take_bytes(grant, "grant", MAX_GRANT_BYTES)
                case _:
                    return None
        except (ValueError, FormationError):
            return None
        is_fresh = now_unix_s < expires_unix_s <= now_unix_s + 2 * LIFE_S
        if not is_fresh or _REPLICA.fullmatch(said.replica) is None:
            return None
        return self._believed(said, network, shown, now_unix_s)

    def _believed(
        self, said: _Said, network_id: bytes, grant: bytes, now_unix_s: float
    ) -> _Said | None:
        if said.author == self._identity.peer_id:
            return said
        known, charter = self._network, self._charter()
        if known is None or network_id != known.network_id:
            return None
        root = known.root_public_key
        if check(grant, root, said.author, None, now_unix_s, charter=charter) is not None:
            return None
        return replace(said, invitation=read_grant(grant, root).invitation)


def _keep(kept: dict[K, V], key: K, value: V) -> None:
    kept.pop(key, None)
    kept[key] = value
    if len(kept) > MAX_KEPT:
        del kept[next(iter(kept))]

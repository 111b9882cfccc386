"""Charters of networks whose root key is in a home."""

from __future__ import annotations

import time
from typing import Any

from formation_p2p.core.trust.charter import Charter
from formation_p2p.core.trust.network import Network
from formation_p2p.core.trust.root_keys import KeySet
from formation_p2p.core.trust.signed_charter import SignedCharter, draft, sign
from formation_p2p.host.machine.home import Home


def charter_at(home: Home, network: Network, **fields: Any) -> SignedCharter:
    """The first one, signed by the root."""
    (root,) = home.root_keys()
    keys, now = KeySet(1, (root.public_key,)), int(time.time())
    life: dict[str, Any] = {"issued_unix_s": now, "expires_unix_s": now + 86_400}
    rules = Charter(version=1, network=network.network_id, keys=keys, **life, **fields)
    return sign(draft(rules, keys), root)

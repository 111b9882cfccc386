"""Charters of networks whose root key is in a home, or of a world."""

import time
from typing import Any

from formation_p2p.machine.home import Home
from formation_p2p.trust.core.charter import Charter
from formation_p2p.trust.core.network import Network, network_id_of
from formation_p2p.trust.core.root_keys import KeySet
from formation_p2p.trust.core.signed_charter import SignedCharter, draft, sign
from simulations.simulator.world import EPOCH_UNIX_S, World

YEAR_S = 365 * 86_400


def charter_at(home: Home, network: Network, **fields: Any) -> SignedCharter:
    """The first one, signed by the root."""
    (root,) = home.root_keys()
    keys, now = KeySet(1, (root.public_key,)), int(time.time())
    life: dict[str, Any] = {"issued_unix_s": now, "expires_unix_s": now + 86_400}
    rules = Charter(version=1, network=network.network_id, keys=keys, **life, **fields)
    return sign(draft(rules, keys), root)


def charter_of(world: World, before: SignedCharter | None = None, **fields: Any) -> SignedCharter:
    """The next version, signed by the root of a world."""
    root = KeySet(1, (world.root.public_key,))
    issued = int(EPOCH_UNIX_S + world.now_s)
    rules = Charter(
        version=1 if before is None else before.version + 1,
        network=network_id_of(world.root.public_key),
        keys=root,
        issued_unix_s=issued,
        expires_unix_s=issued + YEAR_S,
        **fields,
    )
    return sign(draft(rules, root, before), world.root)

"""When to look up what, so that the routing table stays full and true.

Our own key, so that our neighbours know us and we them; and for each bucket without a lookup for
long, a key that lies in it. A lookup is of a name, whose SHA-256 is the key, so that a
name for a certain bucket can only be found by trying: one for the bucket whose peers share p bits
with us takes 2**(p + 1) tries on average, 1 us each.

Source: Kademlia, section 2.3 (refresh); go-libp2p-kbucket, which carries a table of such names
for up to 15 bits, and go-libp2p-kad-dht, which refreshes every ten minutes. The paper has an hour.
"""

from __future__ import annotations

import hashlib
import random

from formation_p2p.core.keyspace import KEY_BITS, Key, key_of
from formation_p2p.dht.core.parameters import DhtParameters
from formation_p2p.dht.core.routing import RoutingTable


class Refresh:
    """Call `joined` for each try to join, and `due` when `at_s` has passed."""

    def __init__(
        self,
        own_name: bytes,
        table: RoutingTable,
        rng: random.Random,
        parameters: DhtParameters = DhtParameters(),
    ) -> None:
        self._parameters = parameters
        self.at_s = float("inf")
        self._own = key_of(own_name)
        self._own_name = own_name
        self._table = table
        self._rng = rng
        self._is_new = True

    def joined(self, now_s: float) -> None:
        """Our own key is being looked up. It will be once more, soon: peers that join at the same
        time are not known yet to the peers that the others ask."""
        self._is_new = True
        self.at_s = now_s + self._jittered(self._parameters.fill_s)

    def due(self, now_s: float) -> bytes | None:
        """The name to look up now, if any. At most one: a burst would disturb what matters more."""
        ours = self._parameters
        deepest = KEY_BITS - ours.max_refresh_depth
        looks = [(at_s, n) for at_s, n in self._table.looks() if not 0 < n < deepest]
        ages = [
            (now_s - at_s) / (ours.bucket_refresh_s if n else ours.own_refresh_s)
            for at_s, n in looks
        ]
        age, (_, length) = max(zip(ages, looks, strict=True))
        # Each step looks at the one that is the most overdue, so that all have their turn.
        wait_s = ours.fill_s if ages.count(float("inf")) > 1 else ours.own_refresh_s / len(looks)
        self.at_s = now_s + self._jittered(wait_s)
        if self._is_new:
            self._is_new, length = False, 0
        elif age < ours.refresh_early:
            return None
        name = self._own_name if length == 0 else self.name_at(KEY_BITS - length)
        # Whether or not it finds a peer: with none to ask it need not be tried at each step.
        self._table.looked_into(Key(self._own ^ (1 << length >> 1)), now_s)
        return name

    def _jittered(self, wait_s: float) -> float:
        return wait_s * self._rng.uniform(*self._parameters.refresh_jitter)

    def name_at(self, depth: int) -> bytes | None:
        """A name whose key shares exactly `depth` bits with ours."""
        wanted = self._own >> (KEY_BITS - depth - 1) ^ 1
        unused = 15 - depth
        random_part = self._rng.randbytes(28)
        for number in range(self._parameters.max_name_tries):
            name = random_part + number.to_bytes(4, "big")
            if int.from_bytes(hashlib.sha256(name).digest()[:2], "big") >> unused == wanted:
                return name
        return None

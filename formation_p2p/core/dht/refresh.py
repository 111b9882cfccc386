"""When to look up what, so that the routing table stays full and true.

Our own key, so that our neighbours know us and we them; and for each bucket that nobody looked
into for long, a key that lies in it. A lookup is of a name, whose SHA-256 is the key, so that a
name for a certain bucket can only be found by trying: one for the bucket whose peers share p bits
with us takes 2**(p + 1) tries on average, 1 us each.

Source: Kademlia, section 2.3 (refresh); go-libp2p-kbucket, which carries a table of such names
for up to 15 bits, and go-libp2p-kad-dht, which refreshes every ten minutes. The paper has an hour.
"""

from __future__ import annotations

import hashlib
import random
from typing import Final

from formation_p2p.core.dht.routing import RoutingTable
from formation_p2p.core.keyspace import KEY_BITS, Key

# Records are kept by the peers nearest to a key, so these have to know each other.
OWN_REFRESH_S: Final = 600.0
# At 10,000 nodes, ten minutes made refreshing 40 % of all messages (docs/performance.md).
BUCKET_REFRESH_S: Final = 1800.0
# Nodes that started together part. What is this near to being due has its turn.
JITTER: Final = (0.8, 1.0)
EARLIEST: Final = 0.75
# After joining, the buckets are filled one by one.
FILL_S: Final = 2.0
# The deepest bucket that is refreshed. Below, in a network of fewer than 20 * 2**16 peers, the
# lookup of our own key covers it.
MAX_DEPTH: Final = 15
# Twice the average for the deepest, a tenth of a second. Who has bad luck tries another time.
MAX_TRIES: Final = 2 ** (MAX_DEPTH + 2)


class Refresh:
    """Call `joined` for each try to join, and `due` when `at_s` has passed."""

    def __init__(self, own: Key, own_name: bytes, table: RoutingTable, rng: random.Random) -> None:
        self.at_s = float("inf")
        self._own = own
        self._own_name = own_name
        self._table = table
        self._rng = rng
        self._is_new = True

    def joined(self, now_s: float) -> None:
        """Our own key is being looked up. It will be once more, soon: of those who join at the
        same time nobody is known yet to whom the others ask."""
        self._is_new = True
        self.at_s = now_s + FILL_S * self._rng.uniform(*JITTER)

    def due(self, now_s: float) -> bytes | None:
        """The name to look up now, if any. At most one: a burst would disturb what matters more."""
        looks = [(at_s, n) for at_s, n in self._table.looks() if not 0 < n < KEY_BITS - MAX_DEPTH]
        ages = [(now_s - at_s) / (BUCKET_REFRESH_S if n else OWN_REFRESH_S) for at_s, n in looks]
        age, (_, length) = max(zip(ages, looks, strict=True))
        never = sum(age == float("inf") for age in ages)
        # Each step looks at the one that is the most overdue, so that all have their turn.
        wait_s = FILL_S if never > 1 else OWN_REFRESH_S / len(looks)
        self.at_s = now_s + wait_s * self._rng.uniform(*JITTER)
        if self._is_new:
            self._is_new, length = False, 0
        elif age < EARLIEST:
            return None
        name = self._own_name if length == 0 else self._name_at(KEY_BITS - length)
        # Whether or not it finds anybody: with nobody to ask it need not be tried at each step.
        if length:
            self._table.looked_into(Key(self._own ^ 1 << (length - 1)), now_s)
        else:
            self._table.looked_into(self._own, now_s)
        return name

    def _name_at(self, depth: int) -> bytes | None:
        """A name whose key shares exactly `depth` bits with ours."""
        wanted = self._own >> (KEY_BITS - depth - 1) ^ 1
        unused = 15 - depth
        random_part = self._rng.randbytes(28)
        for number in range(MAX_TRIES):
            name = random_part + number.to_bytes(4, "big")
            if int.from_bytes(hashlib.sha256(name).digest()[:2], "big") >> unused == wanted:
                return name
        return None

"""Which of an author's records counts: the one with the highest sequence number.

A record that its author has replaced stays correctly signed until it expires. A peer that keeps it
could hand it out again, to hide that a machine has become full or has left; `Newest` remembers
for as long as that could work.
"""

from __future__ import annotations

import hashlib
from typing import Final, NamedTuple

from formation_p2p.core.errors import ReplayedRecord
from formation_p2p.core.identity import PeerId
from formation_p2p.core.records.profile import MAX_CLOCK_SKEW_S, MAX_TTL_S, SignedProfile

# About 300 bytes each: 20 MiB. Authors need a grant before they get in here, and 65,536 is far
# more workers than one node hears of in MAX_TTL_S.
MAX_AUTHORS: Final = 65_536


class _Seen(NamedTuple):
    sequence: int
    digest: bytes
    forget_unix_s: float


class Newest:
    """The highest sequence number seen of each author, at most `limit` of them.

    Full, it forgets whom it has heard from least recently.
    """

    def __init__(self, limit: int = MAX_AUTHORS) -> None:
        self._limit = limit
        self._seen: dict[PeerId, _Seen] = {}  # least recently heard from first

    def admit(self, signed: SignedProfile, now_unix_s: float) -> None:
        """Take note of a record. To see the same one again is not a fault.

        Raises ReplayedRecord for an older one than was admitted before, or for another with the
        same number. Admit only what `open_profile` gave, by authors who may be in the network.
        """
        while self._seen and next(iter(self._seen.values())).forget_unix_s <= now_unix_s:
            del self._seen[next(iter(self._seen))]
        author, sequence = signed.profile.peer_id, signed.profile.sequence
        digest = hashlib.sha256(signed.raw).digest()
        known = self._seen.get(author)
        if known is not None:
            if sequence < known.sequence:
                raise ReplayedRecord(f"a newer profile of {author} is known")
            if sequence == known.sequence and digest != known.digest:
                raise ReplayedRecord(f"{author} signed two profiles with one sequence number")
            del self._seen[author]
        elif len(self._seen) >= self._limit:
            del self._seen[next(iter(self._seen))]
        # What was signed before this record has expired by then.
        forget_unix_s = now_unix_s + MAX_CLOCK_SKEW_S + MAX_TTL_S
        self._seen[author] = _Seen(sequence, digest, forget_unix_s)

    def __len__(self) -> int:
        return len(self._seen)

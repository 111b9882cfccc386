"""How long a grant is given for, and for how long it is renewed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from formation_p2p.core.resources import bounds

# The year 5138: eleven digits, and past anyone's plans.
MAX_EXPIRY_UNIX_S: Final = 99_999_999_999


@dataclass(frozen=True, slots=True)
class Life:
    """A grant lasts `life_s`. Holders of the root key renew it, each time for as long, and not past
    `renewed_until_unix_s`. Raises InvalidInput."""

    life_s: int
    renewed_until_unix_s: int

    def __post_init__(self) -> None:
        bounds.check_amount("life", self.life_s, 1, MAX_EXPIRY_UNIX_S)
        bounds.check_amount("renewed until", self.renewed_until_unix_s, 0, MAX_EXPIRY_UNIX_S)

    def end_unix_s(self, now_unix_s: float) -> int:
        """Of a grant that is given now."""
        return min(int(now_unix_s) + self.life_s, self.renewed_until_unix_s, MAX_EXPIRY_UNIX_S)

"""What a node has to do with circuits, as its owner sets it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from formation_p2p.core.effects import Contact, Moment
from formation_p2p.core.errors import InvalidInput
from formation_p2p.core.identity import PeerId
from formation_p2p.core.units import KIB
from formation_p2p.reach.core.relay import RelayFor

# Less would not carry the pings of a few circuits.
LEAST_BYTES_PER_S: Final = 16 * KIB


@dataclass(frozen=True, slots=True)
class RelaySettings:
    """How a gate relays: for whom, and how many bytes a second at most, all peers together; None
    for as many as it can."""

    serves: RelayFor = RelayFor.MEMBERS
    bytes_per_s: int | None = None

    def __post_init__(self) -> None:
        """Raises InvalidInput."""
        if self.bytes_per_s is not None and self.bytes_per_s < LEAST_BYTES_PER_S:
            problem = f"{self.bytes_per_s} bytes a second; {LEAST_BYTES_PER_S} are the least"
            raise InvalidInput("relay bandwidth", problem)


@dataclass(frozen=True, slots=True, kw_only=True)
class CircuitSettings:
    """`grant` is what relays are shown, and `admits` judges that of others. `gates` are those of
    the network. `reserves` has the node reserve whatever others say of its reach (True), or never
    (False)."""

    grant: Callable[[], bytes] = lambda: b""
    admits: Callable[[bytes, PeerId, Moment], bool] = lambda grant, peer, now: False
    gates: tuple[Contact, ...] = ()
    relay: RelaySettings | None = None
    reserves: bool | None = None


# Of a node without a network: it dials circuits, and has none that lead to it.
NO_CIRCUITS: Final = CircuitSettings()

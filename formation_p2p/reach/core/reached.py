"""By which ways others reach a node, as it knows by now."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from formation_p2p.core.identity import PeerId


class Way(Enum):
    """DIRECT: anyone dials it. RELAYED: through gates. LOCAL: those on its own network dial it.
    NOWHERE: who was asked could not dial it. SILENT: it does not listen. UNKNOWN: none has tried
    yet."""

    DIRECT = "direct"
    RELAYED = "relayed"
    LOCAL = "local"
    NOWHERE = "nowhere"
    SILENT = "silent"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Reached:
    """`at` are the addresses that others dial, or those on the same network; `relays` the gates
    that lead here. `is_shut`: there are others, and these have no way here."""

    way: Way
    at: tuple[str, ...] = ()
    relays: tuple[PeerId, ...] = ()
    is_shut: bool = False

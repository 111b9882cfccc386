"""What follows the loss of a gang's member, by the names that people write: those built in, and
those of installed packages, in the entry point group `formation_p2p.recoveries`
(docs/explanation/clusters.md)."""

from __future__ import annotations

from typing import Final

from formation_p2p.features.gangs.core import recovery
from formation_p2p.features.gangs.core.recovery import Recovery
from formation_p2p.machine.entry_points import Offered

RECOVERIES: Final = Offered("formation_p2p.recoveries", recovery.RECOVERIES)


def parse_recovery(text: str | Recovery) -> Recovery:
    """Raises InvalidInput."""
    return recovery.parse_recovery(text, RECOVERIES)

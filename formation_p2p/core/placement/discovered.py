"""What a lookup of workers brought."""

from __future__ import annotations

from dataclasses import dataclass

from formation_p2p.core.discovery.trace import Trace
from formation_p2p.core.placement.decision import Decision


@dataclass(frozen=True, slots=True)
class Discovery:
    """The workers that could run a task, and how they were found."""

    decision: Decision
    trace: Trace

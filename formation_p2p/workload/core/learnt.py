"""What a person is told of a memory estimate (memory_estimate.py)."""

from __future__ import annotations

from typing import Final

from formation_p2p.core.units import format_bytes

PERCENTILE: Final = 95
HEADROOM_PERCENT: Final = 20


def learnt_in_words(kind: str, runs: int, memory_bytes: int) -> str:
    memory, what = format_bytes(memory_bytes), kind.partition(":")[2]
    how = f"p{PERCENTILE} + {HEADROOM_PERCENT} %"
    return f"memory {memory}: learnt from {runs} runs of {what} ({how})"

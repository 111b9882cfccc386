"""Durations as people write them.

>>> parse_duration_s("1.5h")
5400.0
"""

from __future__ import annotations

import re
from typing import Final

from formation_p2p.core.errors import InvalidInput

_DURATION: Final = re.compile(r"\s*(\d{1,9}(?:\.\d{1,9})?)\s*([smhdw]?)\s*", re.ASCII)
_UNITS_S: Final = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 7 * 86_400}


def parse_duration_s(text: str, field: str = "duration") -> float:
    """Seconds of `30`, `90s`, `5m`, `1.5h`, `30d`, `4w`. Raises InvalidInput."""
    match = _DURATION.fullmatch(text)
    if match is None:
        raise InvalidInput(field, f"{text!r} is not a duration; write it like 90s, 5m, 2h or 30d")
    number, unit = match.groups()
    duration_s = float(number) * _UNITS_S[unit]
    if duration_s == 0:
        raise InvalidInput(field, f"{text!r} is zero; write it like 90s, 5m, 2h or 30d")
    return duration_s

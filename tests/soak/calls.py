"""What the soak's calls compute. The code travels with them."""

from __future__ import annotations

import hashlib
import time


def squared(number: int) -> int:
    time.sleep(0.02)
    return number * number


def doubled(data: bytes) -> bytes:
    return data + data


def digest(numbered: tuple[int, bytes]) -> tuple[int, str]:
    number, data = numbered
    return number, hashlib.sha256(data).hexdigest()

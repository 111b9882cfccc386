"""Quantities as text, and as the integers that the program keeps.

    >>> parse_bytes("8GiB")
    8589934592
    >>> parse_milli("1.5")
    1500

The program counts bytes, milli-cores and milli-GPUs in integers, so that reservations and releases
never drift (0.1 + 0.2 fits into 0.3).
"""

from __future__ import annotations

import re
from typing import Final

KIB: Final = 1024
MIB: Final = 1024 * KIB
GIB: Final = 1024 * MIB
TIB: Final = 1024 * GIB

# 1 EiB: past what one machine holds, and well inside a signed 64-bit integer, so that sums of
# a few thousand of them still fit wherever they are sent.
MAX_BYTES: Final = 1 << 60
# A million cores (or GPUs): past any machine.
MAX_MILLI: Final = 1_000_000 * 1000

# So few digits that Decimal neither rounds nor overflows, which it does with an error of its own.
_BYTES: Final = re.compile(r"\s*(\d{1,20}(?:\.\d{1,6})?)\s*([A-Za-z]*)\s*", re.ASCII)
_MILLI: Final = re.compile(r"(\d{1,12}(?:\.\d{1,12})?)(m?)", re.ASCII)
_MICRO: Final = re.compile(r"\d{1,12}(?:\.\d{1,6})?", re.ASCII)
# In capitals. KB and MB are decimal, K and KiB binary.
_BYTE_UNITS: Final = {
    **{"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12},
    **{"K": KIB, "M": MIB, "G": GIB, "T": TIB},
    **{"KIB": KIB, "MIB": MIB, "GIB": GIB, "TIB": TIB},
}


def parse_bytes(text: str) -> int:
    """Bytes of `8GiB`, `500MB`, `4G` (binary, as in cgroups and Kubernetes' `Gi`), `1024`.

    Raises ValueError, whose text says what is wrong with the value but not which field it is.
    """
    # Here: a command that starts imports this module, and uses none of that.
    from decimal import Decimal

    match = _BYTES.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} is not a size; write it like 8GiB, 500MB or 1073741824")
    number, unit = match.groups()
    factor = _BYTE_UNITS.get(unit.upper())
    if factor is None:
        raise ValueError(
            f"{unit!r} is not a unit of size; use B, KiB, MiB, GiB, TiB, KB, MB, GB, TB"
        )
    size = int(Decimal(number) * factor)
    if size > MAX_BYTES:
        raise ValueError(f"{text!r} is past 1 EiB, more than any machine has")
    return size


def parse_milli(text: str) -> int:
    """Thousandths of `1.5`, or of `1500m` as Kubernetes writes it.

    Raises ValueError for anything that is not a plain, finite number of at most a million, or
    that has parts finer than a thousandth.
    """
    from decimal import Decimal

    match = _MILLI.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"{text!r} is not a number of zero or more; write it like 2, 1.5 or 1500m")
    milli = Decimal(match[1]) * (1 if match[2] else 1000)
    if milli > MAX_MILLI:
        raise ValueError(f"{text!r} is past a million, more than any machine has")
    if milli != int(milli):
        raise ValueError(f"{text!r} is finer than a thousandth")
    return int(milli)


def parse_micro(text: str) -> int:
    """Millionths of `0.05` or `2`: a price. Raises ValueError."""
    from decimal import Decimal

    if _MICRO.fullmatch(text.strip()) is None:
        raise ValueError(
            f"{text!r} is not a price; write it like 2 or 0.05, with up to six decimals"
        )
    return int(Decimal(text.strip()) * 10**6)


def format_span(seconds: float) -> str:
    """In the largest unit of which there are two.

    >>> format_span(49 * 3600)
    '2 d'
    """
    for unit, unit_s in (("d", 86_400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * unit_s:
            return f"{int(seconds // unit_s)} {unit}"
    return f"{int(seconds)} s"


def format_bytes(size: int) -> str:
    """`8589934592` as `8GiB`: the largest binary unit, one decimal where it is not whole."""
    for unit, factor in (("TiB", TIB), ("GiB", GIB), ("MiB", MIB), ("KiB", KIB)):
        if size >= factor:
            whole, rest = divmod(size, factor)
            return f"{whole}{unit}" if rest == 0 else f"{size / factor:.1f}{unit}"
    return f"{size}B"


def format_milli(milli: int) -> str:
    """`1500` as `1.5`."""
    from decimal import Decimal

    return f"{Decimal(milli).scaleb(-3).normalize():f}"


def format_micro(micro: int) -> str:
    """`50000` as `0.05`."""
    from decimal import Decimal

    return f"{Decimal(micro).scaleb(-6).normalize():f}"

"""A GPU is a device with an id, never a count; its compute capability is a number.

>>> parse_compute_capability("sm_100") > parse_compute_capability("8.0")
True
>>> normalise_model("NVIDIA A100-SXM4-80GB")
'a100'
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from formation_p2p.core.errors import InvalidInput
from formation_p2p.machine.core.bounds import MAX_MEMORY_BYTES, check_amount, check_name, shown

WHOLE_GPU_MILLI: Final = 1000
# 49.9; the newest of 2025 is 12.1. It tells `80` (meant as sm_80, read as 80.0) from a version.
MAX_COMPUTE_CAPABILITY: Final = 499

# NVML's own bound on a name is 96 bytes.
_MAX_MODEL: Final = 96
# `GPU-` and a UUID have 40 characters.
_DEVICE_ID: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/-]{0,63}", re.ASCII)
_VERSION: Final = re.compile(r"(\d{1,2})(?:\.(\d))?", re.ASCII)
_ARCHITECTURE: Final = re.compile(r"(?:sm|compute)_(\d{1,2})(\d)", re.ASCII)

# Left out of a model's name: its maker, product line, form factor and memory. `laptop`, `max`-`q`
# and `ada` stay: those are other chips.
_NOISE: Final = re.compile(
    r"nvidia|amd|intel|geforce|quadro|tesla|radeon|instinct|graphics|gpu|tm|with|design|edition"
    r"|generation|pcie|sxm\d?|oam|nvl|hbm\d?e?|gddr\d?x?|\d+(?:g|gb|gib|mb)",
    re.ASCII,
)
# `rtx4090` and `3080ti`, as people write them: where such words come apart.
_SEAM: Final = re.compile(r"(?<=^rtx|^gtx)(?=a?\d)|(?<=^rx)(?=\d)|(?<=\d{3})(?=(?:ti|super)$)")


def parse_compute_capability(text: str) -> int:
    """Major * 10 + minor of `8.6`, `9` or `sm_100`: 86, 90, 100. Raises ValueError.

    Architecture-specific names (`sm_90a`) are refused: they name one chip, not a least version.
    """
    bare = text.strip().lower()
    match = _VERSION.fullmatch(bare) or _ARCHITECTURE.fullmatch(bare)
    number = int(match[1]) * 10 + int(match[2] or 0) if match else -1
    if not 0 <= number <= MAX_COMPUTE_CAPABILITY:
        raise ValueError(f"{shown(text)} is not a compute capability; write it like 8.6 or sm_86")
    return number


def format_compute_capability(number: int) -> str:
    """`86` as `8.6`."""
    return f"{number // 10}.{number % 10}"


def normalise_model(name: object) -> str:
    """The one form of a model's name: `h100`, `rtx-4090`, `rtx-4090-laptop`, `mi300x`.

    Idempotent, and independent of case, maker's prefix, form factor and memory size. Raises
    InvalidInput for a name without letters and digits, or of more than 96 characters.
    """
    if not isinstance(name, str):
        raise InvalidInput("gpu.model", f"{shown(name)} is not a text")
    if len(name) > _MAX_MODEL:
        raise InvalidInput("gpu.model", f"{shown(name)} is longer than {_MAX_MODEL} characters")
    words = [
        part
        for word in re.findall(r"[a-z0-9]+", name.lower())
        for part in _SEAM.sub("-", word).split("-")
    ]
    model = "-".join([word for word in words if _NOISE.fullmatch(word) is None] or words)
    if not 0 < len(model) <= _MAX_MODEL:
        problem = f"{shown(name)} is not a model; write it like h100 or rtx-4090"
        raise InvalidInput("gpu.model", problem)
    return model


@dataclass(frozen=True, slots=True)
class Gpu:
    """One device. `model` is put into its one form; `compute_capability` is 0 where there is none.

    Raises InvalidInput for a field out of its range.
    """

    device_id: str
    vendor: str
    model: str
    memory_bytes: int
    compute_capability: int = 0

    def __post_init__(self) -> None:
        check_device_id(self.device_id)
        check_name("gpu.vendor", self.vendor)
        object.__setattr__(self, "model", normalise_model(self.model))
        check_amount("gpu.memory", self.memory_bytes, 0, MAX_MEMORY_BYTES)
        check_amount("gpu.cc", self.compute_capability, 0, MAX_COMPUTE_CAPABILITY)


def check_device_id(value: object) -> None:
    """Refuses all but a short printable id, with InvalidInput."""
    if not isinstance(value, str) or _DEVICE_ID.fullmatch(value) is None:
        raise InvalidInput("gpu.id", f"{shown(value)} is not a device id")

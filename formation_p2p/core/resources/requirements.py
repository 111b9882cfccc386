"""What one task needs of the machine that runs it. Every amount is a minimum.

Errors and refusals name fields as people write them (`parse.py`): `gpu.memory`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from formation_p2p.core.errors import InvalidInput
from formation_p2p.core.resources import bounds
from formation_p2p.core.resources.gpu import (
    MAX_COMPUTE_CAPABILITY,
    WHOLE_GPU_MILLI,
    normalise_model,
)
from formation_p2p.core.units import MIB

# A Python process with numpy and a little data; and where a machine has 2 GiB a core, as the
# smallest rented ones do, its cores still run out before its memory.
DEFAULT_MEMORY_BYTES: Final = 512 * MIB
# A list of more alternatives would hardly exclude any model.
MAX_MODELS_ASKED: Final = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Requirements:
    """Models and labels are sorted, so that equal needs have one hash.

    The GPU fields hold for each of `gpu_count` distinct devices. `gpu_share_milli` is the part
    of each device that is taken; below 1000 others may share it, and where `gpu_memory_bytes` is
    0 the same part of its memory is taken. Any one of `gpu_models` will do. `network_mbps` is
    in megabits (10**6) a second. `driver` runs the task, which sets it.

    Raises InvalidInput for a field out of its range, or for GPU fields without a GPU.
    """

    cpu_milli: int = 1000
    memory_bytes: int = DEFAULT_MEMORY_BYTES
    storage_bytes: int = 0
    network_mbps: int = 0
    gpu_count: int = 0
    gpu_memory_bytes: int = 0
    gpu_compute_capability: int = 0
    gpu_models: tuple[str, ...] = ()
    gpu_share_milli: int = WHOLE_GPU_MILLI
    labels: tuple[tuple[str, str], ...] = ()
    driver: str = ""

    def __post_init__(self) -> None:
        # At least a thousandth of a core and a byte: tasks that need nothing would have no bound.
        bounds.check_amount("cpu", self.cpu_milli, 1, bounds.MAX_CPU_MILLI)
        bounds.check_amount("memory", self.memory_bytes, 1, bounds.MAX_MEMORY_BYTES)
        bounds.check_amount("storage", self.storage_bytes, 0, bounds.MAX_STORAGE_BYTES)
        bounds.check_amount("network", self.network_mbps, 0, bounds.MAX_NETWORK_MBPS)
        bounds.check_amount("gpu", self.gpu_count, 0, bounds.MAX_GPUS)
        bounds.check_amount("gpu.memory", self.gpu_memory_bytes, 0, bounds.MAX_MEMORY_BYTES)
        bounds.check_amount("gpu.cc", self.gpu_compute_capability, 0, MAX_COMPUTE_CAPABILITY)
        bounds.check_amount("gpu.share", self.gpu_share_milli, 1, WHOLE_GPU_MILLI)
        models: object = self.gpu_models
        if not isinstance(models, tuple):
            raise InvalidInput("gpu.model", f"{bounds.shown(models)} is not a tuple of models")
        if len(models) > MAX_MODELS_ASKED:
            problem = f"there are more than {MAX_MODELS_ASKED}; leave some out"
            raise InvalidInput("gpu.model", problem)
        object.__setattr__(self, "gpu_models", tuple(sorted(set(map(normalise_model, models)))))
        object.__setattr__(self, "labels", bounds.sorted_labels(self.labels))
        if self.driver != "":
            bounds.check_name("driver", self.driver)
        for field, asked in (
            ("gpu.memory", self.gpu_memory_bytes > 0),
            ("gpu.cc", self.gpu_compute_capability > 0),
            ("gpu.model", self.gpu_models != ()),
            ("gpu.share", self.gpu_share_milli < WHOLE_GPU_MILLI),
        ):
            if asked and self.gpu_count == 0:
                raise InvalidInput(field, "is asked of no GPU; ask for one with gpu=1")

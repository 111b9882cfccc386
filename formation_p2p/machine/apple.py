"""The GPUs of a Mac, as its system_profiler tells of them. Never seen on real hardware: no worker
runs on macOS yet, and this is the part that reads its GPU.

What Apple makes shares the machine's memory, which is then that of the GPU. Others, in older Macs,
are left out: no driver of tasks here uses them.

Source: system_profiler(8), SPDisplaysDataType.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Final

import psutil

from formation_p2p.machine.command import printed_by
from formation_p2p.machine.core.gpu import Gpu
from formation_p2p.machine.gpus import APPLE, Found, GpuReading, check_among, noted

_COMMAND: Final = ("system_profiler", "SPDisplaysDataType", "-json")
# It asks every display.
_ANSWER_S: Final = 20.0
_MAKER: Final = "sppci_vendor_Apple"


def _profiled() -> str:
    return printed_by(_COMMAND, _ANSWER_S) if sys.platform == "darwin" else "{}"


def read_apple(profiled: Callable[[], str] = _profiled) -> Found:
    """None on other systems. `profiled` gives what the command prints."""
    readings: list[GpuReading] = []
    notes: list[str] = []
    with noted("system_profiler does not answer", notes):
        memory = psutil.virtual_memory()
        for display in json.loads(profiled()).get("SPDisplaysDataType", ()):
            with noted("a GPU is left out", notes):
                if display["spdisplays_vendor"] != _MAKER:
                    raise ValueError(f"{display['sppci_model']} is not by Apple")
                device_id = f"{APPLE}:{len(readings)}"
                gpu = Gpu(device_id, APPLE, display["sppci_model"], memory.total)
                check_among(gpu, readings)
                readings.append(GpuReading(gpu, min(memory.available, memory.total), None))
    return tuple(readings), tuple(notes)

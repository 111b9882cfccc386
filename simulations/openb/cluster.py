"""What is free of each machine, in columns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from formation_p2p.machine.core.gpu import WHOLE_GPU_MILLI
from simulations.openb.trace import Machine, Pod

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

# No device is meant: whole ones are taken from the first on.
NONE: Final = -1


class Cluster:
    """`free` has one column a device, 0 where a machine has no such device. `kind` numbers the
    models of GPUs."""

    def __init__(self, machines: Sequence[Machine]) -> None:
        self.machines = tuple(machines)
        self.models = tuple(sorted({machine.model for machine in machines}))
        self.cpu: Ints = np.array([machine.cpu_milli for machine in machines])
        self.memory: Ints = np.array([machine.memory_mib for machine in machines])
        self.kind: Ints = np.array([self.models.index(machine.model) for machine in machines])
        self.devices: Ints = np.array([machine.gpus for machine in machines])
        widest = max(machine.gpus for machine in machines)
        self.free: Ints = np.array(
            [
                [WHOLE_GPU_MILLI * (device < machine.gpus) for device in range(widest)]
                for machine in machines
            ]
        )

    def room(self, pod: Pod) -> Bools:
        """Who could start it now."""
        room: Bools = (self.cpu >= pod.cpu_milli) & (self.memory >= pod.memory_mib)
        if pod.gpus:
            room &= (self.free >= pod.share_milli).sum(axis=1) >= pod.gpus
        if pod.models:
            room &= self.admits(pod.models)[self.kind]
        return room

    def admits(self, models: Sequence[str]) -> Bools:
        """Which of the models will do."""
        return np.array([not models or model in models for model in self.models])

    def take(self, machine: int, pod: Pod, device: int = NONE) -> None:
        self.cpu[machine] -= pod.cpu_milli
        self.memory[machine] -= pod.memory_mib
        free = self.free[machine]
        if device == NONE:
            free[np.flatnonzero(free >= pod.share_milli)[: pod.gpus]] -= pod.share_milli
        else:
            free[device] -= pod.share_milli

    def options(self, machines: Ints, pod: Pod) -> tuple[Ints, Ints, Ints]:
        """Every way to take a pod: the place in `machines`, the device (or NONE), and what would
        be free of each device. A part is tried on one device of each state."""
        free = self.free[machines]
        if not pod.is_part:
            if pod.gpus:
                idle = free == WHOLE_GPU_MILLI
                free = np.where(idle & (idle.cumsum(axis=1) <= pod.gpus), 0, free)
            return np.arange(len(machines)), np.full(len(machines), NONE), free
        same = free[:, :, None] == free[:, None, :]
        first = ~np.tril(same, -1).any(axis=2)
        place, device = np.nonzero(first & (free >= pod.share_milli))
        after = free[place]
        after[np.arange(len(place)), device] -= pod.share_milli
        return place, device, after

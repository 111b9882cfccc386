"""Fragments of many machines at once: what `placement/core/fragmentation.py` says, in columns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

import numpy as np

from simulations.openb.cluster import Bools, Cluster, Ints
from simulations.openb.trace import Shape


class Expected:
    """Shapes of tasks that may come."""

    def __init__(self, cpu: Ints, gpus: Ints, share: Ints, able: Bools) -> None:
        """`able` tells of each shape which models will do; none will for a task without GPUs."""
        self._cpu, self._gpus, self._share, self._able = cpu, gpus, share, able
        self._sizes, self._size = np.unique(share, return_inverse=True)

    @classmethod
    def of(cls, shapes: Sequence[Shape], cluster: Cluster) -> Self:
        return cls(
            np.array([max(shape.cpu_milli, 1) for shape in shapes]),
            np.array([max(shape.gpus, 1) for shape in shapes]),
            np.array([shape.share_milli or 1 for shape in shapes]),
            np.array([cluster.admits(shape.models) & (shape.gpus > 0) for shape in shapes]),
        )

    def only(self, shapes: Ints) -> Expected:
        return Expected(
            self._cpu[shapes], self._gpus[shapes], self._share[shapes], self._able[shapes]
        )

    def once(self, free: Ints, cpu: Ints, kind: Ints) -> Ints:
        """Of each machine (rows), what is free of devices with room for the task (columns); 0
        where it does not fit."""
        roomy = free[:, None, :] >= self._sizes[:, None]
        usable = (free[:, None, :] * roomy).sum(axis=2)
        used: Ints = usable[:, self._size] * self._fits(roomy, cpu, kind)
        return used

    def full(self, free: Ints, cpu: Ints, kind: Ints) -> Ints:
        """What is used once as many such tasks have come as fit."""
        roomy = free[:, None, :] >= self._sizes[:, None]
        parts = (free[:, None, :] // self._sizes[:, None]).sum(axis=2)[:, self._size]
        times = np.minimum(parts // self._gpus, cpu[:, None] // self._cpu)
        used: Ints = times * self._gpus * self._share * self._fits(roomy, cpu, kind)
        return used

    def able(self, kind: Ints) -> Bools:
        """Which machines (rows) have the model for the task (columns)."""
        admitted: Bools = self._able.T[kind]
        return admitted

    def _fits(self, roomy: Bools, cpu: Ints, kind: Ints) -> Bools:
        enough = roomy.sum(axis=2)[:, self._size] >= self._gpus
        fits: Bools = enough & (cpu[:, None] >= self._cpu) & self.able(kind)
        return fits

"""The machines and pods of Alibaba's GPU cluster trace of 2023 ("openb"), or made-up ones like it.

The files are not ours to hand around: they are read from the folder that FORMATION_DATA names, or
from `shared/data` beside the project.

Source: Weng et al., "Beware of Fragmentation: Scheduling GPU-Sharing Workloads with Fragmentation
Gradient Descent", USENIX ATC 2023; hkust-adsl/kubernetes-scheduler-simulator.
"""

from __future__ import annotations

import csv
import os
import random
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from formation_p2p.machine.core.gpu import WHOLE_GPU_MILLI, normalise_model

DATA: Final = Path(os.environ.get("FORMATION_DATA", Path(__file__).parents[3] / "shared" / "data"))
LISTS: Final = ("default", "cpu100", "gpushare40", "gpuspec10", "multigpu20")
SYNTHETIC: Final = "synthetic"
# The default list, in which a third of the tasks with GPUs accept one model alone, or two: drawn
# from all models alike, so that most of these tasks ask for one that few machines have.
WITH_MODELS: Final = {"onemodel33": 1, "twomodels33": 2}
MODELS_SHARE: Final = 1 / 3
_MODELS_SEED: Final = 1
NAMES: Final = (*LISTS, *WITH_MODELS, SYNTHETIC)
# Pods arrive until they have asked for so many times the GPUs that there are.
ARRIVALS: Final = 1.3
# The share of pods whose shapes are typical: by them fragments are measured.
TYPICAL: Final = 0.95


class Machine(NamedTuple):
    cpu_milli: int
    memory_mib: int
    gpus: int
    model: str


class Pod(NamedTuple):
    """`share_milli` is of each GPU, 0 where there are none. No `models`: any will do."""

    cpu_milli: int
    memory_mib: int
    gpus: int
    share_milli: int
    models: tuple[str, ...] = ()

    @property
    def gpu_milli(self) -> int:
        return self.gpus * self.share_milli

    @property
    def is_part(self) -> bool:
        return 0 < self.share_milli < WHOLE_GPU_MILLI


class Shape(NamedTuple):
    """What of a pod makes it alike others. The order is how the authors break ties."""

    cpu_milli: int
    share_milli: int
    gpus: int
    models: tuple[str, ...]

    @classmethod
    def of(cls, pod: Pod) -> Shape:
        return cls(pod.cpu_milli, pod.share_milli, pod.gpus, pod.models)


class Trace(NamedTuple):
    machines: tuple[Machine, ...]
    pods: tuple[Pod, ...]

    @property
    def gpu_milli(self) -> int:
        return sum(machine.gpus for machine in self.machines) * WHOLE_GPU_MILLI


def read(pods: str, folder: Path = DATA) -> Trace:
    """One of NAMES, or the path of a list in the trace's format. Raises OSError, and ValueError
    for a file in another format."""
    if pods == SYNTHETIC:
        return synthetic()
    if pods in WITH_MODELS:
        return with_models(read("default", folder), WITH_MODELS[pods])
    machines = tuple(map(_machine, _rows(folder / "openb" / "openb_node_list_gpu_node.csv")))
    path = folder / "openb" / f"openb_pod_list_{pods}.csv" if pods in LISTS else Path(pods)
    try:
        return Trace(machines, tuple(map(_pod, _rows(path))))
    except KeyError as error:
        raise ValueError(
            f"{path} has no column {error}; docs/explanation/performance.md names them"
        ) from error


def with_models(trace: Trace, count: int) -> Trace:
    """MODELS_SHARE of the pods with GPUs accept so many models alone, each drawn from all."""
    rng = random.Random(f"{_MODELS_SEED}/models")
    models = sorted({machine.model for machine in trace.machines})
    return trace._replace(
        pods=tuple(
            pod._replace(models=tuple(sorted(rng.sample(models, count))))
            if pod.gpus and rng.random() < MODELS_SHARE
            else pod
            for pod in trace.pods
        )
    )


def synthetic(machines: int = 120, pods: int = 800, seed: int = 1) -> Trace:
    """Of the same shape: kinds of machines and of pods in about the trace's proportions."""
    rng = random.Random(seed)
    kinds, weights = zip(*_MACHINES, strict=True)
    shapes, shares = zip(*_PODS, strict=True)
    return Trace(
        tuple(rng.choices(kinds, weights, k=machines)), tuple(rng.choices(shapes, shares, k=pods))
    )


def arrivals(trace: Trace, rng: random.Random) -> list[Pod]:
    """All pods in random order, and then some of them again, drawn one by one. As the authors do,
    it ends where one GPU of the next pod would be too many."""
    pods = list(trace.pods)
    rng.shuffle(pods)
    asked, most = sum(pod.gpu_milli for pod in pods), ARRIVALS * trace.gpu_milli
    while True:
        pod = rng.choice(trace.pods)
        if asked + pod.share_milli > most:
            return pods
        pods.append(pod)
        asked += pod.gpu_milli


def typical(pods: Sequence[Pod]) -> list[tuple[Shape, float]]:
    """The most frequent shapes and their shares, until they are TYPICAL of all pods."""
    counts = Counter(map(Shape.of, pods))
    ordered = sorted(counts.items(), key=lambda item: (item[1], item[0]), reverse=True)
    taken: list[tuple[Shape, int]] = []
    seen = 0
    for shape, count in ordered:
        if seen >= TYPICAL * len(pods):
            break
        taken.append((shape, count))
        seen += count
    return [(shape, count / seen) for shape, count in taken]


def published(pods: str, policy: str, folder: Path = DATA) -> dict[str, float] | None:
    """The means of the authors' ten seeds; None where there are none."""
    if pods not in LISTS:
        return None
    wanted = {
        ("gpu_allocation_pct", "100"): "allocation_pct_100",
        ("gpu_allocation_pct", "130"): "allocation_pct_130",
        ("frag_gpu_pct_of_total_gpu", "90"): "fragmented_pct_90",
    }
    found = {
        wanted[row["metric"], row["arrival_pct"]]: float(row["mean_of_10_seeds"])
        for row in _rows(folder / "openb" / "fgd_summary.csv")
        if row["workload"] == f"openb_pod_list_{pods}"
        and row["policy"].partition("-")[2].lower() == policy
        and (row["metric"], row["arrival_pct"]) in wanted
    }
    return found or None


def _rows(path: Path) -> Iterator[dict[str, str]]:
    with path.open(newline="") as file:
        yield from csv.DictReader(file)


def _machine(row: dict[str, str]) -> Machine:
    return Machine(
        int(row["cpu_milli"]),
        int(row["memory_mib"]),
        int(row["gpu"]),
        normalise_model(row["model"]),
    )


def _pod(row: dict[str, str]) -> Pod:
    gpus = int(row["num_gpu"])
    return Pod(
        int(row["cpu_milli"]),
        int(row["memory_mib"]),
        gpus,
        int(row["gpu_milli"]) if gpus else 0,
        tuple(sorted(map(normalise_model, filter(None, (row.get("gpu_spec") or "").split("|"))))),
    )


_MACHINES: Final = (
    (Machine(96_000, 393_216, 8, "g2"), 45),
    (Machine(104_000, 524_288, 2, "t4"), 32),
    (Machine(16_000, 122_880, 2, "p100"), 9),
    (Machine(128_000, 786_432, 8, "g3"), 4),
    (Machine(32_000, 131_072, 4, "v100m16"), 4),
    (Machine(8_000, 32_768, 1, "v100m16"), 2),
)
_PODS: Final = (
    (Pod(11_400, 40_960, 1, 1000), 32),
    (Pod(3_152, 10_240, 1, 810), 13),
    (Pod(3_152, 10_240, 1, 1000), 8),
    (Pod(11_908, 40_960, 1, 470), 9),
    (Pod(18_708, 60_000, 1, 1000), 4),
    (Pod(11_908, 40_960, 1, 650), 3),
    (Pod(4_000, 15_258, 1, 320, ("g2", "t4")), 3),
    (Pod(4_000, 15_258, 1, 230), 4),
    (Pod(88_000, 327_680, 8, 1000), 1),
    (Pod(12_500, 57_344, 0, 0), 9),
    (Pod(32_000, 49_152, 0, 0), 4),
)

"""What the node finds out about its machine: containers within containers, broken GPU drivers."""

import os
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pynvml
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from formation_p2p.core.errors import InvalidInput
from formation_p2p.core.units import GIB, MIB
from formation_p2p.machine.cgroup import CgroupLimits, read_cgroup
from formation_p2p.machine.core.bounds import MAX_GPU_MODELS
from formation_p2p.machine.core.capability import Limits
from formation_p2p.machine.core.fits import Ledger, Reservation, fits
from formation_p2p.machine.core.gpu import Gpu
from formation_p2p.machine.core.requirements import Requirements
from formation_p2p.machine.gpus import GpuReading, read_gpus
from formation_p2p.machine.hardware import STORAGE_KEPT_BYTES, network_mbps, probe

V2_MOUNT = "31 23 0:28 / /sys/fs/cgroup rw,relatime shared:4 - cgroup2 cgroup2 rw,nsdelegate"
V1_MOUNTS = (
    "31 23 0:28 / /sys/fs/cgroup rw - tmpfs tmpfs rw,mode=755\n"
    "32 31 0:29 / /sys/fs/cgroup/cpu,cpuacct rw shared:9 - cgroup cgroup rw,cpu,cpuacct\n"
    "35 31 0:32 / /sys/fs/cgroup/memory rw shared:10 - cgroup cgroup rw,memory"
)
V1_UNLIMITED = "9223372036854771712"


class FakeMachine:
    """A tree of kernel files below `root`, to be read instead of the real ones."""

    def __init__(self, root: Path, groups: str, mounts: str) -> None:
        self.root = root
        self.proc = root / "proc/self"
        self.write("proc/self/cgroup", groups)
        self.write("proc/self/mountinfo", mounts)

    def write(self, path: str, text: str) -> Path:
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        return file

    def group(self, path: str, **files: str) -> None:
        """`cpu__max="…"` writes `cpu.max`."""
        for name, text in files.items():
            self.write(f"sys/fs/cgroup/{path}/{name.replace('__', '.')}", text + "\n")

    def read(self) -> CgroupLimits:
        return read_cgroup(self.proc, self.root)


# -- control groups -------------------------------------------------------------------------


def test_without_limits_the_host_is_the_limit(tmp_path: Path) -> None:
    machine = FakeMachine(tmp_path, "0::/user.slice", V2_MOUNT)
    machine.group("user.slice", cpu__max="max 100000", memory__max="max", memory__current="5")
    assert machine.read() == CgroupLimits()


def test_a_containers_limits_are_read_in_version_2(tmp_path: Path) -> None:
    machine = FakeMachine(tmp_path, "0::/", V2_MOUNT)
    machine.group(
        ".",
        cpu__max="150000 100000",
        memory__max=str(GIB),
        memory__current=str(700 * MIB),
        memory__stat=f"anon {400 * MIB}\ninactive_file {300 * MIB}\nfile 1",
    )
    assert machine.read() == CgroupLimits(1500, GIB, 624 * MIB)


def test_a_containers_limits_are_read_in_version_1(tmp_path: Path) -> None:
    machine = FakeMachine(
        tmp_path, "5:memory:/box\n4:cpu,cpuacct:/box\n1:name=systemd:/", V1_MOUNTS
    )
    machine.group("cpu,cpuacct/box", cpu__cfs_quota_us="50000", cpu__cfs_period_us="100000")
    machine.group("cpu,cpuacct", cpu__cfs_quota_us="-1", cpu__cfs_period_us="100000")
    machine.group(
        "memory/box",
        memory__limit_in_bytes=str(2 * GIB),
        memory__usage_in_bytes=str(GIB),
        memory__stat=f"total_inactive_file {GIB // 2}",
    )
    machine.group("memory", memory__limit_in_bytes=V1_UNLIMITED, memory__usage_in_bytes="9")
    assert machine.read() == CgroupLimits(500, 2 * GIB, 3 * GIB // 2)


def test_versions_1_and_2_side_by_side_are_both_read(tmp_path: Path) -> None:
    """As systemd has it in hybrid mode: the controllers in version 1, an empty version 2."""
    unified = "41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw"
    machine = FakeMachine(tmp_path, "5:memory:/box\n0::/box", f"{V1_MOUNTS}\n{unified}")
    machine.group("memory/box", memory__limit_in_bytes=str(GIB), memory__usage_in_bytes="0")
    machine.group("unified/box", cgroup__procs="1")
    assert machine.read() == CgroupLimits(None, GIB, GIB)


def test_of_nested_groups_the_least_limit_holds(tmp_path: Path) -> None:
    """A pod of 1 GiB in a slice of 2 cores, with a group for the process that limits neither."""
    machine = FakeMachine(tmp_path, "0::/slice/pod/process", V2_MOUNT)
    machine.group("slice", cpu__max="200000 100000", memory__max=str(8 * GIB))
    machine.group("slice/pod", cpu__max="400000 100000", memory__max=str(GIB))
    machine.group("slice/pod/process", cpu__max="max 100000", memory__max="max")
    assert machine.read() == CgroupLimits(2000, GIB, GIB)


def test_a_parent_that_others_fill_leaves_less_free_than_the_own_limit(tmp_path: Path) -> None:
    machine = FakeMachine(tmp_path, "0::/slice/mine", V2_MOUNT)
    machine.group("slice", memory__max=str(4 * GIB), memory__current=str(4 * GIB + MIB))
    machine.group("slice/mine", memory__max=str(GIB), memory__current="0")
    assert machine.read() == CgroupLimits(None, GIB, 0)


def test_a_group_mounted_as_the_root_is_found_there(tmp_path: Path) -> None:
    """Docker without a cgroup namespace: the path is the host's, the mount shows its end."""
    mount = V2_MOUNT.replace(" / /sys", " /docker/ab /sys")
    machine = FakeMachine(tmp_path, "0::/docker/ab/worker", mount)
    machine.group(".", memory__max=str(GIB))
    machine.group("worker", cpu__max="50000 100000")
    assert machine.read() == CgroupLimits(500, GIB, GIB)


@pytest.mark.parametrize("path", ["/../other", "/elsewhere", "/docker/ab/gone"])
def test_a_group_that_cannot_be_seen_is_read_at_the_mount(tmp_path: Path, path: str) -> None:
    mount = V2_MOUNT.replace(" / /sys", " /docker/ab /sys")
    machine = FakeMachine(tmp_path, f"0::{path}", mount)
    machine.group(".", cpu__max="50000 100000")
    assert machine.read() == CgroupLimits(500)


def test_a_group_outside_the_namespace_is_not_looked_for_outside_the_mount(tmp_path: Path) -> None:
    machine = FakeMachine(tmp_path, "0::/../other", V2_MOUNT)
    machine.group(".", cpu__max="50000 100000")
    machine.write("sys/fs/other/cpu.max", "1000 100000")
    assert machine.read() == CgroupLimits(500)


def test_version_1s_largest_number_is_no_limit(tmp_path: Path) -> None:
    machine = FakeMachine(tmp_path, "5:memory:/", V1_MOUNTS)
    machine.group("memory", memory__limit_in_bytes=V1_UNLIMITED, memory__usage_in_bytes="9")
    assert machine.read() == CgroupLimits()


def test_a_mount_point_with_a_space_is_found(tmp_path: Path) -> None:
    mount = V2_MOUNT.replace("/sys/fs/cgroup", "/mnt/my\\040groups")
    machine = FakeMachine(tmp_path, "0::/", mount)
    machine.write("mnt/my groups/cpu.max", "1 100000")
    assert machine.read().cpu_milli == 1


@pytest.mark.parametrize(
    "files",
    [
        {"cpu__max": "garbage"},
        {"cpu__max": "half 100000"},
        {"cpu__max": "50000 0"},
        {"cpu__max": ""},
        {"cpu__cfs_quota_us": "50000"},
        {"memory__max": "lots"},
        {"memory__max": "1000", "memory__current": "?"},
        {"memory__max": "1000", "memory__stat": "inactive_file"},
    ],
)
def test_a_file_that_makes_no_sense_limits_nothing_and_is_noted(
    tmp_path: Path, files: dict[str, str]
) -> None:
    machine = FakeMachine(tmp_path, "0::/box", V2_MOUNT)
    machine.group("box", **files)
    machine.group(".", cpu__max="400000 100000", memory__max="4000")
    limits = machine.read()
    assert (limits.cpu_milli, limits.memory_bytes) == (4000, 4000)
    assert len(limits.notes) == 1
    assert "box" in limits.notes[0]


def test_a_system_without_control_groups_is_noted(tmp_path: Path) -> None:
    limits = read_cgroup(tmp_path / "nothing", tmp_path)
    assert limits.cpu_milli is limits.memory_bytes is limits.memory_free_bytes is None
    assert "cannot be read" in limits.notes[0]


def test_a_membership_that_makes_no_sense_is_noted(tmp_path: Path) -> None:
    assert "cannot be read" in FakeMachine(tmp_path, "nonsense", V2_MOUNT).read().notes[0]


@settings(max_examples=15)
@given(st.text(), st.text())
def test_no_text_of_the_kernels_stops_the_reading(groups: str, mounts: str) -> None:
    root = Path("/nonexistent")
    files = {"cgroup": groups, "mountinfo": f"{mounts}\n{V2_MOUNT}"}
    read_cgroup(_FakeFolder(files), root)  # type: ignore[arg-type]


class _FakeFolder:
    """Enough of a Path for two files, without a thousand writes to a disk."""

    def __init__(self, files: dict[str, str]) -> None:
        self._files = files

    def __truediv__(self, name: str) -> SimpleNamespace:
        return SimpleNamespace(read_text=lambda: self._files[name])


# -- GPUs -----------------------------------------------------------------------------------

H100 = ("NVIDIA H100 80GB HBM3", 85_520_809_984, (9, 0))
RTX_4090 = ("NVIDIA GeForce RTX 4090", 25_757_220_864, (8, 9))
CALLS = (
    "nvmlInit",
    "nvmlDeviceGetCount",
    "nvmlDeviceGetHandleByIndex",
    "nvmlDeviceGetMigMode",
    "nvmlDeviceGetMemoryInfo",
    "nvmlDeviceGetCudaComputeCapability",
    "nvmlDeviceGetUUID",
    "nvmlDeviceGetName",
    "nvmlDeviceGetUtilizationRates",
    "nvmlShutdown",
)


class FakeNvml:
    """Stands where `pynvml` does, with the cards given; a handle is a card's index.

    `broken` maps a call to what it raises, for every card or only for the one at `broken_at`.
    """

    NVMLError_NotSupported = pynvml.NVMLError_NotSupported
    NVMLError_FunctionNotFound = pynvml.NVMLError_FunctionNotFound

    def __init__(self, *cards: tuple[str, int, tuple[int, int]]) -> None:
        self.cards = cards
        self.broken: dict[str, BaseException] = {}
        self.broken_at: int | None = None
        self.answers: dict[str, Any] = {}
        self.initialised = 0

    def __getattr__(self, call: str) -> Any:
        assert call in CALLS

        def answer(*handle: int) -> Any:
            if call in self.broken and (not handle or self.broken_at in (None, *handle)):
                raise self.broken[call]
            if call in self.answers:
                return self.answers[call]
            return getattr(self, f"_{call.removeprefix('nvml').removeprefix('Device')}")(*handle)

        return answer

    def _Init(self) -> None:
        self.initialised += 1

    def _Shutdown(self) -> None:
        self.initialised -= 1

    def _GetCount(self) -> int:
        return len(self.cards)

    def _GetHandleByIndex(self, index: int) -> int:
        return index

    def _GetMigMode(self, handle: int) -> tuple[int, int]:
        return (0, 0)

    def _GetMemoryInfo(self, handle: int) -> SimpleNamespace:
        total = self.cards[handle][1]
        return SimpleNamespace(total=total, free=total - GIB, used=GIB)

    def _GetCudaComputeCapability(self, handle: int) -> tuple[int, int]:
        return self.cards[handle][2]

    def _GetUUID(self, handle: int) -> str:
        return f"GPU-{handle}"

    def _GetName(self, handle: int) -> str:
        return self.cards[handle][0]

    def _GetUtilizationRates(self, handle: int) -> SimpleNamespace:
        return SimpleNamespace(gpu=30 + handle, memory=5)


def test_cards_are_read_with_id_model_memory_and_use() -> None:
    nvml = FakeNvml(H100, RTX_4090)
    readings, notes = read_gpus(nvml)
    assert readings == (
        GpuReading(Gpu("GPU-0", "nvidia", "h100", H100[1], 90), H100[1] - GIB, 30),
        GpuReading(Gpu("GPU-1", "nvidia", "rtx-4090", RTX_4090[1], 89), RTX_4090[1] - GIB, 31),
    )
    assert notes == ()
    assert nvml.initialised == 0


def test_a_machine_without_a_driver_has_no_gpu_and_says_why() -> None:
    nvml = FakeNvml(H100)
    nvml.broken["nvmlInit"] = pynvml.NVMLError_LibraryNotFound()
    readings, notes = read_gpus(nvml)
    assert readings == ()
    assert len(notes) == 1
    assert "does not answer" in notes[0]


FAULTS = (
    pynvml.NVMLError_GpuIsLost(),
    pynvml.NVMLError_Unknown(),
    pynvml.NVMLError_FunctionNotFound(),
    OSError("libnvidia-ml.so: undefined symbol"),
    UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid start byte"),
    RuntimeError("anything"),
)


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: type(fault).__name__)
@pytest.mark.parametrize("call", CALLS)
def test_a_driver_may_fail_at_any_call(call: str, fault: Exception) -> None:
    nvml = FakeNvml(H100, RTX_4090)
    nvml.broken[call] = fault
    readings, notes = read_gpus(nvml)
    old_driver = isinstance(fault, pynvml.NVMLError_FunctionNotFound)
    if call == "nvmlDeviceGetMigMode" and old_driver:
        assert (len(readings), notes) == (2, ())
    else:
        harmless = call in ("nvmlDeviceGetUtilizationRates", "nvmlShutdown")
        assert len(readings) == (2 if harmless else 0)
        assert notes
        assert all(str(fault) in note for note in notes)
    assert nvml.initialised == (1 if call == "nvmlShutdown" else 0)


@pytest.mark.parametrize("call", CALLS[2:8])
def test_a_card_that_falls_off_the_bus_takes_no_other_with_it(call: str) -> None:
    nvml = FakeNvml(H100, RTX_4090)
    nvml.broken[call] = pynvml.NVMLError_GpuIsLost()
    nvml.broken_at = 0
    readings, notes = read_gpus(nvml)
    assert [each.gpu.device_id for each in readings] == ["GPU-1"]
    assert len(notes) == 1
    assert "GPU 0 is left out" in notes[0]


def test_a_card_that_does_not_tell_its_use_is_offered_all_the_same() -> None:
    nvml = FakeNvml(H100)
    nvml.broken["nvmlDeviceGetUtilizationRates"] = pynvml.NVMLError_NotSupported()
    readings, notes = read_gpus(nvml)
    assert [each.utilisation_percent for each in readings] == [None]
    assert "does not report its utilisation" in notes[0]


def test_a_card_from_before_mig_is_whole() -> None:
    nvml = FakeNvml(RTX_4090)
    nvml.broken["nvmlDeviceGetMigMode"] = pynvml.NVMLError_NotSupported()
    readings, notes = read_gpus(nvml)
    assert (len(readings), notes) == (1, ())


def test_a_card_split_by_mig_is_left_out_with_a_note() -> None:
    nvml = FakeNvml(H100)
    nvml.answers["nvmlDeviceGetMigMode"] = (1, 1)
    readings, notes = read_gpus(nvml)
    assert readings == ()
    assert "MIG" in notes[0]


@pytest.mark.parametrize(
    ("call", "nonsense"),
    [
        ("nvmlDeviceGetCount", None),
        ("nvmlDeviceGetMemoryInfo", SimpleNamespace(total=-1, free=0)),
        ("nvmlDeviceGetMemoryInfo", SimpleNamespace(total=1 << 64, free=0)),
        ("nvmlDeviceGetMemoryInfo", None),
        ("nvmlDeviceGetCudaComputeCapability", (9999, 9999)),
        ("nvmlDeviceGetCudaComputeCapability", None),
        ("nvmlDeviceGetUUID", ""),
        ("nvmlDeviceGetUUID", b"\xff"),
        ("nvmlDeviceGetName", ""),
        ("nvmlDeviceGetName", None),
    ],
)
def test_a_driver_that_answers_nonsense_yields_no_gpu(call: str, nonsense: object) -> None:
    nvml = FakeNvml(H100)
    nvml.answers[call] = nonsense
    readings, notes = read_gpus(nvml)
    assert readings == ()
    assert len(notes) == 1


def test_use_and_free_memory_are_kept_within_the_device() -> None:
    nvml = FakeNvml(H100)
    nvml.answers["nvmlDeviceGetMemoryInfo"] = SimpleNamespace(total=GIB, free=2 * GIB)
    nvml.answers["nvmlDeviceGetUtilizationRates"] = SimpleNamespace(gpu=400)
    ((reading,), _) = read_gpus(nvml)
    assert (reading.memory_free_bytes, reading.utilisation_percent) == (GIB, 100)


def test_older_bindings_answer_in_bytes() -> None:
    nvml = FakeNvml(H100)
    nvml.answers.update(nvmlDeviceGetName=b"Tesla T4", nvmlDeviceGetUUID=b"GPU-7")
    ((reading,), _) = read_gpus(nvml)
    assert (reading.gpu.model, reading.gpu.device_id) == ("t4", "GPU-7")


def test_of_two_cards_with_one_id_the_second_is_left_out() -> None:
    nvml = FakeNvml(H100, RTX_4090)
    nvml.answers["nvmlDeviceGetUUID"] = "GPU-0"
    readings, notes = read_gpus(nvml)
    assert [each.gpu.model for each in readings] == ["h100"]
    assert "GPU 1 is left out" in notes[0]


def test_a_museum_of_cards_is_offered_up_to_the_number_of_models_announced() -> None:
    cards = [(f"NVIDIA X{place}", GIB, (8, 0)) for place in range(MAX_GPU_MODELS + 1)]
    readings, notes = read_gpus(FakeNvml(*cards, cards[0]))
    assert [each.gpu.model for each in readings] == ["x0", "x1", "x2", "x3", "x0"]
    assert len(notes) == 1


def test_the_real_binding_answers_on_this_machine_with_or_without_cards() -> None:
    readings, notes = read_gpus()
    assert readings or notes


# -- the whole machine ----------------------------------------------------------------------


@pytest.fixture
def box(tmp_path: Path) -> FakeMachine:
    """A container of half a core and 600 MiB on whatever machine runs this test."""
    machine = FakeMachine(tmp_path, "0::/", V2_MOUNT)
    machine.group(".", cpu__max="50000 100000", memory__max=str(600 * MIB))
    return machine


def test_the_real_machine_is_measured_and_takes_a_task(tmp_path: Path) -> None:
    hardware = probe(tmp_path)
    capability, capacity = hardware.capability, hardware.capacity
    assert 0 < capability.cpu_milli <= (os.cpu_count() or 1) * 1000
    assert 0 < capability.memory_bytes < psutil.virtual_memory().total
    assert (capability.arch, capability.os) == (os.uname().machine, "linux")
    assert capacity.cpu_milli <= capability.cpu_milli
    assert capacity.memory_bytes <= capability.memory_bytes
    needs = Requirements(cpu_milli=1, memory_bytes=MIB)
    assert fits(needs, capability, {}, ()) is None
    assert isinstance(Ledger(capability).reserve("alice", needs), Reservation)


def test_a_container_offers_its_own_limits_less_what_the_node_needs(box: FakeMachine) -> None:
    hardware = probe(box.root, nvml=FakeNvml(), proc=box.proc, root=box.root)
    assert hardware.capability.cpu_milli == 500
    assert hardware.capability.memory_bytes == (600 - 256) * MIB
    assert hardware.capacity.memory_bytes <= (600 - 256) * MIB
    assert hardware.notes == ()


def test_a_container_smaller_than_what_is_kept_offers_no_memory(box: FakeMachine) -> None:
    box.group(".", memory__max=str(100 * MIB))
    hardware = probe(box.root, nvml=FakeNvml(), proc=box.proc, root=box.root)
    assert hardware.capability.memory_bytes == 0


def test_a_full_container_has_no_memory_free(box: FakeMachine) -> None:
    box.group(".", memory__current=str(600 * MIB))
    hardware = probe(box.root, nvml=FakeNvml(), proc=box.proc, root=box.root)
    assert hardware.capacity.memory_bytes == 0


@pytest.mark.parametrize(
    ("total", "kept"),
    [(GIB, 256 * MIB), (10 * GIB, GIB), (40 * GIB, 4 * GIB), (1024 * GIB, 4 * GIB)],
)
def test_a_tenth_of_the_memory_is_kept_within_bounds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, total: int, kept: int
) -> None:
    memory = SimpleNamespace(total=total, available=total)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: memory)
    machine = FakeMachine(tmp_path, "", "")
    hardware = probe(tmp_path, nvml=FakeNvml(), proc=machine.proc, root=tmp_path)
    assert hardware.capability.memory_bytes == total - kept == hardware.capacity.memory_bytes


def test_storage_is_what_is_free_less_what_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for free, offered in ((10 * GIB, 10 * GIB - STORAGE_KEPT_BYTES), (5 * MIB, 0)):
        usage = SimpleNamespace(total=20 * GIB, used=0, free=free)
        monkeypatch.setattr(shutil, "disk_usage", lambda _, usage=usage: usage)
        hardware = probe(tmp_path, nvml=FakeNvml())
        assert hardware.capability.storage_bytes == hardware.capacity.storage_bytes == offered


def test_cores_that_others_use_are_not_free_now(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 4)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    machine = FakeMachine(tmp_path, "", "")
    for load, free in ((0.0, 2000), (1.5, 2000), (2.75, 1250), (90.0, 0)):
        monkeypatch.setattr(os, "getloadavg", lambda load=load: (load, 0.0, 0.0))
        hardware = probe(tmp_path, nvml=FakeNvml(), proc=machine.proc, root=tmp_path)
        assert hardware.capability.cpu_milli == 2000
        assert hardware.capacity.cpu_milli == free


def test_a_processor_of_an_odd_name_is_unknown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("platform.machine", lambda: "Power Macintosh")
    assert probe(tmp_path, nvml=FakeNvml()).capability.arch == "unknown"


def test_gpus_are_in_the_capability_and_the_capacity(box: FakeMachine) -> None:
    nvml = FakeNvml(H100, RTX_4090)
    hardware = probe(box.root, nvml=nvml, proc=box.proc, root=box.root)
    assert [gpu.model for gpu in hardware.capability.gpus] == ["h100", "rtx-4090"]
    assert [gpu.memory_bytes for gpu in hardware.capacity.gpus] == [
        H100[1] - GIB,
        RTX_4090[1] - GIB,
    ]
    assert hardware.gpu_utilisation == (("GPU-0", 30), ("GPU-1", 31))


def test_the_limits_a_person_sets_win(box: FakeMachine) -> None:
    """Up to all of the hardware: what is kept by default is theirs to give."""
    limits = Limits(
        cpu_milli=250, memory_bytes=600 * MIB, storage_bytes=MIB, network_mbps=100, gpu_count=1
    )
    nvml = FakeNvml(H100, RTX_4090)
    hardware = probe(box.root, limits, nvml=nvml, proc=box.proc, root=box.root)
    capability = hardware.capability
    assert (capability.cpu_milli, capability.memory_bytes) == (250, 600 * MIB)
    assert (capability.storage_bytes, capability.network_mbps) == (MIB, 100)
    assert [gpu.model for gpu in capability.gpus] == ["h100"]
    assert [gpu.device_id for gpu in hardware.capacity.gpus] == ["GPU-0"]
    assert hardware.gpu_utilisation == (("GPU-0", 30),)
    assert hardware.capacity.cpu_milli <= 250


@pytest.mark.parametrize(
    ("limits", "field"),
    [
        (Limits(cpu_milli=501), "cpu"),
        (Limits(memory_bytes=601 * MIB), "memory"),
        (Limits(storage_bytes=1 << 60), "storage"),
        (Limits(gpu_count=1), "gpu"),
        (Limits(memory_bytes=-1), "memory"),
    ],
)
def test_a_limit_past_the_hardware_is_refused(box: FakeMachine, limits: Limits, field: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        probe(box.root, limits, nvml=FakeNvml(), proc=box.proc, root=box.root)
    assert refused.value.field == field


def test_a_scratch_folder_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="scratch"):
        probe(tmp_path / "gone")


def test_the_network_is_the_fastest_physical_interface_that_is_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    interfaces = {
        "lo": (True, 0, False),
        "eth0": (True, 1000, True),
        "eth1": (True, 2500, True),
        "eth2": (False, 40_000, True),
        "docker0": (True, 10_000, False),
        "wlan0": (True, 0, True),
        "odd0": (True, 2**32 - 1, True),
    }
    stats = {
        name: SimpleNamespace(isup=up, speed=speed) for name, (up, speed, _) in interfaces.items()
    }
    monkeypatch.setattr(psutil, "net_if_stats", lambda: stats)
    for name, (_, _, physical) in interfaces.items():
        if physical:
            (tmp_path / name / "device").mkdir(parents=True)
    assert network_mbps(tmp_path) == 2500
    assert network_mbps(tmp_path / "elsewhere") == 1  # some network, who knows how fast
    del stats["eth0"], stats["eth1"], stats["docker0"], stats["odd0"]
    assert network_mbps(tmp_path) == 1
    del stats["wlan0"]
    assert network_mbps(tmp_path) == 0

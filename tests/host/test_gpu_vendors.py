"""GPUs by others than NVIDIA, from trees and outputs as the documents of their drivers show them.
None of this was seen on real hardware."""

import json
from functools import partial
from pathlib import Path

import psutil
import pytest

from formation_p2p.core.units import GIB
from formation_p2p.drivers.bubblewrap import Bubblewrap
from formation_p2p.drivers.machine import device_environment, vendors_of
from formation_p2p.machine.core.gpu import Gpu
from formation_p2p.machine.gpus import GpuReading, read_all, read_amd, read_apple, read_intel

MI300X = {
    "device": "0x74a1",
    "unique_id": "e3a9c1f0b2d47586",
    "product_name": "AMD Instinct MI300X OAM",
    "mem_info_vram_total": str(192 * GIB),
    "mem_info_vram_used": str(2 * GIB),
    "gpu_busy_percent": "37",
}
RX_7900 = {
    "device": "0x744c",
    "unique_id": "5c8e9a12f4",
    "product_name": "",
    "mem_info_vram_total": str(24 * GIB),
    "mem_info_vram_used": "0",
}
RAPHAEL = {"device": "0x164e", "mem_info_vram_total": str(GIB // 2), "mem_info_vram_used": "0"}


def card(root: Path, number: int, bus: str, vendor: str, files: dict[str, str]) -> Path:
    """As Linux has it: `card1` with a link to its device, and a connector beside it."""
    device = root / "sys/devices/pci0000:00" / bus
    device.mkdir(parents=True)
    (device / "vendor").write_text(f"{vendor}\n")
    for name, text in files.items():
        (device / name).parent.mkdir(exist_ok=True)
        (device / name).write_text(f"{text}\n")
    drm = root / "sys/class/drm" / f"card{number}"
    drm.mkdir(parents=True)
    (drm / "device").symlink_to(device)
    (drm.parent / f"card{number}-DP-1").mkdir()
    return drm


def amd(root: Path, number: int, bus: str, files: dict[str, str]) -> None:
    card(root, number, bus, "0x1002", files)


def test_amds_cards_are_read_in_the_order_of_the_bus(tmp_path: Path) -> None:
    amd(tmp_path, 0, "0000:83:00.0", RX_7900)
    amd(tmp_path, 1, "0000:03:00.0", MI300X)
    card(tmp_path, 2, "0000:01:00.0", "0x10de", {})
    readings, notes = read_amd(tmp_path)
    assert readings == (
        GpuReading(Gpu("amd:GPU-e3a9c1f0b2d47586", "amd", "mi300x", 192 * GIB), 190 * GIB, 37),
        GpuReading(Gpu("amd:GPU-0000005c8e9a12f4", "amd", "744c", 24 * GIB), 24 * GIB, None),
    )
    assert notes == ()


def test_a_card_that_no_task_could_keep_to_is_left_out(tmp_path: Path) -> None:
    amd(tmp_path, 0, "0000:0b:00.0", RAPHAEL)
    readings, notes = read_amd(tmp_path)
    assert readings == ()
    assert notes == (
        "GPU 0000:0b:00.0 is left out: it has no unique id, by which a task could be told to keep "
        "to it",
    )


@pytest.mark.parametrize(
    "broken",
    [
        {"mem_info_vram_total": "lots"},
        {"mem_info_vram_total": "-1"},
        {"mem_info_vram_used": ""},
        {"unique_id": "no hexadecimal number"},
        {"product_name": "***", "device": "0x"},
    ],
)
def test_nonsense_of_a_driver_costs_one_card(tmp_path: Path, broken: dict[str, str]) -> None:
    amd(tmp_path, 0, "0000:03:00.0", {**MI300X, **broken})
    amd(tmp_path, 1, "0000:83:00.0", RX_7900)
    readings, notes = read_amd(tmp_path)
    assert [each.gpu.model for each in readings] == ["744c"]
    assert len(notes) == 1


def test_two_cards_with_one_id_are_one(tmp_path: Path) -> None:
    for number, bus in enumerate(("0000:03:00.0", "0000:83:00.0")):
        amd(tmp_path, number, bus, MI300X)
    readings, notes = read_amd(tmp_path)
    assert len(readings) == len(notes) == 1


def test_intels_cards_are_read_by_tile_or_as_a_whole(tmp_path: Path) -> None:
    """Those of `xe` and of Intel's own `i915`, beside a processor's graphics."""
    tiles = {f"tile{n}/physical_vram_size_bytes": str(6 * GIB) for n in range(2)}
    card(tmp_path, 0, "0000:00:02.0", "0x8086", {"device": "0x46a6"})
    card(tmp_path, 2, "0000:03:00.0", "0x8086", {"device": "0xe20b", **tiles})
    older = card(tmp_path, 1, "0000:07:00.0", "0x8086", {"device": "0x5690"})
    (older / "lmem_total_bytes").write_text(f"{16 * GIB}\n")
    (older / "lmem_avail_bytes").write_text(f"{15 * GIB}\n")
    readings, notes = read_intel(tmp_path)
    assert readings == (
        GpuReading(Gpu("intel:1:0000:03:00.0", "intel", "arc-b580", 12 * GIB), 12 * GIB, None),
        GpuReading(Gpu("intel:2:0000:07:00.0", "intel", "5690", 16 * GIB), 15 * GIB, None),
    )
    assert "0000:00:02.0" in notes[0]
    assert "no memory of its own" in notes[0]


PROFILED = {
    "SPDisplaysDataType": [
        {
            "_name": "Apple M2 Max",
            "spdisplays_mtlgpufamilysupport": "spdisplays_metal3",
            "spdisplays_vendor": "sppci_vendor_Apple",
            "sppci_bus": "spdisplays_builtin",
            "sppci_cores": "38",
            "sppci_device_type": "spdisplays_gpu",
            "sppci_model": "Apple M2 Max",
        },
        {"spdisplays_vendor": "sppci_vendor_amd", "sppci_model": "Radeon Pro 5500M"},
        {},
    ]
}


def test_apples_gpu_has_the_memory_of_the_machine() -> None:
    readings, notes = read_apple(lambda: json.dumps(PROFILED))
    (reading,) = readings
    total = psutil.virtual_memory().total
    assert reading.gpu == Gpu("apple:0", "apple", "Apple M2 Max", total)
    assert len(notes) == 2
    assert read_apple(lambda: "no JSON")[0] == ()
    assert read_apple() == ((), ())  # no Mac


def test_a_machine_may_have_cards_of_several_vendors(tmp_path: Path) -> None:
    amd(tmp_path, 0, "0000:03:00.0", MI300X)
    card(
        tmp_path,
        1,
        "0000:04:00.0",
        "0x8086",
        {"device": "0xe20b", "tile0/physical_vram_size_bytes": str(12 * GIB)},
    )
    own = (partial(read_amd, tmp_path), partial(read_intel, tmp_path))
    readings, notes = read_all(own)
    assert [each.gpu.vendor for each in readings] == ["amd", "intel"]
    assert notes == ()
    twice, told = read_all((*own, own[0]))
    assert (twice, len(told)) == (readings, 1)


def test_a_task_is_told_of_its_devices_in_the_variables_of_their_vendor() -> None:
    assert device_environment(()) == {"CUDA_VISIBLE_DEVICES": "", "ROCR_VISIBLE_DEVICES": ""}
    assert device_environment(("GPU-a", "GPU-b"))["CUDA_VISIBLE_DEVICES"] == "GPU-a,GPU-b"
    assert device_environment(("amd:GPU-e3a9", "amd:GPU-5c8e")) == {
        "CUDA_VISIBLE_DEVICES": "",
        "ROCR_VISIBLE_DEVICES": "GPU-e3a9,GPU-5c8e",
        "HIP_VISIBLE_DEVICES": "0,1",
    }
    intel = device_environment(("intel:1:0000:03:00.0", "intel:2:0000:07:00.0"))
    assert (intel["ZE_AFFINITY_MASK"], intel["ZE_ENABLE_PCI_ID_DEVICE_ORDER"]) == ("1,2", "1")
    assert vendors_of(device_environment(())) == ()
    assert vendors_of(device_environment(("GPU-a", "intel:0:0000:03:00.0"))) == ("nvidia", "intel")


def test_a_sandbox_shows_the_devices_of_the_vendors_that_a_lease_holds(tmp_path: Path) -> None:
    """Any device stands for a GPU."""
    nodes = {"nvidia": ("null",), "amd": ("zero", "full"), "intel": ("full",)}
    sandbox = Bubblewrap("bwrap", tmp_path / "home", devices=nodes)

    def shown(*vendors: str) -> set[str]:
        words = sandbox.command(tmp_path, network=False, gpus=vendors)
        return {words[n + 1] for n, word in enumerate(words) if word == "--dev-bind"}

    assert shown() == set()
    assert shown("amd") == {"/dev/zero", "/dev/full"}
    assert shown("nvidia", "intel") == {"/dev/null", "/dev/full"}

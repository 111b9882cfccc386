"""What a task needs: as a noun, as a text, as a mapping."""

import re
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from formation_p2p.core.errors import InvalidInput
from formation_p2p.core.refusals import Infeasible
from formation_p2p.core.units import GIB, KIB, MAX_BYTES, MAX_MILLI, MIB, TIB, format_milli
from formation_p2p.machine.core.bounds import MAX_GPUS, MAX_LABELS
from formation_p2p.machine.core.capability import Capability
from formation_p2p.machine.core.fits import fits
from formation_p2p.machine.core.gpu import (
    MAX_COMPUTE_CAPABILITY,
    WHOLE_GPU_MILLI,
    Gpu,
    format_compute_capability,
    normalise_model,
    parse_compute_capability,
)
from formation_p2p.machine.core.python import MAX_PYTHONS, Python
from formation_p2p.machine.core.requirements import (
    MAX_MODELS_ASKED,
    MAX_TEXT,
    Requirements,
    driven_by,
    parse_requirements,
    requirements_from_mapping,
)
from formation_p2p.records.core.buckets import buckets_of, widening
from formation_p2p.records.core.codec import Malformed
from formation_p2p.records.core.resources import (
    pack_capability,
    pack_requirements,
    unpack_capability,
    unpack_requirements,
)

_names = st.from_regex(r"[a-z0-9][a-z0-9_-]{0,31}", fullmatch=True)
_labels = st.from_regex(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?", fullmatch=True)
anything = st.builds(
    Requirements,
    cpu_milli=st.integers(1, MAX_MILLI),
    memory_bytes=st.integers(1, MAX_BYTES),
    storage_bytes=st.integers(0, MAX_BYTES),
    network_mbps=st.integers(0, 1_000_000),
    gpu_count=st.integers(1, MAX_GPUS),
    gpu_memory_bytes=st.integers(0, MAX_BYTES),
    gpu_compute_capability=st.integers(0, 499),
    gpu_models=st.lists(_names, max_size=MAX_MODELS_ASKED).map(tuple),
    gpu_vendor=st.just("") | _names,
    gpu_share_milli=st.integers(1, 1000),
    labels=st.dictionaries(_labels, _labels, max_size=MAX_LABELS).map(
        lambda held: tuple(held.items())
    ),
    driver=st.just("") | _names,
)


def written(needs: Requirements) -> str:
    """The inverse of `parse_requirements`: nothing is rounded, defaults of zero are left out."""
    items = [f"cpu={format_milli(needs.cpu_milli)}", f"memory={exact_bytes(needs.memory_bytes)}"]
    if needs.storage_bytes:
        items.append(f"storage={exact_bytes(needs.storage_bytes)}")
    if needs.network_mbps:
        items.append(f"network={needs.network_mbps}")
    if needs.gpu_count:
        items.append(f"gpu={needs.gpu_count}")
    if needs.gpu_memory_bytes:
        items.append(f"gpu.memory={exact_bytes(needs.gpu_memory_bytes)}")
    if needs.gpu_compute_capability:
        items.append(f"gpu.cc>={format_compute_capability(needs.gpu_compute_capability)}")
    if needs.gpu_models:
        items.append(f"gpu.model={'|'.join(needs.gpu_models)}")
    if needs.gpu_vendor:
        items.append(f"gpu.vendor={needs.gpu_vendor}")
    if needs.gpu_share_milli != WHOLE_GPU_MILLI:
        items.append(f"gpu.share={format_milli(needs.gpu_share_milli)}")
    items += [f"label.{key}={value}" for key, value in needs.labels]
    if needs.driver:
        items.append(f"driver={needs.driver}")
    return ",".join(items)


def exact_bytes(size: int) -> str:
    for unit, factor in (("TiB", TIB), ("GiB", GIB), ("MiB", MIB), ("KiB", KIB)):
        if size % factor == 0:
            return f"{size // factor}{unit}"
    return f"{size}B"


def refused_field(text: str) -> str:
    with pytest.raises(InvalidInput) as refused:
        parse_requirements(text)
    return refused.value.field


def test_every_field_is_read() -> None:
    text = (
        "cpu=1.5, memory>=8GiB, gpu=2, gpu.memory=24GiB, gpu.cc>=8.0, gpu.model=H100|a100,"
        "gpu.vendor=NVIDIA, gpu.share=0.5, storage=1GiB, network=100, label.region=eu,"
        "driver=process"
    )
    assert parse_requirements(text) == Requirements(
        cpu_milli=1500,
        memory_bytes=8 * GIB,
        storage_bytes=GIB,
        network_mbps=100,
        gpu_count=2,
        gpu_memory_bytes=24 * GIB,
        gpu_compute_capability=80,
        gpu_models=("a100", "h100"),
        gpu_vendor="nvidia",
        gpu_share_milli=500,
        labels=(("region", "eu"),),
        driver="process",
    )


def test_nothing_asked_is_one_core_and_half_a_gigabyte() -> None:
    assert parse_requirements("  ") == requirements_from_mapping({}) == Requirements()
    assert (Requirements().cpu_milli, Requirements().memory_bytes) == (1000, 512 * MIB)


def test_a_gpu_field_alone_asks_for_one_device() -> None:
    assert parse_requirements("gpu.memory=24GB").gpu_count == 1
    assert parse_requirements("gpu.model=h100,gpu=4").gpu_count == 4


def test_equal_needs_are_equal_and_hash_alike_in_whatever_order_they_are_given() -> None:
    one = parse_requirements("label.a=1,label.b=2,gpu.model=NVIDIA H100 PCIe|a100")
    other = parse_requirements("gpu.model=A100|h100|H100,label.b=2,label.a=1")
    assert one == other
    assert hash(one) == hash(other)


@given(anything)
def test_what_is_written_is_read_back(needs: Requirements) -> None:
    text = written(needs)
    assert len(text) <= MAX_TEXT
    assert parse_requirements(text) == needs


@given(anything)
def test_needs_without_a_gpu_are_read_back_too(needs: Requirements) -> None:
    bare = replace(
        needs,
        gpu_count=0,
        gpu_memory_bytes=0,
        gpu_compute_capability=0,
        gpu_models=(),
        gpu_vendor="",
        gpu_share_milli=1000,
    )
    assert "gpu" not in written(replace(bare, labels=(), driver=""))
    assert parse_requirements(written(bare)) == bare


def test_the_longest_needs_fit_into_a_text() -> None:
    needs = Requirements(
        gpu_count=1,
        gpu_models=tuple(f"{place:02}" + "x" * 94 for place in range(MAX_MODELS_ASKED)),
        labels=tuple((f"{place}" + "k" * 62, "v" * 63) for place in range(MAX_LABELS)),
        driver="d" * 32,
    )
    assert parse_requirements(written(needs)) == needs


@pytest.mark.parametrize(
    ("text", "field"),
    [
        ("cpu=0", "cpu"),
        ("cpu=nan", "cpu"),
        ("cpu=abc", "cpu"),
        ("cpu=1e999999999", "cpu"),
        ("cpu=1000001", "cpu"),
        ("memory=0", "memory"),
        ("memory=2000000TiB", "memory"),
        ("storage=-10", "storage"),
        ("network=1.5", "network"),
        ("network=1000001", "network"),
        ("gpu=-1", "gpu"),
        ("gpu=1025", "gpu"),
        ("gpu=0.5", "gpu"),
        ("gpu=0,gpu.memory=1GiB", "gpu.memory"),
        ("gpu=0,gpu.cc=8", "gpu.cc"),
        ("gpu=0,gpu.model=h100", "gpu.model"),
        ("gpu=0,gpu.share=0.5", "gpu.share"),
        ("gpu.memory=many", "gpu.memory"),
        ("gpu.cc=80", "gpu.cc"),
        ("gpu.model=", "gpu.model"),
        ("gpu.vendor=", "gpu.vendor"),
        ("gpu.vendor=a md", "gpu.vendor"),
        ("gpu.vendor>=amd", "gpu.vendor"),
        ("gpu=0,gpu.vendor=amd", "gpu.vendor"),
        ("gpu.model=h100|", "gpu.model"),
        ("gpu.model=" + "|".join(f"m{place}" for place in range(17)), "gpu.model"),
        ("gpu.model>=h100", "gpu.model"),
        ("gpu.share=0", "gpu.share"),
        ("gpu.share=1.001", "gpu.share"),
        ("gpu.share>=0.5", "gpu.share"),
        ("label.region=", "label.region"),
        ("label.region=eu/west", "label.region"),
        ("label.region=eu,label.region=us", "label.region"),
        ("label.region>=eu", "label.region"),
        ("label.=eu", "label"),
        ("label._a=eu", "label"),
        (",".join(f"label.k{place}=v" for place in range(9)), "label"),
        ("driver=", "driver"),
        ("driver=Process!", "driver"),
        ("cpu=1,cpu=2", "cpu"),
        ("gpu=1,gpu.count=1", "gpu.count"),
        ("disk=1", "disk"),
        ("cpu", "requirements"),
        ("cpu=1,", "requirements"),
        ("cpu<2", "requirements"),
        (" " * (MAX_TEXT + 1), "requirements"),
    ],
)
def test_a_refusal_names_the_field_as_it_was_written(text: str, field: str) -> None:
    assert refused_field(text) == field


_fragments = st.sampled_from(
    ["cpu", "gpu", "gpu.cc", "gpu.model", "label.", "=", ">=", ",", "|", "1", "e9", "GiB", " ", "٣"]
)


@given(st.text() | st.lists(_fragments, max_size=30).map("".join))
def test_a_text_is_requirements_or_invalid_input(text: str) -> None:
    try:
        needs = parse_requirements(text)
    except InvalidInput:
        return
    assert parse_requirements(written(needs)) == needs


def test_a_job_file_says_the_same_flat_or_in_tables() -> None:
    expected = parse_requirements("cpu=1.5,memory=8GiB,gpu=2,gpu.cc=8.6,gpu.share=0.25,label.a.b=1")
    flat = {
        "cpu": 1.5,
        "memory": 8 * GIB,
        "gpu": 2,
        "gpu.cc": 8.6,
        "gpu.share": 0.25,
        "label.a.b": "1",
    }
    tables = {
        "cpu": "1.5",
        "memory": "8GiB",
        "gpu": {"count": 2, "cc": "sm_86", "share": "250m"},
        "label": {"a.b": 1},
    }
    assert requirements_from_mapping(flat) == expected
    assert requirements_from_mapping(tables) == expected
    assert requirements_from_mapping({"gpu": {"model": ["H100", "A100"]}}).gpu_models == (
        "a100",
        "h100",
    )


@pytest.mark.parametrize(
    ("mapping", "field"),
    [
        ({"cpu": -5}, "cpu"),
        ({"cpu": True}, "cpu"),
        ({"cpu": float("nan")}, "cpu"),
        ({"cpu": float("-inf")}, "cpu"),
        ({"cpu": 10**5000}, "cpu"),
        ({"cpu": None}, "cpu"),
        ({"cpu": "1" * 5000}, "cpu"),
        ({"memory": 1e9}, "memory"),
        ({"memory": [1]}, "memory"),
        ({"gpu": 2.0}, "gpu"),
        ({"gpu": {"memory": -1}}, "gpu.memory"),
        ({"gpu": {"cc": 80}}, "gpu.cc"),
        ({"gpu": {1: 2}}, "gpu"),
        ({"gpu": {"model": ["h100", 1]}}, "gpu.model"),
        ({"gpu": {"model": {"a": 1}}}, "gpu.model"),
        ({"gpu": {"count": 1}, "gpu.count": 1}, "gpu.count"),
        ({"label": {"region": True}}, "label.region"),
        ({"disk": 1}, "disk"),
        ({1: 1}, "requirements"),
        ({"x" * (MAX_TEXT + 1): 1}, "requirements"),
        ({f"label.{place}": "v" for place in range(100)}, "requirements"),
    ],
)
def test_a_mapping_is_checked_like_a_text(mapping: dict[str, object], field: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        requirements_from_mapping(mapping)
    assert refused.value.field == field
    assert len(str(refused.value)) < 500


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"cpu_milli": -5}, "cpu"),
        ({"cpu_milli": 1.5}, "cpu"),
        ({"cpu_milli": True}, "cpu"),
        ({"cpu_milli": float("nan")}, "cpu"),
        ({"cpu_milli": 10**9 + 1}, "cpu"),
        ({"cpu_milli": 10**5000}, "cpu"),
        ({"memory_bytes": "8GiB"}, "memory"),
        ({"memory_bytes": (1 << 60) + 1}, "memory"),
        ({"storage_bytes": -1}, "storage"),
        ({"network_mbps": -1}, "network"),
        ({"cloudpickle": -1}, "cloudpickle"),
        ({"gpu_count": -1}, "gpu"),
        ({"gpu_memory_bytes": 1}, "gpu.memory"),
        ({"gpu_count": 1, "gpu_models": ["h100"]}, "gpu.model"),
        ({"gpu_count": 1, "gpu_models": ("h100", None)}, "gpu.model"),
        ({"gpu_count": 1, "gpu_share_milli": 0}, "gpu.share"),
        ({"labels": {"a": "b"}}, "label"),
        ({"labels": (("a", "b", "c"),)}, "label"),
        ({"labels": ("ab",)}, "label"),
        ({"labels": ((1, "b"),)}, "label"),
        ({"labels": (("a", 1),)}, "label.a"),
        ({"driver": 3}, "driver"),
        ({"driver": "x" * 33}, "driver"),
    ],
)
def test_the_noun_checks_itself(fields: dict[str, object], field: str) -> None:
    """It is made of records of other machines as well as of what a person wrote."""
    with pytest.raises(InvalidInput) as refused:
        Requirements(**fields)  # type: ignore[arg-type]
    assert refused.value.field == field
    assert len(str(refused.value)) < 500


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("gpu.model=H100:2", "write gpu=2,gpu.model=H100"),
        ("gpu.model=a100|H100:", "write gpu=2,gpu.model=H100"),
        ("gpu.memory=24", "write 24GiB or 24GB, or 24B if bytes are meant"),
        ("memory=8", "write 8GiB or 8GB"),
        ("cpu=0", "write 0.001 or more, such as 0.5"),
        ("gpu.share=0", "write 0.001 or more"),
    ],
)
def test_what_is_easily_mistaken_is_refused_and_the_error_says_what_to_write(
    text: str, told: str
) -> None:
    with pytest.raises(InvalidInput, match=re.escape(told)):
        parse_requirements(text)


def test_a_small_number_of_bytes_can_be_meant() -> None:
    assert parse_requirements("memory=24B").memory_bytes == 24
    assert requirements_from_mapping({"memory": 24}).memory_bytes == 24


# GPUs: one name for a model, a number for a compute capability.


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("8.0", 80),
        ("8.6", 86),
        ("10.0", 100),
        ("9", 90),
        (" sm_100 ", 100),
        ("SM_86", 86),
        ("compute_75", 75),
        ("12.1", 121),
    ],
)
def test_compute_capabilities_are_numbers(text: str, number: int) -> None:
    assert parse_compute_capability(text) == number


@pytest.mark.parametrize(
    "text",
    ["", "80", "sm_9", "sm_90a", "8.65", "-8", "nan", "gfx942", "\u0668.0", "sm_" + "9" * 99],
)
def test_what_is_no_compute_capability_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"write it like 8\.6"):
        parse_compute_capability(text)


@given(st.integers(0, MAX_COMPUTE_CAPABILITY))
def test_compute_capabilities_survive_being_written_and_read(number: int) -> None:
    assert parse_compute_capability(format_compute_capability(number)) == number


@pytest.mark.parametrize(
    ("name", "model"),
    [
        ("NVIDIA H100 80GB HBM3", "h100"),
        ("NVIDIA H100 PCIe", "h100"),
        ("NVIDIA H100 NVL", "h100"),
        ("H100", "h100"),
        ("NVIDIA H200", "h200"),
        ("NVIDIA GH200 480GB", "gh200"),
        ("NVIDIA GH200 144G HBM3e", "gh200"),
        ("NVIDIA A100-SXM4-80GB", "a100"),
        ("NVIDIA A100 80GB PCIe", "a100"),
        ("Tesla V100-SXM2-16GB", "v100"),
        ("Tesla V100S-PCIE-32GB", "v100s"),
        ("Tesla T4", "t4"),
        ("NVIDIA L40S", "l40s"),
        ("NVIDIA GeForce RTX 4090", "rtx-4090"),
        ("rtx4090", "rtx-4090"),
        ("RTX_4090", "rtx-4090"),
        ("rtx-3080ti", "rtx-3080-ti"),
        ("NVIDIA GeForce RTX 3080 Ti", "rtx-3080-ti"),
        ("NVIDIA GeForce RTX 4090 Laptop GPU", "rtx-4090-laptop"),
        ("NVIDIA GeForce RTX 2080 with Max-Q Design", "rtx-2080-max-q"),
        ("NVIDIA RTX A6000", "rtx-a6000"),
        ("Quadro RTX 6000", "rtx-6000"),
        ("NVIDIA RTX 6000 Ada Generation", "rtx-6000-ada"),
        ("AMD Instinct MI300X OAM", "mi300x"),
        ("AMD Radeon RX 7900 XTX", "rx-7900-xtx"),
        ("NVIDIA", "nvidia"),
    ],
)
def test_a_model_has_one_name_however_it_is_mounted_or_sold(name: str, model: str) -> None:
    assert normalise_model(name) == model


@given(st.text(max_size=100) | st.from_regex(r"\A(rtx|gtx|rx|[a-z_ ])?a?\d{0,5}(ti|super|gb)*\Z"))
def test_a_normalised_name_stays_as_it_is(name: str) -> None:
    try:
        model = normalise_model(name)
    except ValueError:
        return
    assert normalise_model(model) == model
    assert normalise_model(f"  {model.upper()} ".strip()) == model


@pytest.mark.parametrize("name", ["", " - ", "ééé", "x" * 97, "rtx1" * 20 + " " + "rtx1" * 30])
def test_a_name_without_letters_or_end_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match=r"write it like|longer"):
        normalise_model(name)


def test_a_name_that_grows_past_its_bound_is_refused() -> None:
    """Taken apart it has a hyphen more, and could not be read back."""
    with pytest.raises(ValueError, match="write it like"):
        normalise_model("rtx" + "4" * 93)


def test_a_gpu_carries_the_one_name() -> None:
    assert Gpu("GPU-1", "nvidia", "NVIDIA H100 PCIe", 1, 90).model == "h100"


@pytest.mark.parametrize(
    ("gpu", "field"),
    [
        (("", "nvidia", "h100", 1, 90), "gpu.id"),
        (("a\nb", "nvidia", "h100", 1, 90), "gpu.id"),
        ((7, "nvidia", "h100", 1, 90), "gpu.id"),
        (("x" * 65, "nvidia", "h100", 1, 90), "gpu.id"),
        (("G", "NVIDIA", "h100", 1, 90), "gpu.vendor"),
        (("G", None, "h100", 1, 90), "gpu.vendor"),
        (("G", "nvidia", "", 1, 90), "gpu.model"),
        (("G", "nvidia", 100, 1, 90), "gpu.model"),
        (("G", "nvidia", "h100", -1, 90), "gpu.memory"),
        (("G", "nvidia", "h100", 1.0, 90), "gpu.memory"),
        (("G", "nvidia", "h100", 1, 500), "gpu.cc"),
        (("G", "nvidia", "h100", 1, True), "gpu.cc"),
    ],
)
def test_a_gpu_that_cannot_be_is_refused_by_field(gpu: tuple[object, ...], field: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        Gpu(*gpu)  # type: ignore[arg-type]
    assert refused.value.field == field


# The Python that a call needs, and those that a machine offers.

LINUX = "linux-x86_64-gnu"
PY311 = Python("cpython-3.11", LINUX, 3)
PY313 = Python("cpython-3.13", LINUX, 3)
MACHINE = Capability(cpu_milli=4000, memory_bytes=8 << 30, pythons=(PY313, PY311))


@pytest.mark.parametrize(
    ("python", "cloudpickle", "refusal"),
    [
        ("", 0, None),
        ("any", 3, None),
        ("cpython-3.11", 3, None),
        ("cpython-3.13", 0, None),
        ("cpython-3.12", 3, Infeasible("python", "cpython-3.12", "cpython-3.11,cpython-3.13")),
        ("pypy-3.11", 3, Infeasible("python", "pypy-3.11", "cpython-3.11,cpython-3.13")),
        ("cpython-3.11", 4, Infeasible("cloudpickle", 4, "3")),
        ("any", 2, Infeasible("cloudpickle", 2, "3")),
    ],
)
def test_a_call_fits_where_its_versions_are_offered(
    python: str, cloudpickle: int, refusal: Infeasible | None
) -> None:
    needs = Requirements(python=python, cloudpickle=cloudpickle)
    assert fits(needs, MACHINE, {}, ()) == refusal


def test_a_machine_without_a_python_runs_no_call() -> None:
    bare = replace(MACHINE, pythons=())
    asked = Requirements(python="cpython-3.11")
    assert fits(asked, bare, {}, ()) == Infeasible("python", "cpython-3.11", "none")
    written = Requirements(python="any", cloudpickle=3)
    assert fits(written, bare, {}, ()) == Infeasible("cloudpickle", 3, "none")


def test_every_version_is_a_bucket() -> None:
    assert {"python/cpython-3.11", "python/cpython-3.13"} <= set(buckets_of(MACHINE, {}, ()))
    asked = widening(Requirements(python="cpython-3.11", driver="python"))
    assert asked == ("python/cpython-3.11", "driver/python", "any")
    assert "python/any" not in widening(Requirements(python="any"))


def test_versions_travel() -> None:
    assert unpack_capability(pack_capability(MACHINE)) == MACHINE
    needs = Requirements(python="cpython-3.11", cloudpickle=3, driver="python")
    assert unpack_requirements(pack_requirements(needs)) == needs


@pytest.mark.parametrize(
    "python", [7, ["cpython-3.11"], ["3.11", LINUX, 3], ["cpython-3.11", "", 3]]
)
def test_what_is_not_a_python_is_malformed(python: Any) -> None:
    packed = pack_capability(MACHINE)
    with pytest.raises(Malformed):
        unpack_capability([*packed[:-1], [python]])


@pytest.mark.parametrize(
    ("text", "python"), [("3.12", "cpython-3.12"), ("pypy-3.11", "pypy-3.11"), ("any", "any")]
)
def test_a_version_is_asked_for_in_requirements(text: str, python: str) -> None:
    assert parse_requirements(f"python={text}").python == python


@pytest.mark.parametrize("text", ["3", "three", "3.11.7", "cpython", ""])
def test_what_is_not_a_version_is_refused_with_what_to_write(text: str) -> None:
    with pytest.raises(InvalidInput, match=r"python: .* write one such as 3\.12 or pypy-3\.11"):
        parse_requirements(f"python={text}")


@pytest.mark.parametrize("python", [7, "3.11", "Any"])
def test_requirements_name_a_python_in_full(python: Any) -> None:
    with pytest.raises(InvalidInput, match="python: "):
        Requirements(python=python)


def test_a_machine_names_a_python_in_full() -> None:
    with pytest.raises(InvalidInput, match=r"python: .* is not a name such as cpython-3\.11"):
        Python("3.11", LINUX, 3)


@pytest.mark.parametrize(
    "pythons",
    [
        [PY311],
        ("3.11",),
        (PY311, replace(PY311, cloudpickle=2)),
        tuple(Python(f"cpython-3.{n}", LINUX, 3) for n in range(MAX_PYTHONS + 1)),
    ],
    ids=["a list", "texts", "one twice", "too many"],
)
def test_a_machine_offers_a_few_pythons_each_once(pythons: Any) -> None:
    with pytest.raises(InvalidInput, match="python: "):
        replace(MACHINE, pythons=pythons)


def test_a_call_asks_for_the_python_that_wrote_it_unless_it_says_otherwise() -> None:
    written = driven_by(Requirements(), "python", "cpython-3.11", 3)
    assert (written.driver, written.python, written.cloudpickle) == ("python", "cpython-3.11", 3)
    any_of_them = driven_by(Requirements(python="any"), "python", "cpython-3.11", 3)
    assert any_of_them.python == "any"
    assert driven_by(Requirements(), "process").python == ""

"""GPUs: one name for a model, a number for a compute capability."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from formation_p2p.core.errors import InvalidInput
from formation_p2p.machine.core.gpu import (
    MAX_COMPUTE_CAPABILITY,
    Gpu,
    format_compute_capability,
    normalise_model,
    parse_compute_capability,
)


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


@pytest.mark.parametrize(("has", "needs"), [("sm_100", "sm_80"), ("sm_120", "sm_90")])
def test_sm_100_is_more_than_sm_80(has: str, needs: str) -> None:
    """As texts it would be less."""
    assert has < needs
    assert parse_compute_capability(has) > parse_compute_capability(needs)
    assert parse_compute_capability("sm_90") < parse_compute_capability("sm_100")


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

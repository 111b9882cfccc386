"""Requirements, capability and capacity on the wire."""

import contextlib
import re
from collections.abc import Callable
from typing import Any

import cbor2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from formation_p2p.core.cbor import MAX_DEPTH
from formation_p2p.core.errors import InvalidInput
from formation_p2p.core.units import GIB
from formation_p2p.machine.core.capability import Capability, Capacity, GpuFree, idle
from formation_p2p.machine.core.gpu import Gpu
from formation_p2p.machine.core.requirements import Requirements
from formation_p2p.records.core.codec import (
    Malformed,
    decode,
    encode,
    take_bytes,
    take_int,
    take_list,
    take_text,
)
from formation_p2p.records.core.resources import (
    MAX_REQUIREMENTS_BYTES,
    decode_requirements,
    encode_requirements,
    pack_capability,
    pack_capacity,
    pack_requirements,
    unpack_capability,
    unpack_capacity,
    unpack_requirements,
)

words = st.from_regex(r"[a-z0-9]{1,10}", fullmatch=True)
amounts = st.integers(0, 1 << 60)

requirements = st.builds(
    Requirements,
    cpu_milli=st.integers(1, 10**9),
    memory_bytes=st.integers(1, 1 << 60),
    storage_bytes=amounts,
    network_mbps=st.integers(0, 10**6),
    gpu_count=st.integers(1, 1024),
    gpu_memory_bytes=amounts,
    gpu_compute_capability=st.integers(0, 499),
    gpu_models=st.lists(words, max_size=4).map(tuple),
    gpu_share_milli=st.integers(1, 1000),
    labels=st.dictionaries(words, words, max_size=4).map(lambda held: tuple(held.items())),
    driver=words | st.just(""),
)

gpus = st.builds(
    Gpu,
    device_id=words,
    vendor=words,
    model=st.sampled_from(["h100", "rtx-4090"]),
    memory_bytes=amounts,
    compute_capability=st.integers(0, 499),
)
capabilities = st.builds(
    Capability,
    cpu_milli=st.integers(0, 10**9),
    memory_bytes=amounts,
    storage_bytes=amounts,
    network_mbps=st.integers(0, 10**6),
    gpus=st.lists(gpus, max_size=4, unique_by=lambda gpu: gpu.device_id).map(tuple),
    arch=words,
    os=words,
)

# What a stranger could put in the place of any field.
junk = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.binary(),
    lambda inner: (
        st.lists(inner, max_size=12) | st.dictionaries(st.integers(0, 3), inner, max_size=2)
    ),
    max_leaves=20,
)

ALICE = Capability(
    8000, 32 * GIB, gpus=tuple(Gpu(f"GPU-{n}", "nvidia", "h100", 80 * GIB, 90) for n in range(3))
)


@given(requirements)
def test_requirements_survive_the_wire(needs: Requirements) -> None:
    assert decode_requirements(encode_requirements(needs)) == needs


def test_requirements_take_a_few_dozen_bytes() -> None:
    needs = Requirements(gpu_count=2, gpu_memory_bytes=24 * GIB, gpu_models=("h100",))
    assert len(encode_requirements(needs)) < 60


def test_requirements_past_their_bound_are_told_before_they_are_sent() -> None:
    needs = Requirements(
        gpu_count=1,
        gpu_models=tuple(f"{n:02d}" + "x" * 90 for n in range(16)),
        labels=tuple((f"{n}" + "k" * 60, "v" * 60) for n in range(8)),
    )
    with pytest.raises(InvalidInput, match="fewer labels or models"):
        encode_requirements(needs)
    with pytest.raises(Malformed):
        decode_requirements(bytes(MAX_REQUIREMENTS_BYTES + 1))


@given(capabilities)
def test_a_capability_and_its_idle_capacity_survive_the_wire(capability: Capability) -> None:
    wire: Any = decode(encode(pack_capability(capability)), 4096)
    assert unpack_capability(wire) == capability
    free: Any = decode(encode(pack_capacity(idle(capability), capability)), 4096)
    assert unpack_capacity(free, capability) == idle(capability)


def test_a_capacity_may_list_some_devices_in_any_order() -> None:
    free = Capacity(1000, GIB, gpus=(GpuFree("GPU-2", 500, GIB), GpuFree("GPU-0", 1000, 0)))
    assert unpack_capacity(pack_capacity(free, ALICE), ALICE) == free


def test_a_device_that_the_machine_has_not_is_never_free() -> None:
    with pytest.raises(InvalidInput, match="GPU-9 is free, but not in the capability"):
        pack_capacity(Capacity(0, 0, gpus=(GpuFree("GPU-9", 1, 1),)), ALICE)
    for place in (3, -1):
        with pytest.raises(Malformed, match="not from 0 to 2"):
            unpack_capacity([0, 0, 0, 0, [[place, 1, 1]]], ALICE)
    with pytest.raises(Malformed, match="at most 0"):
        unpack_capacity([0, 0, 0, 0, [[0, 1, 1]]], Capability(0, 0))


@given(junk)
def test_no_value_breaks_a_parser(value: Any) -> None:
    for unpack in (unpack_requirements, unpack_capability, lambda v: unpack_capacity(v, ALICE)):
        with contextlib.suppress(Malformed):
            unpack(value)


@given(st.data(), junk)
def test_no_field_breaks_a_parser(data: st.DataObject, value: Any) -> None:
    packed: list[Any] = data.draw(
        st.sampled_from(
            [pack_requirements(Requirements()), pack_capability(ALICE), [0, 0, 0, 0, [[0, 1, 1]]]]
        )
    )
    place = data.draw(st.integers(0, len(packed) - 1))
    inside = packed[place][0] if packed[place] and isinstance(packed[place], list) else None
    if isinstance(inside, list) and data.draw(st.booleans()):
        inside[data.draw(st.integers(0, len(inside) - 1))] = value
    else:
        packed[place] = value
    for unpack in (unpack_requirements, unpack_capability, lambda v: unpack_capacity(v, ALICE)):
        with contextlib.suppress(Malformed):
            unpack(packed)


@pytest.mark.parametrize(
    ("field", "value", "why"),
    [
        (0, 0, "cpu: 0 is less than 1"),
        (0, True, "cpu: True is not a whole number"),
        (1, 1.5, "memory: 1.5 is not a whole number"),
        (7, "h100", "gpu.model: is a str, not a list"),
        (7, ["h100"] * 17, "gpu.model: has 17 items"),
        (9, [["zone"]], "label: is no"),
        (9, [["zone", 5]], "label.zone: 5 is not a value"),
        (10, "\x1b[2J", "driver: .* is not a name"),
    ],
)
def test_a_bad_field_of_the_requirements_is_named(field: int, value: object, why: str) -> None:
    packed = pack_requirements(Requirements())
    packed[field] = value
    with pytest.raises(Malformed, match=why):
        unpack_requirements(packed)


@pytest.mark.parametrize("device", [None, "GPU-0", [], ["GPU-0"], [0, 1, 2, 3, 4, 5]])
def test_a_device_of_another_shape_is_refused(device: object) -> None:
    with pytest.raises(Malformed, match="gpu: is not a list of five fields"):
        unpack_capability([0, 0, 0, 0, "x86_64", "linux", [device], [], 1])
    with pytest.raises(Malformed, match="gpu: is not a list of three fields"):
        unpack_capacity([0, 0, 0, 0, [device]], ALICE)


# What a message's parser is made of: a value of the plain kinds, or Malformed.

plain = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**64), 2**64 - 1)
    | st.text(max_size=20)
    | st.binary(max_size=20),
    lambda inner: st.lists(inner, max_size=4),
    max_leaves=12,
)


def depth(value: object) -> int:
    return 1 + max(map(depth, value), default=0) if isinstance(value, list) else 0


@given(plain.filter(lambda value: depth(value) <= MAX_DEPTH))
def test_what_we_encode_decodes_to_the_same(value: object) -> None:
    raw = encode(value)
    assert decode(raw, len(raw)) == value
    assert encode(decode(raw, len(raw))) == raw


def test_what_is_no_plain_cbor_is_malformed() -> None:
    with pytest.raises(Malformed, match=r"^cbor: .*tag 35 is not used here") as caught:
        decode(cbor2.dumps(cbor2.CBORTag(35, "(a+)+$")), 64)
    assert caught.value.field == "cbor"


def test_the_size_is_looked_at_first() -> None:
    raw = encode("x" * 100)
    with pytest.raises(Malformed, match="at most 100 are allowed"):
        decode(raw, 100)
    assert decode(raw, 102) == "x" * 100


ODD: tuple[object, ...] = (True, 1.0, float("nan"), "1", b"1", [1], {}, {1: 2}, cbor2.undefined)


@pytest.mark.parametrize("value", ODD)
def test_each_reader_takes_its_own_kind_only(value: object) -> None:
    kinds: dict[type, Callable[[], object]] = {
        str: lambda: take_text(value, "thing", 5),
        bytes: lambda: take_bytes(value, "thing", 5),
        list: lambda: take_list(value, "thing", 5),
        int: lambda: take_int(value, "thing", 0, 5),
    }
    for kind, read in kinds.items():
        if type(value) is kind:
            assert read() == value
        else:
            with pytest.raises(Malformed, match=r"^thing: is a"):
                read()


def test_an_integer_stays_in_its_range() -> None:
    assert [take_int(n, "n", 3, 5) for n in (3, 5)] == [3, 5]
    for n in (2, 6, -(2**63), 2**64):
        with pytest.raises(Malformed, match="not from 3 to 5"):
            take_int(n, "n", 3, 5)


def test_text_bytes_and_lists_stay_in_their_length() -> None:
    readers: tuple[tuple[Any, Any], ...] = (
        (take_text, "abc"),
        (take_bytes, b"abc"),
        (take_list, [1, 2, 3]),
    )
    for take, value in readers:
        assert take(value, "thing", 3) == value
        with pytest.raises(Malformed, match=r"has 3 .* at most 2"):
            take(value, "thing", 2)


@pytest.mark.parametrize(
    "text", ["\x1b[31m", "a\x00", "\x7f", "\x9b", "a\u202eb", "\u2028", "\ud800", "a\nb", "\t"]
)
def test_what_could_move_a_cursor_is_refused(text: str) -> None:
    with pytest.raises(Malformed, match="do not print"):
        take_text(text, "name", 10)


def test_lines_pass_where_lines_are_expected() -> None:
    text = "Traceback:\n\tÜber 9000 ☃"
    assert take_text(text, "message", 100, multiline=True) == text
    with pytest.raises(Malformed):
        take_text(text + "\x1b", "message", 100, multiline=True)
    with pytest.raises(Malformed):
        take_text(text + "\r", "message", 100, multiline=True)


def test_an_error_names_the_field_and_what_is_wrong_with_it() -> None:
    with pytest.raises(Malformed, match=re.escape("sequence: is a str, not an integer")) as caught:
        take_int("7", "sequence", 0, 10)
    assert (caught.value.field, caught.value.problem) == ("sequence", "is a str, not an integer")
    assert isinstance(caught.value, ValueError)

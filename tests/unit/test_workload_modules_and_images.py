"""What the drivers `wasm` and `container` take: made by a caller, or read from a stranger."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import cbor2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from formation_p2p.core.errors import InvalidInput
from formation_p2p.core.resources.requirements import Requirements
from formation_p2p.core.workload.blob import RAW, Blob, Cid, digest_of
from formation_p2p.core.workload.inputs_from import changed, work_of
from formation_p2p.core.workload.process import (
    MAX_FUEL,
    ContainerSpec,
    ImageSpec,
    ProcessSpec,
    WasmSpec,
)
from formation_p2p.core.workload.work import MAX_PAYLOAD_BYTES, Task

MODULE = b"\0asm\1\0\0\0"
COUNT = ProcessSpec(("count", "words"), {"LANG": "C"}, b"stdin", {"words": b"a b"}, ("out",))


@given(st.binary(max_size=64), st.integers(0, MAX_FUEL))
def test_a_module_arrives_as_it_was_sent(rest: bytes, fuel: int) -> None:
    spec = WasmSpec(MODULE + rest, COUNT, fuel)
    assert (spec.driver, spec.shared) == ("wasm", MODULE + rest)
    assert WasmSpec.decode(spec.shared, spec.encode()) == spec
    assert rest == b"" or MODULE + rest not in spec.encode()


def test_a_command_in_an_image_arrives_as_it_was_sent() -> None:
    digest = "docker.io/library/alpine@sha256:" + "0" * 64
    for image in ("alpine", "alpine:3.22", "localhost:5000/a/b_c:1", digest):
        spec = ContainerSpec(image, COUNT)
        assert (spec.driver, spec.shared) == ("container", b"")
        assert ContainerSpec.decode(spec.encode()) == spec


@pytest.mark.parametrize("image", ["", "-v", "a b", "a\n", "a" * 513, "ä", b"alpine", None])
def test_what_names_no_image_is_refused(image: str) -> None:
    with pytest.raises(InvalidInput, match="image: is not a name of an image"):
        ContainerSpec(image, COUNT)


@pytest.mark.parametrize("module", [b"", b"(module)", "\0asm", None])
def test_what_is_no_module_is_refused(module: bytes) -> None:
    with pytest.raises(InvalidInput, match="module: is not WebAssembly in the binary format"):
        WasmSpec(module, COUNT)


@pytest.mark.parametrize("fuel", [-1, MAX_FUEL + 1, True, "1"])
def test_what_is_no_amount_of_fuel_is_refused(fuel: int) -> None:
    with pytest.raises(InvalidInput, match="fuel: is not a number of instructions"):
        WasmSpec(MODULE, COUNT, fuel)


def test_a_module_and_its_input_travel_in_one_message() -> None:
    with pytest.raises(InvalidInput, match=r"module: has 8\.0MiB"):
        WasmSpec(MODULE + bytes(MAX_PAYLOAD_BYTES), COUNT)
    large = WasmSpec(
        MODULE + bytes(MAX_PAYLOAD_BYTES // 2), ProcessSpec(("a",), stdin=bytes(2**22))
    )
    with pytest.raises(InvalidInput, match=r"payload: has 4\.0MiB, of at most 4"):
        large.encode()


@given(st.binary(max_size=100) | st.builds(cbor2.dumps, st.dictionaries(st.text(), st.binary())))
def test_whatever_a_stranger_sends_is_refused_with_a_word(payload: bytes) -> None:
    for decode in (lambda: WasmSpec.decode(MODULE, payload), lambda: ContainerSpec.decode(payload)):
        with pytest.raises(InvalidInput):
            decode()


@pytest.mark.parametrize(
    ("fields", "reported"),
    [
        ([], "payload: must have exactly"),
        ({"process": COUNT.encode()}, "payload: must have exactly"),
        ({"process": 1}, "process: is not bytes"),
        ({"process": b""}, "payload: is not plain CBOR"),
    ],
)
def test_each_field_is_checked(fields: object, reported: str) -> None:
    for more, decode in (
        ({"fuel": 0}, lambda payload: WasmSpec.decode(MODULE, payload)),
        ({"image": "alpine"}, ContainerSpec.decode),
    ):
        whole = {**fields, **more} if isinstance(fields, dict) and len(fields) == 1 else fields
        if reported == "payload: must have exactly":
            whole = fields
        with pytest.raises(InvalidInput, match=reported):
            decode(cbor2.dumps(whole))


def test_an_image_is_built_of_one_context_by_one_file() -> None:
    blob = Blob(Cid(RAW, digest_of(b"x")), 1)
    built = ImageSpec(("Containerfile", "my-app"), inputs={"c.tar": blob}, outputs=("o.tar",))
    assert ImageSpec.decode(built.encode()) == built
    words = (built.containerfile, built.image, built.context, built.result)
    assert words == ("Containerfile", "my-app", "c.tar", "o.tar")
    needs = Requirements(driver=ImageSpec.driver)
    assert work_of(Task("job/0", needs, built.encode())) == built
    assert changed(built, lambda process: replace(process, outputs=("p.tar",))).driver == "image"


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"argv": ("Containerfile",)}, "a Containerfile and a name, and nothing else"),
        ({"env": {"A": "1"}}, "a Containerfile and a name, and nothing else"),
        ({"argv": ("../x", "my-app")}, "not a plain relative name"),
        ({"argv": ("Containerfile", "My:app")}, "is not a name such as my-app"),
        ({"outputs": ("a", "b")}, "has to be one context, for one image"),
    ],
)
def test_what_is_no_build_of_an_image_is_refused(wrong: dict[str, Any], said: str) -> None:
    blob = Blob(Cid(RAW, digest_of(b"x")), 1)
    built = ImageSpec(("Containerfile", "my-app"), inputs={"c.tar": blob}, outputs=("o.tar",))
    with pytest.raises(InvalidInput, match=said):
        replace(built, **wrong)

"""Payloads and results: what goes in comes out, and nothing else gets in."""

from __future__ import annotations

from typing import Any

import cbor2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from formation_p2p.core.errors import InvalidInput
from formation_p2p.core.workload.blob import RAW, Blob, Cid, digest_of
from formation_p2p.core.workload.process import (
    MAX_ARGUMENT_BYTES,
    MAX_ARGUMENTS,
    MAX_FILES,
    MAX_NAME_BYTES,
    MAX_TAIL_BYTES,
    MAX_VARIABLES,
    ProcessResult,
    ProcessSpec,
)
from formation_p2p.core.workload.work import (
    MAX_PAYLOAD_BYTES,
    MAX_RESULT_BYTES,
    PythonCall,
    decode_fields,
)

TEXT = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=20)
# Letters for folders and digits for files: no name is another's folder.
NAMES = st.builds(
    lambda folders, file: "/".join([*folders, file]),
    st.lists(st.text("abc…", min_size=1, max_size=5), max_size=3),
    st.text("0123456789", min_size=1, max_size=5),
)
FILES = st.dictionaries(NAMES, st.binary(max_size=50), max_size=5)
SPECS = st.builds(
    ProcessSpec,
    argv=st.lists(TEXT.filter(bool), min_size=1, max_size=5).map(tuple),
    env=st.dictionaries(TEXT.filter(lambda name: name and "=" not in name), TEXT, max_size=5),
    stdin=st.none() | st.binary(max_size=50),
    files_in=FILES,
    files_out=st.lists(NAMES, max_size=5, unique=True).map(tuple),
)
RESULTS = st.builds(
    ProcessResult,
    exit_code=st.integers(-64, 255),
    files=FILES,
    stdout_tail=st.binary(max_size=50),
    stderr_tail=st.binary(max_size=50),
)
ANY_CBOR = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text() | st.binary(), inner),
    max_leaves=10,
).map(cbor2.dumps)


@given(SPECS)
def test_a_process_spec_survives_the_wire(spec: ProcessSpec) -> None:
    assert ProcessSpec.decode(spec.encode()) == spec


@given(RESULTS)
def test_a_process_result_survives_the_wire(result: ProcessResult) -> None:
    assert ProcessResult.decode(result.encode()) == result


def test_content_that_travels_apart_is_named_in_spec_and_result() -> None:
    blobs = {name: Blob(Cid(RAW, digest_of(name.encode())), 1) for name in ("a", "b")}
    spec = ProcessSpec(("cat", "a", "b"), inputs=blobs)
    assert ProcessSpec.decode(spec.encode()) == spec
    result = ProcessResult(0, outputs=blobs)
    assert ProcessResult.decode(result.encode()) == result


@given(st.binary(), st.binary())
def test_a_python_call_shares_its_function_and_has_its_arguments_alone(
    function: bytes, arguments: bytes
) -> None:
    call = PythonCall(function, arguments)
    assert (call.shared, call.encode()) == (function, arguments)


@given(st.binary() | ANY_CBOR)
def test_any_bytes_decode_or_are_refused(encoded: bytes) -> None:
    for noun in (ProcessSpec, ProcessResult):
        try:
            noun.decode(encoded)
        except InvalidInput:
            continue


@given(SPECS, st.data())
def test_a_spec_with_any_field_put_wrong_decodes_or_is_refused(
    spec: ProcessSpec, data: st.DataObject
) -> None:
    fields = cbor2.loads(spec.encode())
    fields[data.draw(st.sampled_from(sorted(fields)))] = cbor2.loads(data.draw(ANY_CBOR))
    try:
        ProcessSpec.decode(cbor2.dumps(fields))
    except InvalidInput:
        return


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("argv", ()),
        ("argv", ("",)),
        ("argv", ("x",) * (MAX_ARGUMENTS + 1)),
        ("argv", ("x" * (MAX_ARGUMENT_BYTES + 1),)),
        ("argv", ("a\0b",)),
        ("argv", "ls -l"),
        ("outputs", "a.txt"),
        ("argv", ("\ud800",)),
        ("argv", (b"ls",)),
        ("env", {"": "x"}),
        ("env", {"A=B": "x"}),
        ("env", {"A": 1}),
        ("env", {"A": "x" * MAX_ARGUMENT_BYTES}),
        ("env", {str(number): "" for number in range(MAX_VARIABLES + 1)}),
        ("stdin", "text"),
        ("files_in", {"a": "text"}),
        ("files_in", {"": b""}),
        ("files_in", {"/etc/passwd": b""}),
        ("files_in", {"../up": b""}),
        ("files_in", {"a/../../up": b""}),
        ("files_in", {"a/": b""}),
        ("files_in", {"a//b": b""}),
        ("files_in", {"./a": b""}),
        ("files_in", {".": b""}),
        ("files_in", {"a\0": b""}),
        ("files_in", {"a" * (MAX_NAME_BYTES + 1): b""}),
        ("files_in", {"a": b"", "a/b/c": b""}),
        ("files_in", {str(number): b"" for number in range(MAX_FILES + 1)}),
        ("files_out", ("../../root/.ssh/id_ed25519",)),
        ("files_out", ("a", "a")),
        ("inputs", {"a": b"no blob"}),
        ("files_out", tuple(map(str, range(MAX_FILES + 1)))),
    ],
)
def test_a_spec_that_no_machine_should_run_is_refused_by_its_field(field: str, value: Any) -> None:
    with pytest.raises(InvalidInput) as refused:
        ProcessSpec(**{"argv": ("true",), field: value})
    assert refused.value.field == field


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("exit_code", 256),
        ("exit_code", -65),
        ("exit_code", True),
        ("exit_code", "0"),
        ("files", {"..": b""}),
        ("stdout_tail", "text"),
        ("stderr_tail", b"x" * (MAX_TAIL_BYTES + 1)),
        ("stdout_sha256", "text"),
        ("stdout_sha256", b"short"),
    ],
)
def test_a_result_that_no_driver_gives_is_refused_by_its_field(field: str, value: Any) -> None:
    with pytest.raises(InvalidInput) as refused:
        ProcessResult(**{"exit_code": 0, field: value})
    assert refused.value.field == field


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"argv": ["true"]},
        {"argv": ["true"], "env": {}, "stdin": None, "files_in": {}, "files_out": [], "uid": 0},
        {"argv": {"0": "true"}, "env": {}, "stdin": None, "files_in": {}, "files_out": []},
        {"argv": ["true"], "env": [], "stdin": None, "files_in": {}, "files_out": []},
        ["true"],
    ],
)
def test_a_payload_has_exactly_the_fields_of_a_spec(fields: object) -> None:
    with pytest.raises(InvalidInput):
        ProcessSpec.decode(cbor2.dumps(fields))


@pytest.mark.parametrize(
    ("field", "value", "why"),
    [
        ("argv", {"0": "true"}, "is not a list"),
        ("files_out", "out", "is not a list"),
        ("env", [], "is not a map"),
        ("inputs", [], "is not a map"),
    ],
)
def test_a_field_of_another_shape_is_refused_by_its_name(field: str, value: Any, why: str) -> None:
    fields = {**cbor2.loads(ProcessSpec(("true",)).encode()), field: value}
    with pytest.raises(InvalidInput, match=f"{field}: {why}"):
        ProcessSpec.decode(cbor2.dumps(fields))


def test_what_no_message_carries_is_refused_on_either_side() -> None:
    large = b"x" * MAX_PAYLOAD_BYTES
    for encode in (
        ProcessSpec(("cat",), stdin=large).encode,
        ProcessResult(0, {"a": b"x" * MAX_RESULT_BYTES}).encode,
        PythonCall(b"", large + b"x").encode,
    ):
        with pytest.raises(InvalidInput, match="at most 8MiB; put large data on storage"):
            encode()


def test_a_function_and_its_arguments_fill_one_message_between_them() -> None:
    half = bytes(MAX_PAYLOAD_BYTES // 2)
    assert PythonCall(half, half).encode() == half
    with pytest.raises(InvalidInput, match="of at most 4MiB"):
        PythonCall(half, half + b"x").encode()


@pytest.mark.parametrize("field", ["payload", "result"])
def test_what_is_no_plain_cbor_is_said_of_its_field(field: str) -> None:
    # cbor2 left to itself would compile the regular expression.
    with pytest.raises(InvalidInput, match=f"^{field}: is not plain CBOR: .*tag 35") as caught:
        decode_fields(field, cbor2.dumps(cbor2.CBORTag(35, "(a|b)?")), 100, ())
    assert caught.value.field == field
    with pytest.raises(InvalidInput, match=f"^{field}: has 101B, of at most 100B"):
        decode_fields(field, bytes(101), 100, ())

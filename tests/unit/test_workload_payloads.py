"""Payloads and results: what goes in comes out, and nothing else gets in."""

import dataclasses
import pickle
from dataclasses import replace
from typing import Any

import cbor2
import pytest
from blake3 import blake3
from hypothesis import given
from hypothesis import strategies as st

from formation_p2p.core.effects import Contact
from formation_p2p.core.errors import InvalidInput
from formation_p2p.core.identity import Identity, peer_id_to_bytes
from formation_p2p.core.units import GIB, KIB, MIB
from formation_p2p.machine.core.requirements import Requirements
from formation_p2p.workload.core.blob import (
    CHUNK_BYTES,
    DAG_CBOR,
    MAX_BLOB_BYTES,
    MAX_SOURCES,
    RAW,
    Blob,
    Cid,
    PrivateBlob,
    digest_of,
)
from formation_p2p.workload.core.inputs_from import changed, work_of
from formation_p2p.workload.core.parcel import (
    LARGE_BYTES,
    MAX_BUFFERS,
    MAX_RECORD_BYTES,
    MAX_REFERENCES,
    Parcel,
    is_parcel,
    places_of,
)
from formation_p2p.workload.core.process import (
    MAX_ARGUMENT_BYTES,
    MAX_ARGUMENTS,
    MAX_FILES,
    MAX_FUEL,
    MAX_NAME_BYTES,
    MAX_TAIL_BYTES,
    MAX_VARIABLES,
    ContainerSpec,
    ImageSpec,
    ProcessResult,
    ProcessSpec,
    WasmSpec,
)
from formation_p2p.workload.core.work import (
    MAX_PAYLOAD_BYTES,
    MAX_RESULT_BYTES,
    PythonCall,
    Task,
    decode_fields,
)
from tests.support.parcels import OWNER

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


# What the drivers `wasm` and `container` take: made by a caller, or read from a stranger.


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


def test_secrets_are_for_processes_alone() -> None:
    hidden = ProcessSpec(("count",), secrets={"TOKEN": Blob(Cid(RAW, bytes(32)), 1)})
    for wrapped in (lambda: ContainerSpec("alpine", hidden), lambda: WasmSpec(MODULE, hidden)):
        with pytest.raises(InvalidInput, match="run it by the driver process"):
            wrapped()


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


# -- parcels and private blobs: their records, and what strangers may make of them ----------


BLOB = PrivateBlob(b"n" * 16, MIB, OWNER)
PARCEL = Parcel(b"\x80\x05.", 0, (1000, 2000), BLOB)


def test_a_record_says_the_parcel() -> None:
    shared = Parcel(b"", 500, (), replace(BLOB, name=b"s" * 16))
    for parcel in (
        PARCEL,
        Parcel(b"", 300_000, (), BLOB),
        Parcel(b"\x80\x05.", references=(shared,)),
        replace(PARCEL, references=(shared, PARCEL)),
    ):
        record = parcel.encode()
        assert is_parcel(record)
        assert Parcel.decode(record) == parcel
    assert replace(PARCEL, references=(shared,)).blobs == (BLOB, shared.blob)
    assert Parcel(b"\x80\x05.", references=(shared,)).blobs == (shared.blob,)


def test_no_pickle_is_taken_for_a_record() -> None:
    for protocol in range(6):
        values: tuple[object, ...] = (None, 1, ((1,), {}), b"\x85" * 100)
        for value in values:
            assert not is_parcel(pickle.dumps(value, protocol))


def test_pieces_lie_where_arrays_are_read_fast() -> None:
    assert places_of([]) == [0]
    assert places_of([0, 1, 64, 65]) == [0, 0, 64, 128, 256]


@pytest.mark.parametrize(
    "wrong",
    [
        {"pickled": "text"},
        {"pickled": b"x" * (LARGE_BYTES + 1)},
        {"pickled": b""},
        {"pickle_bytes": 5},
        {"pickle_bytes": -1},
        {"buffers": (-1,)},
        {"buffers": (True,)},
        {"buffers": ("1",)},
        {"buffers": (0,) * (MAX_BUFFERS + 1)},
        {"buffers": (MIB, 1)},
        {"blob": None},
        {"references": (PARCEL,) * (MAX_REFERENCES + 1)},
        {"references": (replace(PARCEL, references=(PARCEL,)),)},
    ],
)
def test_a_parcel_that_cannot_be_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput):
        replace(PARCEL, **wrong)


@pytest.mark.parametrize(
    "wrong",
    [
        {"name": b"short"},
        {"name": "n" * 16},
        {"size_bytes": 0},
        {"size_bytes": True},
        {"size_bytes": MAX_BLOB_BYTES + 1},
    ],
)
def test_a_private_blob_that_cannot_be_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput, match="private blob"):
        replace(BLOB, **wrong)


def test_a_private_blob_has_chunks() -> None:
    blob = PrivateBlob.unpack(replace(BLOB, size_bytes=2 * MIB + 1).pack())
    assert (blob.chunks, blob.chunk_bytes(0), blob.chunk_bytes(2)) == (3, MIB, 1)
    assert replace(BLOB, size_bytes=GIB).chunks == 1024


@pytest.mark.parametrize(
    "record",
    [
        b"",
        b"\x85",
        cbor2.dumps([1, 2]),
        cbor2.dumps([b"p", 0, [1], ["no", "blob"], []]),
        cbor2.dumps([b"p", 0, [1], [b"n" * 16, 64, 7], []]),
        cbor2.dumps([b"p", 0, 7, None, []]),
        cbor2.dumps([b"p", 0, [], None, [[b"p", 0, [], None, [1]]]]),
        b"\x85" + bytes(MAX_RECORD_BYTES),
    ],
)
def test_what_is_no_record_is_refused(record: bytes) -> None:
    with pytest.raises(InvalidInput):
        Parcel.decode(record)


@given(st.binary(max_size=200))
def test_any_bytes_are_read_or_refused(garbage: bytes) -> None:
    for record in (garbage, b"\x85" + garbage):
        try:
            Parcel.decode(record)
        except InvalidInput:
            continue


def test_a_call_with_too_many_pieces_says_so() -> None:
    many = replace(BLOB, size_bytes=GIB)
    full = Parcel(b"p", 0, (64 * KIB - 64,) * MAX_BUFFERS, many)
    with pytest.raises(InvalidInput, match="pass fewer"):
        replace(full, references=(full,) * 100).encode()


# Names of content: what a CID and a reference may be.

ALICE = Identity.from_seed(bytes([1]) * 32).peer_id
ALICES = Contact(ALICE, ("/ip4/127.0.0.1/tcp/4001",))
HELLO = Cid(RAW, digest_of(b"hello"))


def test_a_cid_is_the_one_that_other_implementations_write() -> None:
    """Of `ipfs add --cid-version=1 --raw-leaves --hash=blake3`: version 1, raw, blake3, 32."""
    assert HELLO.to_bytes() == bytes.fromhex("01551e20") + blake3(b"hello").digest()
    assert str(HELLO).startswith("bafkr4i")
    assert str(Cid(DAG_CBOR, HELLO.digest)).startswith("bafyr4i")


@given(st.sampled_from((RAW, DAG_CBOR)), st.binary(min_size=32, max_size=32))
def test_a_cid_survives_its_text_and_its_bytes(codec: int, digest: bytes) -> None:
    cid = Cid(codec, digest)
    assert Cid.parse(str(cid)) == cid == Cid.from_bytes(cid.to_bytes())


@pytest.mark.parametrize(
    "text",
    [
        "",
        "b",
        "hello",
        "b!!",
        str(HELLO)[1:],
        str(HELLO).upper(),
        str(HELLO)[:-1],
        "b" + "a" * 200,
        "bafybeigdyrzt5sfp7udm7hu76uh7y26nf3efuylqabf3oclgtqy55fbzdi",  # SHA-256
        # The last character has a bit that no byte needs.
        str(HELLO)[:-1] + chr(ord(str(HELLO)[-1]) + 1),
    ],
)
def test_what_is_no_cid_of_ours_is_refused(text: str) -> None:
    with pytest.raises(InvalidInput, match="cid"):
        Cid.parse(text)


@given(st.one_of(st.binary(max_size=40), st.text(max_size=70), st.none()))
def test_no_bytes_and_no_text_break_the_parser(junk: Any) -> None:
    with pytest.raises(InvalidInput):
        Cid.from_bytes(junk)
    if isinstance(junk, str):
        with pytest.raises(InvalidInput):
            Cid.parse(junk)


@pytest.mark.parametrize(
    ("codec", "size"),
    [
        (RAW, -1),
        (RAW, CHUNK_BYTES + 1),
        (RAW, True),
        (DAG_CBOR, 0),
        (DAG_CBOR, CHUNK_BYTES),
        (DAG_CBOR, MAX_BLOB_BYTES + 1),
    ],
)
def test_a_size_that_the_cid_rules_out_is_refused(codec: int, size: int) -> None:
    with pytest.raises(InvalidInput, match="size"):
        Blob(Cid(codec, HELLO.digest), size)


def test_a_reference_names_a_few_sources_at_most() -> None:
    with pytest.raises(InvalidInput, match="sources"):
        Blob(HELLO, 5, (ALICES,) * (MAX_SOURCES + 1))


def test_a_blob_is_cut_into_chunks_of_which_the_last_is_the_rest() -> None:
    assert (Blob(HELLO, 0).chunks, Blob(HELLO, 0).chunk_bytes(0)) == (1, 0)
    long = Blob(Cid(DAG_CBOR, HELLO.digest), 2 * CHUNK_BYTES + 7)
    assert [long.chunk_bytes(index) for index in range(long.chunks)] == [CHUNK_BYTES] * 2 + [7]


def test_a_reference_survives_packing() -> None:
    blob = Blob(HELLO, 5, (ALICES, Contact(ALICE)))
    assert Blob.unpack(blob.pack()) == blob


def test_addresses_that_are_too_many_or_too_long_stay_behind() -> None:
    many = Contact(ALICE, (*("/ip4/127.0.0.1/tcp/1",) * 9, "/dns4/" + "a" * 300))
    (packed,) = Blob(HELLO, 5, (many,)).pack()[2]
    assert packed[1] == ["/ip4/127.0.0.1/tcp/1"] * 8


CID = HELLO.to_bytes()
PEER = peer_id_to_bytes(ALICE)


@pytest.mark.parametrize(
    "value",
    [
        None,
        [],
        [CID, 5],
        [CID, "5", []],
        [b"", 5, []],
        [CID, 5, [[PEER, []]] * (MAX_SOURCES + 1)],
        [CID, 5, [PEER]],
        [CID, 5, [[b"", []]]],
        [CID, 5, [["", []]]],
        [CID, 5, [[PEER, [1]]]],
        [CID, 5, [[PEER, ["a\n"]]]],
        [CID, 5, [[PEER, ["a" * 300]]]],
        [CID, 5, [[PEER, ["a"] * 9]]],
    ],
)
def test_what_is_no_reference_is_refused(value: Any) -> None:
    with pytest.raises(InvalidInput):
        Blob.unpack(value)


def test_a_blob_is_a_noun() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        Blob(HELLO, 5).size_bytes = 6  # type: ignore[misc]

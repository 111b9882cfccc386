"""Inputs and outputs by content, in what the process driver reads and answers."""

from typing import Any

import cbor2
import pytest

from formation_p2p.core.effects import Contact
from formation_p2p.core.errors import InvalidInput
from formation_p2p.core.identity import Identity
from formation_p2p.workload.core.blob import RAW, Blob, Cid, digest_of
from formation_p2p.workload.core.process import ProcessResult, ProcessSpec

ALICE = Contact(Identity.from_seed(bytes([1]) * 32).peer_id, ("/ip4/127.0.0.1/tcp/4001",))
BLOB = Blob(Cid(RAW, digest_of(b"hello")), 5, (ALICE,))
ARGV = ("cat", "a.bin")


def test_inputs_and_outputs_survive_the_wire() -> None:
    spec = ProcessSpec(ARGV, inputs={"in/a.bin": BLOB}, outputs=("out/b.bin",))
    assert ProcessSpec.decode(spec.encode()) == spec
    assert "secrets" not in cbor2.loads(spec.encode()), "older workers read it"
    hidden = ProcessSpec(ARGV, secrets={"TOKEN": BLOB})
    assert ProcessSpec.decode(hidden.encode()) == hidden
    result = ProcessResult(0, outputs={"out/b.bin": BLOB}, executable=("out/b.bin",))
    assert ProcessResult.decode(result.encode()) == result


@pytest.mark.parametrize(
    "fields",
    [
        {"inputs": {"../a": BLOB}},
        {"inputs": {"/a": BLOB}},
        {"inputs": {"a": b"no blob"}},
        {"inputs": {"a": BLOB}, "files_in": {"a": b""}},
        {"inputs": {"a/b": BLOB}, "files_in": {"a": b""}},
        {"inputs": {str(number): BLOB for number in range(257)}},
        {"outputs": ("../a",)},
        {"outputs": ("a", "a")},
        {"outputs": ("a",), "files_out": ("a",)},
        {"outputs": tuple(map(str, range(257)))},
        {"checkpoint_files": ("../a",)},
        {"checkpoint_files": ("a",), "inputs": {"a": BLOB}},
        {"checkpoint_files": ("a",), "checkpoint_exit": 0},
        {"checkpoint_exit": True},
        {"secrets": {"../a": BLOB}},
        {"secrets": {"": BLOB}},
        {"secrets": {"a": b"plain"}},
        {"secrets": {str(number): BLOB for number in range(17)}},
    ],
)
def test_names_that_lead_out_or_collide_are_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput):
        ProcessSpec(ARGV, **fields)


def test_what_saves_by_ending_says_so_and_other_processes_are_as_before() -> None:
    spec = ProcessSpec(ARGV, checkpoint_files=("{each}.bin",), checkpoint_exit=9)
    assert ProcessSpec.decode(spec.encode()) == spec
    assert spec.filled(lambda text: text.replace("{each}", "a")).checkpoint_files == ("a.bin",)
    assert "checkpoint_files" not in cbor2.loads(ProcessSpec(ARGV, checkpoint_exit=9).encode())


def test_a_name_that_is_no_text_is_told() -> None:
    with pytest.raises(InvalidInput, match=r"outputs: 'caf\\udce9' is not UTF-8"):
        ProcessSpec(ARGV, outputs=("caf\udce9",))


@pytest.mark.parametrize("outputs", [{"../a": BLOB}, {"a": b"no blob"}])
def test_a_worker_that_names_what_was_not_to_be_is_refused(outputs: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput):
        ProcessResult(0, outputs=outputs)


@pytest.mark.parametrize("blob", [None, [], [b"", 5, []], [BLOB.cid.to_bytes(), -1, []]])
def test_bytes_that_hold_no_reference_are_refused(blob: object) -> None:
    fields = cbor2.loads(ProcessSpec(ARGV, inputs={"a": BLOB}).encode())
    fields["inputs"]["a"] = blob
    with pytest.raises(InvalidInput):
        ProcessSpec.decode(cbor2.dumps(fields))

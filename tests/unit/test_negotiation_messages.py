"""The work protocol on the wire: everything comes back, and nothing else gets in."""

import contextlib
from dataclasses import dataclass, replace
from typing import Annotated, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from formation_p2p.core.errors import ProtocolViolation
from formation_p2p.core.refusals import (
    Busy,
    Denied,
    GivingWay,
    Gone,
    Infeasible,
    Leaving,
    PeerRefusal,
    Preempted,
    Unbuildable,
)
from formation_p2p.core.units import MAX_BYTES, MIB
from formation_p2p.leases.core.held import HeldResources
from formation_p2p.leases.core.in_flight import MAX_SHARED_BLOBS
from formation_p2p.leases.core.messages import (
    MAX_ATTESTATIONS,
    MAX_FRAME_BYTES,
    MAX_ID_CHARS,
    MAX_MESSAGE_CHARS,
    MAX_MS,
    MAX_OUTPUT_BYTES,
    MAX_WINDOW,
    AskOpinions,
    Assignment,
    Cancel,
    Commit,
    CommitRefused,
    Dispatch,
    HandWant,
    KernelMessage,
    Leased,
    LeaseEnded,
    LeaveWant,
    Offer,
    Opinions,
    PlacementRequest,
    Release,
    Renew,
    Renewed,
    RequestRefused,
    SpreadWant,
    TaskOutput,
    TasksEnded,
    ToLessee,
    ToListener,
    ToMember,
    ToPeer,
    ToScheduler,
    ToWorker,
    WorkMessage,
    is_urgent,
    pack,
    parse,
)
from formation_p2p.leases.core.refusal_kind import MAX_REASON_CHARS, MAX_RETRY_MS
from formation_p2p.machine.core.bounds import MAX_CPU_MILLI, MAX_GPUS
from formation_p2p.machine.core.requirements import Requirements
from formation_p2p.records.core.codec import MAX_INT, encode
from formation_p2p.records.core.profile import MAX_GRANT_BYTES
from formation_p2p.records.core.resources import pack_requirements
from formation_p2p.records.core.schema import Schema, Slot, integer, items
from formation_p2p.trust.core.attestation import MAX_ATTESTATION_BYTES
from formation_p2p.workload.core.blob import RAW, Cid, digest_of
from formation_p2p.workload.core.hints import MAX_NEAR
from formation_p2p.workload.core.outcome import Ended, Failed, FailureKind, Succeeded, Usage
from formation_p2p.workload.core.work import MAX_PAYLOAD_BYTES, MAX_PRIORITY, MAX_RESULT_BYTES
from tests.support.stories import NEEDS
from tests.support.work_messages import (
    anything,
    check_another_kind,
    check_damage,
    messages,
    paths,
)


@settings(max_examples=60)
@given(messages)
def test_every_message_comes_back_as_it_was(message: WorkMessage) -> None:
    assert parse(pack(message)) == message


@settings(max_examples=60)
@given(st.binary(max_size=64))
def test_no_bytes_break_the_parser(raw: bytes) -> None:
    with contextlib.suppress(ProtocolViolation):
        parse(raw)


@settings(max_examples=60)
@given(messages, st.data())
def test_no_damage_to_a_frame_breaks_the_parser(message: WorkMessage, data: st.DataObject) -> None:
    check_damage(message, data)


@settings(max_examples=60)
@given(messages, paths, anything)
def test_no_field_of_another_kind_breaks_the_parser(
    message: WorkMessage, path: list[int], new: object
) -> None:
    check_another_kind(message, path, new)


@pytest.mark.parametrize(
    "refusal",
    [
        Infeasible("gpu", "2 of h100", "1 of t4"),
        Denied("submit", "no grant was shown"),
        Denied("submit", "Concurrent task limit reached: 2/2", 1000),
        Gone("lease 7", "it expired"),
        Busy("the ledger", 5),
        Leaving(),
        Unbuildable("4f1c0a9b7d2e", "there is no version of numpy==99"),
        GivingWay("cpu", 5167),
        Preempted(5),
    ],
    ids=lambda refusal: type(refusal).__name__,
)
def test_every_refusal_comes_back_as_it_was(refusal: PeerRefusal) -> None:
    for message in (
        RequestRefused(1, refusal),
        CommitRefused("x", refusal),
        LeaseEnded("x", refusal),
    ):
        assert parse(pack(message)) == message


CID = Cid(RAW, digest_of(b"data"))
HELD = HeldResources(cpu_milli=1000, memory_bytes=MIB)
LONG = "x" * (MAX_ID_CHARS + 1)
WORDY = "x" * (MAX_MESSAGE_CHARS + 1)


@pytest.mark.parametrize(
    "message",
    [
        PlacementRequest(-1, NEEDS, b""),
        PlacementRequest(MAX_INT + 1, NEEDS, b""),
        PlacementRequest(1, NEEDS, bytes(MAX_GRANT_BYTES + 1)),
        PlacementRequest(1, NEEDS, b"", MAX_PRIORITY + 1),
        PlacementRequest(1, NEEDS, b"", -1),
        PlacementRequest(1, Requirements(), b""),  # of no driver
        PlacementRequest(1, NEEDS, b"", 0, (CID,) * (MAX_NEAR + 1)),
        PlacementRequest(1, NEEDS, b"", 0, (), "Anna"),  # names of hosts have no case
        PlacementRequest(1, NEEDS, b"", 0, (), "\u0430nna"),  # a Cyrillic letter
        PlacementRequest(1, NEEDS, b"", 0, (), "anna\u200b"),  # one without width
        PlacementRequest(1, NEEDS, b"", 0, (), "anna desktop"),
        PlacementRequest(1, NEEDS, b"", 0, (), "a" * 64),
        Offer(1, LONG, HELD, 0, 0),
        Offer(1, "lease", HELD, 0, 0, (-1,)),
        Offer(1, "lease", HELD, 0, 0, (MAX_NEAR,)),
        Offer(1, "lease", HELD, 0, 0, (0,) * (MAX_NEAR + 1)),
        Offer(1, "lease\x07", HELD, 0, 0),
        Offer(1, "lease", replace(HELD, device_ids=("GPU-0",) * (MAX_GPUS + 1)), 0, 0),
        Offer(1, "lease", replace(HELD, device_ids=(LONG,)), 0, 0),
        Offer(1, "lease", replace(HELD, cpu_milli=-1), 0, 0),
        Offer(1, "lease", replace(HELD, cpu_milli=MAX_CPU_MILLI + 1), 0, 0),
        Offer(1, "lease", replace(HELD, memory_bytes=MAX_INT), 0, 0),
        Offer(1, "lease", replace(HELD, storage_bytes=-1), 0, 0),
        Offer(1, "lease", replace(HELD, network_mbps=-1), 0, 0),
        Offer(1, "lease", replace(HELD, gpu_share_milli=1001), 0, 0),
        Offer(1, "lease", replace(HELD, gpu_memory_bytes=-1), 0, 0),
        Offer(1, "lease", HELD, -1, 0),
        Offer(1, "lease", HELD, MAX_INT + 1, 0),
        Offer(1, "lease", HELD, 0, MAX_MS + 1),
        Offer(1, "lease", HELD, 0, -1),
        RequestRefused(1, Gone(WORDY, "")),
        RequestRefused(1, Gone("", "\x1b[2J")),
        RequestRefused(1, Infeasible("cpu", -1, 0)),
        RequestRefused(1, Busy("x", MAX_INT + 1)),
        RequestRefused(1, GivingWay("cpu", MAX_RETRY_MS + 1)),
        RequestRefused(1, Preempted(MAX_PRIORITY + 1)),
        Leased("lease", -1, 0, 1),
        Leased("lease", 1, MAX_MS + 1, 1),
        Leased("lease", 1, 0, 0),
        Leased("lease", 1, 0, MAX_WINDOW + 1),
        Renewed("lease", 0, 0),
        Dispatch("lease", 1, ((0, b""),), ()),
        Dispatch("lease", 1, ((1, bytes(MAX_PAYLOAD_BYTES + 1)),), ()),
        Dispatch("lease", 1, tuple((n, b"") for n in range(1, MAX_SHARED_BLOBS + 2)), ()),
        Dispatch("lease", 1, (), (Assignment(LONG, 0, b"", 0),)),
        Dispatch("lease", 1, (), (Assignment("attempt", -1, b"", 0),)),
        Dispatch("lease", 1, (), (Assignment("attempt", 0, bytes(MAX_PAYLOAD_BYTES + 1), 0),)),
        Dispatch("lease", 1, (), (Assignment("attempt", 0, b"", -1),)),
        Dispatch("lease", 1, (), (Assignment("attempt", 0, b"", 0),) * (MAX_WINDOW + 1)),
        Cancel("lease", ("attempt",) * (MAX_WINDOW + 1), True),
        AskOpinions(bytes(MAX_GRANT_BYTES + 1)),
        Opinions((b"",) * (MAX_ATTESTATIONS + 1)),
        Opinions((bytes(MAX_ATTESTATION_BYTES + 1),)),
        TaskOutput("lease", "attempt", False, bytes(MAX_OUTPUT_BYTES + 1)),
        TasksEnded("lease", 1, (Ended("attempt", Succeeded(bytes(MAX_RESULT_BYTES + 1)), 0),)),
        TasksEnded("lease", 1, (Ended("attempt", Succeeded(b""), -1),)),
        TasksEnded("lease", 1, (Ended("attempt", Succeeded(b""), 0, Usage(MAX_BYTES + 1)),)),
        TasksEnded("lease", 1, (Ended("attempt", Succeeded(b""), 0, Usage(None, -1)),)),
        TasksEnded("lease", 1, (Ended("attempt", Succeeded(b""), 0),) * (MAX_WINDOW + 1)),
    ],
    ids=lambda message: type(message).__name__,
)
def test_what_is_out_of_bounds_is_refused(message: WorkMessage) -> None:
    with pytest.raises(ProtocolViolation):
        parse(pack(message))


@pytest.mark.parametrize(
    "fields",
    [
        0,
        None,
        [],
        [4],
        [0, "lease"],
        [17, "lease"],
        [4, "lease", "more"],
        [4, b"lease"],
        [1, 1, pack_requirements(NEEDS), b"", 0, [b"no cid"]],
        [2, 1, "lease", [1, 1, 0, 0, [], 0, 0], 0, 0, [True]],
        [2, 1, "lease", [1, 1], 0, 0, []],
        [2, 1, "lease", [1, 1, 0, 0, [], 0, 0], 0.5, 0, []],
        [2, 1, "lease", [1, 1, 0, 0, [], 0, float("nan")], 0, 0, []],
        [3, 1, ["unheard of"]],
        [3, 1, ["too dear", 2, 1]],
        [3, 1, ["leaving", "more"]],
        [3, 1, "leaving"],
        [3, 1, ["infeasible", "cpu", None, 0]],
        [13, "lease", "attempt", 2, b""],
        [13, "lease", "attempt", True, b""],
        [11, "lease", 1, [[1]], []],
        [11, "lease", 1, [], [["attempt", 0, b""]]],
        [14, "lease", 1, [["attempt", ["ok"], 0, None, None]]],
        [14, "lease", 1, [["attempt", ["melted", "", b""], 0, None, None]]],
        [14, "lease", 1, [["attempt", ["exit", "\x1b[2J", b""], 0, None, None]]],
        [14, "lease", 1, [["attempt", None, 0, None, None]]],
        [14, "lease", 1, [["attempt", ["ok", b""]]]],
    ],
    ids=str,
)
def test_what_has_another_shape_is_refused(fields: object) -> None:
    with pytest.raises(ProtocolViolation):
        parse(encode(fields))


def test_a_frame_past_its_bound_is_refused_unread() -> None:
    with pytest.raises(ProtocolViolation, match="at most"):
        parse(bytes(MAX_FRAME_BYTES + 1))


def test_the_largest_payload_and_result_fit_into_a_frame() -> None:
    assignment = Assignment("attempt", 0, bytes(MAX_PAYLOAD_BYTES), MAX_MS)
    dispatch = Dispatch("lease", 1, (), (assignment,))
    assert parse(pack(dispatch)) == dispatch
    ended = TasksEnded("lease", 1, (Ended("attempt", Succeeded(bytes(MAX_RESULT_BYTES)), 0),))
    assert parse(pack(ended)) == ended


def test_a_machine_with_every_device_there_may_be_can_be_offered() -> None:
    devices = tuple(f"GPU-{n:036d}" for n in range(MAX_GPUS))
    offer = Offer(1, "lease", replace(HELD, device_ids=devices), 0, 1500)
    assert parse(pack(offer)) == offer


def test_control_characters_of_a_traceback_never_travel() -> None:
    """A task prints what it likes; it must not move another's cursor."""
    nasty = "line one\n\tindented \x1b[31mred\x1b[0m\r\x07 \u202egnp.exe \x00 \ud800 café"
    failed = Failed(FailureKind.EXCEPTION, nasty, b"\x1b")
    message = parse(pack(TasksEnded("lease", 1, (Ended("attempt", failed, 0),))))
    assert isinstance(message, TasksEnded)
    expected = "line one\n\tindented ?[31mred?[0m?? ?gnp.exe ? ? café".replace("?", "\ufffd")
    assert message.ended[0].outcome == replace(failed, message=expected)


def test_of_a_long_traceback_the_end_travels() -> None:
    failed = Failed(FailureKind.EXCEPTION, "x" * MAX_MESSAGE_CHARS + "ValueError: the cause")
    message = parse(pack(TasksEnded("lease", 1, (Ended("attempt", failed, 0),))))
    assert isinstance(message, TasksEnded)
    outcome = message.ended[0].outcome
    assert isinstance(outcome, Failed)
    assert len(outcome.message) == MAX_MESSAGE_CHARS
    assert outcome.message.endswith("xxxValueError: the cause")


@pytest.mark.parametrize("retry_ms", [None, 1000])
def test_of_a_denial_that_is_too_long_the_beginning_travels(retry_ms: int | None) -> None:
    """A grant may list eight labels of 127 characters each, all of them missing."""
    denied = Denied("submit", "x" * (MAX_REASON_CHARS + 1), retry_ms)
    back = parse(pack(RequestRefused(1, denied)))
    why = "x" * (MAX_REASON_CHARS - 1) + "…"
    assert back == RequestRefused(1, replace(denied, why=why))


def test_what_keeps_a_lease_goes_ahead_of_large_frames() -> None:
    """None of it depends on what was dispatched, or has ended, before."""
    urgent = {kind for kind in KernelMessage.__args__ if is_urgent(kind.__new__(kind))}
    assert urgent == {
        PlacementRequest,
        Offer,
        RequestRefused,
        Commit,
        CommitRefused,
        Leased,
        Renew,
        Renewed,
        Release,
        LeaveWant,
        HandWant,
        SpreadWant,
    }


def test_each_message_has_one_receiver() -> None:
    receivers = (ToWorker, ToLessee, ToScheduler, ToPeer, ToMember, ToListener)
    kinds = [kind for receiver in receivers for kind in receiver.__args__]
    assert sorted(map(id, kinds)) == sorted(map(id, KernelMessage.__args__))


def test_a_number_names_one_message() -> None:
    schema: Schema[Commit] = Schema("test protocol", 64)
    schema.message(1)(Commit)
    with pytest.raises(AssertionError, match="two messages have the number 1"):
        schema.message(1)(Release)


SLOT = Slot(20)


@dataclass(frozen=True, slots=True)
class Note:
    """A message with room for a feature."""

    beside: Annotated[tuple[Any, ...], SLOT.kind] = ()


def test_what_a_feature_says_is_handed_on_without_it_and_read_with_it() -> None:
    schema: Schema[Note] = Schema("test protocol", 64)
    schema.message(1)(Note)
    frame = schema.pack(Note((1, b"two", ["three"])))
    assert schema.parse(frame) == Note((1, b"two", ["three"]))
    assert schema.pack(schema.parse(frame)) == frame
    for wrong in (Note((b"x" * 20,)), Note({"no": "list"})):  # type: ignore[arg-type]
        with pytest.raises(ProtocolViolation, match="list of at most 20 bytes"):
            schema.parse(encode([1, wrong.beside]))
    SLOT.fill(items(integer(0, 9), 2))
    assert schema.parse(schema.pack(Note((1, 2)))) == Note((1, 2))
    with pytest.raises(ProtocolViolation):
        schema.parse(frame)
    with pytest.raises(AssertionError, match="two features"):
        SLOT.fill(items(integer(0, 9), 2))

"""What a caller and the worker of a service say to each other."""

from __future__ import annotations

from dataclasses import replace

import pytest

from formation_p2p.core.errors import ProtocolViolation
from formation_p2p.features.services.core import tending
from formation_p2p.features.services.core.messages import (
    ANY,
    MAX_MESSAGE_BYTES,
    MAX_WHY_CHARS,
    OpenService,
    ServiceError,
    ServiceMessage,
    ServiceOpened,
    ServiceRefusal,
    ServiceRefused,
    pack,
    parse,
)
from formation_p2p.records.core import codec
from formation_p2p.records.core.profile import MAX_GRANT_BYTES
from formation_p2p.workload.core.blob import RAW, Cid


@pytest.mark.parametrize(
    "message",
    [
        OpenService("llm-inference", b"grant", ANY),
        OpenService("x" * 40, bytes(MAX_GRANT_BYTES), bytes(32)),
        ServiceOpened(),
        *(ServiceRefused(each, "because") for each in ServiceRefusal),
    ],
)
def test_messages_are_read_as_they_were_written(message: ServiceMessage) -> None:
    assert parse(pack(message)) == message
    assert len(pack(message)) <= MAX_MESSAGE_BYTES


def test_a_reason_is_cut_to_what_is_read() -> None:
    long = ServiceRefused(ServiceRefusal.BUSY, "x" * 1000)
    assert parse(pack(long)) == replace(long, why="x" * MAX_WHY_CHARS)


@pytest.mark.parametrize(
    "said",
    [
        [1, "Upper", b"", b""],
        [1, "../etc", b"", b""],
        [1, "x", bytes(MAX_GRANT_BYTES + 1), b""],
        [1, "x", b"", bytes(31)],
        [1, "x", b"", "any"],
        [1, "x", b""],
        [3, "what", "why"],
        [3, 1, "why"],
        [4],
        7,
    ],
)
def test_anything_else_is_no_message(said: object) -> None:
    with pytest.raises(ProtocolViolation):
        parse(codec.encode(said))


GRANT = bytes(MAX_GRANT_BYTES)
CID = Cid(RAW, bytes(32))


@pytest.mark.parametrize(
    "message",
    [
        tending.ReadLog("x" * 40, GRANT, 50, 1_700_000_000, follows=True),
        tending.RunBeside("notes", GRANT, ("sh", "-c", "x" * tending.MAX_ARGUMENT_CHARS)),
        tending.AskSecret("notes", GRANT, CID),
        tending.AskSecret("", b"", CID),
        tending.SecretBox(bytes(tending.MAX_SECRET_BYTES + 48)),
        tending.Tended(),
        tending.Untended("because"),
    ],
)
def test_questions_about_replicas_are_read_as_they_were_written(
    message: tending.TendingMessage,
) -> None:
    assert tending.parse(tending.pack(message)) == message
    assert len(tending.pack(message)) <= tending.MAX_MESSAGE_BYTES
    assert repr(GRANT) not in repr(message)


@pytest.mark.parametrize(
    "said",
    [
        [1, "Upper", b"", 1, 0, True],
        [1, "notes", b"", -1, 0, True],
        [2, "notes", b"", ["x" * 1025]],
        [2, "notes", b"", ["x"] * 65],
        [5, "Upper", b"", CID.to_bytes()],
        [5, "notes", b"", b"x"],
        [6, bytes(9000)],
        [7],
    ],
)
def test_anything_else_is_no_question(said: object) -> None:
    with pytest.raises(ProtocolViolation):
        tending.parse(codec.encode(said))


def test_what_was_refused_never_ran() -> None:
    assert ServiceError("busy", ServiceRefusal.BUSY).never_ran
    assert ServiceError("not dialled", never_ran=True).never_ran
    assert not ServiceError("broken amid the answer").never_ran

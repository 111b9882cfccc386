"""The record that travels in place of a large result, as its scheduler judges it."""

import pytest

from formation_p2p.core.errors import InvalidInput, ResultTooLarge
from formation_p2p.core.units import MIB
from formation_p2p.workload.core.outcome import Failed, FailureKind, Succeeded
from formation_p2p.workload.core.parcel import Parcel, blob_of, is_large, kept_size, size_at_worker
from tests.support.large_results import record_at
from tests.support.stories import ALICE, CAROL

RECORD = record_at(ALICE, 2 * MIB)


def test_only_calls_have_records() -> None:
    assert is_large("python", RECORD)
    assert not is_large("process", RECORD)
    assert not is_large("python", b"\x80\x05.")


def test_its_size_is_what_its_worker_keeps() -> None:
    assert size_at_worker("python", Succeeded(RECORD)) == 2 * MIB + 1
    assert size_at_worker("process", Succeeded(RECORD)) == 0
    assert size_at_worker("python", Failed(FailureKind.OUTPUT, "", RECORD)) == 0
    assert size_at_worker("python", Succeeded(b"\x85of a driver of one's own")) == 0


def test_its_worker_alone_has_it() -> None:
    assert blob_of(RECORD, ALICE.peer_id, 3 * MIB).owner == ALICE
    with pytest.raises(InvalidInput, match="not in one blob that its worker has"):
        blob_of(RECORD, CAROL.peer_id, 3 * MIB)
    with pytest.raises(InvalidInput, match="has 2MiB, where the call allows 1MiB"):
        blob_of(RECORD, ALICE.peer_id, MIB)
    with pytest.raises(InvalidInput, match="not in one blob"):
        blob_of(Parcel(b"\x80").encode(), ALICE.peer_id, MIB)


def test_what_a_worker_keeps_of_one_that_is_not_allowed_is_told() -> None:
    assert kept_size(FailureKind.OUTPUT, RECORD) == 2 * MIB + 1
    assert kept_size(FailureKind.OUTPUT, b"") is None
    assert kept_size(FailureKind.OUTPUT, b"\x85garbage") is None
    assert kept_size(FailureKind.EXIT, RECORD) is None
    error = ResultTooLarge("task 1 failed", "12D3", 2 * MIB, RECORD)
    assert "worker 12D3 keeps it for an hour" in str(error)
    assert "fetch_result" in str(error)

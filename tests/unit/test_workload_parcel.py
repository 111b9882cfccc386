"""Parcels and private blobs: their records, and what strangers may make of them."""

from __future__ import annotations

import pickle
from dataclasses import replace
from typing import Any

import cbor2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from formation_p2p.core.errors import InvalidInput
from formation_p2p.core.units import GIB, KIB, MIB
from formation_p2p.core.workload.blob import MAX_BLOB_BYTES
from formation_p2p.core.workload.parcel import (
    LARGE_BYTES,
    MAX_BUFFERS,
    MAX_RECORD_BYTES,
    MAX_REFERENCES,
    Parcel,
    is_parcel,
    places_of,
)
from formation_p2p.core.workload.private_blob import PrivateBlob
from tests.support.parcels import OWNER

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

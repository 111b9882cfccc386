"""Names of content: what a CID and a reference may be."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from blake3 import blake3
from hypothesis import given
from hypothesis import strategies as st

from formation_p2p.core.effects import Contact
from formation_p2p.core.errors import InvalidInput
from formation_p2p.core.identity import Identity, peer_id_to_bytes
from formation_p2p.workload.core.blob import (
    CHUNK_BYTES,
    DAG_CBOR,
    MAX_BLOB_BYTES,
    MAX_SOURCES,
    RAW,
    Blob,
    Cid,
    digest_of,
)

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

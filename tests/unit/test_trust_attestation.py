"""What one node says of others, as it travels: all of it comes back, and nothing else gets in."""

import contextlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from formation_p2p.core.errors import (
    BadRecord,
    ExpiredRecord,
    ForgedRecord,
    MalformedRecord,
    OversizedRecord,
)
from formation_p2p.core.identity import Identity, PeerId, peer_id_to_bytes
from formation_p2p.records.core.codec import encode
from formation_p2p.records.core.envelope import seal
from formation_p2p.records.core.signed_fields import MAX_CLOCK_SKEW_S
from formation_p2p.trust.core.attestation import (
    LIFE_S,
    MAX_ATTESTATION_BYTES,
    MAX_SUBJECTS,
    Opinion,
    open_attestation,
    seal_attestation,
)
from formation_p2p.trust.core.experience import MEMORY
from tests.support.stories import identity

ALICE = identity("alice")
BOB, CAROL = identity("bob").peer_id, identity("carol").peer_id
NOW = 1_700_000_000
DOMAIN, TYPE = "formation-attestation", b"/formation/attestation/1"

peers = st.sampled_from([identity(name).peer_id for name in ("bob", "carol", "dave", "erin")])
opinions = st.builds(Opinion, st.integers(0, 1000), st.integers(0, MEMORY * 1000))


def signed(fields: Any, by: Identity = ALICE) -> bytes:
    return seal(by, DOMAIN, TYPE, encode(fields))


@given(st.dictionaries(peers, opinions))
def test_what_is_sealed_comes_back(said: dict[PeerId, Opinion]) -> None:
    raw = seal_attestation(ALICE, said, NOW * 1000)
    found = open_attestation(raw, NOW)
    assert (found.author, found.opinions, found.raw) == (ALICE.peer_id, said, raw)


def test_of_as_many_as_there_may_be_it_has_room() -> None:
    said = {
        identity(f"peer {n}").peer_id: Opinion(1000, MEMORY * 1000) for n in range(MAX_SUBJECTS)
    }
    raw = seal_attestation(ALICE, said, NOW * 1000)
    assert len(raw) <= MAX_ATTESTATION_BYTES
    assert open_attestation(raw, NOW).opinions == said


def test_it_holds_for_a_day_and_not_from_tomorrow() -> None:
    raw = seal_attestation(ALICE, {BOB: Opinion(900, 5000)}, NOW * 1000)
    open_attestation(raw, NOW + LIFE_S - 1)
    open_attestation(raw, NOW - MAX_CLOCK_SKEW_S)
    for now in (NOW + LIFE_S, NOW - MAX_CLOCK_SKEW_S - 1):
        with pytest.raises(ExpiredRecord):
            open_attestation(raw, now)


def test_what_was_signed_for_another_purpose_or_altered_is_refused() -> None:
    raw = seal_attestation(ALICE, {BOB: Opinion(900, 5000)}, NOW * 1000)
    with pytest.raises(ForgedRecord):
        open_attestation(seal(ALICE, "formation-profile", TYPE, encode([NOW * 1000, []])), NOW)
    with pytest.raises(MalformedRecord):
        open_attestation(seal(ALICE, DOMAIN, b"/formation/profile/1", b""), NOW)
    with pytest.raises(OversizedRecord):
        open_attestation(raw + bytes(MAX_ATTESTATION_BYTES), NOW)


@given(st.data())
def test_no_damage_gets_through(data: st.DataObject) -> None:
    raw = bytearray(seal_attestation(ALICE, {BOB: Opinion(900, 5000)}, NOW * 1000))
    place = data.draw(st.integers(0, len(raw) - 1))
    raw[place] ^= data.draw(st.integers(1, 255))
    with pytest.raises(BadRecord):
        open_attestation(bytes(raw), NOW)


@given(st.binary(max_size=64))
def test_no_signed_bytes_break_the_parser(payload: bytes) -> None:
    with contextlib.suppress(BadRecord):
        open_attestation(seal(ALICE, DOMAIN, TYPE, payload), NOW)


BOBS = peer_id_to_bytes(BOB)


@pytest.mark.parametrize(
    "fields",
    [
        None,
        [],
        [NOW * 1000],
        [NOW * 1000, [], 1],
        [-1, []],
        [float(NOW), []],
        [NOW * 1000, [[BOBS, 500]]],
        [NOW * 1000, [BOBS]],
        [NOW * 1000, [[b"bob", 500, 1]]],
        [NOW * 1000, [[BOB, 500, 1]]],
        [NOW * 1000, [[BOBS, 1001, 1]]],
        [NOW * 1000, [[BOBS, -1, 1]]],
        [NOW * 1000, [[BOBS, 500, MEMORY * 1000 + 1]]],
        [NOW * 1000, [[BOBS, 500, 1.5]]],
        [NOW * 1000, [[BOBS, 500, 1], [BOBS, 400, 1]]],
        [NOW * 1000, [[BOBS, 500, 1]] * (MAX_SUBJECTS + 1)],
    ],
    ids=str,
)
def test_what_has_another_shape_is_refused(fields: Any) -> None:
    with pytest.raises(MalformedRecord):
        open_attestation(signed(fields), NOW)

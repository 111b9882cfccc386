"""A spec as it travels: whole there and back, and refused where anyone has touched it."""

from __future__ import annotations

import contextlib
import hashlib
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from formation_p2p.core.effects import Contact
from formation_p2p.core.errors import (
    BadRecord,
    ExpiredRecord,
    ForgedRecord,
    InvalidInput,
    MalformedRecord,
    OversizedRecord,
)
from formation_p2p.core.identity import Identity, peer_id_to_bytes
from formation_p2p.core.units import GIB
from formation_p2p.features.services.core.signed_spec import (
    MAX_SPEC_BYTES,
    MAX_SPEC_TTL_S,
    SPEC_PAYLOAD_TYPE,
    decode_spec,
    encode_spec,
    open_spec,
    seal_spec,
)
from formation_p2p.features.services.core.spec import (
    ONE,
    Check,
    CheckKind,
    Pinned,
    Program,
    Replicas,
    ServiceSpec,
)
from formation_p2p.machine.core.requirements import Requirements
from formation_p2p.records.core.codec import Malformed, decode, encode
from formation_p2p.records.core.envelope import open_envelope, seal
from formation_p2p.records.core.lifetime import MAX_CLOCK_SKEW_S
from formation_p2p.records.core.profile import MAX_GRANT_BYTES
from formation_p2p.workload.core.blob import RAW, Blob, Cid, digest_of
from formation_p2p.workload.core.scope import Scope

ALICE = Identity.from_seed(b"a" * 32)
BOB = Identity.from_seed(b"b" * 32)
NOW = 1_700_000_000
DOMAIN = "formation-service-spec"

SCRIPT = Blob(Cid(RAW, digest_of(b"print()")), 7, (Contact(ALICE.peer_id, ("/ip4/192.0.2.1",)),))

MODEL = ServiceSpec(
    name="llm-inference",
    version=3,
    tier=1,
    priority=1,
    port=8105,
    needs=Requirements(cpu_milli=2000, gpu_count=1, gpu_memory_bytes=8 * GIB),
    program=Program(
        argv=("python3", "serve.py"),
        variables=(("MODEL", "tiny"),),
        files=(("serve.py", SCRIPT),),
        environment=("numpy>=2",),
    ),
    replicas=Replicas(1, 2, 5),
    readiness=Check(path="/health"),
    liveness=Check(CheckKind.EXEC, argv=("test", "-e", "alive"), failures=5),
    uses=("redis",),
    scope=Scope.ORG,
)
NOTES = ServiceSpec(name="notes", tier=2, port=8100, program=Program(argv=("notes",)))
REDIS = ServiceSpec(
    name="redis",
    tier=3,
    port=6379,
    program=Program(driver="container", argv=("redis-server",), image="redis:8"),
    replicas=ONE,
    readiness=Check(CheckKind.TCP),
    pinned=Pinned("redis-data", BOB.peer_id),
    withdrawn=True,
)
CALLED = ServiceSpec(
    name="called", tier=4, port=1, program=Program(driver="python", call=SCRIPT), max_requests=1
)

HIDDEN = ServiceSpec(
    name="hidden",
    tier=2,
    port=1,
    program=Program(argv=("notes",), secrets=(("TOKEN", SCRIPT), ("A", SCRIPT))),
)


@pytest.mark.parametrize("spec", [MODEL, NOTES, REDIS, CALLED, HIDDEN])
def test_what_alice_seals_opens_as_she_wrote_it(spec: ServiceSpec) -> None:
    sealed = seal_spec(ALICE, spec, b"a grant", NOW, NOW + 60)
    signed = open_spec(sealed.raw, NOW)
    assert signed == sealed
    assert signed.spec == spec
    assert signed.publisher == ALICE.peer_id
    assert signed.digest == hashlib.sha256(sealed.raw).digest()
    assert (signed.grant, signed.issued_unix_s, signed.expires_unix_s) == (
        b"a grant",
        NOW,
        NOW + 60,
    )
    assert len(sealed.raw) < 650


@pytest.mark.parametrize("spec", [MODEL, NOTES, REDIS, CALLED])
def test_a_spec_passes_unsigned_between_programs_of_a_user(spec: ServiceSpec) -> None:
    assert decode_spec(encode_spec(spec)) == spec
    with pytest.raises(Malformed, match="has other fields"):
        decode_spec(encode([spec.name]))


def test_a_spec_lives_as_long_as_it_says() -> None:
    raw = seal_spec(ALICE, NOTES, b"", NOW, NOW + 60).raw
    open_spec(raw, NOW + 59.9)
    with pytest.raises(ExpiredRecord, match="expired 5 s ago; publish it again"):
        open_spec(raw, NOW + 65)
    open_spec(raw, NOW - MAX_CLOCK_SKEW_S)
    with pytest.raises(ExpiredRecord, match="from 61 s ahead"):
        open_spec(raw, NOW - MAX_CLOCK_SKEW_S - 1)
    for expires in (NOW, NOW + MAX_SPEC_TTL_S + 1):
        with pytest.raises(InvalidInput, match="within 90 days"):
            seal_spec(ALICE, NOTES, b"", NOW, expires)


def altered(spec: ServiceSpec = NOTES, signer: Identity = ALICE, **fields: Any) -> bytes:
    """Alice's spec with fields on the wire replaced by place, signed all the same."""
    sealed = seal_spec(ALICE, spec, b"", NOW, NOW + 60)
    _, payload = open_envelope(sealed.raw, DOMAIN, SPEC_PAYLOAD_TYPE, MAX_SPEC_BYTES)
    wire: Any = decode(payload, MAX_SPEC_BYTES)
    for place, value in fields.items():
        wire[int(place.removeprefix("f"))] = value
    return seal(signer, DOMAIN, SPEC_PAYLOAD_TYPE, encode(wire))


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"f0": b"nobody"}, "publisher: is not a peer id"),
        ({"f1": "now"}, "issued: is a str"),
        ({"f2": -1}, "expires: is not from 0"),
        ({"f3": bytes(MAX_GRANT_BYTES + 1)}, "grant: has 2049 bytes"),
        ({"f4": "Notes"}, "service: 'Notes' is not a name"),
        ({"f5": True}, "version: True is not a whole number"),
        ({"f9": []}, "requirements: are not a list"),
        ({"f10": []}, "program: is not a list of seven"),
        ({"f10": ["process", ["x"], ["ab"], [], [], "", None]}, "variables: holds what is no pair"),
        ({"f10": ["process", [], [], [], [], "", None]}, "argv: is what process"),
        ({"f10": ["process", ["x"], [], [["a", 1]], [], "", None]}, "blob: is a int"),
        ({"f10": ["process", ["x"], [], [], [], "", b"\x80"]}, "blob: is not"),
        ({"f10": ["process", ["x"], [["a", 1]], [], [], "", None]}, "variables: 1 is no text"),
        ({"f10": [[], ["x"], [], [], [], "", None]}, "driver: a list cannot listen"),
        ({"f10": ["process", ["x"], [], [], [], 3, None]}, "image: is what"),
        ({"f11": [1, 2]}, "replicas: are not three"),
        ({"f11": [2, 1, 1]}, "replicas.max: 1 is less"),
        ({"f12": [1]}, "check: is not a list of seven"),
        ({"f12": ["ping", "/", [], 5000, 2000, 3, 1]}, "check: is of an unknown kind"),
        ({"f12": [[], "/", [], 5000, 2000, 3, 1]}, "check: is of an unknown kind"),
        ({"f12": ["http", 3, [], 5000, 2000, 3, 1]}, "check.path: 3 is not a path"),
        ({"f17": [1]}, "pinned: is not a volume"),
        ({"f17": ["data", "alice"]}, "pinned.home: 'alice' is not"),
        ({"f18": 9}, "scope: is not from 0"),
        ({"f19": ["A"]}, "uses: 'A' is not a name"),
        ({"f20": 1}, "withdrawn: is not a bool"),
    ],
)
def test_what_is_not_a_spec_is_refused_with_its_field(fields: dict[str, Any], problem: str) -> None:
    open_spec(altered(), NOW)
    with pytest.raises(MalformedRecord) as refused:
        open_spec(altered(**fields), NOW)
    assert problem in str(refused.value)


def test_a_spec_of_a_life_too_long_is_refused() -> None:
    with pytest.raises(ExpiredRecord, match="longer than 7776000 s"):
        open_spec(altered(f2=NOW + MAX_SPEC_TTL_S + 1), NOW)


def test_only_its_publisher_signs_a_spec() -> None:
    with pytest.raises(ForgedRecord, match="signed by"):
        open_spec(altered(signer=BOB), NOW)
    open_spec(altered(signer=BOB, f0=peer_id_to_bytes(BOB.peer_id)), NOW)
    raw = bytearray(seal_spec(ALICE, NOTES, b"", NOW, NOW + 60).raw)
    raw[-1] ^= 1
    with pytest.raises(ForgedRecord, match="does not match"):
        open_spec(bytes(raw), NOW)


def test_what_is_too_big_is_named() -> None:
    long = ServiceSpec(
        name="long", tier=2, port=1, program=Program(argv=("python3", "-c", "#" * 5000))
    )
    with pytest.raises(InvalidInput, match="program: the spec of long takes 5"):
        seal_spec(ALICE, long, b"", NOW, NOW + 60)
    with pytest.raises(InvalidInput, match="grant: 2049 bytes"):
        seal_spec(ALICE, NOTES, bytes(MAX_GRANT_BYTES + 1), NOW, NOW + 60)
    with pytest.raises(OversizedRecord):
        open_spec(bytes(MAX_SPEC_BYTES + 1), NOW)


fields = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.text(max_size=8)
    | st.binary(max_size=8),
    lambda inner: st.lists(inner, max_size=7),
    max_leaves=12,
)


@settings(deadline=None)
@given(st.integers(0, 20), fields)
def test_any_field_at_all_is_read_or_refused(place: int, value: Any) -> None:
    with contextlib.suppress(BadRecord):
        open_spec(altered(MODEL, **{f"f{place}": value}), NOW)

"""A spec as it travels: whole there and back, and refused where anyone has touched it."""

import contextlib
import hashlib
from dataclasses import replace
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
from formation_p2p.features.services.core.catalog import (
    Detected,
    GapStatus,
    Sharing,
    assign,
    at_once,
    detected_on,
    gaps,
    summary,
    wanted,
    worker_type_of,
)
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
    WorkerType,
)
from formation_p2p.machine.core.capability import Capability
from formation_p2p.machine.core.gpu import Gpu
from formation_p2p.machine.core.requirements import Requirements
from formation_p2p.records.core.codec import Malformed, decode, encode
from formation_p2p.records.core.envelope import open_envelope, seal
from formation_p2p.records.core.profile import MAX_GRANT_BYTES
from formation_p2p.records.core.signed_fields import MAX_CLOCK_SKEW_S
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


# What a worker is, which services it takes on, and of which there are too few.


def spec(name: str, tier: int = 2, priority: int = 1) -> ServiceSpec:
    program = Program(argv=(name,))
    return ServiceSpec(name=name, tier=tier, priority=priority, port=1, program=program)


GPU, CPU, STORAGE, EDGE = WorkerType
LARGE = Capability(
    8000, 16 * GIB, 900 * GIB, gpus=(Gpu("GPU-0", "nvidia", "rtx-4090", 24 * 10**9),)
)


@pytest.mark.parametrize(
    ("machine", "is_public", "expected"),
    [
        (LARGE, True, GPU),
        (replace(LARGE, gpus=()), True, EDGE),
        (replace(LARGE, gpus=()), False, STORAGE),
        (replace(LARGE, gpus=(), storage_bytes=50 * GIB), False, CPU),
        (Capability(1000, 2 * GIB), False, STORAGE),
        (replace(LARGE, gpus=(Gpu("GPU-0", "nvidia", "gt-1030", 2 * GIB),)), False, STORAGE),
    ],
)
def test_a_machine_is_what_is_rare_of_it(
    machine: Capability, is_public: bool, expected: WorkerType
) -> None:
    assert worker_type_of(detected_on(machine, is_public=is_public)) is expected


def test_a_worker_is_what_it_says_unless_it_has_a_gpu() -> None:
    assert worker_type_of(Detected(has_public_ip=True, declared=STORAGE)) is STORAGE
    assert worker_type_of(Detected(has_gpu=True, declared=STORAGE)) is GPU


def test_the_more_workers_there_are_the_fewer_services_each_takes_on() -> None:
    assert [at_once(CPU, n, 4, Sharing.WIDE) for n in range(6)] == [3, 3, 2, 2, 1, 1]
    assert [at_once(CPU, n, 4, Sharing.FEW) for n in range(3)] == [2, 1, 1]
    assert [at_once(EDGE, n, 4, Sharing.FEW) for n in range(3)] == [2, 2, 2]
    assert [at_once(GPU, n, 7, Sharing.ALL) for n in range(3)] == [7, 1, 1]
    assert [at_once(EDGE, n, 1, Sharing.FEW) for n in range(3)] == [1, 1, 1]


catalogs = st.lists(st.tuples(st.integers(1, 4), st.integers(1, 5)), min_size=1, max_size=12).map(
    lambda rows: [spec(f"s{n}", *row) for n, row in enumerate(rows)]
)


@given(
    catalogs,
    st.sampled_from(WorkerType),
    st.integers(0, 5),
    st.sampled_from(Sharing),
    st.dictionaries(st.sampled_from([f"s{n}" for n in range(12)]), st.integers(0, 3)),
)
def test_no_service_that_is_left_has_fewer_replicas_than_one_that_is_taken(
    catalog: list[ServiceSpec],
    kind: WorkerType,
    healthy: int,
    sharing: Sharing,
    coverage: dict[str, int],
) -> None:
    taken = assign(kind, coverage, healthy, catalog, sharing)
    named = {each.name: each for each in catalog}
    priorities = [named[name].priority for name in taken]
    assert priorities == sorted(priorities)
    left = [x for x in catalog if x.worker_type is kind and x.name not in taken]
    for name in taken:
        mine = coverage.get(name, 0), named[name].priority
        assert all(mine <= (coverage.get(x.name, 0), x.priority) for x in left)


def test_a_service_that_is_withdrawn_is_no_gap_and_is_not_taken_on() -> None:
    catalog = [spec("a"), replace(spec("b"), withdrawn=True)]
    assert assign(CPU, {}, 0, catalog) == ("a",)
    assert [gap.service for gap in gaps(catalog, {})] == ["a"]


def test_one_replica_covers_a_service_that_is_to_have_one() -> None:
    catalog = [spec("a"), replace(spec("b"), replicas=ONE), spec("c", 1)]
    found = gaps(catalog, {"a": 1, "b": 1})
    assert [(gap.service, gap.status) for gap in found] == [
        ("c", GapStatus.CRITICAL),
        ("a", GapStatus.WARNING),
        ("b", GapStatus.OK),
    ]
    assert summary(found).needs_attention == 2
    assert wanted(found) == {GPU: 1}
    assert wanted(gaps([*catalog, spec("d", 1)], {})) == {GPU: 2, CPU: 2}

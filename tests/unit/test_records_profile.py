"""The signed profile: what alice says of herself, and all the ways in which it is refused."""

import contextlib
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from formation_p2p.core.errors import (
    BadRecord,
    ExpiredRecord,
    ForgedRecord,
    InvalidInput,
    MalformedRecord,
    OversizedRecord,
)
from formation_p2p.core.identity import Identity, peer_id_to_bytes
from formation_p2p.core.keyspace import MAX_DEPTH, Span
from formation_p2p.core.units import GIB
from formation_p2p.machine.core.bounds import refuse_host_label
from formation_p2p.machine.core.capability import Capability, Capacity, GpuFree, idle
from formation_p2p.machine.core.gpu import Gpu
from formation_p2p.records.core import envelope, signed_fields
from formation_p2p.records.core.codec import decode, encode
from formation_p2p.records.core.envelope import open_envelope, seal
from formation_p2p.records.core.profile import (
    MAX_GATE_RTT_MS,
    MAX_PROFILE_BYTES,
    MAX_RATE_MBIT_S,
    MAX_SPANS,
    MAX_TTL_S,
    Link,
    Profile,
    open_profile,
    seal_profile,
)
from formation_p2p.records.core.signed_fields import MAX_CLOCK_SKEW_S

ALICE = Identity.from_seed(b"a" * 32)
BOB = Identity.from_seed(b"b" * 32)
NOW = 1_700_000_000

DOMAIN, TYPE = "formation-profile", b"/formation/profile/1"

PROFILE = Profile(
    peer_id=ALICE.peer_id,
    sequence=NOW * 1000,
    issued_unix_s=NOW,
    expires_unix_s=NOW + 120,
    capability=Capability(
        8000, 32 * GIB, 500 * GIB, 1000, gpus=(Gpu("GPU-0", "nvidia", "h100", 80 * GIB, 90),)
    ),
    capacity=Capacity(4000, 16 * GIB, gpus=(GpuFree("GPU-0", 500, 40 * GIB),)),
    labels=(("rack", "7"), ("zone", "cellar")),
    drivers=("process", "python"),
    services=("llama",),
    price_micro=1500,
    addresses=("/ip4/192.0.2.1/tcp/4001",),
    grant=b"a grant",
    spans=(Span(0, 0), Span(3, 4)),
    environments=("4f1c0a9b7d2e", "0123456789ab"),
)


def machine(gpus: int) -> Capability:
    """With device ids as long as NVML's."""
    return Capability(
        128_000,
        1024 * GIB,
        gpus=tuple(
            Gpu(f"GPU-{n:036d}", "nvidia", "rtx-6000-ada", 48 * GIB, 89) for n in range(gpus)
        ),
    )


def altered(**fields: Any) -> bytes:
    """Alice's profile with fields on the wire replaced by place, signed by her all the same."""
    _, payload = open_envelope(seal_profile(ALICE, PROFILE), DOMAIN, TYPE, MAX_PROFILE_BYTES)
    wire: Any = decode(payload, MAX_PROFILE_BYTES)
    for place, value in fields.items():
        wire[int(place.removeprefix("f"))] = value
    return seal(ALICE, DOMAIN, TYPE, encode(wire))


def test_what_alice_seals_opens_as_she_wrote_it() -> None:
    raw = seal_profile(ALICE, PROFILE)
    signed = open_profile(raw, NOW)
    assert signed.profile == PROFILE
    assert signed.raw == raw
    assert len(raw) < 400


small = st.integers(0, 2**63 - 1)
names = st.lists(st.from_regex(r"[a-z]{1,8}", fullmatch=True), max_size=8, unique=True).map(tuple)


spans = st.lists(
    st.tuples(st.integers(0, MAX_DEPTH), st.integers(0, MAX_DEPTH)).map(
        lambda ends: Span(min(ends), max(ends))
    ),
    max_size=26,
).map(tuple)


@settings(deadline=None)
@given(
    small,
    st.integers(1, MAX_TTL_S),
    names,
    names,
    small,
    st.binary(max_size=700),
    st.booleans(),
    spans,
)
def test_any_profile_survives_the_wire(
    sequence: int,
    ttl_s: int,
    drivers: tuple[str, ...],
    services: tuple[str, ...],
    price: int,
    grant: bytes,
    withdrawn: bool,
    spans: tuple[Span, ...],
) -> None:
    profile = replace(
        PROFILE,
        sequence=sequence,
        expires_unix_s=NOW + ttl_s,
        drivers=drivers,
        services=services,
        price_micro=price,
        grant=grant,
        withdrawn=withdrawn,
        spans=spans,
    )
    assert open_profile(seal_profile(ALICE, profile), NOW).profile == profile


# -- forged -----------------------------------------------------------------------------------


def test_bob_cannot_write_alices_profile() -> None:
    payload = open_envelope(seal_profile(ALICE, PROFILE), DOMAIN, TYPE, MAX_PROFILE_BYTES)[1]
    with pytest.raises(ForgedRecord, match=f"of {ALICE.peer_id}, signed by {BOB.peer_id}"):
        open_profile(seal(BOB, DOMAIN, TYPE, payload), NOW)


# -- expired ----------------------------------------------------------------------------------


def test_a_profile_is_good_until_its_very_expiry() -> None:
    raw = seal_profile(ALICE, PROFILE)
    open_profile(raw, NOW + 119.999)
    with pytest.raises(ExpiredRecord, match="expired 0 s ago"):
        open_profile(raw, NOW + 120)


def test_a_life_longer_than_allowed_is_refused() -> None:
    with pytest.raises(ExpiredRecord, match="live longer than 600 s"):
        open_profile(altered(f3=NOW + MAX_TTL_S + 1), NOW)
    open_profile(altered(f3=NOW + MAX_TTL_S), NOW)


def test_a_clock_may_run_a_little_ahead_but_not_more() -> None:
    raw = seal_profile(ALICE, PROFILE)
    open_profile(raw, NOW - MAX_CLOCK_SKEW_S)
    with pytest.raises(ExpiredRecord, match="from 61 s ahead; see that the clocks agree"):
        open_profile(raw, NOW - MAX_CLOCK_SKEW_S - 1)


# -- seen before --------------------------------------------------------------------------------


def test_the_bytes_of_one_profile_are_verified_once(monkeypatch: pytest.MonkeyPatch) -> None:
    verified: list[bytes] = []

    def counted(raw: bytes, *rest: Any) -> Any:
        verified.append(raw)
        return envelope.open_envelope(raw, *rest)

    monkeypatch.setattr(signed_fields, "open_envelope", counted)
    fresh = seal_profile(ALICE, replace(PROFILE, sequence=123_456))
    for second in range(3):
        open_profile(fresh, NOW + second)
    assert verified == [fresh]
    other = seal_profile(ALICE, replace(PROFILE, sequence=123_457))
    open_profile(other, NOW)
    assert verified == [fresh, other]


def test_what_was_good_when_it_was_verified_still_expires() -> None:
    raw = seal_profile(ALICE, PROFILE)
    open_profile(raw, NOW)
    with pytest.raises(ExpiredRecord):
        open_profile(raw, NOW + 120)
    with pytest.raises(ExpiredRecord):
        open_profile(raw, NOW - MAX_CLOCK_SKEW_S - 1)
    open_profile(raw, NOW)


def test_what_is_bad_is_bad_each_time() -> None:
    raw = bytearray(seal_profile(ALICE, PROFILE))
    raw[raw.index(b"cellar")] ^= 1
    for _ in range(2):
        with pytest.raises(ForgedRecord):
            open_profile(bytes(raw), NOW)


# -- oversized --------------------------------------------------------------------------------


def test_sixteen_gpus_fit_and_a_profile_too_large_names_what_takes_the_most() -> None:
    def profile(gpus: int) -> Profile:
        capability = machine(gpus)
        return replace(PROFILE, capability=capability, capacity=idle(capability), grant=bytes(600))

    raw = seal_profile(ALICE, profile(16))
    assert open_profile(raw, NOW).profile == profile(16)
    assert len(raw) < MAX_PROFILE_BYTES * 2 // 3
    with pytest.raises(InvalidInput, match="bytes of 4096") as caught:
        seal_profile(ALICE, profile(64))
    assert caught.value.field == "gpu"


def test_a_profile_of_the_largest_size_is_read_and_one_byte_more_is_not_sealed() -> None:
    capability = machine(24)
    profile = replace(PROFILE, capability=capability, capacity=idle(capability), grant=bytes(600))
    room = MAX_PROFILE_BYTES - len(seal_profile(ALICE, profile))
    largest = replace(profile, grant=bytes(600 + room))
    raw = seal_profile(ALICE, largest)
    assert len(raw) == MAX_PROFILE_BYTES
    assert open_profile(raw, NOW).profile == largest
    with pytest.raises(InvalidInput, match="4097 bytes of 4096"):
        seal_profile(ALICE, replace(profile, grant=bytes(601 + room)))


@pytest.mark.parametrize("field", ["sequence", "issued_unix_s", "expires_unix_s", "price_micro"])
def test_a_number_below_zero_is_in_no_profile(field: str) -> None:
    below: dict[str, Any] = {field: -1}
    with pytest.raises(InvalidInput):
        replace(PROFILE, **below)


def test_a_link_of_a_number_below_zero_is_none() -> None:
    with pytest.raises(InvalidInput):
        Link(rtt_ms=-1)
    with pytest.raises(InvalidInput):
        Link(rate_mbit_s=-1)


def test_a_stranger_s_profile_too_large_is_not_read() -> None:
    raw = seal(ALICE, DOMAIN, TYPE, bytes(MAX_PROFILE_BYTES))
    with pytest.raises(OversizedRecord):
        open_profile(raw, NOW)


# -- malformed --------------------------------------------------------------------------------

BAD_FIELDS = {
    "author is no peer id": {"f0": b"alice"},
    "author is text": {"f0": ALICE.peer_id},
    "sequence below zero": {"f1": -1},
    "sequence past 63 bits": {"f1": 2**63},
    "issued is text": {"f2": "now"},
    "expires is a float": {"f3": NOW + 1.5},
    "capability": {"f4": [1, 2]},
    "capacity": {"f5": None},
    "labels": {"f6": [["zone", "\x1b[2J"]]},
    "a name of capitals": {"f6": [["host", "Anna"]]},
    "a name that looks like another": {"f6": [["host", "\u0430nna"]]},
    "a name without an end": {"f6": [["host", "a" * 64]]},
    "a label twice": {"f6": [["zone", "a"], ["zone", "b"]]},
    "drivers": {"f7": ["Process"]},
    "a driver twice": {"f7": ["process", "process"]},
    "nine drivers": {"f7": [f"d{n}" for n in range(9)]},
    "driver is a list": {"f7": [["process"]]},
    "services": {"f8": "llama"},
    "a service with a newline": {"f8": ["a\n"]},
    "price": {"f9": -5},
    "address is text": {"f10": ["/ip4/192.0.2.1/tcp/1"]},
    "nine addresses": {"f10": [b"\x04\x01\x02\x03\x04"] * 9},
    "grant": {"f11": bytes(2049)},
    "withdrawn": {"f12": 2},
    "environments are a list": {"f15": []},
    "an environment that is cut off": {"f15": b"12345"},
    "too many environments": {"f15": bytes(6 * 33)},
    "spans are text": {"f13": "0011"},
    "a span with one end": {"f13": [0, 0, 3]},
    "a span upside down": {"f13": [4, 3]},
    "a span below zero": {"f13": [-1, 3]},
    "a span too deep": {"f13": [0, MAX_DEPTH + 1]},
    "a span of texts": {"f13": ["a", "b"]},
    "spans of lists": {"f13": [[0, 0]]},
    "too many spans": {"f13": [0] * (2 * MAX_SPANS + 2)},
}


def test_the_link_of_a_worker_is_one_field_more_where_there_is_one() -> None:
    for link in (Link(MAX_GATE_RTT_MS), Link(0, MAX_RATE_MBIT_S), Link(20, 100)):
        edge = replace(PROFILE, link=link)
        assert open_profile(seal_profile(ALICE, edge), NOW).profile == edge
    assert str(Link(20, 100)) == "20 ms, 100 Mbit/s"
    assert str(Link(0, 100)) == "100 Mbit/s"
    assert str(Link(20)) == "20 ms"


@pytest.mark.parametrize(
    ("last", "why"),
    [
        ([0, 0], "says nothing"),
        ([-1, 5], "gate round trip"),
        ([MAX_GATE_RTT_MS + 1, 0], "gate round trip"),
        ([5, MAX_RATE_MBIT_S + 1], "gate rate"),
        (["20", 5], "gate round trip"),
        ([True, 5], "gate round trip"),
        ([5], "is not a round trip and a rate"),
        (20, "is not a round trip and a rate"),
        (None, "is not a round trip and a rate"),
    ],
)
def test_a_link_out_of_bounds_makes_a_malformed_record(last: object, why: str) -> None:
    _, payload = open_envelope(seal_profile(ALICE, PROFILE), DOMAIN, TYPE, MAX_PROFILE_BYTES)
    wire: Any = decode(payload, MAX_PROFILE_BYTES)
    with pytest.raises(MalformedRecord, match=why):
        open_profile(seal(ALICE, DOMAIN, TYPE, encode([*wire, last])), NOW)


@pytest.mark.parametrize("fields", BAD_FIELDS.values(), ids=BAD_FIELDS.keys())
def test_a_bad_field_makes_a_malformed_record(fields: dict[str, Any]) -> None:
    with pytest.raises(MalformedRecord, match=f"a profile by {ALICE.peer_id}"):
        open_profile(altered(**fields), NOW)


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"\xff",
        encode([]),
        encode({1: 2}),
        encode([1] * 13),
        encode([1] * 14),
        encode([1] * 15),
    ],
)
def test_a_payload_of_another_shape_is_malformed(payload: bytes) -> None:
    with pytest.raises(MalformedRecord):
        open_profile(seal(ALICE, DOMAIN, TYPE, payload), NOW)


def test_an_address_that_we_cannot_read_leaves_the_profile_good() -> None:
    raw = altered(f10=[b"\xff\x7f\x01", b"\x04\xc0\x00\x02\x01\x06\x0f\xa1"])
    assert open_profile(raw, NOW).profile.addresses == ("/ip4/192.0.2.1/tcp/4001",)


@given(st.integers(0, 13), st.data())
def test_no_field_breaks_it(place: int, data: st.DataObject) -> None:
    value = data.draw(
        st.none()
        | st.integers(-(2**64), 2**64 - 1)
        | st.text(max_size=9)
        | st.binary(max_size=9)
        | st.lists(
            st.none() | st.integers(0, 9) | st.text(max_size=3) | st.lists(st.integers(0, 3))
        )
    )
    with contextlib.suppress(BadRecord):
        open_profile(altered(**{f"f{place}": value}), NOW)


@given(st.binary(max_size=200))
def test_no_bytes_break_it(raw: bytes) -> None:
    with pytest.raises(BadRecord):
        open_profile(raw, NOW)


# -- our own mistakes -------------------------------------------------------------------------


def test_alice_signs_only_her_own_profile_and_for_a_while_only() -> None:
    with pytest.raises(InvalidInput, match="peer_id"):
        seal_profile(BOB, PROFILE)
    for ttl_s in (0, -1, MAX_TTL_S + 1):
        with pytest.raises(InvalidInput, match="1 to 600 s after it is issued"):
            seal_profile(ALICE, replace(PROFILE, expires_unix_s=NOW + ttl_s))


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"sequence": -1}, "sequence"),
        ({"price_micro": 2**63}, "price"),
        ({"labels": (("zone", "a b"),)}, "label.zone"),
        ({"drivers": ("Python",)}, "driver"),
        ({"services": ("a", "a")}, "service"),
        ({"services": tuple("abcdefghi")}, "service"),
        ({"addresses": ("alice",)}, "address"),
        ({"addresses": ("/ip4/192.0.2.1/tcp/1",) * 9}, "address"),
        ({"grant": bytes(2049)}, "grant"),
        ({"spans": (Span(0, 0),) * (MAX_SPANS + 1)}, "span"),
        ({"spans": (Span(-1, 0),)}, "span"),
        ({"spans": (Span(2, 1),)}, "span"),
        ({"spans": (Span(0, MAX_DEPTH + 1),)}, "span"),
    ],
)
def test_a_profile_checks_itself(fields: dict[str, Any], named: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        replace(PROFILE, **fields)
    assert caught.value.field == named


def test_a_profile_prints_without_its_bytes() -> None:
    signed = open_profile(seal_profile(ALICE, PROFILE), NOW)
    assert "a grant" not in repr(signed)
    assert "raw=" not in repr(signed)
    assert str(ALICE.peer_id) in repr(signed)


def test_the_author_on_the_wire_is_the_binary_peer_id() -> None:
    payload = open_envelope(seal_profile(ALICE, PROFILE), DOMAIN, TYPE, MAX_PROFILE_BYTES)[1]
    assert peer_id_to_bytes(ALICE.peer_id) in payload


def test_a_profile_names_a_bounded_number_of_environments() -> None:
    names = tuple(f"{number:012x}" for number in range(33))
    assert replace(PROFILE, environments=names[:32]).environments == names[:32]
    with pytest.raises(InvalidInput, match="more than 32"):
        replace(PROFILE, environments=names)
    with pytest.raises(InvalidInput, match="is not 12 hexadecimal digits"):
        replace(PROFILE, environments=("x",))


def test_the_name_of_a_worker_is_its_label_host() -> None:
    assert PROFILE.name == ""
    assert replace(PROFILE, labels=(("host", "anna-desktop"),)).name == "anna-desktop"
    refuse_host_label({"site": "lab"})
    with pytest.raises(InvalidInput, match="set it with --name"):
        refuse_host_label({"host": "anna-desktop"})

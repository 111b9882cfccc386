"""Who may do what: grants, and everything that a holder might try to make more of one."""

from __future__ import annotations

import gc
import time
import tracemalloc
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import biscuit_auth
import pytest
from biscuit_auth import (
    AuthorizationError,
    AuthorizerBuilder,
    Biscuit,
    BiscuitBuilder,
    BlockBuilder,
    KeyPair,
    PrivateKey,
    PublicKey,
)
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from formation_p2p.core.effects import Moment
from formation_p2p.core.errors import InvalidInput
from formation_p2p.core.identity import Identity, PeerId
from formation_p2p.core.refusals import Denied
from formation_p2p.core.units import KIB, MIB
from formation_p2p.machine.core.requirements import Requirements
from formation_p2p.records.core.profile import MAX_GRANT_BYTES
from formation_p2p.trust.core import grants
from formation_p2p.trust.core.admission import AdmissionController
from formation_p2p.trust.core.charter import MAX_IDENTITIES
from formation_p2p.trust.core.grant_form import MAX_EXPIRY_UNIX_S
from formation_p2p.trust.core.grants import (
    MAX_BLOCKS,
    MAX_PRIORITY,
    MAX_WEIGHT_MILLI,
    Right,
    Rights,
    bind,
    check,
    issue,
    read_grant,
)
from formation_p2p.trust.core.hours import (
    MAX_SPANS,
    WEEK_MINUTES,
    Hours,
    opening_in_words,
    parse_hours,
)
from formation_p2p.trust.core.membership import Membership
from formation_p2p.trust.core.network import narrowed
from formation_p2p.trust.core.quota import (
    MAX_LEASES,
    MAX_MILLI_HOURS,
    UNLIMITED,
    Quota,
    Used,
    month_of,
)
from formation_p2p.trust.core.statements import Block
from formation_p2p.workload.core.scope import NOWHERE, Place

ROOT = Identity.from_seed(b"r" * 32)
OTHER_ROOT = Identity.from_seed(b"o" * 32)
ALICE, BOB = (Identity.from_seed(name * 32).peer_id for name in (b"a", b"b"))
KEY = ROOT.public_key
NOW = 1_700_000_000
DAY = 24 * 3600

SUBMIT, WORK = Right.SUBMIT, Right.WORK
CACHES = (grants._read_short, grants._read_long)
ALL = Rights(NOW + DAY)


def attenuate(
    grant: bytes,
    key: bytes,
    *,
    peer_id: PeerId | None = None,
    may: Right | None = None,
    place: Place | None = None,
    **limits: Any,
) -> bytes:
    peers = frozenset() if peer_id is None else frozenset({peer_id})
    rights = None if may is None else frozenset({may.value})
    return grants.attenuate(grant, key, Block(peers=peers, may=rights, **limits), place)


def why(grant: bytes, right: Right = SUBMIT, **asked: Any) -> str:
    answer = check(grant, KEY, ALICE, right, asked.pop("now", NOW), **asked)
    assert isinstance(answer, Denied)
    assert answer.right == right
    return answer.why


def allowed(grant: bytes, right: Right = SUBMIT, **asked: Any) -> bool:
    return check(grant, KEY, ALICE, right, NOW, **asked) is None


# -- what a grant allows ------------------------------------------------------------------------


def test_a_grant_can_be_issued_for_alice_alone() -> None:
    grant = issue(ROOT, ALL, ALICE)
    assert allowed(grant)
    assert bind(grant, KEY, ALICE) == grant
    with pytest.raises(InvalidInput, match=f"for {ALICE} only; ask for one for {BOB}"):
        bind(grant, KEY, BOB)


def test_drivers_and_priority_limit_submitting_not_working() -> None:
    grant = issue(ROOT, Rights(NOW + DAY, drivers=frozenset({"process"}), max_priority=0), ALICE)
    assert allowed(grant, WORK, driver="python", priority=9)
    assert not allowed(grant, SUBMIT, driver="python")


def test_a_bound_grant_fits_a_profile_many_times() -> None:
    assert len(bind(issue(ROOT, ALL), KEY, ALICE)) < 700


FULL = Rights(
    NOW + DAY,
    frozenset({SUBMIT}),
    frozenset({"process", "python"}),
    5,
    Quota(100_000, 10_500, 4),
    parse_hours("mon-fri 18:00-08:00, sat-sun 00:00-24:00"),
    frozenset({("site", "lab"), ("region", "eu-west")}),
    Place(cell="kitchen", org="acme", federation="north"),
    1500,
)


def test_every_limit_survives_in_a_grant_and_fits_a_profile() -> None:
    grant = bind(issue(ROOT, FULL), KEY, ALICE)
    assert read_grant(grant, KEY).rights == FULL
    assert check(grant, KEY, ALICE, SUBMIT, NOW, driver="python", priority=5) is None
    assert len(grant) < 1400


def test_the_widest_of_each_limit_can_be_said() -> None:
    spans = tuple((start, start + 1) for start in range(0, 2 * MAX_SPANS, 2))
    widest = Rights(
        MAX_EXPIRY_UNIX_S,
        quota=Quota(MAX_MILLI_HOURS, MAX_MILLI_HOURS, MAX_LEASES),
        hours=Hours((*spans[1:], (WEEK_MINUTES - 1, WEEK_MINUTES))),
        labels=frozenset({("k" * 63, "v" * 63)}),
        place=Place(org="o" * 63),
    )
    assert read_grant(issue(ROOT, widest), KEY).rights == widest


def test_a_priority_is_weighed_and_never_past_the_highest_allowed() -> None:
    weighed = Rights(NOW, max_priority=10, weight_milli=1500)
    assert [weighed.weighed(priority) for priority in (0, 1, 2, 5, 7, 10)] == [0, 2, 3, 8, 10, 10]
    assert Rights(NOW, weight_milli=1499).weighed(1) == 1
    assert (Rights(NOW).weighed(7), Rights(NOW).weight_milli) == (7, 1000)


def test_a_holder_gives_himself_no_more_weight() -> None:
    for weight, expected in ((1000, 1000), (2000, 1500), (500, 500)):
        grant = issue(ROOT, Rights(NOW, weight_milli=weight))
        assert (
            read_grant(attenuate(grant, KEY, weight_milli=1500), KEY).rights.weight_milli
            == expected
        )


# -- whom a lease is charged to ----------------------------------------------------------------


def test_a_lease_is_charged_to_its_peer_and_to_every_block_that_sets_a_quota() -> None:
    bearer = issue(ROOT, Rights(NOW + DAY, quota=Quota(100_000)))
    for_acme = attenuate(bearer, KEY, quota=Quota(None, None, 4))
    alices = bind(attenuate(for_acme, KEY, max_priority=3), KEY, ALICE)
    bobs = bind(for_acme, KEY, BOB)
    (alice, network, acme), (bob, *shared) = (
        read_grant(each, KEY).accounts for each in (alices, bobs)
    )
    assert (alice.name, alice.quota) == (ALICE, Quota(100_000, None, 4))
    assert (alice.is_peer, network.is_peer) == (True, False)
    assert (network.quota, acme.quota) == (Quota(100_000), Quota(None, None, 4))
    assert bob.name == BOB
    assert shared == [network, acme]


def test_no_other_form_of_a_signature_makes_another_account() -> None:
    """Of an Ed25519 signature (R, S) others would take S plus the group's order as well."""
    grant = issue(ROOT, Rights(NOW + DAY, quota=Quota(5)), ALICE)
    token = Biscuit.from_bytes(grant, PublicKey(f"ed25519/{KEY.hex()}"))
    signature = bytes.fromhex(token.revocation_ids[0])
    order = 2**252 + 27742317777372353535851937790883648493
    s = int.from_bytes(signature[32:], "little")
    for times in range(1, (2**256 - 1 - s) // order + 1):
        other = signature[:32] + (s + times * order).to_bytes(32, "little")
        assert "was altered" in why(grant.replace(signature, other))


def test_the_same_quota_given_twice_is_two_quotas() -> None:
    ((one, *_), (other, *_)) = (
        read_grant(issue(ROOT, Rights(NOW + n, quota=Quota(5))), KEY).accounts for n in range(2)
    )
    assert one.quota == other.quota
    assert one.name != other.name


def test_who_has_no_quota_is_charged_under_its_own_name() -> None:
    ((name, quota),) = (
        (x.name, x.quota) for x in read_grant(issue(ROOT, ALL, ALICE), KEY).accounts
    )
    assert (name, quota) == (ALICE, UNLIMITED)


# -- every way to be denied, each in its own words -------------------------------------------------


def test_denials_are_distinct_and_say_why() -> None:
    full = issue(ROOT, ALL, ALICE)
    narrow = issue(
        ROOT, Rights(NOW + DAY, frozenset({SUBMIT}), frozenset({"python", "wasm"}), 3), ALICE
    )
    reasons = [
        (why(b""), "no grant was shown"),
        (why(b"\x00"), "another network, or was altered"),
        (why(issue(OTHER_ROOT, ALL, ALICE)), "another network, or was altered"),
        (why(issue(ROOT, ALL)), "bound to no peer"),
        (why(issue(ROOT, ALL, BOB)), "bound to another peer"),
        (why(full, now=NOW + DAY), "expired 0 s ago; ask for a new one"),
        (why(narrow, WORK), "gives no right to work"),
        (why(narrow, driver="process"), "allows the drivers python, wasm, not process"),
        (why(narrow, driver=""), "allows the drivers python, wasm, not an unnamed one"),
        (why(narrow, driver="python", priority=4), "allows priorities up to 3, not 4"),
        (why(bytes(MAX_GRANT_BYTES + 1)), "2049 bytes; at most 2048"),
    ]
    for said, expected in reasons:
        assert expected in said
    assert str(check(b"", KEY, ALICE, WORK, NOW)) == "not allowed to work: no grant was shown"
    assert why(full, now=NOW + DAY).endswith("; ask for a new one")  # no charter ended it
    assert str(check(b"", KEY, ALICE, None, NOW)) == "not allowed to belong: no grant was shown"
    assert check(narrow, KEY, ALICE, None, NOW) is None
    lowest = issue(ROOT, Rights(NOW + DAY, max_priority=0), ALICE)
    assert check(lowest, KEY, ALICE, SUBMIT, NOW) is None


def test_a_grant_is_good_until_its_very_expiry() -> None:
    grant = issue(ROOT, ALL, ALICE)
    assert check(grant, KEY, ALICE, SUBMIT, NOW + DAY - 0.001) is None
    assert isinstance(check(grant, KEY, ALICE, SUBMIT, NOW + DAY), Denied)


def by_root(datalog: str) -> bytes:
    private_key = PrivateKey(f"ed25519-private/{ROOT.seed.hex()}")
    return bytes(BiscuitBuilder(datalog).build(private_key).to_bytes())


def test_a_grant_by_the_root_without_limits_allows_nothing() -> None:
    bare = by_root('right("submit");')
    assert read_grant(bare, KEY).rights == Rights(0, frozenset({SUBMIT}), None, 0)
    assert "expired" in why(bind(bare, KEY, ALICE))


def test_a_rule_is_refused_even_from_the_root() -> None:
    assert "does not know" in why(by_root('right("submit") <- operation("submit");'))


@pytest.mark.at_length
@pytest.mark.parametrize(
    "grant", [issue(ROOT, ALL, ALICE), bind(issue(ROOT, ALL), KEY, ALICE)], ids=["issued", "bound"]
)
def test_no_bit_of_a_grant_can_be_another(grant: bytes) -> None:
    assert check(grant, KEY, ALICE, SUBMIT, NOW) is None
    passed = []
    for bit in range(8 * len(grant)):
        altered = bytearray(grant)
        altered[bit // 8] ^= 1 << bit % 8
        if check(bytes(altered), KEY, ALICE, SUBMIT, NOW) is None:
            passed.append(bit)
    assert passed == []


# Fields that a token may have by the specification or not at all, before and after its own.
@pytest.mark.parametrize("field", [b"\x08\x00", b"\x08\x05", b"\x78\x01", b"\x7a\x02hi"])
def test_nothing_can_be_written_around_a_grant(field: bytes) -> None:
    grant = issue(ROOT, ALL, ALICE)
    for altered in (field + grant, grant + field, grant + grant[-36:]):
        assert check(altered, KEY, ALICE, SUBMIT, NOW) is not None


def test_a_length_in_more_bytes_than_it_needs_is_another_form() -> None:
    grant = issue(ROOT, ALL, ALICE)
    assert grant[-36] == 0x22  # the proof
    longer = grant[:-35] + bytes([grant[-35] | 0x80, 0]) + grant[-34:]
    assert "the form that it was issued in" in why(longer)


@given(st.binary(max_size=200))
def test_no_bytes_break_the_check(raw: bytes) -> None:
    assert isinstance(check(raw, KEY, ALICE, SUBMIT, NOW), Denied)


# -- narrowing -------------------------------------------------------------------------------------


def test_each_limit_narrows_and_all_of_them_hold() -> None:
    grant = issue(ROOT, Rights(NOW + DAY, drivers=frozenset({"process", "python"}), max_priority=9))
    grant = attenuate(grant, KEY, max_priority=50, drivers=frozenset({"python", "wasm"}))
    grant = attenuate(grant, KEY, max_priority=7, expires_unix_s=NOW + 60, may=SUBMIT)
    grant = attenuate(grant, KEY, expires_unix_s=NOW + 90)
    narrow = Rights(NOW + 60, frozenset({SUBMIT}), frozenset({"python"}), 7)
    assert read_grant(grant, KEY).rights == narrow
    assert check(bind(grant, KEY, ALICE), KEY, ALICE, SUBMIT, NOW) is None


def test_quotas_hours_labels_and_places_narrow_too() -> None:
    grant = attenuate(
        issue(ROOT, FULL),
        KEY,
        quota=Quota(200_000, 500, 3),
        hours=parse_hours("mon 20:00-22:00"),
        labels=frozenset({("gpu", "yes"), ("site", "lab")}),
        place=Place(cell="cellar", org="acme", federation="north"),
        weight_milli=1100,
    )
    narrow = read_grant(grant, KEY).rights
    assert narrow.quota == Quota(100_000, 500, 3)
    assert str(narrow.hours) == "mon 20:00-22:00"
    assert narrow.labels == FULL.labels | {("gpu", "yes")}
    assert narrow.place == Place(org="acme", federation="north")
    assert narrow.weight_milli == 1100
    nobodys = attenuate(grant, KEY, place=NOWHERE, hours=parse_hours("tue 20:00-22:00"))
    assert read_grant(nobodys, KEY).rights.place == NOWHERE
    assert read_grant(nobodys, KEY).rights.hours == Hours(())


def test_who_leaves_out_a_circle_is_not_in_those_inside_it() -> None:
    """A kitchen of no organisation is another one."""
    for left in (Place(cell="kitchen"), Place(cell="kitchen", federation="north")):
        known = read_grant(attenuate(issue(ROOT, FULL), KEY, place=left), KEY).rights.place
        assert known == Place(federation=left.federation)
    alone = issue(ROOT, Rights(NOW + DAY, place=Place(cell="kitchen")))
    still = attenuate(alone, KEY, place=Place(cell="kitchen"))
    assert read_grant(still, KEY).rights.place == Place(cell="kitchen")


def test_what_a_bearer_does_for_another_is_what_both_may() -> None:
    ours = bind(issue(ROOT, Rights(NOW + DAY, place=FULL.place, weight_milli=3000)), KEY, ALICE)
    theirs = bind(issue(ROOT, replace(FULL, place=Place(org="beta", federation="north"))), KEY, BOB)
    shown = narrowed(ours, KEY, theirs)
    rights = read_grant(shown, KEY).rights
    kept = replace(FULL, may=frozenset(Right), quota=UNLIMITED, place=Place(federation="north"))
    assert rights == kept
    assert read_grant(shown, KEY).bound_to == ALICE
    assert narrowed(ours, KEY, theirs) == shown, "the same each time"
    nearby = read_grant(narrowed(ours, KEY, theirs, circles=True), KEY).rights
    assert nearby == replace(read_grant(ours, KEY).rights, place=Place(federation="north"))
    assert narrowed(ours, KEY, b"") == ours, "for itself"
    others = issue(OTHER_ROOT, FULL)
    for refused in (b"rubbish", others):
        assert narrowed(ours, KEY, refused) == b""
    for _ in range(grants.MAX_BLOCKS - 2):
        ours = attenuate(ours, KEY, max_priority=9)
    assert narrowed(ours, KEY, theirs) == b"", "nothing more fits"


def test_a_grant_that_would_grow_too_large_is_not_narrowed() -> None:
    hours = Hours(tuple((start, start + 60) for start in range(0, 14 * 120, 120)))
    with pytest.raises(InvalidInput, match="bytes; at most 2048"):
        attenuate(issue(ROOT, FULL), KEY, hours=hours, labels=frozenset({("k" * 63, "v" * 63)}))


def test_a_grant_that_demands_too_many_labels_is_not_narrowed() -> None:
    eight = frozenset((f"k{n}", "v") for n in range(8))
    with pytest.raises(InvalidInput, match="more than 8; leave some out"):
        attenuate(issue(ROOT, Rights(NOW, labels=eight)), KEY, labels=frozenset({("k8", "v")}))


def test_a_grant_bound_to_two_peers_serves_neither() -> None:
    alices = issue(ROOT, ALL, ALICE)
    with pytest.raises(InvalidInput, match="bound to more than one peer"):
        attenuate(alices, KEY, peer_id=BOB)
    grant = appended(alices, f'check if peer("{BOB}")')
    for peer_id in (ALICE, BOB):
        denied = check(grant, KEY, peer_id, SUBMIT, NOW)
        assert isinstance(denied, Denied)
        assert "bound to more than one peer" in denied.why


@pytest.mark.at_length
def test_what_is_kept_of_a_grant_takes_no_more_than_is_reckoned_with() -> None:
    """Any holder can make as many of them as he likes, and fill each as far as it goes."""
    spans = Hours(tuple((start, start + 60) for start in range(300, MAX_SPANS * 120, 120)))
    many = issue(ROOT, Rights(2**31, frozenset({SUBMIT, WORK})))
    for n in range(5):
        many = attenuate(many, KEY, quota=Quota(10**11 - n, 10**11 - n, 9000 - n))
    assert kept_bytes(issue(ROOT, Rights(2**31))) < 2 * KIB
    assert kept_bytes(attenuate(issue(ROOT, Rights(2**31)), KEY, hours=spans)) < 5 * KIB
    assert kept_bytes(many) < 5 * KIB
    most = [cached.cache_info().maxsize or 0 for cached in CACHES]
    assert most[0] * 2 * KIB + most[1] * 5 * KIB <= 42 * MIB


def kept_bytes(grant: bytes) -> float:
    """Of each that is made of this one by binding it."""
    peers = [Identity.from_seed(bytes([n]) * 32).peer_id for n in range(12)]
    bound = [bind(grant, KEY, peer_id) for peer_id in peers]
    for cached in CACHES:
        cached.cache_clear()
    tracemalloc.start()
    try:
        for shown in bound:
            assert isinstance(
                read_grant(bytes(bytearray(shown)), KEY).rights, Rights
            )  # a copy is kept
        gc.collect()
        return tracemalloc.get_traced_memory()[0] / len(bound)
    finally:
        tracemalloc.stop()


def test_a_grant_comes_with_the_invitation_that_it_was_made_of() -> None:
    one, other = (issue(ROOT, ALL) for _ in range(2))
    made = {
        read_grant(bind(attenuate(one, KEY, max_priority=n), KEY, ALICE), KEY).invitation
        for n in (1, 2)
    }
    assert made == {read_grant(one, KEY).invitation}
    assert read_grant(other, KEY).invitation not in made


def test_a_grant_is_narrowed_a_few_times_only() -> None:
    grant = issue(ROOT, ALL)
    for n in range(MAX_BLOCKS - 1):
        grant = attenuate(grant, KEY, max_priority=n)
    with pytest.raises(InvalidInput, match="narrowed more than 7 times"):
        attenuate(grant, KEY, max_priority=0)
    assert "narrowed more than 7 times" in why(appended(grant, 'check if peer("a")'))


def test_only_a_grant_of_this_network_is_narrowed() -> None:
    with pytest.raises(InvalidInput, match="another network"):
        attenuate(issue(OTHER_ROOT, ALL), KEY, max_priority=1)
    with pytest.raises(InvalidInput, match="another network"):
        bind(b"", KEY, ALICE)


@pytest.mark.parametrize(
    "limit",
    [
        {"peer_id": PeerId('x"); right("work')},
        {"drivers": frozenset()},
        {"drivers": frozenset({'a"}; right("work'})},
        {"drivers": frozenset(f"d{n}" for n in range(9))},
        {"max_priority": -1},
        {"max_priority": MAX_PRIORITY + 1},
        {"expires_unix_s": MAX_EXPIRY_UNIX_S + 1},
        {"hours": Hours(())},
        {"weight_milli": -1},
        {"weight_milli": MAX_WEIGHT_MILLI + 1},
        {"labels": frozenset({('a"', "b")})},
        {"labels": frozenset({("a", "")})},
        {"labels": frozenset((f"k{n}", "v") for n in range(9))},
    ],
)
def test_what_is_no_limit_never_gets_into_the_datalog(limit: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput):
        attenuate(issue(ROOT, ALL), KEY, **limit)


def test_rights_check_themselves() -> None:
    assert Rights(NOW, identities=1).identities == 1
    for make in (
        lambda: Rights(-1),
        lambda: Rights(NOW, max_priority=101),
        lambda: Rights(NOW, drivers=frozenset({"Python"})),
        lambda: Rights(NOW, labels=frozenset({("", "x")})),
        lambda: issue(ROOT, Rights(NOW, hours=Hours(()))),
        lambda: Rights(NOW, weight_milli=MAX_WEIGHT_MILLI + 1),
        lambda: Rights(NOW, identities=0),
        lambda: Rights(NOW, identities=MAX_IDENTITIES + 1),
        lambda: Quota(cpu_milli_hours=-1),
        lambda: Quota(gpu_milli_hours=MAX_MILLI_HOURS + 1),
        lambda: Quota(leases=MAX_LEASES + 1),
        lambda: issue(ROOT, Rights(NOW, may=frozenset())),
        lambda: issue(ROOT, Rights(NOW, drivers=frozenset())),
        lambda: issue(ROOT, ALL, PeerId("bob")),
    ):
        with pytest.raises(InvalidInput):
            make()


@pytest.mark.parametrize(
    ("field", "limit"),
    [
        ("drivers", {"drivers": "wasm"}),
        ("drivers", {"drivers": ""}),
        ("drivers", {"drivers": ["wasm"]}),
        ("rights", {"may": "work"}),
        ("rights", {"may": WORK}),
        ("rights", {"may": None}),
        ("label", {"labels": {"site": "lab"}}),
        ("label", {"labels": "site=lab"}),
    ],
)
def test_one_name_is_no_set_of_its_letters(field: str, limit: dict[str, Any]) -> None:
    with pytest.raises(
        InvalidInput, match=rf"{field}: .* is not a set; write frozenset\(\{{…\}}\)"
    ):
        Rights(NOW, **limit)


@pytest.mark.parametrize("limit", [{"drivers": "wasm"}, {"labels": {"site": "lab"}}])
def test_nor_where_a_grant_is_narrowed(limit: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput, match="is not a set"):
        attenuate(issue(ROOT, ALL), KEY, **limit)


def test_nobody_issues_a_right_that_nobody_can_read() -> None:
    for unknown in ({"rule"}, {"work", "rule"}, {7}):
        with pytest.raises(InvalidInput, match=r"rights: .*Right\.SUBMIT, Right\.WORK, Right"):
            Rights(NOW, may=frozenset(unknown))  # type: ignore[arg-type]  # as without types


# -- widening --------------------------------------------------------------------------------------


def appended(grant: bytes, datalog: str) -> bytes:
    """What any holder can do with other software: append a block of his own."""
    token = Biscuit.from_bytes(grant, PublicKey(f"ed25519/{KEY.hex()}"))
    return bytes(token.append(BlockBuilder(datalog)).to_bytes())


NARROW = Rights(NOW + 60, frozenset({SUBMIT}), frozenset({"process"}), 1)

ATTEMPTS = (
    'right("work");',
    'right("work"); operation("work");',
    "right($right) <- operation($right);",
    'operation("work");',
    'driver("python"); driver("process");',
    "priority(0);",
    "time(0);",
    f'peer("{BOB}");',
    "check if true;",
    f'check if peer("{ALICE}") or true;',
    'check if operation("work") or driver($driver), {"process"}.contains($driver) or true;',
    'check if operation("work") or true;',
    'check if operation("work") or priority($priority), $priority <= 100 or true;',
    "check if time($time), $time < 99999999999 trusting previous;",
    'reject if operation("submit");',
    'check all operation($operation), $operation == "submit";',
    'place("org", "acme");',
    'check if operation("work") or cpu_milli_hours($used), $used < 5 or true;',
    'check if operation("work") or gpu_milli_hours($used), $used < 5;',
    'check if operation("work") or leases($open), $open <= 5;',
    "cpu_milli_hours(0);",
    'check if operation("work") or minute($minute), $minute >= 5, $minute < 6 or true;',
    'check if operation("work") or minute($minute), $minute >= 5;',
    'check if operation("work") or label("site", "lab") or true;',
    'check if circle($circle), {"org"}.contains($circle) or true;',
)


@pytest.mark.parametrize("datalog", ATTEMPTS)
def test_a_block_of_the_holders_own_never_widens_a_grant(datalog: str) -> None:
    bound = issue(ROOT, NARROW, ALICE)
    for grant in (appended(bound, datalog), bind_anyhow(appended(issue(ROOT, NARROW), datalog))):
        assert "a statement that this version does not know" in why(grant, WORK)
        assert not allowed(grant, driver="process", priority=0)


def bind_anyhow(grant: bytes) -> bytes:
    return appended(grant, f'check if peer("{ALICE}")')


@pytest.mark.parametrize(
    "text",
    ['x"); right("work', 'x");\nright("work");\ncheck if peer("x', f'x");\ncheck if peer("{ALICE}'],
)
def test_a_text_that_prints_like_statements_never_widens_a_grant(text: str) -> None:
    # Biscuit prints texts without escaping what is in them.
    token = Biscuit.from_bytes(issue(ROOT, NARROW, BOB), PublicKey(f"ed25519/{KEY.hex()}"))
    block = BlockBuilder("check if peer({text})", {"text": text})
    grant = bytes(token.append(block).to_bytes())
    assert isinstance(check(grant, KEY, ALICE, WORK, NOW), Denied)
    assert isinstance(check(grant, KEY, ALICE, SUBMIT, NOW), Denied)
    assert isinstance(check(grant, KEY, BOB, SUBMIT, NOW), Denied)


def test_a_block_by_a_third_party_never_widens_a_grant() -> None:
    token = Biscuit.from_bytes(issue(ROOT, NARROW, ALICE), PublicKey(f"ed25519/{KEY.hex()}"))
    mallory = KeyPair()
    block = token.third_party_request().create_block(
        mallory.private_key, BlockBuilder('right("work");')
    )
    grant = bytes(token.append_third_party(mallory.public_key, block).to_bytes())
    assert "does not know" in why(grant, WORK)


COSTLY = "".join(f"a({n});" for n in range(30)) + (
    "check if a($u), a($v), a($w), a($x), a($y), a($z), $u + $v + $w + $x + $y + $z < 0;"
)


@pytest.mark.parametrize(
    "datalog", [COSTLY, 'check if "aaaaaaaa".matches("((a{0,100}){0,100}){0,10}b");']
)
def test_a_block_that_would_keep_the_engine_busy_is_never_run(datalog: str) -> None:
    grant = appended(issue(ROOT, ALL, ALICE), datalog)
    assert len(grant) < MAX_GRANT_BYTES
    began_s = time.thread_time()
    assert not allowed(grant)
    assert time.thread_time() - began_s < 1.0


def with_raw_block(grant: bytes, block: bytes) -> bytes:
    """A block of any bytes, signed as the specification has it ("Cryptography", version 0).

    A token that nobody has narrowed ends with the key that signs the next block.
    """

    def framed(number: int, content: bytes) -> bytes:
        return bytes([number << 3 | 2, len(content)]) + content

    signer, proof = Identity.from_seed(grant[-32:]), 36
    following = Identity.from_seed(b"n" * 32)
    signature = signer.sign(block + bytes(4) + following.public_key)
    key = framed(2, b"\x08\x00" + framed(2, following.public_key))
    signed = framed(1, block) + key + framed(3, signature)
    return grant[:-proof] + b"\x1a" + varint(signed) + signed + framed(4, framed(1, b"n" * 32))


def varint(content: bytes) -> bytes:
    length = len(content)
    return bytes([length]) if length < 128 else bytes([length & 127 | 128, length >> 7])


@pytest.mark.parametrize("block", [b"", b"\x18\x63", b"\x18\x03\x3a\x02\x08\x05"])
def test_a_block_that_cannot_be_printed_is_refused(block: bytes) -> None:
    assert "one of its blocks cannot be read" in why(with_raw_block(issue(ROOT, ALL, ALICE), block))


@settings(max_examples=80)
@given(st.binary(max_size=60))
def test_no_block_breaks_the_check(content: bytes) -> None:
    for block in (content, b"\x18\x03" + content):
        grant = with_raw_block(issue(ROOT, ALL, ALICE), block)
        denied = check(grant, KEY, ALICE, SUBMIT, NOW)
        assert denied is not None or read_grant(grant, KEY).rights == ALL


# -- Biscuit's own evaluation is the judge of ours -------------------------------------------------

drivers = st.frozensets(st.sampled_from(["process", "python", "wasm"]), min_size=1)
few = st.integers(0, 4) | st.none()
quotas = st.builds(Quota, few, few, few)
# Around what it is at NOW, a Tuesday at 22:13.
around = st.sampled_from([Hours(((0, 2773),)), Hours(((2773, 2774),)), Hours(((2774, 9000),)),
                          Hours(((5, 6), (2770, 2780)))])  # fmt: skip
labels = st.frozensets(
    st.tuples(st.sampled_from(["site", "region"]), st.sampled_from(["lab", "eu"])), max_size=2
)
places = st.builds(
    Place,
    cell=st.sampled_from(["", "kitchen"]),
    org=st.sampled_from(["", "acme"]),
    federation=st.sampled_from(["", "north", "south"]),
)
weights = st.sampled_from([0, 500, 1500, 3000])
limits = st.fixed_dictionaries(
    {},
    optional={
        "peer_id": st.sampled_from([ALICE, BOB]),
        "may": st.sampled_from(Right),
        "drivers": drivers,
        "max_priority": st.integers(0, 4),
        "expires_unix_s": st.integers(NOW - 1, NOW + 2),
        "quota": quotas,
        "hours": around,
        "labels": labels,
        "place": places,
        "weight_milli": weights,
    },
)
rights = st.builds(
    Rights,
    st.just(NOW + 1),
    st.frozensets(st.sampled_from(Right), min_size=1),
    drivers | st.none(),
    st.integers(0, 4),
    quotas,
    around | st.none(),
    labels,
    places,
    weights | st.just(1000),
)


@given(rights, limits)
def test_narrowing_never_widens(granted: Rights, narrowing: dict[str, Any]) -> None:
    old = issue(ROOT, granted)
    new = attenuate(old, KEY, **narrowing)
    was, now = read_grant(old, KEY).rights, read_grant(new, KEY).rights
    assert was == granted
    assert now.may <= was.may
    assert now.expires_unix_s <= was.expires_unix_s
    assert now.max_priority <= was.max_priority
    assert all(was.allow_driver(driver) for driver in now.drivers or ())
    assert (now.drivers is None) <= (was.drivers is None)
    assert now.quota == now.quota & was.quota
    assert was.hours is None or (now.hours is not None and now.hours == now.hours & was.hours)
    assert now.labels >= was.labels
    assert now.weight_milli <= was.weight_milli
    for circle in ("cell", "org", "federation"):
        assert getattr(now.place, circle) in ("", getattr(was.place, circle))
    assert [each.name for each in read_grant(old, KEY).accounts] == [
        each.name for each in read_grant(new, KEY).accounts if each in read_grant(old, KEY).accounts
    ]


@given(
    granted=rights,
    narrowings=st.lists(limits, max_size=2),
    right=st.sampled_from(Right),
    driver=st.sampled_from(["process", "python", "wasm"]),
    priority=st.integers(0, 4),
    peer_id=st.sampled_from([ALICE, BOB]),
    used=st.tuples(st.integers(0, 4), st.integers(0, 4), st.integers(0, 4)),
    gpus=st.integers(0, 2),
    has=st.dictionaries(st.sampled_from(["site", "region"]), st.sampled_from(["lab", "eu"])),
)
def test_biscuits_own_engine_agrees_with_us(
    granted: Rights,
    narrowings: list[dict[str, Any]],
    right: Right,
    driver: str,
    priority: int,
    peer_id: PeerId,
    used: tuple[int, int, int],
    gpus: int,
    has: dict[str, str],
) -> None:
    grant = issue(ROOT, granted)
    try:
        for narrowing in narrowings:
            grant = attenuate(grant, KEY, **narrowing)
        grant = attenuate(grant, KEY, peer_id=ALICE)
    except InvalidInput as error:
        # All but those that have grown too large, or that nobody could use.
        assume("bytes; at most" not in error.problem and "more than one" not in error.problem)
        raise
    facts = f'''
        driver("{driver}"); priority({priority}); gpus({gpus}); circle("commons");
        weight({read_grant(grant, KEY).rights.weight_milli});
        cpu_milli_hours({used[0]}); gpu_milli_hours({used[1]}); leases({used[2]});
    ''' + "".join(f'label("{key}", "{value}");' for key, value in has.items())
    if right is not SUBMIT:
        ours = check(grant, KEY, peer_id, right, NOW) is None
    else:
        needs = Requirements(driver=driver, gpu_count=gpus)
        ours = by_controller(grant, peer_id, needs, priority, used, has)
    theirs = by_biscuit(grant, peer_id, right, facts)
    # The engine holds those who publish services to the limits of what may be submitted, too.
    assert ours or not theirs if right is Right.SERVICES else ours == theirs


def by_controller(
    grant: bytes,
    peer_id: PeerId,
    needs: Requirements,
    priority: int,
    used: tuple[int, int, int],
    has: dict[str, str],
) -> bool:
    """At a worker where every account has used as much, and has as many leases."""
    spent = Used(used[0] * 3600 + 3599, used[1] * 3600)
    before = [(month_of(NOW), each.name, spent) for each in read_grant(grant, KEY).accounts]
    controller = AdmissionController(Membership(KEY), has, before)
    for n in range(used[2]):
        controller.opened(str(n), grant, 1, 0)
    return controller.denied(grant, peer_id, needs, priority, Moment(0, NOW), another=True) is None


@given(granted=rights, narrowings=st.lists(places, max_size=3), asked=places)
def test_biscuits_own_engine_agrees_on_where_the_holder_belongs(
    granted: Rights, narrowings: list[Place], asked: Place
) -> None:
    grant = issue(ROOT, granted, ALICE)
    for place in narrowings:
        grant = attenuate(grant, KEY, place=place)
    ours = read_grant(grant, KEY).rights.place
    is_inside = True  # of all larger circles: a name counts inside these alone
    for circle in ("federation", "org", "cell"):

        def agrees(name: str, circle: str = circle) -> bool:
            policy = f'allow if place("{circle}", "{name}")'
            return by_biscuit(grant, ALICE, WORK, f'circle("{circle}");', policy)

        if name := getattr(asked, circle):
            assert (getattr(ours, circle) == name) == (is_inside and agrees(name))
        if name := getattr(granted.place, circle):
            is_inside = is_inside and agrees(name)


def by_biscuit(
    grant: bytes, peer_id: PeerId, right: Right, facts: str, policy: str = "allow if right({right})"
) -> bool:
    now = datetime.fromtimestamp(NOW, UTC)
    code = "peer({peer}); operation({right}); time({now}); minute({minute});" + facts + policy
    values = {
        "peer": peer_id,
        "right": right.value,
        "now": NOW,
        "minute": (now.weekday() * 24 + now.hour) * 60 + now.minute,
    }
    builder = AuthorizerBuilder(code, values)
    patient: Any = builder  # the stubs of biscuit-python 0.4.0 do not have the limits
    run_limits = patient.limits()
    run_limits.max_time = timedelta(seconds=10)  # 1 ms by default, too little on a busy machine
    patient.set_limits(run_limits)
    token = Biscuit.from_bytes(grant, PublicKey(f"ed25519/{KEY.hex()}"))
    try:
        builder.build(token).authorize()
    except AuthorizationError:
        return False
    return True


class PanicException(BaseException):
    """What pyo3 raises where Rust code panics; it cannot be made from Python otherwise."""


@pytest.mark.parametrize("what", ["from_bytes", "block_source"])
def test_a_panic_inside_biscuit_costs_the_grant_and_not_the_node(
    what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Panics:
        @staticmethod
        def from_bytes(*_: object) -> Panics:
            if what == "from_bytes":
                raise PanicException("index out of bounds")
            return Panics()

        def to_bytes(self) -> bytes:
            return grant

        def block_count(self) -> int:
            return 1

        def block_source(self, block: int) -> str:
            raise PanicException("index out of bounds")

    grant = b"\x12" + what.encode()
    monkeypatch.setattr(biscuit_auth, "Biscuit", Panics)
    with pytest.raises(InvalidInput, match="could not be read"):
        grants.read_grant(grant, bytes(32))


def test_an_interrupt_while_a_grant_is_read_is_not_taken_for_a_bad_grant(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Interrupted:
        @staticmethod
        def from_bytes(*_: object) -> None:
            raise KeyboardInterrupt

    monkeypatch.setattr(biscuit_auth, "Biscuit", Interrupted)
    with pytest.raises(KeyboardInterrupt):
        grants.read_grant(b"interrupted", bytes(32))


# The hours of the week in which a grant is good.

MONDAY = datetime(2026, 11, 23, tzinfo=UTC)

minutes = st.integers(0, WEEK_MINUTES) | st.integers(0, 14).map(lambda half: half * 720)
spans = st.tuples(minutes, minutes).filter(lambda span: span[0] < span[1])
weeks = st.lists(spans, max_size=5).map(lambda some: Hours(tuple(some)))


def at(day: int, hour: int, minute: int = 0, second: float = 0) -> float:
    """In the week of MONDAY, which is day 0."""
    return (MONDAY + timedelta(days=day, hours=hour, minutes=minute, seconds=second)).timestamp()


def test_nights_of_weekdays_go_on_until_the_next_morning() -> None:
    nights = parse_hours("mon-fri 18:00-08:00")
    assert not nights.include(at(0, 0))  # the night from Sunday is none of them
    assert not nights.include(at(0, 17, 59, 59.9))
    assert nights.include(at(0, 18))
    assert nights.include(at(1, 7, 59, 59.9))
    assert not nights.include(at(1, 8))
    assert nights.include(at(5, 3))  # Friday's, on Saturday
    assert not nights.include(at(5, 18))


def test_it_says_when_they_begin_next() -> None:
    nights = parse_hours("mon-fri 18:00-08:00")
    assert nights.opening(at(1, 12, 30, 5)) == at(1, 18)
    assert nights.opening(at(5, 12)) == at(7, 18)
    assert opening_in_words(int(at(7, 18))) == "Mon 18:00 UTC"
    assert Hours(()).opening(at(0, 0)) is None
    assert not Hours(()).include(at(0, 0))
    assert str(Hours(())) == "never"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("mon-fri 18:00-08:00", "mon-fri 18:00-08:00"),
        ("MON 09:00-17:00,fri   09:00-17:00", "mon 09:00-17:00, fri 09:00-17:00"),
        ("sun 22:00-06:00", "sun 22:00-06:00"),
        ("fri-mon 09:00-17:00", "mon 09:00-17:00, fri-sun 09:00-17:00"),
        ("mon-sun 00:00-24:00", "mon-sun 00:00-24:00"),
        ("mon 00:00-12:00, mon 12:00-24:00, tue 00:00-01:00", "mon 00:00-24:00, tue 00:00-01:00"),
        ("sun 12:00-24:00, mon 00:00-12:00", "mon 00:00-12:00, sun 12:00-24:00"),  # 24 h, whole
        ("sun 12:00-24:00, mon 00:00-11:59", "sun 12:00-11:59"),
        ("sat 12:00-24:00, sun 00:00-12:00", "sat 12:00-24:00, sun 00:00-12:00"),
    ],
)
def test_hours_are_written_as_people_do(text: str, shown: str) -> None:
    assert str(parse_hours(text)) == shown
    assert parse_hours(shown) == parse_hours(text)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "mon",
        "mon 8-10",
        "foo 08:00-10:00",
        "mon 24:00-10:00",
        "mon 08:00-24:30",
        "mon 25:00-26:00",
        "mon 08:00-08:00",
        "mon 08:00-10:00,",
        "mon \N{ARABIC-INDIC DIGIT ZERO}0:00-10:00",
    ],
)
def test_what_are_no_hours_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(InvalidInput, match="write it like mon-fri 18:00-08:00"):
        parse_hours(text)


@pytest.mark.parametrize("span", [(-1, 5), (5, 5), (6, 5), (0, WEEK_MINUTES + 1)])
def test_spans_lie_within_a_week(span: tuple[int, int]) -> None:
    with pytest.raises(InvalidInput, match="no part of a week"):
        Hours((span,))


def test_there_are_few_spans() -> None:
    many = tuple((start, start + 1) for start in range(0, 2 * (MAX_SPANS + 1), 2))
    assert len(Hours(many[1:]).spans) == MAX_SPANS
    with pytest.raises(InvalidInput, match="more than 14 spans"):
        Hours(many)


@given(weeks.filter(lambda week: week.spans != ()))
def test_hours_survive_as_text(week: Hours) -> None:
    assert parse_hours(str(week)) == week


@given(weeks, weeks, st.integers(0, WEEK_MINUTES - 1))
def test_the_hours_of_both_are_those_that_each_has(one: Hours, other: Hours, minute: int) -> None:
    unix_s = MONDAY.timestamp() + minute * 60
    assert (one & other).include(unix_s) == (one.include(unix_s) and other.include(unix_s))


@given(weeks, st.floats(0, 10**10))
def test_they_are_shut_until_they_begin(week: Hours, unix_s: float) -> None:
    opening = week.opening(unix_s)
    if opening is None or week.include(unix_s):
        return
    assert week.include(opening)
    assert not week.include(opening - 1)
    assert unix_s < opening < unix_s + WEEK_MINUTES * 60

"""Who may do what: grants, and everything that a holder might try to make more of one."""

import time
from datetime import timedelta
from typing import Any

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
from hypothesis import given, settings
from hypothesis import strategies as st

from formation_p2p.errors import InvalidInput
from formation_p2p.identity import Identity, PeerId
from formation_p2p.records.profile import MAX_GRANT_BYTES
from formation_p2p.refusals import Denied
from formation_p2p.trust import grants
from formation_p2p.trust.grants import (
    MAX_BLOCKS,
    MAX_EXPIRY_UNIX_S,
    MAX_PRIORITY,
    Right,
    Rights,
    attenuate,
    bind,
    check,
    issue,
    rights_of,
)

ROOT = Identity.from_seed(b"r" * 32)
OTHER_ROOT = Identity.from_seed(b"o" * 32)
ALICE, BOB = (Identity.from_seed(name * 32).peer_id for name in (b"a", b"b"))
KEY = ROOT.public_key
NOW = 1_700_000_000
DAY = 24 * 3600

SUBMIT, WORK = Right.SUBMIT, Right.WORK
ALL = Rights(NOW + DAY)


def why(grant: bytes, right: Right = SUBMIT, **asked: Any) -> str:
    answer = check(grant, KEY, ALICE, right, asked.pop("now", NOW), **asked)
    assert isinstance(answer, Denied)
    assert answer.right == right
    return answer.why


def allowed(grant: bytes, right: Right = SUBMIT, **asked: Any) -> bool:
    return isinstance(check(grant, KEY, ALICE, right, NOW, **asked), Rights)


# -- what a grant allows ------------------------------------------------------------------------


def test_alice_may_do_what_her_grant_says() -> None:
    rights = Rights(NOW + DAY, frozenset({SUBMIT}), frozenset({"process", "python"}), 5)
    grant = bind(issue(ROOT, rights), KEY, ALICE)
    assert check(grant, KEY, ALICE, SUBMIT, NOW, driver="python", priority=5) == rights
    assert rights_of(grant, KEY) == rights


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


def test_a_grant_is_good_until_its_very_expiry() -> None:
    grant = issue(ROOT, ALL, ALICE)
    assert isinstance(check(grant, KEY, ALICE, SUBMIT, NOW + DAY - 0.001), Rights)
    assert isinstance(check(grant, KEY, ALICE, SUBMIT, NOW + DAY), Denied)


def by_root(datalog: str) -> bytes:
    private_key = PrivateKey(f"ed25519-private/{ROOT.seed.hex()}")
    return bytes(BiscuitBuilder(datalog).build(private_key).to_bytes())


def test_a_grant_by_the_root_without_limits_allows_nothing() -> None:
    bare = by_root('right("submit");')
    assert rights_of(bare, KEY) == Rights(0, frozenset({SUBMIT}), None, 0)
    assert "expired" in why(bind(bare, KEY, ALICE))


def test_a_rule_is_refused_even_from_the_root() -> None:
    assert "does not know" in why(by_root('right("submit") <- operation("submit");'))


@settings(max_examples=200)
@given(st.data())
def test_no_altered_byte_passes(data: st.DataObject) -> None:
    grant = bytearray(issue(ROOT, ALL, ALICE))
    place = data.draw(st.integers(0, len(grant) - 1))
    grant[place] = data.draw(st.integers(0, 255).filter(lambda value: value != grant[place]))
    answer = check(bytes(grant), KEY, ALICE, SUBMIT, NOW)
    assert isinstance(answer, Denied) or answer == ALL


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
    assert rights_of(grant, KEY) == narrow
    assert check(bind(grant, KEY, ALICE), KEY, ALICE, SUBMIT, NOW) == narrow


def test_a_grant_bound_to_two_peers_serves_neither() -> None:
    grant = attenuate(issue(ROOT, ALL, ALICE), KEY, peer_id=BOB)
    assert why(grant) == "the grant is bound to another peer"
    assert isinstance(check(grant, KEY, BOB, SUBMIT, NOW), Denied)


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
    ],
)
def test_what_is_no_limit_never_gets_into_the_datalog(limit: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput):
        attenuate(issue(ROOT, ALL), KEY, **limit)


def test_rights_check_themselves() -> None:
    for make in (
        lambda: Rights(-1),
        lambda: Rights(NOW, max_priority=101),
        lambda: Rights(NOW, drivers=frozenset({"Python"})),
        lambda: issue(ROOT, Rights(NOW, may=frozenset())),
        lambda: issue(ROOT, Rights(NOW, drivers=frozenset())),
        lambda: issue(ROOT, ALL, PeerId("bob")),
    ):
        with pytest.raises(InvalidInput):
            make()


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
    [
        'x"); right("work',
        'x");\nright("work");\ncheck if peer("x',
        f'x");\ncheck if peer("{ALICE}',
    ],
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
    began = time.monotonic()
    assert not allowed(grant)
    assert time.monotonic() - began < 1.0


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


@settings(max_examples=200)
@given(st.binary(max_size=60))
def test_no_block_breaks_the_check(content: bytes) -> None:
    for block in (content, b"\x18\x03" + content):
        grant = with_raw_block(issue(ROOT, ALL, ALICE), block)
        answer = check(grant, KEY, ALICE, SUBMIT, NOW)
        assert isinstance(answer, Denied) or answer == ALL


# -- Biscuit's own evaluation is the judge of ours -------------------------------------------------

drivers = st.frozensets(st.sampled_from(["process", "python", "wasm"]), min_size=1)
limits = st.fixed_dictionaries(
    {},
    optional={
        "peer_id": st.sampled_from([ALICE, BOB]),
        "may": st.sampled_from(Right),
        "drivers": drivers,
        "max_priority": st.integers(0, 4),
        "expires_unix_s": st.integers(NOW - 1, NOW + 2),
    },
)


@given(
    may=st.frozensets(st.sampled_from(Right), min_size=1),
    granted=drivers | st.none(),
    narrowings=st.lists(limits, max_size=3),
    right=st.sampled_from(Right),
    driver=st.sampled_from(["process", "python", "wasm"]),
    priority=st.integers(0, 4),
    peer_id=st.sampled_from([ALICE, BOB]),
    most=st.integers(0, 4),
)
def test_biscuits_own_engine_agrees_with_us(
    may: frozenset[Right],
    granted: frozenset[str] | None,
    narrowings: list[dict[str, Any]],
    right: Right,
    driver: str,
    priority: int,
    peer_id: PeerId,
    most: int,
) -> None:
    grant = issue(ROOT, Rights(NOW + 1, may, granted, most))
    for narrowing in narrowings:
        grant = attenuate(grant, KEY, **narrowing)
    grant = attenuate(grant, KEY, peer_id=ALICE)
    ours = check(grant, KEY, peer_id, right, NOW, driver=driver, priority=priority)
    assert isinstance(ours, Rights) == by_biscuit(grant, peer_id, right, driver, priority)


def by_biscuit(grant: bytes, peer_id: PeerId, right: Right, driver: str, priority: int) -> bool:
    builder = AuthorizerBuilder(
        "peer({peer}); operation({right}); driver({driver}); priority({priority}); time({now});"
        "allow if right({right});",
        {
            "peer": peer_id,
            "right": right.value,
            "driver": driver,
            "priority": priority,
            "now": NOW,
        },
    )
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
        def from_bytes(*_: object) -> "Panics":
            if what == "from_bytes":
                raise PanicException("index out of bounds")
            return Panics()

        def block_count(self) -> int:
            return 1

        def block_source(self, block: int) -> str:
            raise PanicException("index out of bounds")

    monkeypatch.setattr(grants, "Biscuit", Panics)
    with pytest.raises(InvalidInput, match="could not be read"):
        grants.rights_of(what.encode(), bytes(32))


def test_an_interrupt_while_a_grant_is_read_is_not_taken_for_a_bad_grant(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Interrupted:
        @staticmethod
        def from_bytes(*_: object) -> None:
            raise KeyboardInterrupt

    monkeypatch.setattr(grants, "Biscuit", Interrupted)
    with pytest.raises(KeyboardInterrupt):
        grants.rights_of(b"interrupted", bytes(32))

"""A charter counts with m signatures of the last version's keys and of its own, and never goes
back."""

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
    ReplayedRecord,
)
from formation_p2p.core.identity import Identity, peer_id_of
from formation_p2p.records.core import codec
from formation_p2p.trust.core import charter as noun
from formation_p2p.trust.core.charter import EVEN_SHARE, Charter, Member, Region, changes, lines
from formation_p2p.trust.core.quota import Quota
from formation_p2p.trust.core.root_keys import KeySet, read_key_set, read_signatures
from formation_p2p.trust.core.signed_charter import (
    MAX_CHARTER_BYTES,
    MAX_TTL_S,
    SignedCharter,
    charter_text,
    draft,
    kept_charter,
    missing,
    open_charter,
    parse_charter_text,
    read_charter,
    root_keys,
    sign,
)
from formation_p2p.workload.core.scope import Scope
from tests.support.stories import identity

NOW = 1_800_000_000
DAY_S = 86_400
NETWORK = bytes(range(32))
ROOT = identity("root")
ANNA, BEN, CLEO, DORA, EVE = (identity(name) for name in ("anna", "ben", "cleo", "dora", "eve"))
BOARD = KeySet(2, (ANNA.public_key, BEN.public_key, CLEO.public_key))
ROOT_KEYS = KeySet(1, (ROOT.public_key,))
INVITATION = "0123456789abcdef" * 2


def rules(version: int = 1, keys: KeySet = BOARD, **fields: Any) -> Charter:
    given = {"issued_unix_s": NOW, "expires_unix_s": NOW + 365 * DAY_S, **fields}
    return Charter(version=version, network=NETWORK, keys=keys, **given)


def signed(
    charter: Charter, *by: Identity, before: SignedCharter | None = None, root: KeySet = ROOT_KEYS
) -> SignedCharter:
    made = draft(charter, root, before)
    for key in by:
        made = sign(made, key)
    return made


def opened(
    made: SignedCharter, known: SignedCharter | None = None, now_unix_s: float = NOW + 1
) -> SignedCharter:
    return open_charter(made.raw, ROOT.public_key, NETWORK, known, now_unix_s)


FIRST = signed(rules(), ROOT, ANNA, BEN)


def test_first_version_is_signed_by_the_root_and_by_its_own_keys() -> None:
    assert opened(FIRST) == FIRST
    assert FIRST.charter.threshold == 2
    assert set(FIRST.charter.signers) == {ANNA.peer_id, BEN.peer_id, CLEO.peer_id}
    with pytest.raises(ForgedRecord, match="1 of 2 signatures under the rules of its own"):
        opened(signed(rules(), ROOT, ANNA))
    with pytest.raises(ForgedRecord, match="0 of 1 signatures under the rules of those before it"):
        opened(signed(rules(), ANNA, BEN, CLEO))


def test_next_version_needs_m_signatures_of_those_before_it_and_of_its_own() -> None:
    others = KeySet(2, (CLEO.public_key, DORA.public_key, EVE.public_key))
    assert opened(signed(rules(2), ANNA, CLEO, before=FIRST), FIRST).version == 2
    turned = signed(rules(2, others), ANNA, CLEO, DORA, before=FIRST)
    assert opened(turned, FIRST) == turned
    with pytest.raises(ForgedRecord, match="1 of 2"):
        opened(signed(rules(2), ANNA, before=FIRST), FIRST)
    with pytest.raises(ForgedRecord, match="1 of 2 signatures under the rules of those before"):
        opened(signed(rules(2, others), CLEO, DORA, EVE, before=FIRST), FIRST)
    with pytest.raises(ForgedRecord, match="1 of 2 signatures under the rules of its own"):
        opened(signed(rules(2, others), ANNA, CLEO, before=FIRST), FIRST)
    # What it lacks is said in words beforehand.
    assert missing(signed(rules(2, others), ANNA, before=FIRST), BOARD) == {
        "of the version before it": 1,
        "of its own": 2,
    }
    assert missing(turned, BOARD) == {}


def test_newcomer_follows_each_change_of_the_keys_from_the_root() -> None:
    others = KeySet(1, (DORA.public_key,))
    second = signed(rules(2, others), ANNA, CLEO, DORA, before=FIRST)
    third = signed(rules(3, others), DORA, before=second)
    fourth = signed(rules(4), ANNA, BEN, DORA, before=third)
    assert [len(each.links) for each in (FIRST, second, third, fourth)] == [0, 1, 2, 2]
    for each in (second, third, fourth):
        assert opened(each) == each
        assert kept_charter(each.raw, ROOT.public_key, NETWORK) == each
    # Who knows an earlier version goes on from there.
    assert opened(fourth, FIRST) == fourth
    assert opened(fourth, third) == fourth
    # Keys that were rotated out make no version for those who know that.
    fork = signed(rules(9), ANNA, BEN, before=replace(FIRST, charter=rules(8)))
    with pytest.raises(ForgedRecord, match="0 of 1 signatures under the rules of those before"):
        opened(fork, third)
    # A link that was signed by others is none.
    forged = replace(second.links[0], signatures=FIRST.signatures[:1])
    with pytest.raises(ForgedRecord):
        opened(replace(second, links=(forged,)))
    with pytest.raises(MalformedRecord, match="out of order"):
        opened(replace(fourth, links=(fourth.links[1], fourth.links[0])))


def test_network_that_has_its_root_alone_as_signer_needs_no_link() -> None:
    one = signed(rules(1, ROOT_KEYS), ROOT)
    two = signed(rules(2, ROOT_KEYS), ROOT, before=one)
    three = signed(rules(3, BOARD), ROOT, ANNA, BEN, before=two)
    four = signed(rules(4, BOARD), ANNA, BEN, before=three)
    assert [len(each.links) for each in (one, two, three, four)] == [0, 0, 0, 1]
    assert opened(four) == four


def test_never_rolled_back_and_of_one_version_the_same_counts_everywhere() -> None:
    second = signed(rules(2), ANNA, BEN, before=FIRST)
    other = signed(rules(2, identities=7), ANNA, BEN, before=FIRST)
    with pytest.raises(ReplayedRecord, match="version 1 of the charter, and 2 is known"):
        opened(FIRST, second)
    with pytest.raises(ReplayedRecord):
        opened(second, second)
    # One more signature makes it no other version.
    with pytest.raises(ReplayedRecord):
        opened(sign(second, CLEO), second)
    lower, upper = sorted((second, other), key=lambda each: each.digest)
    assert opened(lower, upper) == lower
    with pytest.raises(ReplayedRecord):
        opened(upper, lower)


def test_expired_and_too_long_and_future_ones_are_refused_and_kept_ones_are_read() -> None:
    short = signed(rules(expires_unix_s=NOW + DAY_S), ROOT, ANNA, BEN)
    with pytest.raises(ExpiredRecord, match="have the signers make the next version"):
        opened(short, now_unix_s=NOW + DAY_S)
    assert kept_charter(short.raw, ROOT.public_key, NETWORK) == short
    with pytest.raises(ExpiredRecord, match="ahead"):
        opened(FIRST, now_unix_s=NOW - 61)
    with pytest.raises(InvalidInput, match="within 732 days"):
        draft(rules(expires_unix_s=NOW + MAX_TTL_S + 1), ROOT_KEYS)
    long = replace(FIRST.charter, expires_unix_s=NOW + MAX_TTL_S + 1)
    unsigned = replace(FIRST, charter=long, rules=_rules_of(long))
    with pytest.raises(ExpiredRecord, match="longer"):
        opened(unsigned)


def test_forged_ones_are_refused() -> None:
    # With the content changed after it was signed.
    changed = signed(rules(identities=3))
    with pytest.raises(ForgedRecord, match="did not sign it"):
        opened(replace(changed, signatures=FIRST.signatures))
    # With a signature that is not by one of the keys, valid as it may be.
    with pytest.raises(ForgedRecord, match="did not sign it"):
        opened(sign(FIRST, EVE))
    # For another network, or under another root.
    with pytest.raises(ForgedRecord, match="another network"):
        open_charter(FIRST.raw, ROOT.public_key, bytes(32), None, NOW)
    with pytest.raises(ForgedRecord, match="another network"):
        kept_charter(FIRST.raw, ROOT.public_key, bytes(32))
    with pytest.raises(ForgedRecord):
        open_charter(FIRST.raw, EVE.public_key, NETWORK, None, NOW)


def test_one_key_signs_once() -> None:
    twice = replace(FIRST, signatures=(FIRST.signatures[0], *FIRST.signatures))
    with pytest.raises(MalformedRecord, match="one key signed twice"):
        opened(twice)
    longer = replace(FIRST, signatures=((b"\0" * 31, bytes(64)), *FIRST.signatures))
    with pytest.raises(MalformedRecord, match="no key of 32 bytes"):
        opened(longer)
    assert sign(FIRST, ANNA) == FIRST
    with pytest.raises(InvalidInput, match="named twice"):
        KeySet(1, (ANNA.public_key, ANNA.public_key))


def test_split_root_signs_the_first_version_with_m_of_its_keys() -> None:
    root = KeySet(2, (ANNA.public_key, BEN.public_key, CLEO.public_key))
    name = root.root_id()
    first = signed(rules(1, root), ANNA, CLEO, root=root)
    assert open_charter(first.raw, name, NETWORK, None, NOW) == first
    assert root_keys(first, name) == root
    assert root_keys(None, ROOT.public_key) == ROOT_KEYS
    with pytest.raises(ForgedRecord, match="1 of 2"):
        open_charter(signed(rules(1, root), ANNA, root=root).raw, name, NETWORK, None, NOW)
    # Other keys have another name, and so have the same with a lower threshold.
    for keys in (KeySet(2, (ANNA.public_key, BEN.public_key)), KeySet(1, root.keys)):
        forged = signed(rules(1, keys), ANNA, BEN, root=keys)
        with pytest.raises(ForgedRecord, match="not that of this network"):
            open_charter(forged.raw, name, NETWORK, None, NOW)
    assert KeySet(1, (ROOT.public_key,)).root_id() == ROOT.public_key


def _rules_of(charter: Charter) -> bytes:
    row = [charter.network, charter.version, *charter.keys.pack()]
    return codec.encode([*row, charter.issued_unix_s, charter.expires_unix_s])


# -- what it says ------------------------------------------------------------------------------

FULL = rules(
    members=(Member("acme", 3), Member("beta")),
    quotas=Quota(100_000, None, 4),
    regions=(
        Region("eu", frozenset({"acme", INVITATION})),
        Region("us", frozenset({DORA.peer_id})),
    ),
    banned_keys=frozenset({EVE.peer_id}),
    banned_invitations=frozenset({INVITATION}),
    inviters=frozenset({CLEO.peer_id}),
    identities=16,
    scope=Scope.FEDERATION,
)


def test_a_charter_with_regions_has_no_others() -> None:
    FULL.check_region("us")
    rules().check_region("mars")
    with pytest.raises(InvalidInput, match="has no 'mars'; its regions are "):
        FULL.check_region("mars")


def test_all_of_it_travels() -> None:
    made = signed(FULL, ROOT, ANNA, BEN)
    assert read_charter(made.raw).charter == FULL
    assert read_charter(made.raw).raw == made.raw


def test_shares() -> None:
    assert [FULL.share_of(org) for org in ("acme", "beta", "gamma", "")] == [3, 1, 1, EVEN_SHARE]


def test_bans() -> None:
    assert FULL.bans(EVE.peer_id, "") == "the charter (version 1) bans this peer"
    assert "bans the invitation" in str(FULL.bans(ANNA.peer_id, INVITATION))
    assert FULL.bans(ANNA.peer_id, "f" * 32) is None


def test_a_region_is_a_peers_then_his_invitations_then_his_organisations() -> None:
    def where(peer_id: str, invitation: str, org: str, now_unix_s: float = NOW) -> str:
        return FULL.region_of(peer_id, invitation, org, now_unix_s)

    assert where(DORA.peer_id, INVITATION, "acme") == "us"
    assert where(ANNA.peer_id, INVITATION, "beta") == "eu"
    assert where(ANNA.peer_id, "f" * 32, "acme") == "eu"
    assert where(ANNA.peer_id, "f" * 32, "beta") == ""
    assert where(ANNA.peer_id, "f" * 32, "") == ""
    # An expired charter grants nothing, and still bans.
    assert where(DORA.peer_id, INVITATION, "acme", FULL.expires_unix_s) == ""
    assert FULL.bans(EVE.peer_id, "") is not None


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"version": 0}, "less than 1"),
        ({"expires_unix_s": NOW}, "ends before it begins"),
        ({"members": (Member("a"), Member("a"))}, "a is named twice"),
        (
            {"regions": (Region("eu", frozenset({"a"})), Region("us", frozenset({"a"})))},
            "a is named twice",
        ),
        ({"banned_keys": frozenset({"nobody"})}, "no peer id"),
        ({"inviters": frozenset({"0OIl"})}, "no peer id"),
        ({"banned_invitations": frozenset({"xyz"})}, "no invitation; write its 32 digits"),
        ({"identities": 0}, "less than 1"),
        ({"members": tuple(Member(f"m{n}") for n in range(noun.MAX_MEMBERS + 1))}, "more than 128"),
    ],
)
def test_what_no_charter_says(fields: dict[str, Any], problem: str) -> None:
    with pytest.raises(InvalidInput, match=problem):
        rules(**fields)


def test_what_no_member_region_or_key_set_is() -> None:
    for make in (
        lambda: Member("a b"),
        lambda: Member("a", -1),
        lambda: Region("eu", frozenset()),
        lambda: Region("eu", frozenset({"a b"})),
        lambda: Region("e u", frozenset({"a"})),
        lambda: KeySet(3, (ANNA.public_key, BEN.public_key)),
        lambda: KeySet(1, (b"short",)),
    ):
        with pytest.raises(InvalidInput):
            make()


def test_too_large_a_charter_is_neither_made_nor_read() -> None:
    ids = (peer_id_of(number.to_bytes(32, "big")) for number in range(noun.MAX_BANNED))
    holders = (f"{number:063}" for number in range(noun.MAX_IN_REGION * 2))
    regions = tuple(
        Region(f"r{n}", frozenset(next(holders) for _ in range(noun.MAX_IN_REGION))) for n in (1, 2)
    )
    with pytest.raises(InvalidInput, match=r"region: the charter takes .* the most of them"):
        draft(rules(banned_keys=frozenset(ids), regions=regions), ROOT_KEYS)
    with pytest.raises(OversizedRecord):
        read_charter(bytes(MAX_CHARTER_BYTES + 1))
    with pytest.raises(InvalidInput, match="one more than"):
        draft(rules(3), ROOT_KEYS, FIRST)


def test_later_versions_of_the_format_add_fields_and_their_bans_count_here() -> None:
    made = draft(FULL, ROOT_KEYS)
    longer = replace(made, body=codec.encode([*codec.decode(made.body, 4096), "new"]))  # type: ignore[misc]
    for key in (ROOT, ANNA, BEN):
        longer = sign(longer, key)
    assert opened(longer).charter == FULL


def _row(**changed: object) -> bytes:
    """A charter's five fields with some replaced."""
    row = dict(
        zip(("rules", "body", "signatures", "links", "root"), _decoded(FIRST.raw), strict=True)
    )
    return codec.encode(list({**row, **changed}.values()))


def _decoded(raw: bytes) -> list[Any]:
    row = codec.decode(raw, MAX_CHARTER_BYTES)
    assert isinstance(row, list)
    return row


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        codec.encode([1]),
        _row(rules=b"x"),
        _row(rules=codec.encode([1, 2])),
        _row(body=codec.encode([[]] * 3)),
        _row(body=codec.encode([[[1, 2]], [None] * 3, [], [], [], [], None, 4])),
        _row(body=codec.encode([[], [None] * 3, [], [], [], [], None, 5])),
        _row(signatures=[[b"k" * 32]]),
        _row(signatures=[[b"k" * 32, b"s"], [b"k" * 32, b"s"]]),
        _row(links=[[b"", b"", []]]),
        _row(root=[1]),
        _row(root=[2, [ANNA.public_key]]),
        FIRST.raw[:1] + FIRST.raw[2:],
    ],
)
def test_what_is_no_charter(raw: bytes) -> None:
    with pytest.raises(MalformedRecord):
        read_charter(raw)


def test_one_form_alone() -> None:
    # The same values, the list's length written in two bytes.
    longer = b"\x98\x05" + FIRST.raw[1:]
    with pytest.raises(MalformedRecord, match="not in the form"):
        read_charter(longer)
    assert read_key_set(BOARD.pack(), "keys") == BOARD
    assert read_signatures([], 1) == ()


@settings(max_examples=80)
@given(st.binary(max_size=200), st.integers(0, 2000), st.integers(1, 255))
def test_no_bytes_pass_that_are_not_signed(junk: bytes, at: int, flip: int) -> None:
    with pytest.raises(BadRecord):
        open_charter(junk, ROOT.public_key, NETWORK, None, NOW)
    raw = bytearray(FIRST.raw)
    raw[at % len(raw)] ^= flip
    with pytest.raises(BadRecord):
        open_charter(bytes(raw), ROOT.public_key, NETWORK, None, NOW + 1)


# -- for people ----------------------------------------------------------------------------------


def test_a_charter_is_a_line_of_text_that_mail_may_break() -> None:
    text = charter_text(FIRST)
    assert parse_charter_text(text) == FIRST
    assert parse_charter_text("\n ".join(text[at : at + 70] for at in range(0, len(text), 70)))
    for wrong, problem in (
        ("formation1:abc", "does not begin with"),
        (text[:-3], "incomplete or was altered"),
        (text + "!", "incomplete or was altered"),
        (text * 100, "too long to be one"),
    ):
        with pytest.raises(InvalidInput, match=problem):
            parse_charter_text(wrong)
    later = replace(FIRST, rules=codec.encode([1]))
    with pytest.raises(InvalidInput, match="upgrade formation_p2p here"):
        parse_charter_text(charter_text(later))


def test_signers_read_what_a_version_changes() -> None:
    assert changes(None, FULL) == [f"+ {line}" for line in lines(FULL)]
    assert "quotas of grants without their own: 100.0 core-hours, 4 at once" in lines(FULL)
    assert f"banned peer {EVE.peer_id}" in lines(FULL)
    assert "region us: " + DORA.peer_id in lines(FULL)
    more = replace(
        FULL,
        members=(Member("acme", 5),),
        quotas=Quota(None, 5_000, None),
        expires_unix_s=99_999_999_999,
        banned_keys=frozenset(),
    )
    found = changes(FULL, more)
    assert "- member acme, share 3" in found
    assert "+ member acme, share 5" in found
    assert "- member beta, share 1" in found
    assert f"- banned peer {EVE.peer_id}" in found
    assert "+ quotas of grants without their own: 5.0 GPU-hours" in found
    assert "+ expires 5138-11-16 09:46 UTC" in found
    assert "quotas of grants without their own: 1 at once" in lines(rules(quotas=Quota(leases=1)))
    assert changes(FULL, FULL) == []
    assert not any("identities" in line for line in lines(replace(FULL, identities=None)))
    assert not any("quotas" in line for line in lines(rules()))
    assert "quotas of grants without their own: 1.0 core-hours" in lines(
        rules(quotas=Quota(cpu_milli_hours=1000))
    )

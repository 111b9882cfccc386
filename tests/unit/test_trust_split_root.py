"""A grant of a split root counts with m signatures of its keys over that grant, and no fewer."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from formation_p2p.core.errors import InvalidInput
from formation_p2p.core.identity import Identity
from formation_p2p.records.core import codec
from formation_p2p.records.core.pasted_text import pasted_text
from formation_p2p.trust.core.grant_form import (
    MAX_EXPIRY_UNIX_S,
    MAX_ROOT_KEYS,
    Cosigned,
    GrantForm,
    Life,
    read_form,
)
from formation_p2p.trust.core.grants import (
    Right,
    Rights,
    attenuate,
    bind,
    check,
    read_grant,
    reissue,
)
from formation_p2p.trust.core.network import parse_invite
from formation_p2p.trust.core.quota import Quota
from formation_p2p.trust.core.root_keys import KeySet
from formation_p2p.trust.core.split_root import (
    GrantRequest,
    is_request,
    parse_request,
    renewal_of,
    request_of,
    root_of,
)
from formation_p2p.trust.core.statements import Block
from tests.support.stories import identity

NOW = 1_800_000_000
ANNA, BEN, CLEO, STRANGER = (identity(name) for name in ("anna", "ben", "cleo", "stranger"))
BOB = identity("bob").peer_id
ROOT = KeySet(2, (ANNA.public_key, BEN.public_key, CLEO.public_key))
NAME = ROOT.root_id()
RIGHTS = Rights(NOW + 1000, life=Life(1000, MAX_EXPIRY_UNIX_S))
GATE = f"/ip4/192.0.2.1/tcp/4001/p2p/{ANNA.peer_id}"


def granted(*by: Identity, rights: Rights = RIGHTS, root: KeySet = ROOT) -> bytes:
    return request_of(root, by, (), rights, BOB).grant


def why_not(grant: bytes, name: bytes = NAME) -> str:
    denied = check(grant, name, BOB, Right.SUBMIT, NOW)
    return "" if denied is None else denied.why


def with_signatures(grant: bytes, *signatures: tuple[bytes, bytes]) -> bytes:
    """Whatever they are, in whatever order."""
    form = read_form(grant)
    assert form.cosigned is not None
    return replace(form, cosigned=replace(form.cosigned, signatures=signatures)).raw


def cosignature(grant: bytes, by: Identity, name: bytes = NAME) -> tuple[bytes, bytes]:
    return by.public_key, by.sign(read_form(grant).message(name))


@pytest.mark.parametrize("by", [(ANNA, BEN), (CLEO, ANNA), (BEN, CLEO), (ANNA, BEN, CLEO)])
def test_any_two_of_three_grant(by: tuple[Identity, ...]) -> None:
    grant = granted(*by)
    assert why_not(grant) == ""
    assert read_grant(grant, NAME).rights == RIGHTS
    assert root_of(grant, NAME) == ROOT


def test_one_of_two_signatures_grants_nothing() -> None:
    grant = granted(ANNA)
    assert "1 of its 2 signatures are missing" in why_not(grant)
    # Nor does the token alone, by the name of the network or by the key that signed it.
    token = read_form(grant).token
    assert "another network" in why_not(token)
    assert check(token, ANNA.public_key, BOB, Right.SUBMIT, NOW) is None
    # The name of such a network is no public key, as a rule, or the key of no one.
    for number in range(1, 9):
        other = KeySet(1, (ANNA.public_key, bytes([number] * 32))).root_id()
        assert "another network" in why_not(token, other)


def test_one_key_signs_once() -> None:
    grant = granted(ANNA)
    again = cosignature(grant, ANNA)
    assert "did not co-sign it" in why_not(with_signatures(grant, again))
    three = KeySet(3, ROOT.keys)
    grant = granted(ANNA, root=three)
    bens = cosignature(grant, BEN, three.root_id())
    twice = with_signatures(grant, bens, bens)
    assert "signed twice" in why_not(twice, three.root_id())
    assert "no key" in why_not(with_signatures(grant, (b"short", bytes(64))), three.root_id())


def test_a_key_of_another_does_not_sign() -> None:
    grant = granted(ANNA)
    assert "did not co-sign it" in why_not(with_signatures(grant, cosignature(grant, STRANGER)))
    forged = (BEN.public_key, cosignature(grant, STRANGER)[1])
    assert "did not co-sign it" in why_not(with_signatures(grant, forged))
    # Nor in the place of the key that issues it.
    form = read_form(granted(ANNA, BEN))
    assert form.cosigned is not None
    cleos = replace(form, cosigned=replace(form.cosigned, issuer=CLEO.public_key))
    assert "another network, or was altered" in why_not(cleos.raw)


def test_a_co_signature_is_good_for_one_grant_alone() -> None:
    bens = cosignature(granted(ANNA), BEN)
    wider = granted(ANNA, rights=replace(RIGHTS, expires_unix_s=NOW + 9999))
    assert "did not co-sign it" in why_not(with_signatures(wider, bens))
    # The same words in another token are another invitation, with other identities and quotas.
    assert "did not co-sign it" in why_not(with_signatures(granted(ANNA), bens))
    # One under another root of the same keys is for that one.
    all_of_them = KeySet(3, ROOT.keys)
    grant = granted(ANNA)
    wrong = cosignature(grant, BEN, all_of_them.root_id())
    assert "did not co-sign it" in why_not(with_signatures(grant, wrong))


def test_more_signatures_than_it_takes_and_other_roots_are_refused() -> None:
    grant = granted(ANNA, BEN)
    both = sorted((cosignature(grant, BEN), cosignature(grant, CLEO)))
    assert "signatures" in why_not(with_signatures(grant, *both))
    # A root that the attacker made up has another name.
    own = KeySet(1, (STRANGER.public_key, ANNA.public_key))
    made = granted(STRANGER, root=own)
    assert why_not(made, own.root_id()) == ""
    assert "another network" in why_not(made)


def test_holders_narrow_and_bind_it_offline() -> None:
    bearer = request_of(ROOT, (ANNA, CLEO), (), RIGHTS).grant
    assert "bound to no peer" in why_not(bearer)
    narrow = attenuate(bearer, NAME, Block(quota=Quota(leases=2), may=frozenset({"submit"})))
    bound = bind(narrow, NAME, BOB)
    assert why_not(bound) == ""
    terms = read_grant(bound, NAME)
    assert (terms.rights.may, terms.rights.quota.leases) == (frozenset({Right.SUBMIT}), 2)
    assert terms.invitation == read_grant(bearer, NAME).invitation


def test_a_renewed_one_takes_as_many_signatures() -> None:
    old = granted(ANNA, BEN)
    new = reissue(CLEO, old, BOB, NOW + 5000)
    assert "signatures are missing" in why_not(new)
    request = GrantRequest(NAME, (), new).signed(ANNA)
    assert why_not(request.grant) == ""
    terms = read_grant(request.grant, NAME)
    assert terms.rights.expires_unix_s == NOW + 5000
    assert terms.invitation == read_grant(old, NAME).invitation


def test_holders_renew_a_member_together() -> None:
    old = granted(ANNA, BEN)
    request = renewal_of(old, NAME, (CLEO,), (GATE,), NOW + 600)
    assert request.lacks == 1
    done = request.signed(ANNA)
    terms = read_grant(done.grant, NAME)
    assert terms.rights == replace(RIGHTS, expires_unix_s=NOW + 1600)
    assert (terms.bound_to, done.gates) == (BOB, (GATE,))
    assert terms.invitation == read_grant(old, NAME).invitation
    assert renewal_of(old, NAME, (ANNA, CLEO), (), NOW).lacks == 0
    bearer = request_of(ROOT, (ANNA, CLEO), (), RIGHTS).grant
    ends = granted(ANNA, BEN, rights=replace(RIGHTS, life=None))
    for grant in (bearer, ends, attenuate(old, NAME, Block(expires_unix_s=NOW + 5))):
        with pytest.raises(InvalidInput, match="until its end alone"):
            renewal_of(grant, NAME, (CLEO,), (), NOW)


def test_a_request_goes_from_holder_to_holder() -> None:
    request = request_of(KeySet(3, ROOT.keys), (BEN,), (GATE,), RIGHTS)
    assert request.lacks == 2
    assert not request.may_sign(BEN.public_key)
    assert not request.may_sign(STRANGER.public_key)
    assert request.signed(BEN) == request == request.signed(STRANGER)
    passed_on = parse_request(request.signed(CLEO).text())
    assert is_request(passed_on.text())
    assert passed_on.terms.rights == RIGHTS
    with pytest.raises(InvalidInput, match="1 of its 3 signatures are missing"):
        passed_on.network()
    done = passed_on.signed(ANNA)
    network = parse_invite(done.network().invite())
    assert (network.rights, network.gates) == (RIGHTS, (GATE,))
    assert done.lacks == 0
    assert done.signed(CLEO) == done


def test_a_root_of_one_key_has_no_co_signers() -> None:
    alone = KeySet(1, (ANNA.public_key,))
    request = request_of(alone, (ANNA,), (), RIGHTS, BOB)
    assert request.lacks == 0
    assert why_not(request.grant, ANNA.public_key) == ""
    assert request.signed(BEN) == request
    assert not request.may_sign(BEN.public_key)
    assert root_of(request.grant, ANNA.public_key) == alone
    # It has one form: it is not wrapped as if it were split.
    wrapped = GrantForm(request.grant, Cosigned(alone, ANNA.public_key, ()))
    assert "has 1 keys, not 2 to 9" in why_not(wrapped.raw, ANNA.public_key)


def test_what_was_signed_so_far_is_checked_before_one_adds_to_it() -> None:
    grant = granted(ANNA, root=KeySet(3, ROOT.keys))
    name = KeySet(3, ROOT.keys).root_id()
    bad = with_signatures(grant, cosignature(grant, BEN, NAME))
    with pytest.raises(InvalidInput, match="did not co-sign it"):
        GrantRequest(name, (), bad)
    for body in ([name, []], [name, [], 5], [name, 5, grant]):
        with pytest.raises(InvalidInput):
            parse_request(pasted_text("formation-request1:", codec.encode(body)))


@pytest.mark.parametrize(
    ("grant", "says"),
    [
        (b"\x83", "could not be read"),
        (codec.encode([[], None, b""]), "root: is not a list of four"),
        (codec.encode([[2, [b"k" * 32, b"l" * 32], 0, []], None, 5]), "could not be read"),
        (codec.encode([[2, [b"k" * 32, b"l" * 32], 2, []], None, b""]), "issuer"),
        (codec.encode([[3, [b"k" * 32, b"l" * 32], 0, []], None, b""]), "threshold"),
        (codec.encode([[1, [bytes([n] * 32) for n in range(10)], 0, []], None, b""]), "10 keys"),
        (codec.encode([[1, [b"l" * 32, b"k" * 32], 0, []], None, b""]), "in the form"),
        (codec.encode([[1, [b"k" * 32, b"l" * 32], 0, []], [], b""]), "renewal: is not a list"),
    ],
)
def test_what_is_no_such_grant_is_refused(grant: bytes, says: str) -> None:
    assert says in why_not(grant)


@pytest.mark.parametrize("token", [b"", b"\x12", b"\x12\x00", b"\x12\xff\xff\x01", b"\x12\x05abc"])
def test_a_token_without_a_first_block_is_signed_by_none(token: bytes) -> None:
    with pytest.raises(InvalidInput, match="in the form"):
        GrantForm(token).message(NAME)


def test_nine_keys_fit_with_all_their_signatures() -> None:
    keys = [identity(f"holder {number}") for number in range(MAX_ROOT_KEYS)]
    root = KeySet(len(keys), tuple(each.public_key for each in keys))
    grant = request_of(root, keys, (), RIGHTS).grant
    bound = bind(grant, root.root_id(), BOB)
    assert why_not(bound, root.root_id()) == ""


@settings(max_examples=40)
@given(st.data())
def test_no_altered_byte_passes(data: st.DataObject) -> None:
    grant = bytearray(WHOLE)
    at = data.draw(st.integers(0, len(grant) - 1))
    grant[at] ^= data.draw(st.integers(1, 255))
    assert why_not(bytes(grant)) != ""


WHOLE = granted(ANNA, BEN)

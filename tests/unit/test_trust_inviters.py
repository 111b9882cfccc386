"""Inviters of the charter renew grants of members: nothing wider, no longer than the root lets, and
only while the charter names them."""

from dataclasses import replace
from typing import Any

import pytest

from formation_p2p.assembly import DEFAULT_PARAMETERS
from formation_p2p.core.effects import Moment
from formation_p2p.core.errors import InvalidInput
from formation_p2p.core.identity import Identity, PeerId
from formation_p2p.core.refusals import Denied
from formation_p2p.jobs.core.job_events import TaskSucceeded
from formation_p2p.peer.core.events import AskRenewal, OfferCharter
from formation_p2p.records.core import codec
from formation_p2p.trust.core.charter import Charter
from formation_p2p.trust.core.grant_form import (
    MAX_EXPIRY_UNIX_S,
    Extension,
    GrantForm,
    Life,
    read_form,
)
from formation_p2p.trust.core.grants import Right, Rights, attenuate, bind, check, issue, read_grant
from formation_p2p.trust.core.membership import Membership
from formation_p2p.trust.core.network import Network, network_id_of
from formation_p2p.trust.core.renewal import GrantOver, extended, renewed, taken
from formation_p2p.trust.core.root_keys import KeySet
from formation_p2p.trust.core.signed_charter import SignedCharter, draft, sign
from formation_p2p.trust.core.split_root import request_of
from formation_p2p.trust.core.statements import Block
from simulations.simulator.node import SimNode
from simulations.simulator.world import EPOCH_UNIX_S, World
from tests.support.stories import at, ends, identity, job, only, peer_of

ROOT, IVAN, EVE = identity("root"), identity("ivan"), identity("eve")
KEY = ROOT.public_key
ALICE, BOB = identity("alice").peer_id, identity("bob").peer_id
EPOCH_S = int(EPOCH_UNIX_S)
LIFE_S = 900
LIFE = Life(LIFE_S, EPOCH_S + 100_000)
YEAR_S = 365 * 86_400


def charter(version: int = 1, **fields: Any) -> Charter:
    given = {"inviters": frozenset({IVAN.peer_id}), **fields}
    return Charter(
        version=version,
        network=network_id_of(KEY),
        keys=KeySet(1, (KEY,)),
        issued_unix_s=EPOCH_S,
        expires_unix_s=EPOCH_S + YEAR_S,
        **given,
    )


NAMED = charter()


def granted(life: Life | None = LIFE, peer_id: PeerId = ALICE, **limits: Any) -> bytes:
    return bind(issue(ROOT, Rights(EPOCH_S + LIFE_S, life=life, **limits)), KEY, peer_id)


def went_on(
    grant: bytes, now: Moment, by: Identity = IVAN, peer_id: PeerId = ALICE, of: Charter = NAMED
) -> bytes:
    made = extended(by, KEY, grant, peer_id, now, of)
    assert isinstance(made, bytes), made
    return made


def forged(grant: bytes, until_unix_s: int, by: Identity = IVAN, peer_id: PeerId = ALICE) -> bytes:
    """What an inviter can make who heeds none of the rules."""
    return read_form(grant).extended(by, KEY, peer_id, until_unix_s).raw


def why_not(grant: bytes, now: Moment, of: Charter | None = NAMED, peer_id: PeerId = ALICE) -> str:
    denied = check(grant, KEY, peer_id, Right.SUBMIT, now.unix_s, charter=of)
    return "" if denied is None else denied.why


LATE, OVER = at(600), at(1000)


def test_an_inviter_puts_the_end_off_and_changes_nothing_else() -> None:
    old = granted(max_priority=5)
    new = went_on(old, LATE)
    before, after = read_grant(old, KEY), read_grant(new, KEY)
    until_unix_s = EPOCH_S + 600 + LIFE_S
    assert after.rights == replace(before.rights, expires_unix_s=until_unix_s)
    assert (after.accounts, after.invitation) == (before.accounts, before.invitation)
    assert after.inviter == IVAN.peer_id
    assert why_not(new, OVER) == ""
    assert "expired" in why_not(old, OVER)
    # Again, by another one, and then by the root.
    both = charter(inviters=frozenset({IVAN.peer_id, EVE.peer_id}))
    again = went_on(new, at(1200), EVE, of=both)
    assert read_grant(again, KEY).inviter == EVE.peer_id
    assert len(again) == len(new)
    roots = renewed(ROOT, frozenset(), again, ALICE, at(1800), both)
    assert isinstance(roots, bytes)
    assert read_grant(roots, KEY).inviter is None
    assert read_grant(roots, KEY).accounts == before.accounts
    # Its holder narrows it further as he could before.
    narrower = attenuate(new, KEY, Block(max_priority=2))
    assert why_not(narrower, OVER) == ""
    assert read_grant(narrower, KEY).rights.max_priority == 2


@pytest.mark.parametrize(
    "of",
    [
        None,
        charter(inviters=frozenset()),
        charter(2, inviters=frozenset({EVE.peer_id})),
        charter(banned_keys=frozenset({IVAN.peer_id})),
        replace(NAMED, expires_unix_s=EPOCH_S + 700),
    ],
)
def test_who_is_no_inviter_of_the_charter_that_counts_renews_nothing(of: Charter | None) -> None:
    new = went_on(granted(), LATE)
    why = why_not(new, OVER, of)
    assert why.startswith("the grant expired 100 s ago; ask for a new one: the charter does not")
    # Until the root's own end it is as good as it was.
    assert why_not(new, LATE, of) == ""


def test_an_inviter_cannot_escalate() -> None:
    """The worst that a stolen key of his can make."""
    cut = attenuate(granted(), KEY, Block(expires_unix_s=EPOCH_S + 700))
    bearer = issue(ROOT, Rights(EPOCH_S + LIFE_S, life=LIFE))
    for made, why in (
        (forged(granted(), EPOCH_S + 100_001), "may not renew it until then"),
        (forged(granted(), EPOCH_S + LIFE_S), "may not renew it until then"),
        (forged(granted(life=None), EPOCH_S + 2000), "may not renew it until then"),
        (forged(cut, EPOCH_S + 2000), "may not renew it until then"),
        (forged(bearer, EPOCH_S + 2000), "for no other peer than who renewed it"),
        # What he signed of one grant, or for one peer, put beside another.
        (moved(went_on(granted(), LATE), granted()), "did not renew it"),
        (moved(forged(granted(), EPOCH_S + 2000, peer_id=BOB), granted()), "did not renew it"),
    ):
        assert why in why_not(made, LATE)
    # A whole life from now is the most: a year is none.
    assert "expired" in why_not(forged(granted(), EPOCH_S + 90_000), OVER)
    # Nor does he widen it: rights are the root's.
    narrow = granted(may=frozenset({Right.WORK}))
    assert "no right to submit" in why_not(went_on(narrow, LATE), OVER)
    # His own he has renewed by others.
    own = granted(peer_id=IVAN.peer_id)
    refused = extended(IVAN, KEY, own, IVAN.peer_id, LATE, NAMED)
    assert isinstance(refused, Denied)
    assert "for no other peer than who renewed it" in refused.why


def moved(of: bytes, to: bytes) -> bytes:
    """The extension of one grant, on another token."""
    return replace(read_form(to), extension=read_form(of).extension).raw


def test_new_keys_of_an_old_invitation_are_as_many_as_its_bound() -> None:
    """An inviter who kept a bearer grant binds it to new keys, and renews them all."""
    bearer = issue(ROOT, Rights(EPOCH_S + LIFE_S, life=LIFE, identities=2))
    membership = Membership(KEY, signed(NAMED))
    denied = []
    for number in range(4):
        peer_id = identity(f"sybil {number}").peer_id
        grant = forged(bind(bearer, KEY, peer_id), EPOCH_S + 1500, peer_id=peer_id)
        denied.append(membership.denies(grant, peer_id, None, OVER))
    assert [each is None for each in denied] == [True, True, False, False]
    assert "for 2 identities" in str(denied[2])


def signed(
    of: Charter, before: SignedCharter | None = None, root: Identity = ROOT
) -> SignedCharter:
    return sign(draft(of, KeySet(1, (root.public_key,)), before), root)


def test_who_may_be_renewed_is_as_with_the_root() -> None:
    for grant, now, why in (
        (granted(), at(100), "half of the grant's life is left"),
        (granted(), OVER, "the grant expired"),
        (granted(life=None), LATE, "given until its end alone"),
        (granted(peer_id=BOB), LATE, "another peer"),
    ):
        denied = extended(IVAN, KEY, grant, ALICE, now, NAMED)
        assert isinstance(denied, Denied)
        assert why in denied.why
    banned = charter(banned_keys=frozenset({ALICE}))
    for denied in (
        extended(IVAN, KEY, granted(), ALICE, LATE, banned),
        renewed(ROOT, frozenset(), granted(), ALICE, LATE, banned),
    ):
        assert isinstance(denied, Denied)
        assert "bans this peer" in denied.why


def test_a_member_takes_a_renewal_that_his_charter_lets_count() -> None:
    network, new = Network(KEY, (), granted()), went_on(granted(), LATE)
    own = went_on(network.grant, LATE)
    assert taken(network, own, ALICE, LATE.unix_s, NAMED) == replace(network, grant=own)
    assert (
        taken(network, own, ALICE, LATE.unix_s, None) == "it does not last longer than the old one"
    )
    refused = taken(network, new, ALICE, LATE.unix_s, NAMED)
    assert refused == "it is charged to other accounts than the old one"


def test_a_grant_of_a_split_root_goes_on_without_its_holders() -> None:
    ben = identity("ben")
    root = KeySet(2, (ROOT.public_key, ben.public_key))
    name = root.root_id()
    grant = request_of(root, (ROOT, ben), (), Rights(EPOCH_S + LIFE_S, life=LIFE), ALICE).grant
    made = extended(IVAN, name, grant, ALICE, LATE, NAMED)
    assert isinstance(made, bytes)
    assert check(made, name, ALICE, None, OVER.unix_s, charter=NAMED) is None
    assert read_form(made).cosigned == read_form(grant).cosigned


@pytest.mark.parametrize(
    "row",
    [[], [b"k" * 31, EPOCH_S, b""], [b"k" * 32, -1, b""], [b"k" * 32, 2**60, b""], [1, 2, 3], 5],
)
def test_an_extension_that_is_none_is_refused(row: object) -> None:
    with pytest.raises(InvalidInput, match="could not be read"):
        read_form(codec.encode([None, row, granted()]))


def test_a_grant_has_one_form() -> None:
    with pytest.raises(InvalidInput, match="in the form"):
        read_form(codec.encode([None, None, granted()]))
    of_none = GrantForm(granted(), extension=Extension(b"k" * 32, EPOCH_S + 2000, b"s" * 64))
    assert "did not renew it" in why_not(of_none.raw, LATE)


# -- in a small town ----------------------------------------------------------------------------


def town(*, renews: bool = True) -> tuple[World, SimNode, SimNode]:
    """The root's key is with none of the nodes. Ivan submits, alice works."""
    world = World(7, parameters=replace(DEFAULT_PARAMETERS, renews=renews))
    world.add("gate")
    ivan = world.add("ivan")
    rights = Rights(EPOCH_S + LIFE_S, life=Life(LIFE_S, MAX_EXPIRY_UNIX_S))
    alice = world.add("alice", serve=world.machine(cpu=1), rights=rights)
    world.elapse(3)
    return world, ivan, alice


def town_charter(world: World, before: SignedCharter | None = None, *who: SimNode) -> SignedCharter:
    rules = replace(
        charter(1 if before is None else before.version + 1),
        network=network_id_of(world.root.public_key),
        keys=KeySet(1, (world.root.public_key,)),
        inviters=frozenset(each.identity.peer_id for each in who),
    )
    return signed(rules, before, world.root)


def until_unix_s(node: SimNode) -> int:
    return peer_of(node).grant.expires_unix_s


@pytest.mark.at_length
def test_a_member_is_renewed_by_an_inviter_until_the_charter_drops_him() -> None:
    world, ivan, alice = town()
    first = town_charter(world, None, ivan)
    world.deliver(world.nodes["gate"], OfferCharter(first.raw))
    world.elapse(2000)
    assert until_unix_s(alice) > EPOCH_S + 2000
    assert only(alice.told, GrantOver) == []
    ivan.submit(job(1, job_id="one"))
    world.elapse(10)
    assert len(only(ends(ivan).values(), TaskSucceeded)) == 1
    # The next charter names another: what ivan renewed is over at once, everywhere.
    second = town_charter(world, first, world.nodes["gate"])
    world.deliver(world.nodes["gate"], OfferCharter(second.raw))
    world.elapse(60)
    assert peer_of(ivan).membership.version == 2
    why = peer_of(ivan).membership.denies(
        peer_of(alice).network.grant, alice.identity.peer_id, None, world.moment(ivan)
    )
    assert why is not None
    assert "does not let" in why.why
    ivan.submit(job(1, job_id="two"))
    world.elapse(30)
    assert len(only(ends(ivan).values(), TaskSucceeded)) == 1


def test_where_the_inviter_changes_in_time_another_renews_at_once() -> None:
    world, ivan, alice = town()
    first = town_charter(world, None, ivan)
    world.deliver(world.nodes["gate"], OfferCharter(first.raw))
    world.elapse(750)
    assert read_grant(peer_of(alice).network.grant, world.root.public_key).inviter == (
        ivan.identity.peer_id
    )
    gate = world.nodes["gate"]
    world.deliver(gate, OfferCharter(town_charter(world, first, gate).raw))
    world.elapse(100)
    assert read_grant(peer_of(alice).network.grant, world.root.public_key).inviter == (
        gate.identity.peer_id
    )
    world.elapse(300)
    assert only(alice.told, GrantOver) == []


def test_a_node_that_does_not_renew_answers_none() -> None:
    world, ivan, alice = town(renews=False)
    world.deliver(world.nodes["gate"], OfferCharter(town_charter(world, None, ivan).raw))
    world.elapse(700)
    world.deliver(alice, AskRenewal())
    world.elapse(30)
    assert until_unix_s(alice) == EPOCH_S + LIFE_S
    assert "no peer is known that could" in peer_of(alice).renewal.failed


@pytest.mark.at_length
def test_one_that_has_just_joined_finds_the_inviters_and_is_renewed() -> None:
    world, ivan, _ = town()
    for number in range(10):
        world.add(f"n{number}")
    names = town_charter(world, None, ivan, world.nodes["n3"])
    world.deliver(ivan, OfferCharter(names.raw))
    world.elapse(60)
    world.kill(ivan)
    rights = Rights(EPOCH_S + 100, life=Life(LIFE_S, MAX_EXPIRY_UNIX_S))
    late = world.add("late", rights=rights)
    world.elapse(0.001)  # it knows no charter yet, and no peer but the gate
    assert peer_of(late).membership.version == 0
    world.deliver(late, AskRenewal())
    world.elapse(10)
    assert until_unix_s(late) > EPOCH_S + 100
    inviter = read_grant(peer_of(late).network.grant, world.root.public_key).inviter
    assert inviter == world.nodes["n3"].identity.peer_id


def test_a_try_without_inviters_that_answer_ends() -> None:
    world, ivan, alice = town()
    world.deliver(world.nodes["gate"], OfferCharter(town_charter(world, None, ivan).raw))
    world.elapse(600)
    world.kill(ivan)
    world.deliver(alice, AskRenewal())
    world.elapse(30)
    assert until_unix_s(alice) == EPOCH_S + LIFE_S
    assert peer_of(alice).renewal.failed

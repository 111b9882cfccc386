"""Grants are renewed by the root's key alone, for members in good standing, and never widened."""

import random
from dataclasses import replace

import pytest
from biscuit_auth import Biscuit
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from formation_p2p.assembly import DEFAULT_PARAMETERS
from formation_p2p.core.effects import Contact, Moment
from formation_p2p.core.errors import InvalidInput, ProtocolViolation
from formation_p2p.core.identity import PeerId
from formation_p2p.core.refusals import Busy, Denied, Gone
from formation_p2p.jobs.core.job_events import TaskSucceeded
from formation_p2p.leases.core.back_off import BackOff, Fault
from formation_p2p.leases.core.messages import AskGrant, GrantIssued, GrantRefused, pack, parse
from formation_p2p.leases.core.session import Received, Send, Undelivered
from formation_p2p.machine.core.capability import Capability, idle
from formation_p2p.peer.core.events import AskRenewal, Issue, Tick
from formation_p2p.peer.core.renewal import (
    ANSWER_S,
    ISSUE_EVERY_S,
    LOOK_EVERY_S,
    SEARCH_S,
    Inviters,
    Issuer,
    Renewal,
)
from formation_p2p.records.core.profile import MAX_GRANT_BYTES, Profile
from formation_p2p.trust.core import grants
from formation_p2p.trust.core.admission import AdmissionController
from formation_p2p.trust.core.charter import Charter
from formation_p2p.trust.core.experience import Experience
from formation_p2p.trust.core.grant_form import MAX_EXPIRY_UNIX_S, GrantForm, Life
from formation_p2p.trust.core.grant_token import open_token
from formation_p2p.trust.core.grants import (
    MAX_PRIORITY,
    MAX_WEIGHT_MILLI,
    Right,
    Rights,
    attenuate,
    bind,
    issue,
    read_grant,
    reissue,
)
from formation_p2p.trust.core.hours import Hours, parse_hours
from formation_p2p.trust.core.membership import KEPT_S, Identities, Membership
from formation_p2p.trust.core.network import Network
from formation_p2p.trust.core.quota import Quota
from formation_p2p.trust.core.renewal import (
    GrantOver,
    GrantTaken,
    KeepGrant,
    RenewalFailed,
    renewed,
    taken,
)
from formation_p2p.trust.core.reputation import Reputation
from formation_p2p.trust.core.root_keys import KeySet
from formation_p2p.trust.core.signed_charter import draft, sign
from formation_p2p.trust.core.statements import Block, read_facts
from formation_p2p.workload.core.scope import Place
from simulations.simulator.node import SimNode
from simulations.simulator.world import EPOCH_UNIX_S, World
from tests.support.stories import (
    ALICE,
    BOB,
    MALLORY,
    NEEDS,
    at,
    ends,
    identity,
    job,
    only,
    passed,
    peer_of,
)

ROOT = identity("root")
KEY = ROOT.public_key
ALICE_ID = identity("alice").peer_id
EPOCH_S = int(EPOCH_UNIX_S)
LIFE_S = 900
FOR_EVER = Life(LIFE_S, MAX_EXPIRY_UNIX_S)
# When two thirds of a grant's life are over.
LATE = at(600)
NONE_WITHDRAWN: frozenset[str] = frozenset()


def granted(lasts_s: int = LIFE_S, life: Life | None = FOR_EVER, **limits: object) -> bytes:
    rights = replace(Rights(EPOCH_S + lasts_s, life=life), **limits)  # type: ignore[arg-type]
    return bind(issue(ROOT, rights), KEY, ALICE_ID)


def renewed_at(now: Moment, grant: bytes, withdrawn: frozenset[str] = NONE_WITHDRAWN) -> bytes:
    made = renewed(ROOT, withdrawn, grant, ALICE_ID, now)
    assert isinstance(made, bytes), made
    return made


def why_not(
    grant: bytes,
    now: Moment = LATE,
    *,
    withdrawn: frozenset[str] = NONE_WITHDRAWN,
    peer_id: PeerId = ALICE_ID,
) -> str:
    denied = renewed(ROOT, withdrawn, grant, peer_id, now)
    assert isinstance(denied, Denied)
    assert denied.right == "renew"
    return denied.why


# -- what is given ------------------------------------------------------------------------------

quotas = st.builds(
    Quota,
    st.none() | st.integers(0, 10**6),
    st.none() | st.integers(0, 10**6),
    st.none() | st.integers(0, 99),
)
some_hours = st.sampled_from([None, *map(parse_hours, ("mon-fri 18:00-08:00", "sat 10:00-12:00"))])
names = st.frozensets(st.sampled_from(("process", "python", "wasm")), min_size=1)
labels = st.frozensets(st.tuples(st.sampled_from("ab"), st.sampled_from("xy")), max_size=2)
places = st.builds(Place, cell=st.sampled_from(("", "kitchen")), org=st.just("acme"))
given_rights = st.builds(
    Rights,
    st.just(EPOCH_S + LIFE_S),
    st.frozensets(st.sampled_from(Right), min_size=1),
    st.none() | names,
    st.integers(0, MAX_PRIORITY),
    quotas,
    some_hours,
    labels,
    places,
    st.integers(0, MAX_WEIGHT_MILLI),
    st.just(FOR_EVER),
)
narrowings = st.lists(
    st.builds(
        Block,
        max_priority=st.none() | st.integers(0, MAX_PRIORITY),
        weight_milli=st.none() | st.integers(0, MAX_WEIGHT_MILLI),
        quota=quotas,
        may=st.none() | st.just(frozenset({"submit"})),
        labels=labels,
    ),
    max_size=2,
)


@settings(max_examples=40)
@given(given_rights, narrowings)
def test_whatever_was_given_and_narrowed_is_renewed_as_it_is(
    rights: Rights, narrowed: list[Block]
) -> None:
    grant = issue(ROOT, rights)
    for block in narrowed:
        grant = attenuate(grant, KEY, block)
    assume(len(grant) < MAX_GRANT_BYTES - 256)  # what it takes to bind it
    grant = bind(grant, KEY, ALICE_ID)
    old = read_grant(grant, KEY)
    if not old.rights.may:
        assert why_not(grant) == "the grant gives no right to belong"
        return
    for now in (LATE, at(1200)):
        grant = renewed_at(now, grant)
        new = read_grant(grant, KEY)
        until_unix_s = int(now.unix_s) + LIFE_S
        assert new.rights == replace(old.rights, expires_unix_s=until_unix_s)
        assert new.bound_to == ALICE_ID
        assert new.accounts == old.accounts
        assert new.invitation == old.invitation


def test_what_is_narrowed_further_after_a_renewal_has_an_account_of_its_own() -> None:
    grant = renewed_at(LATE, granted(quota=Quota(leases=5)))
    before = {each.name for each in read_grant(grant, KEY).accounts}
    narrower = attenuate(grant, KEY, Block(quota=Quota(leases=2)))
    after = read_grant(narrower, KEY)
    assert before < {each.name for each in after.accounts}
    again = renewed_at(at(1200), narrower)
    assert read_grant(again, KEY).accounts == after.accounts


def test_a_holder_cannot_name_the_lineage_of_another_grant() -> None:
    """The statement counts in the root's own block alone."""
    import biscuit_auth

    token = biscuit_auth.Biscuit.from_bytes(
        granted(), biscuit_auth.PublicKey(f"ed25519/{KEY.hex()}")
    )
    forged = token.append(biscuit_auth.BlockBuilder(f'lineage(0, "{"0" * 32}")'))
    with pytest.raises(InvalidInput, match="does not know"):
        read_grant(bytes(forged.to_bytes()), KEY)


def test_it_ends_where_the_root_said_and_no_later() -> None:
    life = Life(LIFE_S, EPOCH_S + 1000)
    grant = renewed_at(LATE, granted(life=life))
    assert read_grant(grant, KEY).rights.expires_unix_s == EPOCH_S + 1000
    assert "not renewed for longer" in why_not(grant, at(950))


@pytest.mark.parametrize(
    ("grant", "now", "why"),
    [
        (granted(life=None), LATE, "given until its end alone"),
        (granted(life=Life(LIFE_S, EPOCH_S + LIFE_S)), LATE, "not renewed for longer"),
        (granted(), at(100), "half of the grant's life is left"),
        (granted(), at(900), "the grant expired"),
        (issue(ROOT, Rights(EPOCH_S + LIFE_S, life=FOR_EVER)), LATE, "bound to no peer"),
        (b"", LATE, "no grant was shown"),
        (b"junk", LATE, "the grant is refused"),
        (
            attenuate(granted(), KEY, Block(expires_unix_s=EPOCH_S + 700)),
            LATE,
            "given until its end alone",
        ),
        (attenuate(granted(), KEY, Block(drivers=frozenset({"b"}))), LATE, ""),
    ],
)
def test_who_is_refused_hears_why(grant: bytes, now: Moment, why: str) -> None:
    if not why:
        assert renewed_at(now, grant)
    else:
        assert why in why_not(grant, now)


def test_the_grant_of_another_peer_and_one_of_another_root_are_refused() -> None:
    assert "another peer" in why_not(granted(), peer_id=BOB.peer_id)
    alien = issue(identity("another"), Rights(EPOCH_S + LIFE_S, life=FOR_EVER), ALICE_ID)
    assert "refused" in why_not(alien)


@pytest.mark.parametrize("whole", [True, False])
def test_what_was_withdrawn_is_not_renewed(whole: bool) -> None:
    grant = granted()
    name = read_grant(grant, KEY).invitation if whole else ALICE_ID
    assert "withdrawn" in why_not(grant, withdrawn=frozenset({name}))


def test_what_cannot_be_issued_is_refused() -> None:
    grant = granted()
    for driver in ("process", "python"):  # of which none is left
        grant = attenuate(grant, KEY, Block(drivers=frozenset({driver})))
    assert "name at least one" in why_not(grant)


def test_what_allows_nothing_is_not_reissued() -> None:
    nothing = attenuate(
        issue(ROOT, Rights(EPOCH_S + LIFE_S, frozenset({Right.WORK}), life=FOR_EVER), ALICE_ID),
        KEY,
        Block(may=frozenset({"submit"})),
    )
    with pytest.raises(InvalidInput, match="allows nothing"):
        reissue(ROOT, nothing, ALICE_ID, EPOCH_S + 5000)


def test_a_grant_that_would_grow_too_large_is_not_reissued() -> None:
    """What it is a renewal of is said in it, too."""
    hours = Hours(tuple((start, start + 60) for start in range(0, 12 * 120, 120)))
    labels = frozenset((f"{number}" * 63, "v" * 63) for number in range(8))
    rights = Rights(EPOCH_S + LIFE_S, hours=hours, labels=labels)
    grant = issue(ROOT, rights, ALICE_ID)
    assert read_grant(grant, KEY).rights == rights
    with pytest.raises(InvalidInput, match="bytes; at most 2048"):
        reissue(ROOT, grant, ALICE_ID, EPOCH_S + 5000)


# -- what a member takes ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("offered", "why"),
    [
        (b"junk", "it is of another network, or was altered"),
        (issue(ROOT, Rights(EPOCH_S + 5000, life=FOR_EVER), BOB.peer_id), "another peer"),
        (granted(LIFE_S - 1), "does not last longer"),
        (granted(5000, max_priority=3), "does not allow what the old one does"),
        (granted(5000), "charged to other accounts"),
    ],
)
def test_a_member_takes_nothing_but_the_same_for_longer(offered: bytes, why: str) -> None:
    network = Network(KEY, (), granted())
    refused = taken(network, offered, ALICE_ID)
    assert isinstance(refused, str)
    assert why in refused
    grant = renewed_at(LATE, network.grant)
    assert taken(network, grant, ALICE_ID) == replace(network, grant=grant)


@given(st.data())
def test_no_bytes_that_a_peer_sends_replace_a_grant(data: st.DataObject) -> None:
    """Of a real one, changed anywhere; or of anything."""
    network = Network(KEY, (), granted())
    real = renewed_at(LATE, network.grant)
    changed = bytearray(real)
    changed[data.draw(st.integers(0, len(real) - 1))] ^= data.draw(st.integers(1, 255))
    assert isinstance(taken(network, bytes(changed), ALICE_ID), str)
    frame = bytearray(pack(GrantIssued(bytes(changed))))
    frame[data.draw(st.integers(0, len(frame) - 1))] ^= data.draw(st.integers(1, 255))
    try:
        message = parse(bytes(frame))
    except ProtocolViolation:
        return
    if isinstance(message, GrantIssued) and message.grant != real:
        assert isinstance(taken(network, message.grant, ALICE_ID), str)


# -- who answers --------------------------------------------------------------------------------


def test_an_issuer_answers_a_peer_once_in_a_while_and_not_one_that_it_distrusts() -> None:
    reputation = Reputation(identity("gate").peer_id)
    issuer = Issuer(ROOT, NONE_WITHDRAWN, reputation, 100)
    grant = granted()
    assert isinstance(issuer.asked(ALICE_ID, grant, LATE), GrantIssued)
    again = issuer.asked(ALICE_ID, grant, at(600.5))
    assert isinstance(again, GrantRefused)
    assert isinstance(again.refusal, Busy)
    none = issuer.asked(ALICE_ID, b"no grant", at(600.6))
    assert isinstance(none, GrantRefused)
    assert isinstance(none.refusal, Denied)
    assert isinstance(issuer.asked(ALICE_ID, grant, at(601 + ISSUE_EVERY_S)), GrantIssued)
    reputation.note(ALICE_ID, Experience.WRONG, LATE)
    refused = issuer.asked(ALICE_ID, grant, at(800))
    assert isinstance(refused, GrantRefused)
    assert "bad experience" in str(refused.refusal)


def test_an_invitation_bound_to_many_fills_the_table_for_its_own_alone() -> None:
    reputation = Reputation(identity("gate").peer_id)
    issuer = Issuer(ROOT, NONE_WITHDRAWN, reputation, 100, max_issued=2)
    invitation = issue(ROOT, Rights(EPOCH_S + LIFE_S, life=FOR_EVER))
    for name, answer in (("1", GrantIssued), ("2", GrantIssued), ("3", GrantRefused)):
        peer_id = identity(name).peer_id
        assert isinstance(issuer.asked(peer_id, bind(invitation, KEY, peer_id), LATE), answer)
    assert isinstance(issuer.asked(ALICE_ID, granted(), LATE), GrantIssued)


# -- in a small town ----------------------------------------------------------------------------


def town(
    *, issues: bool = True, renews: bool = True, life: Life | None = FOR_EVER, seed: int = 7
) -> World:
    """The gate has the root's key where it `issues`; alice works."""
    world = World(seed, parameters=replace(DEFAULT_PARAMETERS, renews=renews))
    gate = world.add("gate")
    if issues:
        world.deliver(gate, Issue(world.root))
    rights = Rights(EPOCH_S + LIFE_S, life=life)
    world.add("alice", serve=world.machine(cpu=1), rights=rights)
    world.add("bob")
    world.elapse(3)
    return world


def until_unix_s(node: SimNode) -> int:
    return peer_of(node).grant.expires_unix_s


@pytest.mark.at_length
def test_a_member_has_its_grant_renewed_at_two_thirds_of_its_life_time_and_again() -> None:
    world = town()
    alice, bob = world.nodes["alice"], world.nodes["bob"]
    world.elapse(500)
    assert until_unix_s(alice) == EPOCH_S + LIFE_S
    world.elapse(200)
    assert LIFE_S + 500 < until_unix_s(alice) - EPOCH_S < LIFE_S + 703
    world.elapse(4000)
    assert len(only(alice.told, GrantTaken)) >= 5
    assert only(alice.told, GrantOver) == []
    bob.submit(job(1))
    world.elapse(10)
    assert len(only(ends(bob).values(), TaskSucceeded)) == 1


@pytest.mark.at_length
def test_where_it_is_turned_off_a_member_asks_for_no_new_grant() -> None:
    world = town(renews=False)
    world.elapse(1000)
    alice = world.nodes["alice"]
    assert only(alice.told, GrantOver) == [GrantOver(EPOCH_S + LIFE_S, cause="")]
    assert only(passed(world, "alice", "gate"), AskGrant) == []


@pytest.mark.at_length
@pytest.mark.parametrize("life", [None, Life(LIFE_S, EPOCH_S + LIFE_S)])
def test_one_that_is_not_to_be_renewed_is_not_asked_for(life: Life | None) -> None:
    world = town(life=life)
    world.elapse(1000)
    assert only(passed(world, "alice", "gate"), AskGrant) == []


@pytest.mark.at_length
def test_where_no_peer_has_the_key_it_is_tried_more_and_more_rarely_and_told() -> None:
    world = town(issues=False)
    alice = world.nodes["alice"]
    world.elapse(LIFE_S + 100)
    asked = only(passed(world, "alice", "gate"), AskGrant)
    failed = only(alice.told, RenewalFailed)
    assert 2 <= len(failed) <= 40
    assert len(asked) == len(failed)
    assert "no peer is known that could" in failed[-1].why
    (refused, *_) = only(passed(world, "gate", "alice"), GrantRefused)
    assert isinstance(refused.refusal, Gone)
    before = len(failed)
    world.elapse(10_000)
    assert len(only(alice.told, RenewalFailed)) <= before + 1


def test_a_try_that_an_issuer_refuses_says_why() -> None:
    world = town()
    alice, gate = world.nodes["alice"], world.nodes["gate"]
    world.deliver(gate, Issue(world.root, frozenset({alice.identity.peer_id})))
    world.elapse(800)
    failed = only(alice.told, RenewalFailed)
    assert "withdrawn" in failed[-1].why
    assert peer_of(alice).renewal.failed == failed[-1].why
    world.deliver(gate, Issue(world.root))
    world.elapse(60)
    assert len(only(alice.told, GrantTaken)) == 1
    assert peer_of(alice).renewal.failed == ""


def test_one_is_renewed_on_request_too() -> None:
    world = town(renews=False)
    alice = world.nodes["alice"]
    world.elapse(500)
    world.deliver(alice, AskRenewal())
    world.elapse(10)
    assert until_unix_s(alice) > EPOCH_S + LIFE_S
    assert peer_of(alice).renewal.tried == 1
    world.deliver(alice, AskRenewal())
    world.elapse(10)
    assert "half of the grant's life is left" in peer_of(alice).renewal.failed


def test_an_answer_that_was_not_asked_for_changes_nothing() -> None:
    world = town()
    alice = world.nodes["alice"]
    peer = peer_of(alice)
    grant = reissue(world.root, peer.network.grant, alice.identity.peer_id, EPOCH_S + 5000)
    now = at(world.now_s)
    assert peer.handle(Received(world.nodes["bob"].contact, GrantIssued(grant)), now) == []
    (asked,) = only(peer.handle(AskRenewal(), now), Send)
    assert isinstance(asked.message, AskGrant)
    other = next(n for n in world.nodes.values() if n.contact.peer_id != asked.to.peer_id)
    assert peer.handle(Received(other.contact, GrantIssued(grant)), now) == []
    assert only(peer.handle(Undelivered(other.contact.peer_id, "gone"), now), Send) == []
    (kept,) = only(peer.handle(Received(asked.to, GrantIssued(grant)), now), KeepGrant)
    assert kept.network.grant == grant


def test_a_false_answer_is_refused_and_the_next_peer_asked() -> None:
    world = town()
    alice = world.nodes["alice"]
    peer, now = peer_of(alice), at(world.now_s)
    (first,) = only(peer.handle(AskRenewal(), now), Send)
    wider = issue(world.root, Rights(EPOCH_S + 5000, life=FOR_EVER), alice.identity.peer_id)
    (second,) = only(peer.handle(Received(first.to, GrantIssued(wider)), now), Send)
    assert isinstance(second.message, AskGrant)
    assert second.to != first.to
    assert only(peer.handle(Undelivered(second.to.peer_id, "refused"), now), RenewalFailed) == []
    (failed,) = only(peer.handle(Tick(), at(now.mono_s + SEARCH_S)), RenewalFailed)
    assert failed.why == "refused"


def test_a_life_is_of_a_second_at_least() -> None:
    with pytest.raises(InvalidInput, match="life"):
        Life(0, EPOCH_S)


# -- waiting --------------------------------------------------------------------------------------


def renewal(life_s: int, known: tuple[Contact, ...] = ()) -> Renewal:
    life = Life(life_s, MAX_EXPIRY_UNIX_S)
    network = Network(KEY, (), granted(life_s, life))
    peer = peer_of(World(7).add("alice"))
    for contact in known:
        peer.dht.table.saw(contact, 0.0)
    inviters = Inviters(peer.dht, peer.membership, network.network_id)
    waiting = Renewal(ALICE_ID, network, random.Random(1), inviters, automatic=True)
    waiting.granted(network, at(0))
    return waiting


def test_a_long_wait_is_looked_at_once_an_hour_for_a_calendar_that_was_set_right() -> None:
    waiting = renewal(30 * 86_400)
    assert waiting.next_timeout() == LOOK_EVERY_S
    assert waiting.tick(at(LOOK_EVERY_S)) == []
    assert waiting.next_timeout() == 2 * LOOK_EVERY_S
    late = Moment(2 * LOOK_EVERY_S, EPOCH_S + 29 * 86_400)
    assert waiting.tick(late) == []
    (failed,) = waiting.tick(Moment(late.mono_s + SEARCH_S, late.unix_s))
    assert failed == RenewalFailed("no peer is known that could; see that a gate runs", cause="")


def test_a_peer_that_does_not_answer_is_given_up() -> None:
    waiting = renewal(LIFE_S, (BOB,))
    (asked,) = waiting.begin(at(700))
    assert asked == Send(BOB, AskGrant(waiting.network.grant), cause="")
    assert waiting.tick(at(700 + ANSWER_S - 1)) == []
    assert waiting.tick(at(700 + ANSWER_S)) == []  # inviters are looked up
    assert waiting.next_timeout() == 700 + ANSWER_S + SEARCH_S
    failed = waiting.tick(at(700 + ANSWER_S + SEARCH_S))
    assert failed == [RenewalFailed("it did not answer", cause="")]
    assert waiting.found((BOB,), at(800)) == []  # too late


def test_a_lineage_has_no_gaps() -> None:
    with pytest.raises(InvalidInput, match="lineage is missing"):
        read_facts([f'lineage(1, "{"0" * 32}")'])


def test_a_denial_stands_until_this_node_has_a_new_grant() -> None:
    back_off = BackOff(8)
    back_off.note(ALICE_ID, Denied("submit", "the grant expired"), 1, at(0))
    back_off.note(BOB.peer_id, Busy("the table of leases", 1), 1, at(0))
    back_off.renewed()
    assert back_off.fault(ALICE_ID) is None
    assert back_off.fault(BOB.peer_id) is Fault.REFUSED


# One invitation has no more identities at any node than it says.

NOW = Moment(0.0, 1_800_000_000.0)
RIGHTS = Rights(1_900_000_000, frozenset(Right), life=Life(9**9, 1_990_000_000), identities=2)
IDS = [identity(f"id{number}").peer_id for number in range(4)]


def later(seconds: float) -> Moment:
    return Moment(seconds, NOW.unix_s + seconds)


def admitted(trust: Membership, grant: bytes, peer_id: PeerId, now: Moment = NOW) -> str | None:
    denied = trust.denies_membership(bind(grant, KEY, peer_id), peer_id, now)
    return None if denied is None else denied.why


def test_a_node_has_to_do_with_no_more_identities_than_the_invitation_says() -> None:
    trust, grant = Membership(KEY), issue(ROOT, RIGHTS)
    assert [admitted(trust, grant, peer_id) for peer_id in IDS[:2]] == [None, None]
    refused = "the invitation is for 2 identities, and as many others use it; ask for another"
    assert admitted(trust, grant, IDS[2]) == refused
    # Those that were first still are, and another invitation is another matter.
    assert admitted(trust, grant, IDS[0]) is None
    assert admitted(trust, issue(ROOT, RIGHTS), IDS[2]) is None
    # Narrowing, and renewing, make it no other invitation.
    narrower = attenuate(grant, KEY, Block(max_priority=1))
    assert admitted(trust, narrower, IDS[3]) == refused
    renewed = reissue(ROOT, bind(grant, KEY, IDS[3]), IDS[3], 1_950_000_000)
    assert read_grant(renewed, KEY).rights.identities == 2
    assert admitted(trust, renewed, IDS[3]) == refused
    # One that was not seen for a day makes room.
    assert admitted(trust, grant, IDS[0], later(KEPT_S - 1)) is None
    assert admitted(trust, grant, IDS[2], later(KEPT_S)) is None
    assert admitted(trust, grant, IDS[1], later(KEPT_S)) == refused


def test_the_charter_bounds_invitations_that_say_nothing() -> None:
    trust, grant = Membership(KEY), issue(ROOT, replace(RIGHTS, identities=None))
    assert all(admitted(trust, grant, peer_id) is None for peer_id in IDS)
    keys = KeySet(1, (KEY,))
    rules = Charter(
        version=1,
        network=trust.network_id,
        keys=keys,
        issued_unix_s=int(NOW.unix_s),
        expires_unix_s=int(NOW.unix_s) + 9999,
        identities=1,
    )
    trust.adopt(sign(draft(rules, keys), ROOT).raw, NOW)
    said = [admitted(trust, grant, peer_id) for peer_id in IDS]
    assert said[0] is None
    assert all("for 1 identities" in str(each) for each in said[1:])


def test_the_charter_has_a_quota_for_grants_without_one() -> None:
    trust = Membership(KEY)
    keys = KeySet(1, (KEY,))
    rules = Charter(
        version=1,
        network=trust.network_id,
        keys=keys,
        issued_unix_s=int(NOW.unix_s),
        expires_unix_s=int(NOW.unix_s) + 9999,
        quotas=Quota(leases=1),
    )
    admission = AdmissionController(trust, {})
    plain = issue(ROOT, Rights(1_900_000_000), IDS[0])
    own = issue(ROOT, Rights(1_900_000_000, quota=Quota(leases=3)), IDS[1])

    def denied(grant: bytes, peer_id: PeerId, lease_id: str) -> str | None:
        refused = admission.denied(grant, peer_id, NEEDS, 0, NOW, another=True)
        if refused is None:
            admission.opened(lease_id, grant, 1000, 0)
        return None if refused is None else refused.why

    assert [denied(plain, IDS[0], f"a{n}") for n in range(2)] == [None, None]
    trust.adopt(sign(draft(rules, keys), ROOT).raw, NOW)
    assert denied(plain, IDS[0], "a2") == "Concurrent task limit reached: 2/1"
    assert [denied(own, IDS[1], f"b{n}") for n in range(2)] == [None, None]


def test_so_many_are_remembered_and_those_of_the_busiest_table_go_first_by_age() -> None:
    seen = Identities(max_identities=3)
    for number in range(3):
        assert seen.admits(f"invitation {number}", IDS[0], 1, 0.0)
    assert seen.admits("invitation 3", IDS[0], 1, 0.0)
    assert len(seen) == 3
    assert seen.admits("invitation 0", IDS[1], 1, 0.0)  # it was forgotten
    one = Identities(max_identities=1)
    assert all(one.admits("invitation", peer_id, 9, 0.0) for peer_id in IDS)


@pytest.mark.parametrize("most", [0, 10**6, "2"])
def test_bounds_that_are_none(most: int) -> None:
    with pytest.raises(InvalidInput):
        replace(RIGHTS, identities=most)


# Deny by default: who may work, and who may have what run.

MEMBERSHIP = Membership(ROOT.public_key)
EXPIRY = int(at(0).unix_s) + 3600
LATER = Moment(7200, at(0).unix_s + 7200)


def grant(of: Contact, *may: Right, priority: int = 100) -> bytes:
    drivers = frozenset({"process"})
    rights = Rights(EXPIRY, frozenset(may) or frozenset(Right), drivers, priority)
    return issue(ROOT, rights, of.peer_id)


def profile(of: Contact, shown: bytes) -> Profile:
    capability = Capability(1000, 2**30)
    return Profile(
        peer_id=of.peer_id,
        sequence=1,
        issued_unix_s=int(at(0).unix_s),
        expires_unix_s=EXPIRY,
        capability=capability,
        capacity=idle(capability),
        grant=shown,
    )


def test_a_worker_with_a_grant_may_work_until_it_expires() -> None:
    alice = profile(ALICE, grant(ALICE))
    assert MEMBERSHIP.denies_work(alice, at(0)) is None
    assert isinstance(MEMBERSHIP.denies_work(alice, LATER), Denied)


def test_nobody_else_may_work() -> None:
    for shown in (b"", b"\x00", grant(ALICE), grant(MALLORY, Right.SUBMIT)):
        assert isinstance(MEMBERSHIP.denies_work(profile(MALLORY, shown), at(0)), Denied)
    forged = issue(identity("another root"), Rights(EXPIRY), MALLORY.peer_id)
    assert isinstance(MEMBERSHIP.denies_work(profile(MALLORY, forged), at(0)), Denied)


def test_a_scheduler_may_have_run_what_its_grant_allows_and_no_more() -> None:
    shown = grant(BOB, priority=5)
    assert MEMBERSHIP.denies_submit(shown, BOB.peer_id, NEEDS, 5, at(0)) is None
    python = replace(NEEDS, driver="python")
    for denied in (
        MEMBERSHIP.denies_submit(shown, BOB.peer_id, NEEDS, 6, at(0)),
        MEMBERSHIP.denies_submit(shown, BOB.peer_id, python, 0, at(0)),
        MEMBERSHIP.denies_submit(shown, BOB.peer_id, NEEDS, 0, LATER),
        MEMBERSHIP.denies_submit(shown, MALLORY.peer_id, NEEDS, 0, at(0)),
        MEMBERSHIP.denies_submit(b"", BOB.peer_id, NEEDS, 0, at(0)),
        MEMBERSHIP.denies_submit(grant(BOB, Right.WORK), BOB.peer_id, NEEDS, 0, at(0)),
    ):
        assert isinstance(denied, Denied)
        assert denied.right == "submit"


def test_whoever_may_do_anything_here_belongs_and_nobody_else() -> None:
    for rights in ((Right.SUBMIT,), (Right.WORK,), tuple(Right)):
        assert MEMBERSHIP.denies_membership(grant(BOB, *rights), BOB.peer_id, at(0)) is None
    forged = issue(identity("another root"), Rights(EXPIRY), BOB.peer_id)
    for shown in (b"", b"\x00", grant(ALICE), forged):
        assert isinstance(MEMBERSHIP.denies_membership(shown, BOB.peer_id, at(0)), Denied)
    assert isinstance(MEMBERSHIP.denies_membership(grant(BOB), BOB.peer_id, LATER), Denied)


def test_what_is_no_grant_here_is_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """It costs a millisecond where it has eight blocks, and any stranger can send it."""
    read: list[bytes] = []

    def counted(form: GrantForm, root_id: bytes) -> Biscuit:
        read.append(form.raw)
        return opened(form, root_id)

    opened = open_token
    monkeypatch.setattr(grants, "open_token", counted)
    forged = issue(identity("another root"), Rights(EXPIRY), MALLORY.peer_id)
    denied = MEMBERSHIP.denies_membership(forged, MALLORY.peer_id, at(0))
    assert str(denied).startswith("not allowed to belong: the grant is refused")
    assert read == [forged]

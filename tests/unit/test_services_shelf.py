"""Specs and claims that a node keeps for others, and what may be taken from that."""

from dataclasses import replace
from typing import Any

from formation_p2p.core.effects import Contact, Moment
from formation_p2p.core.identity import Identity, PeerId
from formation_p2p.core.keyspace import Key
from formation_p2p.core.refusals import Denied
from formation_p2p.dht.core.messages import (
    GetProviders,
    ProviderQuery,
    Providers,
    PutValue,
    ShardCount,
)
from formation_p2p.dht.core.store import RecordStore
from formation_p2p.discovery.core.finder import suits
from formation_p2p.features.services.core.claim import ClaimState, SignedClaim, seal_claim
from formation_p2p.features.services.core.shelf import (
    HISTORY_S,
    MAX_BY_WORKER,
    MAX_CLAIMS,
    MAX_REPLY_BYTES,
    Catalog,
    Shelf,
    asking,
    catalog_name,
    claims_name,
    spec_name,
)
from formation_p2p.features.services.core.sight import Sight
from formation_p2p.features.services.core.spec import MAX_SERVICES
from formation_p2p.trust.core.grants import Right
from formation_p2p.trust.core.membership import Membership
from tests.support import dht_world
from tests.support.services_world import ECHO, NOW, ROOT, claim_of, granted, person, sealed

NETWORK = b"n" * 32
ALICE, BOB = person("alice"), person("bob")
CLAIMS, CATALOG = claims_name(NETWORK, "echo"), catalog_name(NETWORK)


def shelf() -> Shelf:
    trust = Membership(ROOT.public_key)
    made = Shelf(NETWORK, trust.denies_claim, trust.denies_publish)
    made.begin(NOW)
    return made


def open_shelf(max_reply_bytes: int = MAX_REPLY_BYTES, max_claims: int = 1000) -> Shelf:
    """It admits anyone."""

    def admit(grant: bytes, peer_id: PeerId, now: Moment) -> Denied | None:
        return None

    return Shelf(NETWORK, admit, admit, max_reply_bytes, max_claims)


def after(seconds: float) -> Moment:
    return Moment(NOW.mono_s + seconds, NOW.unix_s + seconds)


def signed_by(identity: Identity, now: Moment = NOW, **fields: Any) -> SignedClaim:
    return seal_claim(identity, claim_of(identity, now, **fields))


def held(kept: Shelf, name: bytes, now: Moment = NOW) -> list[bytes]:
    return [each.profile for each in kept.providers(asking(name, 64), now).providers]


# -- claims ----------------------------------------------------------------------------------------


def test_the_newest_claim_of_each_author_is_kept() -> None:
    kept, told = shelf(), list[SignedClaim]()
    kept.kept = told.append
    first = signed_by(ALICE)
    second = signed_by(ALICE, sequence=2, state=ClaimState.DRAINING)
    assert kept.keep(CLAIMS, first.raw, NOW)
    assert kept.keep(CLAIMS, first.raw, NOW)  # as it is here already
    assert kept.keep(CLAIMS, second.raw, NOW)
    assert not kept.keep(CLAIMS, first.raw, NOW)
    assert kept.keep(CLAIMS, signed_by(BOB).raw, NOW)
    assert len(held(kept, CLAIMS)) == 2
    assert [each.claim.sequence for each in told] == [1, 2, 1]
    reply = kept.providers(GetProviders(CLAIMS), after(90))
    assert reply.count == ShardCount(2, 90)


def test_a_claim_counts_under_its_own_name_and_with_a_grant_alone() -> None:
    kept = shelf()
    assert not kept.keep(claims_name(NETWORK, "other"), signed_by(ALICE).raw, NOW)
    assert not kept.keep(CLAIMS, signed_by(ALICE, grant=granted(BOB)).raw, NOW)
    only_submits = granted(ALICE, may=frozenset({Right.SUBMIT}))
    assert not kept.keep(CLAIMS, signed_by(ALICE, grant=only_submits).raw, NOW)
    assert not kept.keep(CLAIMS, b"noise", NOW)


def test_an_expired_claim_is_history_and_then_forgotten() -> None:
    kept = shelf()
    kept.keep(CLAIMS, signed_by(ALICE).raw, NOW)
    kept.expire(after(300))
    assert len(held(kept, CLAIMS, after(300))) == 1
    assert held(kept, CLAIMS, after(61 + HISTORY_S)) == []
    kept.expire(after(61 + HISTORY_S))
    assert kept.claims(CLAIMS, NOW) == []


def test_a_full_name_gives_the_place_of_what_has_expired() -> None:
    kept = open_shelf()
    people = [person(f"p{number}") for number in range(MAX_CLAIMS + 1)]
    for each in people[:-1]:
        assert kept.keep(CLAIMS, signed_by(each, grant=b"").raw, NOW)
    late = people[-1]
    assert not kept.keep(CLAIMS, signed_by(late, grant=b"").raw, NOW)
    assert kept.keep(CLAIMS, signed_by(late, after(100), grant=b"").raw, after(100))


# -- specs -----------------------------------------------------------------------------------------


def claimed(kept: Shelf, identity: Identity, service: str, now: Moment = NOW) -> bool:
    signed = signed_by(identity, now, service=service)
    return kept.keep(claims_name(NETWORK, service), signed.raw, now)


def test_a_worker_has_room_for_as_many_services_as_there_are() -> None:
    """Names of services are free: one worker filled the memory of those who keep them."""
    kept = open_shelf()
    assert all(claimed(kept, ALICE, f"s{number}") for number in range(MAX_BY_WORKER))
    assert not claimed(kept, ALICE, "one-more")
    assert claimed(kept, BOB, "one-more")
    # What is known is renewed, and what is history makes room.
    assert kept.keep(
        claims_name(NETWORK, "s0"), signed_by(ALICE, service="s0", sequence=99).raw, NOW
    )
    later = after(60 + HISTORY_S)
    kept.expire(later)
    assert claimed(kept, ALICE, "one-more", later)


def test_all_workers_together_have_room_for_so_many_claims() -> None:
    kept = open_shelf(max_claims=2)
    assert claimed(kept, ALICE, "one")
    assert claimed(kept, ALICE, "two")
    assert not claimed(kept, BOB, "one")
    later = after(60 + HISTORY_S)
    kept.expire(later)
    assert claimed(kept, BOB, "one", later)


def test_the_highest_version_of_a_spec_counts() -> None:
    kept = shelf()
    old, new = sealed(ALICE), sealed(BOB, replace(ECHO, version=2))
    assert kept.keep(CATALOG, new.raw, NOW)
    assert not kept.keep(CATALOG, old.raw, NOW)
    assert held(kept, CATALOG) == [new.raw]
    assert kept.value(spec_name(new.digest), NOW) == new.raw
    assert kept.value(spec_name(old.digest), NOW) is None
    same = [sealed(ALICE, replace(ECHO, version=3)), sealed(BOB, replace(ECHO, version=3))]
    smaller, larger = sorted(same, key=lambda each: each.digest)
    assert kept.keep(CATALOG, larger.raw, NOW)
    assert kept.keep(spec_name(smaller.digest), smaller.raw, NOW)
    assert not kept.keep(CATALOG, larger.raw, NOW)


def test_a_reader_that_knows_the_catalog_is_told_only_how_much_it_is() -> None:
    kept = shelf()
    kept.keep(CATALOG, sealed(ALICE).raw, NOW)
    same = kept.providers(asking(CATALOG, 64, Key(0), kept.catalog.hash), NOW)
    assert same == Providers((), (), ShardCount(1))
    assert kept.providers(GetProviders(CATALOG + b"x"), NOW) == Providers(())


def test_a_spec_needs_the_right_and_its_own_name() -> None:
    kept = shelf()
    no_right = granted(ALICE, may=frozenset({Right.SUBMIT, Right.WORK}))
    assert not kept.keep(CATALOG, sealed(ALICE, grant=no_right).raw, NOW)
    assert not kept.keep(spec_name(bytes(32)), sealed(ALICE).raw, NOW)
    assert not kept.keep(CATALOG, sealed(ALICE).raw, after(10**6))


def test_a_spec_outlives_the_grant_of_its_publisher() -> None:
    kept = shelf()
    signed = sealed(ALICE)
    assert kept.keep(CATALOG, signed.raw, after(90_000))
    kept.expire(after(10**5 + 1))
    assert kept.catalog.specs == {}


def test_a_catalog_has_room_for_so_many_services() -> None:
    catalog = Catalog()
    signed = sealed(ALICE, grant=b"")
    for number in range(MAX_SERVICES):
        spec = replace(ECHO, name=f"service-{number}")
        assert catalog.take(replace(signed, spec=spec, digest=bytes([number]) * 32))
    assert not catalog.take(signed)


def test_a_reply_is_cut_to_a_frame() -> None:
    kept = open_shelf(max_reply_bytes=2500)
    for number in range(8):
        kept.keep(CATALOG, sealed(ALICE, replace(ECHO, name=f"s{number}")).raw, NOW)
    reply = kept.providers(asking(CATALOG, 64), NOW)
    assert 0 < len(reply.providers) < 8
    assert reply.count == ShardCount(8)


# -- in the DHT's store ----------------------------------------------------------------------------


def test_the_store_hands_services_to_the_shelf() -> None:
    kept = shelf()
    store = RecordStore(dht_world.admit_all, lambda profile: {}, suits, shelves=[kept])
    signed, sender = sealed(ALICE), Contact(BOB.peer_id)
    assert store.keep(sender, PutValue(CATALOG, signed.raw), NOW)
    assert store.value(spec_name(signed.digest), NOW) == signed.raw
    query = ProviderQuery(Key(0), b"", 64)
    assert len(store.providers(GetProviders(CATALOG, query), NOW).providers) == 1
    store.expire(after(10**5 + 1))
    assert store.value(spec_name(signed.digest), NOW) is None


# -- what is free ----------------------------------------------------------------------------------


def sight(*claims: SignedClaim) -> Sight:
    seen = Sight()
    for each in claims:
        assert seen.take(each)
    return seen


def test_slots_without_a_live_claim_are_free() -> None:
    seen = sight(signed_by(ALICE, slot=1))
    assert not seen.take(signed_by(ALICE, slot=1))
    assert seen.free(3, NOW.unix_s, 1) == (0, 2)
    assert seen.free(1, NOW.unix_s, 1) == ()
    assert seen.free(1, NOW.unix_s + 60, 1) == (0,)
    assert seen.free(2, NOW.unix_s, 1, {ALICE.peer_id: 1}) == (0, 1)
    assert seen.free(2, NOW.unix_s, 1, {ALICE.peer_id: 0}) == (0,)
    assert seen.epoch(1) == 1
    assert seen.epoch(0) == 0


def test_while_an_older_version_runs_there_is_one_slot_more_at_a_time() -> None:
    seen = sight(signed_by(ALICE, slot=0), signed_by(BOB, slot=1))
    assert seen.free(2, NOW.unix_s, 2) == (2,)
    carol = person("carol")
    seen.take(signed_by(carol, slot=2, version=2))
    assert seen.free(2, NOW.unix_s, 2) == ()


def test_of_two_claims_of_a_slot_the_one_that_wins_has_it() -> None:
    seen = sight(signed_by(ALICE, state=ClaimState.JOINING), signed_by(BOB))
    assert seen.live(NOW.unix_s)[0].peer_id == BOB.peer_id


def test_who_expired_without_a_word_is_probed() -> None:
    later = NOW.unix_s + 60
    seen = sight(signed_by(ALICE), signed_by(BOB, state=ClaimState.GONE))
    assert seen.to_probe(0, NOW.unix_s) == []
    assert [each.peer_id for each in seen.to_probe(0, later)] == [ALICE.peer_id]
    assert seen.to_probe(0, later, {ALICE.peer_id: 1}) == []
    assert seen.to_probe(1, later) == []
    assert [each.claim.peer_id for each in seen.listed(NOW.unix_s)] == [ALICE.peer_id]
    seen.expire(later + 1)
    assert seen.claims == {}


def test_what_is_not_of_this_time_is_counted() -> None:
    kept = shelf()
    assert not kept.keep(CLAIMS, signed_by(ALICE, after(300)).raw, NOW)
    assert not kept.keep(CLAIMS, b"noise", NOW)
    assert kept.untimely == 1

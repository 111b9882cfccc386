"""An answer fits into a frame, however much the asker wants and the answering peer keeps."""

from dataclasses import replace

from formation_p2p.core.effects import Contact, Moment
from formation_p2p.core.identity import PeerId
from formation_p2p.core.keyspace import Key
from formation_p2p.core.refusals import Denied
from formation_p2p.dht.core.messages import (
    MAX_CLOSER,
    MAX_PROVIDERS,
    MAX_RECORDS,
    GetProviders,
    ProviderQuery,
    Providers,
    encode,
)
from formation_p2p.dht.core.store import RecordStore
from formation_p2p.discovery.core.finder import suits
from formation_p2p.features.services.commands.services import failed_versions
from formation_p2p.features.services.core.balancer import Replica
from formation_p2p.features.services.core.catalog import GapStatus
from formation_p2p.features.services.core.claim import ClaimState, seal_claim
from formation_p2p.features.services.core.events import ServicesRead
from formation_p2p.features.services.core.shelf import (
    MAX_CLAIMS,
    MAX_REPLY_BYTES,
    Shelf,
    asking,
    catalog_name,
    claims_name,
)
from formation_p2p.features.services.core.spec import MAX_SERVICES, Program
from formation_p2p.features.services.core.view import view_of
from formation_p2p.features.services.host.router import Listing
from formation_p2p.features.services.host.routing import listed
from formation_p2p.net.transport.frames import MAX_KAD_FRAME_BYTES
from formation_p2p.records.core.addresses import MAX_ADDRESSES
from formation_p2p.records.core.buckets import bucket_key
from formation_p2p.records.core.profile import MAX_GRANT_BYTES
from tests.support import dht_world
from tests.support.dht_messages import parse_reply
from tests.support.services_world import ECHO, NOW, claim_of, person, sealed

NETWORK = b"n" * 32
CLAIMS, CATALOG = claims_name(NETWORK, "echo"), catalog_name(NETWORK)
ALICE, BOB, CAROL = person("alice"), person("bob"), person("carol")
HOST = ".".join(["a" * 61] * 4)  # as long as a host's name may be
LARGEST = Contact(ALICE.peer_id, tuple(f"/dns4/{HOST}/tcp/{port}" for port in range(MAX_ADDRESSES)))


def open_shelf() -> Shelf:
    """It admits anyone."""

    def admit(grant: bytes, peer_id: PeerId, now: Moment) -> Denied | None:
        return None

    return Shelf(NETWORK, admit, admit)


def read_back(request: GetProviders, reply: Providers) -> Providers:
    """As the asker reads it, with as many closer peers beside it as there may be."""
    raw = encode(Providers(reply.providers, (LARGEST,) * MAX_CLOSER, reply.count))
    assert len(raw) <= MAX_KAD_FRAME_BYTES
    parsed = parse_reply(raw, request)
    assert isinstance(parsed, Providers)
    return parsed


def test_the_largest_claims_are_cut_to_what_a_frame_has_room_for() -> None:
    kept, request = open_shelf(), asking(CLAIMS, MAX_RECORDS)
    for number in range(MAX_CLAIMS):
        author = person(f"p{number}")
        claim = claim_of(author, grant=bytes(MAX_GRANT_BYTES), addresses=LARGEST.addresses[:5])
        assert kept.keep(CLAIMS, seal_claim(author, claim).raw, NOW)
    reply = read_back(request, kept.providers(request, NOW))
    assert 0 < len(reply.providers) < MAX_CLAIMS
    assert sum(len(each.profile) for each in reply.providers) <= MAX_REPLY_BYTES
    assert reply.count is not None
    assert reply.count.members == MAX_CLAIMS


def test_all_claims_of_the_usual_size_fit_though_profiles_would_not() -> None:
    kept, request = open_shelf(), asking(CLAIMS, MAX_RECORDS)
    for number in range(MAX_CLAIMS):
        author = person(f"p{number}")
        assert kept.keep(CLAIMS, seal_claim(author, claim_of(author)).raw, NOW)
    assert len(read_back(request, kept.providers(request, NOW)).providers) == MAX_CLAIMS


def test_the_largest_catalog_is_cut_and_one_of_small_specs_is_whole() -> None:
    small, large, request = open_shelf(), open_shelf(), asking(CATALOG, MAX_RECORDS)
    program = Program(argv=("serve", "x" * 2000))
    for number in range(MAX_SERVICES):
        few = replace(ECHO, name=f"s{number}")
        assert small.keep(CATALOG, sealed(ALICE, few, b"").raw, NOW)
        many = replace(few, program=program)
        assert large.keep(CATALOG, sealed(ALICE, many, b"").raw, NOW)
    assert len(read_back(request, small.providers(request, NOW)).providers) == MAX_SERVICES
    assert 0 < len(read_back(request, large.providers(request, NOW)).providers) < MAX_SERVICES


def test_who_wants_more_profiles_than_fit_gets_as_many_as_fit() -> None:
    store = RecordStore(dht_world.admit_all, dht_world.names_in_network, suits)
    anyone = bucket_key(dht_world.NETWORK, "any")
    now = Moment(1000.0, dht_world.EPOCH_UNIX_S)
    for number in range(MAX_PROVIDERS + 8):
        write = dht_world.added(dht_world.signed(f"p{number}", now), anyone)
        assert store.keep(dht_world.contact("mallory"), write, now)
    request = GetProviders(anyone, ProviderQuery(Key(0), b"", MAX_RECORDS))
    assert len(read_back(request, store.providers(request, now)).providers) == MAX_PROVIDERS


# What one read of the DHT says of services: for people, and for those who call one.

ADDRESS = "/ip4/192.0.2.1/tcp/4001"
OTHER = replace(ECHO, name="other")
READ = ServicesRead(
    1,
    (sealed(ALICE), sealed(ALICE, OTHER), sealed(ALICE, replace(ECHO, name="old", withdrawn=True))),
    tuple(
        seal_claim(
            who, claim_of(who, state=state, capacity=16, outstanding=3, addresses=(ADDRESS,))
        )
        for who, state in (
            (ALICE, ClaimState.READY),
            (BOB, ClaimState.DRAINING),
            (CAROL, ClaimState.JOINING),
            (person("dave"), ClaimState.GONE),
        )
    ),
    unknown=("other",),
    cause="a test",
)


def test_people_see_what_runs_and_what_is_missing_where_that_is_known() -> None:
    view = view_of(READ)
    assert view.catalog == (ECHO, OTHER)
    assert [each.peer_id for each in view.of("echo")] == [
        each.peer_id for each in (ALICE, BOB, CAROL)
    ]
    assert view.of("other") == ()
    ((gap),) = view.gaps
    assert (gap.service, gap.current_workers, gap.status) == ("echo", 1, GapStatus.WARNING)
    assert view.unknown == ("other",)
    assert view.was_heard


def test_callers_are_led_to_replicas_that_take_requests() -> None:
    found = listed("echo", READ)
    assert found == Listing(
        (Replica(ALICE.peer_id, 16, 3), Replica(BOB.peer_id, 16, 3, is_draining=True)),
        {each.peer_id: Contact(each.peer_id, (ADDRESS,)) for each in (ALICE, BOB)},
    )


def test_what_could_not_be_read_says_nothing() -> None:
    assert listed("other", READ) is None
    assert listed("old", READ) == Listing(is_known=False)
    assert listed("unheard-of", READ) == Listing(is_known=False)
    assert listed("unheard-of", replace(READ, heard=False)) is None
    assert listed("other", replace(READ, unknown=())) == Listing()


def test_people_are_told_which_version_did_not_become_ready() -> None:
    failing = seal_claim(ALICE, claim_of(ALICE, failed_version=2))
    [line] = failed_versions(view_of(replace(READ, claims=(failing,))))
    assert line.startswith("echo: version 2 did not become ready on ")
    assert line.endswith(", where version 1 goes on")
    assert failed_versions(view_of(READ)) == []


def test_as_many_are_wanted_as_their_claims_say() -> None:
    busy = seal_claim(ALICE, claim_of(ALICE, wanted=3))
    view = view_of(replace(READ, claims=(busy,)))
    assert (view.wanted("echo"), view.wanted("other"), view.wanted("none")) == (3, 2, 0)

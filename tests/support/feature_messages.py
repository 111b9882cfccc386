"""Messages of the work protocol as hypothesis draws them, within their bounds: those of features,
and what features say beside those of the kernel."""

from hypothesis import strategies as st

from formation_p2p.core.effects import Contact
from formation_p2p.features.gangs.core.messages import MAX_OTHERS, Enlist, ReportUsage
from formation_p2p.features.gangs.core.roster import (
    GANG_ID_CHARS,
    MAX_MEMBERS,
    OWNER,
    Member,
    Roster,
)
from formation_p2p.features.gangs.core.usage import LeaseUsage, LinkBytes
from formation_p2p.features.quotas.core.messages import (
    MAX_MILLI_S,
    AccountRows,
    AskAccount,
    AskSlice,
    SliceAnswer,
    SliceRow,
)
from formation_p2p.leases.core.messages import Offer, PlacementRequest, WorkMessage
from formation_p2p.machine.core.bounds import MAX_CPU_MILLI, MAX_MEMORY_BYTES
from formation_p2p.placement.core.round_trips import MAX_RTT_US
from formation_p2p.records.core.codec import MAX_INT
from formation_p2p.trust.core.quota import Used
from tests.support.stories import identity
from tests.support.work_messages import blobs, counts, ids, offered, requested, tuples_of

peers = st.sampled_from(("alice", "bob", "carol")).map(lambda name: identity(name).peer_id)
trips = st.tuples(st.integers(0, MAX_OTHERS - 1), st.integers(1, MAX_RTT_US))
contacts = st.builds(
    Contact,
    peers,
    st.lists(st.sampled_from(("/ip4/192.0.2.1/tcp/4001", "/ip6/::1/tcp/4001")), max_size=2).map(
        tuple
    ),
)
lease_usages = st.builds(
    LeaseUsage,
    ids,
    counts,
    st.integers(0, MAX_CPU_MILLI),
    st.integers(0, MAX_MEMORY_BYTES),
    tuples_of(st.builds(LinkBytes, st.integers(OWNER, MAX_MEMBERS - 1), counts, counts)),
)
rosters = st.builds(
    lambda gang_id, sequence, owner, members, has_network: Roster(
        gang_id, sequence, MAX_MEMBERS, owner, members, has_network
    ),
    st.text("0123456789abcdef", min_size=GANG_ID_CHARS, max_size=GANG_ID_CHARS),
    st.integers(1, MAX_INT),
    contacts,
    st.lists(
        st.builds(Member, st.integers(0, MAX_MEMBERS - 1), contacts, counts),
        max_size=3,
        unique_by=lambda member: member.rank,
    ).map(lambda members: tuple(sorted(members, key=lambda member: member.rank))),
    st.booleans(),
)
months = st.sampled_from(("2026-01", "2026-12"))
used = st.builds(Used, st.integers(0, MAX_MILLI_S), st.integers(0, MAX_MILLI_S))
messages: st.SearchStrategy[WorkMessage] = st.one_of(
    st.builds(PlacementRequest, *requested, beside=tuples_of(peers), since_ms=counts),
    st.builds(Offer, *offered, beside=tuples_of(trips)),
    st.builds(AskSlice, ids, months, counts, used, blobs, st.none() | blobs),
    st.builds(SliceAnswer, ids, months, counts, st.booleans(), used, used),
    st.builds(AskAccount, ids, months, blobs),
    st.builds(
        AccountRows, ids, months, st.booleans(), tuples_of(st.builds(SliceRow, peers, counts, used))
    ),
    st.builds(Enlist, ids, counts, st.integers(0, MAX_MEMBERS - 1), rosters),
    st.builds(ReportUsage, tuples_of(lease_usages)),
)

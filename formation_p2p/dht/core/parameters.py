"""What a node's part in the DHT is parameterised by."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class DhtParameters:
    """Each with its reason. A network works while its nodes differ in all of them but `k`."""

    # Peers in a bucket, in a reply, and nearest to a key (specification: 20).
    k: int = 20

    # Lookups. Requests in flight at once (specification: 10).
    alpha: int = 10
    # A search for records ends when so many of the peers nearest to the name have answered. Every
    # record is written to 8. The specification has beta = 3 and alpha = 10; among liars a search
    # that is wider at its end and narrower on its way finds more for the same requests, and does
    # not wait for one slow peer (docs/decisions, 6).
    beta: int = 5
    search_alpha: int = 4
    search_spare: int = 1
    # A lookup in a network of a million nodes asks about 60 peers; one that is still going at this
    # many follows liars that exist, each of which names another one nearer.
    max_asked: int = 200
    # Peers heard of and not asked. A lookup among honest peers hears of some 150; this leaves room
    # for the inventions of a dozen liars, at 20 a reply.
    max_candidates: int = 400
    # How many of those that one peer named may fail, beyond those that answered, before its word
    # counts for nothing; also how many may be in flight on its word alone. With one too few, peers
    # that have just died discredit who named them; each more costs one request for each liar met.
    credit: int = 3
    # Different places at which a peer is asked. All who know it name the same; liars may not.
    max_places: int = 4
    # Records that one search gathers: a full name's (`max_authors_per_name`), and as many again.
    max_found: int = 1024
    # Operations in flight; a worker announces in at most 32 buckets.
    max_operations: int = 256

    # Requests. One, dial included: a wide-area dial takes two round trips of at most 0.3 s (the
    # 90th percentile between PlanetLab hosts); three seconds leave room for one lost packet.
    request_timeout_s: float = 3.0
    # With an empty table the gates are asked again, ever more rarely. A gate that does not answer,
    # or whose connection broke, may have restarted: it is pinged so that it learns of this node,
    # and does not wait longer for that than people do.
    first_retry_s: float = 1.0
    last_retry_s: float = 10.0
    # Peers of before, asked where no gate answers: one that answers is enough, and of thirty
    # machines one is still there.
    max_before: int = 32
    # Members asked where no other peer is known: of those that were met last, the ones that are
    # connected; for the others a request fails at once.
    max_members: int = 128
    # Strangers pinged at once, to see whether they belong in the table.
    max_pings: int = 32

    # The routing table. In all buckets: a network of a million has 16 that are full, 320 peers;
    # more than this are ids ground near our key.
    max_peers: int = 1024
    # Those that have answered, and wait until a bucket has room: this node asks them as it does
    # those in its buckets. In a network of a thousand they are most of all there are.
    max_waiting: int = 1024
    # A peer that answered this recently is not suspected. A lookup among 10,000 meets some twenty
    # peers for which it has no room; a ping for each would double its cost. With less than the
    # time after which all peers are met again (`bucket_refresh_s`) there are a hundred times as
    # many pings.
    suspect_after_s: float = 600.0
    # Sooner where another peer answers at its host and port: a machine that was set up anew.
    contested_after_s: float = 10.0

    # Refresh. Records are kept by the peers nearest to a key, so these have to know each other.
    own_refresh_s: float = 600.0
    # At 10,000 nodes, ten minutes made refreshing 40 % of all messages
    # (docs/explanation/performance.md).
    bucket_refresh_s: float = 1800.0
    # Nodes that started together drift apart. A bucket so near to being due has its turn.
    refresh_jitter: tuple[float, float] = (0.8, 1.0)
    refresh_early: float = 0.75
    # After joining, the buckets are filled one by one.
    fill_s: float = 2.0
    # The deepest bucket that is refreshed. Below, in a network of fewer than 20 * 2**16 peers, the
    # lookup of our own key covers it. At most 15: more of a digest is not compared.
    max_refresh_depth: int = 15
    # Names tried for one bucket: twice the average for the deepest, a tenth of a second. Without
    # luck the bucket waits for its next turn.
    max_name_tries: int = 2**17

    # The records kept for others. Expired ones are dropped this often; they are never returned in
    # between.
    sweep_s: float = 30.0
    # Authors whose profiles are kept: 8,192 x 4 KiB is 32 MiB at the worst. A DHT of a million
    # workers in a dozen buckets each asks each node to keep about 150 entries, the busiest 1,200.
    max_authors: int = 8_192
    # Authors under one name. A shard splits at 32 members; sixteen times as many are there when a
    # whole network starts at once, or when keys are ground into it. Ranking them costs 0.5 ms.
    max_authors_per_name: int = 512
    # Profiles whose names are known. One comes once for each of its dozen names and, in a search,
    # once from each peer asked.
    max_checked: int = 2_048

    # Reachability. How many peers are asked. The majority counts: one alone may lie, or be
    # close by.
    voters: int = 3
    # Peers that have not answered by then do not count. A probe has less than half of it.
    round_s: float = 15.0
    # A probe's dial, with its handshake; the request for it waits this much longer than others do.
    probe_s: float = 4.0
    # Asked in one round. Where one is busy, or knows no probes, the next is asked.
    max_probe_requests: int = 9
    # Witnesses remembered: enough to outvote the peers that were asked.
    max_votes: int = 16
    # How long after a round the next one begins, by what it found. A change of addresses begins
    # one at once.
    unknown_recheck_s: float = 15.0
    client_recheck_s: float = 90.0
    server_recheck_s: float = 900.0
    # Probes for others: of one peer in a minute, as go-libp2p; and of all, where each costs 5 ms.
    max_probes_of_one: int = 3
    max_probes_of_all: int = 120
    # In flight at once: those to nowhere take all their time, and dials of ours wait.
    max_probes_in_flight: int = 8

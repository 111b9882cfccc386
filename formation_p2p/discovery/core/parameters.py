"""What announcing workers and finding them is parameterised by."""

from __future__ import annotations

from dataclasses import dataclass

from formation_p2p.dht.core.messages import MAX_NAMES, MAX_PROVIDERS
from formation_p2p.records.core.buckets import ShardParameters


@dataclass(frozen=True, slots=True, kw_only=True)
class DiscoveryParameters:
    """The defaults of `ttl_s` and `replicas` are measured (docs/explanation/performance.md,
    "Announcements").

    A worker that dies without a word is offered for at most `ttl_s`. It publishes itself again
    at `republish_s` with each of the `replicas` peers nearest to each of its names: longer than
    half the TTL costs less, and a message that is lost then leaves that one peer without it for
    a while, and the other seven with it.
    """

    ttl_s: float = 120.0
    replicas: int = 8
    # How buckets split: writers and readers of one network agree on it.
    shards: ShardParameters = ShardParameters()

    # Announcing. Republishing is spread over this part of its period, so that workers started
    # together drift apart.
    jitter: float = 0.2
    # A change of capacity by less than this share of the machine is not worth the messages...
    change_share: float = 0.1
    # ...nor is one that follows the last so soon...
    min_interval_s: float = 5.0
    # ...or that has passed by then: offers hold capacity for a moment, and tasks may be short.
    settle_s: float = 2.0
    # A worker that has moved cannot be found until it is published: changes so near to each other
    # are told at once, so long after the last profile, and so many of them within a TTL.
    move_settle_s: float = 0.5
    move_interval_s: float = 1.0
    max_quick_moves: int = 8
    # Without a peer to store it (the node is alone, or its gate is down) it is tried again so soon.
    retry_s: float = 2.0
    # A worker that has just started announces itself again so soon, then after twice as long, up
    # to the rule: its network may be starting as well, and its shards and their replicas with it.
    first_republish_s: float = 10.0
    # Writes are gathered for so long, to go out in fewer messages.
    gather_s: float = 0.25
    # The first profile waits so long for all memberships to be found: it names them.
    start_s: float = 3.0
    # Names in one message, which its receiver bounds.
    max_names: int = MAX_NAMES
    # Peers remembered to hold a profile of ours that has not expired. With 50 names at 8 peers
    # each there are 400, and those of before the last change; past this the oldest expire
    # unwithdrawn.
    max_written: int = 1_024
    # In these rounds after its start a worker looks whether others have settled in the shard above.
    look_above_rounds: tuple[int, ...] = (1, 2, 3, 5)

    # Membership. A move that others do not follow ends after so many TTLs: one worker that stands
    # still must not make its whole shard announce twice for ever.
    max_move_ttls: int = 3
    # Moves begun in one TTL: those of a shard that fills while its workers still move. All that is
    # announced is announced anew with each, and liars could call for one every five seconds.
    max_moves: int = 3

    # Finding. Searches in flight; each costs a lookup or two. A scheduler with as many waits.
    max_finds: int = 64
    # Profiles asked of each storing peer: as many as a reply may hold.
    max_providers: int = MAX_PROVIDERS
    # A search is content with so many workers. Half a shard's members are twice as many, so that
    # one shard is enough wherever most of its members suit.
    wanted: int = 8
    # Where what is free decides who is best, of so many: with more, hardly anything is gained
    # (docs/explanation/performance.md).
    wanted_roomy: int = 16
    # Lookups for one search. Two are the rule; with so many it has seen 200 workers.
    max_steps: int = 12
    # And while none with room has been found. Most of what there is to gain by looking on, at half
    # of the price of 48 (docs/explanation/performance.md).
    max_steps_to_room: int = 24
    # Other buckets tried where the first has too few that suit.
    max_buckets_tried: int = 3
    # How deep a bucket is changes when it doubles. Wrong by one, it costs a lookup and no worker.
    depth_s: float = 600.0
    # A scheduler asks for a few dozen kinds of machines.
    max_depths: int = 256
    # How long the answer of a shard serves other searches: a person's few tasks in a row. A worker
    # that leaves is named for so much longer, and its refusal or silence costs what it always does.
    answer_s: float = 3.0
    # At most 32 profiles each, most of which are shared: 8 MiB at the worst.
    max_answers: int = 64

    @property
    def republish_s(self) -> float:
        return 0.7 * self.ttl_s

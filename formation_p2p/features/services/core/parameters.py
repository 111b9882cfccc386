"""What keeping services running is parameterised by."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceParameters:
    """Times in seconds. No other peer has to agree with these, but for the `holders`."""

    # Peers that keep the claims of a service, those nearest to its name. A write counts with five
    # of them and a read with five, so that two that claim one slot do not miss each other.
    holders: int = 8
    # A peer that was lost still counts for so long where a majority is counted: a node that is cut
    # off must not take itself for all of the network.
    remembered_s: float = 600.0
    # One that did not answer is not asked again before; others of the 8 are.
    lost_s: float = 60.0

    # Claims are put there again at half their life.
    republish_s: float = 30.0
    # One older than this was not put there again: its holder may be gone, and its guardians too. It
    # is asked itself before anything follows, as after its claim has ended.
    overdue_s: float = 36.0
    # Who has a replica looks at the claims of its service so often: two that run in one slot after
    # a partition, or are too many, find that out then.
    look_s: float = 15.0
    # The first guardian asks a holder so often, the second, the third: with 42 replicas these are
    # 0.13 requests a second for each of 200 workers.
    guard_s: tuple[float, ...] = (3.5, 5.5, 7.5)
    # One that has not answered by then is asked again, while the first answer may still come: a
    # packet may be lost.
    patience_s: float = 0.75
    # After an answer that did not come, or that says nothing.
    again_s: float = 0.2
    # Unanswered in a row, with which a holder is suspected: it is asked once more after the read.
    # With two, of 15 % lost messages came 61 needless starts in 5 minutes, among 42 replicas.
    misses: int = 4
    # Guardians are chosen anew so often: nearer workers may have come. Sooner where there are fewer
    # workers than a replica has guardians.
    guardians_s: float = 300.0
    few_guardians_s: float = 60.0

    # Workers read the claims of a service so often, and so much more rarely for each worker of the
    # type that is nearer to the slot. Whatever their number, some read each slot every 4 seconds.
    read_s: float = 30.0
    read_rank_s: float = 25.0
    max_read_s: float = 3600.0
    # The first time, each one nearer makes it so much later.
    first_read_s: float = 1.0

    # A worker fills a gap so long after the one that is nearer: time for a claim to settle, and for
    # one lost message.
    rank_s: float = 3.0
    jitter_s: float = 0.5
    # Ranks past this wait no longer: the estimate of one's rank is off where few workers are idle.
    max_rank: int = 100
    # And so much later for each replica that it has, as long as there are not workers enough for
    # all; for each one beyond its share so much that others come first. But where only a few others
    # have less to do, for no longer than those take, and where none has, not at all.
    held_s: float = 1.0
    beyond_s: float = 20.0
    # A guardian waits less: where all of them are busy, others may not look for a while.
    guard_beyond_s: float = 3.0
    # A claim has reached the others by then, and who claimed at the same moment is seen.
    settle_s: float = 1.0
    # A read counts for a claim only where it has taken no longer: else who claims meanwhile, and
    # settles, is not seen. Half of that leaves the claim itself as much.
    fresh_s: float = 0.5
    # So long before its turn a worker asks the suspect again: as long as a request may take.
    probe_s: float = 3.1
    # What could not be read is tried again then; so is a claim that did not get enough votes.
    retry_s: float = 10.0
    # A service whose replica failed here is left to others for so long.
    avoid_s: float = 300.0

    # A claim says how busy its replica is. Where that has changed by so much, it is published again
    # before its time, but not within so long.
    load_step_percent: int = 20
    load_s: float = 10.0

    # More replicas than wanted, or a worker with several while another has none, must last so long
    # before anything is moved.
    surplus_s: float = 60.0
    # A newer version is started beside the old one, slot by slot. It serves when it has been ready
    # for so long; the next one begins then, and where the one before it does nothing, so much later
    # for each. Meanwhile claims are looked at so often.
    min_healthy_s: float = 10.0
    turn_s: float = 8.0
    update_look_s: float = 3.0
    # What a program may take to be started at all: images and packages come first.
    prepare_s: float = 900.0
    # Where no machine that runs it has room for both, others take it on from then on; and where no
    # other does, who has the old one stops it after so long, one after the other.
    surge_s: float = 45.0
    update_s: float = 60.0

    # The catalog is read so often, and in a larger network so much more rarely: its 8 holders have
    # two requests a second at most, among 10,000.
    catalog_s: float = 30.0
    catalog_node_s: float = 0.06
    max_catalog_s: float = 600.0
    # Where no peer answers; and for so long after the start, where there is no service yet.
    catalog_retry_s: float = 5.0
    young_s: float = 60.0
    # How many workers of a type there are is estimated anew so often.
    count_s: float = 600.0

    # Those who claim to be ready are asked for a person at most so often.
    sure_s: float = 10.0
    # A person's question: how many of the holders are asked, and how many have to answer.
    read_width: int = 3
    # Claims in one answer: more than a service has.
    max_claims: int = 64
    # Questions at once; each asks for at most all services.
    max_queries: int = 64

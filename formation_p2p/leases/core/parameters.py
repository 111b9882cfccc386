"""What the two sides of a lease go by."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LeaseParameters:
    # How long a scheduler waits for a better offer once there is one.
    deliberation_s: float = 0.5
    # How long it waits for any answer at all: a dial of two slow round trips, and a retry.
    answer_s: float = 3.0
    # A soft hold: longer than the deliberation and a slow round trip, short enough that a scheduler
    # which vanishes takes nothing out of use.
    hold_s: float = 1.5
    # The longest hold a scheduler believes in. A worker that holds capacity for longer than a lease
    # lives, for a stranger that has not even said yes, has its units wrong, and perhaps others too.
    max_hold_s: float = 10.0

    # A lease lives this long after a commit or a renewal.
    lease_s: float = 10.0
    # Its owner renews it at this part of its life,
    renew_at: float = 2 / 3
    # and again this long after an unanswered renewal.
    renew_again_s: float = 1.0
    # A longer grant counts for this long: its worker answers a renewal by then, or is lost.
    max_lease_s: float = 30.0
    # What ran under a lease is usually gone after this long; asking again sooner is for nothing.
    fencing_s: float = 0.5
    # A lease under which nothing runs ends for others after so long: longer than its owner takes to
    # send what comes next, between continents too.
    keep_idle_s: float = 0.5

    # What runs where a lease gives way gets so long to save what it has, and ends: several steps of
    # what saves often, and less than its successor waits for the renewal.
    notice_s: float = 5.0
    # Beyond that, for the last checkpoint to be fetched.
    saving_s: float = 5.0

    # Attempts that one lease may have in flight. A warm interpreter does some 10,000 calls of
    # nothing a second, so that these last for 50 ms: longer than a round trip between continents
    # takes to come half way, and than a scheduler takes to answer a batch of results.
    window: int = 512
    # A machine of 256 cores under leases of a quarter core each.
    max_leases: int = 1024
    # Offers that one owner may hold open; past it a flood of requests would take the machine.
    max_offers_per_owner: int = 16

    # Offers open to all bearers of one invitation, but for those that committed lately: a quarter
    # of the table. Any number of ids can be made of one invitation.
    max_offers_per_invitation: int = 256
    # Capacity is kept for an owner until it has had so many machine-seconds for nothing, as a whole
    # machine for two rounds that were lost; from then on it is offered, and not kept.
    idle_s: float = 1.0
    # It is refused from here on, until less is left: the machine would be asked for nothing.
    back_off_idle_s: float = 6.0
    # No more is counted, so that all is forgotten in ten minutes.
    max_idle_s: float = 61.0
    # Forgotten, each second: the share of a machine that one owner can have for nothing.
    idle_share: float = 0.1
    # A commit says for so long that its owner means it.
    proved_s: float = 600.0
    # Owners, invitations, and owners that committed: as many as there are leases.
    max_standings: int = 1024

    # A gang may have sought elsewhere for so long before it asks a worker, and clocks differ: what
    # its ticket says beyond that is not believed,
    ticket_slack_s: float = 5.0
    # and past this all are alike, so that to ask for ever gains no more.
    max_seniority_s: float = 60.0
    # A ticket that is not shown again is kept in mind for so long: longer than the longest back-off
    # of a gang.
    ticket_s: float = 30.0
    # As many gangs of one owner as offers that it may hold.
    max_tickets_per_owner: int = 16

    # How long a request for what work of lower priority holds is kept in mind: a lease comes up for
    # renewal within 7 s, and what ran under it takes a few more to end.
    want_s: float = 10.0
    # Among equals a lease is safe for so long, and its owner keeps what it has until it is ahead by
    # as much use: a few seconds of setting up and ending cost little of it.
    slice_s: float = 60.0
    # What runs when a lease gives way to an equal may end within this time; then it is placed anew.
    give_way_s: float = 30.0
    # An owner whose tasks were cut off so has a slice of twice the length, at most so many times: a
    # task of any length, up to 17 hours, comes to its end once.
    max_doublings: int = 10
    # Of what an owner is ahead of an equal that holds the machine, no more counts than so many
    # machine-seconds: ten slices.
    max_lead_s: float = 600.0
    # Priority rises by one each time that a request has waited for so long.
    age_s: float = 60.0
    # A scheduler that waits asks again within 30 s (back_off.py); it is not waiting past that.
    waits_s: float = 45.0
    # One that waits for its turn asks again after as long as it has waited, or half of what is left
    # if that is less, and not rarer or oftener than so.
    ask_turn_s: float = 10.0
    ask_turn_soon_s: float = 0.8
    # Kinds of work that one owner waits with.
    max_waits_per_owner: int = 16
    # Each is looked at whenever a lease is asked for or renewed. Schedulers that want more of the
    # machine than this at once get it one after the other.
    max_wants: int = 16


LEASE_DEFAULTS = LeaseParameters()

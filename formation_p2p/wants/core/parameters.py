"""What wants are bounded by."""

from __future__ import annotations

from dataclasses import dataclass

from formation_p2p.wants.core.want import WANT_TTL_S


@dataclass(frozen=True, slots=True, kw_only=True)
class AnnounceParameters:
    # Peers that a want is spread to first. Those know, of a hundred workers each, who has announced
    # room; each costs a message.
    first_reach: int = 64
    # ...and where no offer came: with 300, a free worker of a network with 1 % free is among them
    # in 19 of 20 cases, whatever is announced.
    reach: int = 300
    # Offers that a scheduler would like for each place.
    answers: int = 3
    # ...and with how many it is content: the others may be far, or lost on the way.
    enough: int = 2
    # Workers that answer on average, so that these are there early.
    answers_aimed_at: int = 6
    # Where a peer knows few workers with room, this share of the others is taken to know one too:
    # so it is where one worker in 300 has room.
    know_few: float = 0.25
    # A want is spread anew after so long, while tasks wait.
    spread_again_s: float = 10.0
    # A notice is left anew after so long: most of a want's life.
    leave_again_s: float = WANT_TTL_S - 10.0

    # All that follows is per window.
    window_s: float = 10.0
    # Wants of one scheduler that a peer passes on, and keeps: it spreads one in that time for each
    # kind of task.
    max_of_author: int = 4
    # ...and of all bearers of one invitation: any number of ids can be made of one.
    max_of_invitation: int = 32
    # Messages with wants that are looked at, from one peer: a relay passes on those of others...
    max_from_peer: int = 64
    # ...and so many that count for nothing: peers pass on what they have checked themselves. Ids
    # cost nothing, and without this four strangers would use up what is looked at from all.
    max_refused: int = 4
    # ...and from all. To check one takes 0.3 ms of CPU, or a millisecond where the grant is
    # foreign, and to look at the profiles for it another: 5 % of a core.
    max_checked: int = 256
    # Offers that a worker makes for wants. Each holds capacity for 1.5 s at most.
    max_offers: int = 64
    # Peers and invitations that are counted, each with some hundred bytes.
    max_counted: int = 4096

    # Wants seen, so that each is taken once: as many as are checked within the life of one.
    max_seen: int = 4096
    # Wants that are kept for workers that announce themselves anew: 2 MiB at the worst...
    max_kept: int = 512
    # ...and those of one scheduler.
    max_kept_of_author: int = 8
    # A holder hands one on at once where so few of the workers that it knows have room: the other
    # holders may know none. Where there are more, it leaves most of them to the others.
    few: int = 2
    # Workers whose profiles are looked at for one want: 10 us each.
    max_looked_at: int = 128
    # Branches of a tree that are remembered, to take another peer where one is gone: those of the
    # last ten wants.
    max_branches: int = 128
    # A peer that cannot be reached says so within this time.
    branch_s: float = 5.0

"""What counting quotas over the network is parameterised by."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class EscrowParameters:
    """Times in seconds. No other peer has to agree with these, but for the `holders`."""

    # Peers that keep an account, those nearest to its name. A slice counts with a majority of them,
    # so that of two slices one holder at least knows both.
    holders: int = 8
    # They are looked up anew so often, and sooner once one does not answer.
    looked_up_s: float = 120.0
    look_again_s: float = 10.0

    # A slice: as much as the leases of its bearer reserve in this time...
    slice_s: float = 300.0
    # ...but no more than one of so many parts of what is left, so that the last hours are not where
    # they are not needed...
    parts: int = 16
    # ...and no less than this: the count is not to cost more than the work.
    least_s: float = 20.0
    # The next one is asked for so long before the last is used up: twice what an answer may take,
    # and a renewal, at which use is counted.
    ahead_s: float = 15.0
    # Unanswered, a request is sent again, until it is given up.
    again_s: float = 1.0
    answer_s: float = 4.0
    # In which a smaller slice is asked for, where the whole of it was refused.
    tries: int = 4
    # What is unused is given back so long after the last lease: jobs follow each other.
    give_back_s: float = 20.0
    # Where the account is used up, or its holders do not answer, they are asked again.
    spent_s: float = 60.0
    alone_s: float = 30.0
    # Accounts that one worker asks for. Of more, those without leases are forgotten; leases have a
    # bound of their own.
    max_asked_for: int = 512

    # A holder's tables: accounts, those of one invitation, and rows of all accounts, at 300 bytes
    # each. What is forgotten is learnt from the other holders.
    max_accounts: int = 4096
    max_of_invitation: int = 64
    max_rows: int = 65_536
    # Bearers whose vouchers one worker has shown lately.
    max_bearers: int = 64
    # A new holder waits so long for what the others know, and workers with it: so many at most.
    learn_s: float = 2.0
    max_waiting: int = 256
    # An account in use is looked at with the others so often.
    learn_again_s: float = 20.0
    # Requests of one peer, with grants of one invitation, and of all, at 0.2 ms each, in a window;
    # and how many peers and invitations are counted. Whoever has a copy of a grant can ask with it.
    window_s: float = 10.0
    max_from_peer: int = 128
    max_from_invitation: int = 1024
    max_from_all: int = 4096
    max_counted: int = 4096

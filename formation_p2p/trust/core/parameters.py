"""What trust, and the admission of others' work, is parameterised by."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class TrustParameters:
    """Each node has its own. What experience counts is not among them: it is in kept records
    (`experience.py`)."""

    # Below this score a peer's work is refused. A stranger with the worst opinions alone has 300.
    submit_milli: int = 100
    # Good experiences, and bad ones, that a stranger is taken to have been. With three, five errors
    # in a row put one below the gate for workers (300). That befalls one in a hundred of machines
    # that bring 65 results of 100, and one in fifty thousand of those that bring 88.
    prior: int = 3
    # What all voices together count for, in experiences of one's own.
    gossip_weight: int = 4
    # What is left of a statement with each hop. There is one: from the peer that this node asks.
    attenuation_milli: int = 500
    # Peers that are remembered, of 300 bytes each.
    max_peers: int = 10_000
    # Voices that are listened to, the strongest: more would add nothing, since all together are
    # held to `gossip_weight`.
    max_voices: int = 64
    # An attestation is signed anew this often.
    attest_every_s: int = 600

    # Quota accounts of all months, at 200 bytes each. Anyone can narrow a grant into more; of too
    # many, those go that have used least, so that getting rid of one costs as much as it has used,
    # many times over.
    max_accounts: int = 16_384
    # Of too many months, those charged longest ago go first, whatever their names. So a clock may
    # be wrong, forward and back, a dozen times until it is set right: no quota is renewed by that.
    max_months: int = 13
    # A submitter with as many leases as its quota allows is worth asking again when one of them may
    # have ended.
    room_ms: int = 1000
    # A permissive worker reports what it tolerated of a peer once in this time, and of so many
    # peers at once.
    tolerated_every_s: float = 60.0
    max_tolerated: int = 256

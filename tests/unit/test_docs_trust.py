"""docs/trust.md says what the code does: change a number, and this tells what to write there."""

from __future__ import annotations

from pathlib import Path

from formation_p2p.peer.core import reputation_gossip as hearsay
from formation_p2p.placement.core.policies import EXECUTE_MILLI
from formation_p2p.trust.core import attestation, experience
from formation_p2p.trust.core.parameters import TrustParameters
from formation_p2p.workload.core.hints import MIN_PEER_CHARS

TRUST = TrustParameters()
DOC = (Path(__file__).parents[2] / "docs" / "trust.md").read_text()


def test_the_numbers_are_those_of_the_code() -> None:
    each_way = TRUST.prior
    half_life_days = experience.HALF_LIFE_S / 86_400
    days_apart = experience.APART * half_life_days
    for row in (
        f"| a stranger is taken for | {each_way} good and {each_way} bad, so 0.5 |",
        f"all its leases within {experience.LOST_TOGETHER_S} s together |",
        f"as a person or program reports it | {experience.WRONG_WEIGHT} bad |",
        f"| remembered of one peer at most | {experience.MEMORY};",
        f"| experience counts half after | {half_life_days:g} days |",
        f"half-lives ({days_apart:g} to {days_apart + half_life_days:g} days) before or after",
        f"the last {MIN_PEER_CHARS} characters of its id",
        f"| all that others tell counts at most | {TRUST.gossip_weight} |",
        f"| peers remembered | {TRUST.max_peers};",
        f"| voices listened to | {TRUST.max_voices},",
        f"| a word holds for | {attestation.LIFE_S / 3600:g} h |",
        f"| a peer is asked for its opinions at most every | {hearsay.EVERY_S:g} s |",
        f"{hearsay.MAX_PEERS:,} peers in ten minutes",
        f"| peers that one word is about at most | {attestation.MAX_SUBJECTS} |",
        f"score = ({each_way} + good + told good) / ({2 * each_way} + good + bad",
        f"The gate `trust>={EXECUTE_MILLI / 1000:g}`",
        f"refuses requests of peers below {TRUST.submit_milli / 1000:g}.",
    ):
        assert row in DOC

"""What a command and the node of its machine tell each other."""

from __future__ import annotations

import cbor2
import pytest

from formation_p2p.core.keyspace import Key
from formation_p2p.discovery.core.trace import Trace
from formation_p2p.placement.core.decision import Decision, Discovery, Ranked
from formation_p2p.placement.core.policy import Score, Term
from formation_p2p.rpc.values import pack, unpack, unpack_as
from formation_p2p.workload.core.environment import Env
from tests.support.placement_world import profile


@pytest.mark.parametrize(
    "env", [Env(["numpy>=2"]), Env(()), Env("/requirements.txt", "3.12"), None]
)
def test_packages_may_be_listed_or_named_by_a_file(env: Env | None) -> None:
    assert unpack_as(Env | None, pack(env)) == env


def test_what_a_decision_tells_people_comes_whole() -> None:
    alice = profile("alice", price_micro=50_000)
    term = Term("price", 0.5, shown="0.05 an hour")
    ranked = Ranked(alice, 7, Score(0.5, (term,)), (Term("region", 1.0, shown="yes"),))
    names = ((alice.peer_id, "kitchen"),)
    sent = Discovery(Decision(Key(5), "cheapest", (ranked,), (), names=names), Trace(()))
    came = unpack(Discovery, cbor2.loads(cbor2.dumps(pack(sent)))).decision
    assert (came.names, came.ranked[0].score.terms[0].shown) == (names, "0.05 an hour")
    assert str(came) == str(sent.decision)

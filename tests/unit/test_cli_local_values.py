"""What a command and the node of its machine tell each other."""

from pathlib import Path

import cbor2
import pytest

from formation_p2p.core.errors import InvalidInput
from formation_p2p.core.keyspace import Key
from formation_p2p.discovery.core.trace import Trace
from formation_p2p.peer.core.effects import RejectRequest
from formation_p2p.placement.core.decision import Decision, Discovery, Ranked
from formation_p2p.placement.core.policy import Score, Term
from formation_p2p.rpc.node_socket import Method, NodeSocket
from formation_p2p.rpc.values import arguments_of, pack, unpack, unpack_as
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


def test_what_a_field_has_to_have_is_told() -> None:
    told = RejectRequest("job", "why", cause="asked for")
    assert unpack(RejectRequest, pack(told)).cause == "asked for"


class Handlers:
    async def drain(self, shell: object, service: str, grace_s: float = 1.0) -> None:
        """As a part of a node declares a method."""


def test_a_method_is_called_with_what_it_declares() -> None:
    drain = Handlers().drain
    assert arguments_of(drain, {"service": "notes"}, given=1) == {"service": "notes"}
    both = {"service": "notes", "grace_s": 3}
    assert arguments_of(drain, both, given=1) == both


@pytest.mark.parametrize(
    "question", [{}, {"service": 3}, {"service": "notes", "shell": 1}, {"grace_s": 1.0}]
)
def test_a_method_is_not_called_with_anything_else(question: dict[str, object]) -> None:
    with pytest.raises(InvalidInput):
        arguments_of(Handlers().drain, question, given=1)


def test_two_parts_of_a_node_have_no_method_of_one_name(tmp_path: Path) -> None:
    table = NodeSocket(tmp_path / "node-0.sock")
    table.enter({"drain": Method(Handlers().drain)})
    with pytest.raises(AssertionError, match="drain"):
        table.enter({"drain": lambda _: None})
    table.remove(["drain"])
    table.enter({"drain": lambda _: None})

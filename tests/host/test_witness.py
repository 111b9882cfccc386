"""What peers' identify shows: clocks that are off, and one identity in two places."""

import logging
from dataclasses import dataclass

import pytest
import trio

from formation_p2p.core.errors import Unreachable
from formation_p2p.core.identity import PeerId
from formation_p2p.machine.clock import moment
from formation_p2p.net import witness as module
from formation_p2p.net.identify import Identified
from formation_p2p.net.witness import MAX_CLOCKS, Witness
from tests.support.dht_world import person
from tests.support.stacks import Node, running
from tests.support.waiting import in_mocked_time, in_trio, until

PEERS = [person(f"peer{number}").peer_id for number in range(6)]
HOUR_S = 3600.0


@dataclass(eq=False)
class Link:
    """A connection, as far as the witness looks at it."""

    peer: PeerId
    is_closed: bool = False
    answers: bool = True

    async def round_trip(self) -> float:
        await trio.lowlevel.checkpoint()
        if not self.answers:
            raise Unreachable("it is gone")
        return 0.01


def said(ahead_s: float = 0.0, run_id: int = 1, *, is_twin: bool = False) -> Identified:
    unix_s = moment().unix_s + ahead_s
    return Identified((), frozenset(), unix_s=unix_s, run_id=run_id, is_twin=is_twin)


@pytest.mark.parametrize(
    ("aheads_s", "told"),
    [
        ([0, 50, -50, 3, 0, 0], []),
        ([], []),
        (
            [-HOUR_S + 30] * 6,
            ["this machine's clock is 59 min ahead of 6 of 6 peers; set it, as by"],
        ),
        ([7203] * 4 + [0] * 2, ["this machine's clock is 2 h behind 4 of 6 peers; set it"]),
        ([-90.9], ["this machine's clock is 90 s ahead of 1 of 1 peer; set it"]),
        (
            [HOUR_S, -200, 0, 0, 0, 0],
            [
                f"the clock of …{PEERS[1][-8:]} is 3 min behind: no node finds it as a worker",
                f"the clock of …{PEERS[0][-8:]} is 60 min ahead: no node finds it as a worker",
            ],
        ),
    ],
)
def test_clocks_are_compared(aheads_s: list[float], told: list[str]) -> None:
    witness = Witness()
    for peer, ahead_s in zip(PEERS, aheads_s, strict=False):
        witness.identified(Link(peer), said(ahead_s + 0.5))
    troubles = witness.troubles
    assert len(troubles) == len(told)
    for trouble, begins in zip(troubles, told, strict=True):
        assert trouble.startswith(begins)


def test_a_peer_that_tells_no_clock_is_left_out_and_only_so_many_are_kept() -> None:
    witness = Witness()
    witness.identified(Link(PEERS[0]), Identified((), frozenset()))
    assert list(witness.troubles) == []
    witness = Witness()
    for number in range(MAX_CLOCKS + 5):
        witness.identified(Link(PeerId(f"p{number}")), said(HOUR_S))
    assert f"behind {MAX_CLOCKS} of {MAX_CLOCKS} peers" in witness.troubles[0]


@pytest.mark.parametrize(
    ("first", "second", "is_twin"),
    [
        (Link(PEERS[0]), Link(PEERS[0]), True),
        (Link(PEERS[0], answers=False), Link(PEERS[0]), False),  # it was killed, and started again
        (Link(PEERS[0], is_closed=True), Link(PEERS[0]), False),
        (Link(PEERS[0]), Link(PEERS[1]), False),
    ],
)
@in_trio
async def test_two_runs_that_both_answer_are_two_nodes(
    first: Link, second: Link, is_twin: bool
) -> None:
    witness, looked = Witness(look_every_s=0.01), trio.Event()
    witness.identified(first, said(run_id=1))
    witness.identified(second, said(run_id=2))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(witness.run, lambda: (first, second), looked.set)
        await looked.wait()
        assert witness.is_twin(PEERS[0]) is is_twin
        assert len(witness.troubles) == is_twin
        first.is_closed = True
        assert not witness.is_twin(PEERS[0])
        assert witness.troubles == ()
        nursery.cancel_scope.cancel()


@in_trio
async def test_a_clock_that_is_set_is_told_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    witness, pushes = Witness(look_every_s=0.01), list[int]()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(witness.run, list[Link], lambda: pushes.append(witness.clock_sets))
        await until(lambda: pushes)
        assert pushes[-1] == 0
        now = moment()
        monkeypatch.setattr(module, "moment", lambda: now._replace(unix_s=now.unix_s + 60))
        await until(lambda: pushes[-1])
        assert pushes[-1] == 1
        nursery.cancel_scope.cancel()


@in_mocked_time
async def test_both_nodes_of_one_identity_are_told_and_no_more_once_one_is_gone(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "LOOK_EVERY_S", 0.05)
    caplog.set_level(logging.WARNING, "formation_p2p.trouble")
    gate = Node()
    one, copy = (Node(listen=(), seed=b"s" * 32) for _ in range(2))
    async with running(gate, one):
        assert await one.ask(gate, b"one") == b"re:one"
        async with running(copy):
            assert await copy.ask(gate, b"copy") == b"re:copy"
            await until(
                lambda: one.stack.witness.troubles and copy.stack.witness.troubles, every_s=0.5
            )
            for node in (one, copy):
                [trouble] = node.stack.witness.troubles
                assert "another node runs with the identity of this one" in trouble
                assert "formation network leave --purge" in trouble
            [seen] = gate.stack.witness.troubles
            assert one.peer_id[-8:] in seen
            assert await one.ask(gate, b"two") == b"re:two"
        await until(lambda: not one.stack.witness.troubles, every_s=0.5)
    assert "a home folder was copied" in caplog.text

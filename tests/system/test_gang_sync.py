"""A gang for a script: without `await`."""

import time
from pathlib import Path
from typing import Any

from formation_p2p import (
    GangEnded,
    GangFormed,
    Home,
    MemberJoined,
    MemberReleased,
    Part,
    Repartitioned,
    Rights,
    SyncNode,
)
from tests.support.loopback import LISTEN
from tests.support.network import MACHINE
from tests.support.waiting import HANGS_S, wait_until


def rank_of(member: Any, *_: object) -> int:
    return int(member.rank)


def add(member: Any, shared: int, samples: int) -> int:
    return shared + samples


def test_a_script_has_all_of_a_gang(tmp_path: Path) -> None:
    home = Home(tmp_path / "alice")
    home.create_network()
    with SyncNode.join(home=home.path, listen=LISTEN) as alice:
        home.add_gate(alice.addresses[0])
        alice.worker(limits=MACHINE)
        invite = home.invite(Rights(int(time.time()) + 3600))
        with SyncNode.join(invite, home=tmp_path / "bob", listen=()) as bob:
            wait_until(lambda: len(bob.workers()) == 1)
            assert len(bob.pool().members) == 1
            needs = "cpu=0.5,memory=128MiB"
            with bob.gang(2, needs=needs, arrange="strict_pack") as gang:
                assert [member.rank for member in gang.members] == [0, 1]
                assert gang.run(rank_of) == [0, 1]
                assert gang.call(1, rank_of).result(HANGS_S) == 1
                parts = [Part("a", 1), Part("b", 1)]
                assert sorted(gang.work(rank_of, parts).values()) == [0, 1]
                found = gang.partition(parts)
                gang.store.set("k", "v")
                assert gang.store.get("k") == b"v"
                assert next(gang.store.watch("k")) == b"v"
                rounds = gang.rounds(add, target=4, rounds=2, samples=2, shared=1)
                for each in rounds:
                    assert {result for found in each.results.values() for result in found} == {
                        rounds.shared + 2
                    }
                    rounds.shared += 1
                with gang.autoscale(least=1, most=2) as scaling:
                    assert scaling.ended is None
                assert gang.forward(0, 8080) > 0
                assert len(gang.pool.members) == 2
                gang.resize(1)
                assert gang.size == 1
                shrunk = gang.repartition(found)
                assert [(move.source, move.target) for move in shrunk.moves] == [(None, 0)]
                gang.resize(2)
                grown = gang.repartition(shrunk.partition)
                assert [(move.source, move.target) for move in grown.moves] == [(0, 1)]
                assert gang.measured_links().rtt_us == {(0, 1): 0, (1, 0): 0}
            assert gang.is_over
            events = list(gang.events())
            assert [type(event) for event in events] == [
                GangFormed,
                MemberReleased,
                Repartitioned,
                MemberJoined,
                Repartitioned,
                GangEnded,
            ]

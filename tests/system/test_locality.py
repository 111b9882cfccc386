"""Where tasks run, over real connections: near data, near home, and no farther than they may."""

from pathlib import Path

from formation_p2p import Denied, Limits, Node, ProcessSpec
from formation_p2p.api.task_result import TaskResult
from formation_p2p.core.refusals import OutOfScope, Unwanted
from formation_p2p.core.units import MIB
from formation_p2p.workload.core.hints import Hints
from formation_p2p.workload.core.scope import Place, Scope, ScopeShares
from tests.support.loopback import LISTEN
from tests.support.network import gate_at, sees
from tests.support.waiting import until

LIMITS = Limits(cpu_milli=1000, memory_bytes=256 * MIB)
NEEDS = "cpu=1,memory=64MiB"
TRUE = ProcessSpec(("true",))
KITCHEN = Place(cell="kitchen", org="acme")


async def one(node: Node, work: ProcessSpec, hints: Hints, scope: Scope) -> TaskResult:
    (result,) = await (await node.submit(work, needs=NEEDS, hints=hints, scope=scope))
    return result


async def test_how_far_a_worker_is_is_known_once_it_is_connected(tmp_path: Path) -> None:
    async with (
        gate_at(tmp_path) as invite,
        Node.join(invite(), home=tmp_path / "alice", listen=LISTEN) as alice,
        Node.join(invite(), home=tmp_path / "bob", listen=()) as bob,
    ):
        await alice.worker(limits=LIMITS)
        await sees(bob, 1)
        far = Hints(max_rtt_ms=60_000, required=frozenset({"rtt"}))
        done = await one(bob, TRUE, far, Scope.COMMONS)
        assert done.worker == alice.peer_id

        async def measured() -> bool:
            decision = await bob.explain(NEEDS, hints=far)
            return [term.value for each in decision.ranked for term in each.hints] == [1.0]

        await until(measured)


async def test_a_machine_works_for_the_circles_that_it_is_open_to(tmp_path: Path) -> None:
    async with (
        gate_at(tmp_path) as invite,
        Node.join(invite(place=KITCHEN), home=tmp_path / "alice", listen=LISTEN) as alice,
        Node.join(invite(place=KITCHEN), home=tmp_path / "cook", listen=()) as cook,
        Node.join(invite(), home=tmp_path / "bob", listen=()) as bob,
    ):
        await alice.worker(limits=LIMITS, shares=ScopeShares.parse(["commons=0"]))
        await sees(bob, 1)
        await sees(cook, 1)
        anywhere = await one(bob, TRUE, Hints(), Scope.COMMONS)
        why = "this machine takes no tasks of scope commons"
        assert anywhere.refusals == ((alice.peer_id, Denied("submit", why)),)
        at_home = await one(bob, TRUE, Hints(), Scope.CELL)
        assert at_home.refusals == ((alice.peer_id, OutOfScope("commons", "cell")),)
        in_the_cell = await one(cook, TRUE, Hints(), Scope.CELL)
        assert in_the_cell.worker == alice.peer_id
        elsewhere = Hints(avoid=(alice.peer_id,), required=frozenset({"avoid"}))
        nowhere = await one(cook, TRUE, elsewhere, Scope.COMMONS)
        unwanted = Unwanted("avoid", "it is one of those named")
        assert nowhere.refusals == ((alice.peer_id, unwanted),)

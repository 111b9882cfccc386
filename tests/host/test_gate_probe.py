"""What one dial of a gate tells, over real sockets."""

import os

from formation_p2p.core.identity import Identity
from formation_p2p.core.version import VERSION
from formation_p2p.machine.clock import read_clock
from formation_p2p.reach import gate_probe
from formation_p2p.reach.gate_probe import GateAnswer
from tests.support.loopback import free_port, tcp
from tests.support.stacks import Node, run, running

STRANGER = Identity.from_seed(os.urandom(32)).peer_id


async def probed(*gates: str) -> tuple[GateAnswer, ...]:
    return await gate_probe.probe_gates(gates)


async def _all_cases() -> None:
    gate = Node()
    async with running(gate):
        (address,) = gate.stack.addresses
        shut = tcp(free_port())
        well, other, gone, nonsense = await probed(
            f"{address}/p2p/{gate.peer_id}",
            f"{address}/p2p/{STRANGER}",
            f"{shut}/p2p/{gate.peer_id}",
            address,
        )
    assert (well.problem, well.version, well.seen_as) == ("", VERSION, "127.0.0.1")
    assert 0 < well.connect_s < gate_probe.PROBE_S
    assert 0 < well.handshake_s < gate_probe.PROBE_S
    assert "handshake" in other.problem or "in place of" in other.problem
    assert gone.problem == "Connection refused"
    assert nonsense.problem
    assert [each.version for each in (other, gone, nonsense)] == [None, None, None]


def test_a_gate_that_answers_and_those_that_do_not_are_told_apart() -> None:
    run(_all_cases)


def test_the_kernel_tells_how_far_its_clock_may_be_off_or_nothing() -> None:
    found = read_clock()
    assert found is None or found.max_error_s >= 0

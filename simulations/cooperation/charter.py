"""A ban, from the moment that its last signer hands it in.

`adopt_s` is when the last of all nodes goes by it, `lease_end_s` how long after its worker does the
banned member's last lease ends there, and `refused` how many of the documents that must not count
were refused by a node that had the first version: those with m-1 signatures, rolled back, expired,
forged, and signed by one key twice.
"""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any, Final

from formation_p2p.assembly import Peer
from formation_p2p.core.errors import BadRecord
from formation_p2p.core.identity import Identity
from formation_p2p.jobs.core.job import Job
from formation_p2p.machine.core.requirements import Requirements
from formation_p2p.peer.core.events import OfferCharter
from formation_p2p.trust.core.charter import Charter
from formation_p2p.trust.core.membership import Membership
from formation_p2p.trust.core.root_keys import KeySet
from formation_p2p.trust.core.signed_charter import SignedCharter, draft, read_charter, sign
from formation_p2p.workload.core.outcome import Succeeded
from formation_p2p.workload.core.work import Task
from simulations.simulator.node import SimNode
from simulations.simulator.world import EPOCH_UNIX_S, World

NODES: Final = 1000
# One in so many only submits: it hears the least.
IDLE_EACH: Final = 5
# Until all have joined, and are announced.
JOIN_S: Final = 0.05
SETTLE_S: Final = 90.0
# A ban that is not with all by then never will be.
WITHIN_S: Final = 300.0
STEP_S: Final = 0.5
YEAR_S: Final = 365 * 86_400
NEEDS: Final = Requirements(cpu_milli=1000, driver="process")
TASKS: Final = 8


class Board:
    """Three signers, of whom two make a version."""

    def __init__(self, world: World) -> None:
        self.world = world
        rng = random.Random(f"{world.seed}/board")
        self.signers = [Identity.from_seed(rng.randbytes(32)) for _ in range(3)]
        self.keys = KeySet(2, tuple(each.public_key for each in self.signers))
        self.root = KeySet(1, (world.root.public_key,))
        self.network = Membership(world.root.public_key).network_id

    def rules(self, version: int, **fields: Any) -> Charter:
        issued = int(EPOCH_UNIX_S + self.world.now_s)
        given = {"issued_unix_s": issued, "expires_unix_s": issued + YEAR_S, **fields}
        return Charter(version=version, network=self.network, keys=self.keys, **given)

    def signed(self, rules: Charter, before: SignedCharter | None, *by: Identity) -> SignedCharter:
        made = draft(rules, self.root, before)
        for key in by:
            made = sign(made, key)
        return made

    def first(self) -> SignedCharter:
        return self.signed(self.rules(1), None, self.world.root, *self.signers[:2])

    def refusable(self, first: SignedCharter, second: SignedCharter) -> dict[str, bytes]:
        """Documents that a node that goes by the `first` version must not take."""
        anna, ben, cleo = self.signers
        stranger = Identity.from_seed(bytes(32))
        issued = int(EPOCH_UNIX_S + self.world.now_s)
        over = self.rules(2, issued_unix_s=issued - 9, expires_unix_s=issued - 1)
        wrong = sign(replace(second, signatures=()), stranger)
        twice = replace(second, signatures=(second.signatures[0], second.signatures[0]))
        return {
            "m-1": self.signed(self.rules(2), first, anna).raw,
            "expired": self.signed(over, first, anna, ben).raw,
            # With what it says changed after it was signed.
            "forged": replace(second, body=self.signed(self.rules(2), first).body).raw,
            "stranger": wrong.raw,
            "twice": twice.raw,
            "another network": self.signed(
                replace(self.rules(2), network=bytes(32)), first, anna, cleo
            ).raw,
        }


def _peer(node: SimNode) -> Peer:
    assert isinstance(node.peer, Peer)
    return node.peer


def run(seed: int, nodes: int = NODES) -> dict[str, object]:
    world = World(seed, lambda running: (3600.0, Succeeded(b"")), lean=True)
    world.max_steps = 100_000_000
    rng = random.Random(f"{seed}/charter")
    gate = world.add("gate")
    world.elapse(1.0)
    for number in range(1, nodes):
        serve = None if number % IDLE_EACH == 0 else world.machine(cpu=2)
        gates = [gate, rng.choice(world.numbered)]
        world.add(f"n{number}", serve=serve, gates=gates)
        world.elapse(JOIN_S)
    world.elapse(SETTLE_S)
    board = Board(world)
    first = board.first()
    world.deliver(gate, OfferCharter(first.raw))
    _wait(world, 1)
    bob = next(node for node in world.numbered[1:] if _peer(node).worker is None)
    bob.submit(Job("bobs", tuple(Task(f"bobs/{n}", NEEDS, b"") for n in range(TASKS))))
    world.elapse(10.0)
    busy = [node for node in world.numbered if node.running]
    banned = frozenset({bob.identity.peer_id})
    second = board.signed(board.rules(2, banned_keys=banned), first, *board.signers[1:])
    refused = _refused(board, first, second, gate, world)
    began_s = world.now_s
    world.deliver(rng.choice(world.numbered), OfferCharter(second.raw))
    adopted_s = {node.name: world.now_s for node in busy if _version(node) == 2}
    ended_s: dict[str, float] = {}
    all_s = None
    while world.now_s < began_s + WITHIN_S:
        world.elapse(STEP_S)
        for node in busy:
            if _version(node) == 2:
                adopted_s.setdefault(node.name, world.now_s)
            if not node.running:
                ended_s.setdefault(node.name, world.now_s)
        if all_s is None and all(_version(node) == 2 for node in world.numbered):
            all_s = world.now_s
        if all_s is not None and len(ended_s) == len(busy):
            break
    waits = [ended_s.get(name, WITHIN_S) - at_s for name, at_s in adopted_s.items()]
    rolled_back = _takes(_peer(gate).membership, first.raw, world, gate)
    return {
        "nodes": nodes,
        "adopt_s": None if all_s is None else round(all_s - began_s, 1),
        "lease_end_s": round(max(waits), 1) if len(ended_s) == len(busy) and busy else None,
        "leases": len(busy),
        "refused": sorted([*refused, *([] if rolled_back else ["rollback"])]),
    }


def _wait(world: World, version: int) -> None:
    until_s = world.now_s + WITHIN_S
    while world.now_s < until_s and any(_version(node) < version for node in world.numbered):
        world.elapse(STEP_S)


def _version(node: SimNode) -> int:
    return _peer(node).membership.version


def _refused(
    board: Board, first: SignedCharter, second: SignedCharter, gate: SimNode, world: World
) -> list[str]:
    """Those that a node with the first version does not take."""
    found = []
    for name, raw in board.refusable(first, second).items():
        membership = Membership(world.root.public_key, read_charter(first.raw))
        if not _takes(membership, raw, world, gate):
            found.append(name)
    return found


def _takes(membership: Membership, raw: bytes, world: World, node: SimNode) -> bool:
    try:
        membership.adopt(raw, world.moment(node))
    except BadRecord:
        return False
    return True

"""Those who mean harm to the soak's network, all in one process, until it is killed.

    python -m tests.soak.attackers GATE WORKERS INVITE SEED

GATE and WORKERS are multiaddrs with peer ids, the latter parted by commas. A squatter and a fuzzer
have the grant of the invitation; a second fuzzer and one who resets streams have none. They do not
give up when their victims die: those come back. Each is slow enough to leave an honest member the
cores of a small machine, since all of them share it here.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Awaitable, Callable, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass
from typing import Final

import trio

from formation_p2p.core.effects import Contact
from formation_p2p.core.identity import PeerId, parse_peer_id
from formation_p2p.core.units import MIB
from formation_p2p.leases.core.messages import (
    Commit,
    Leased,
    Offer,
    PlacementRequest,
    Release,
    pack,
    parse,
)
from formation_p2p.machine.core.requirements import Requirements
from formation_p2p.net.identify import WORK_PROTOCOL
from formation_p2p.net.transport.frames import encode_frame
from formation_p2p.reach.stack import KAD_PROTOCOL
from formation_p2p.records.core.codec import Malformed
from formation_p2p.trust.core.network import parse_invite
from tests.host import mallory
from tests.soak.network import CORES, MEMORY_MIB
from tests.soak.submitter import say
from tests.support.fuzz import SMALL, junk_dispatch, kad_message, work_frame
from tests.support.rapid_resets import LOST, opens_and_resets
from tests.support.squatter import squat
from tests.support.stacks import Node, running

WHOLE: Final = Requirements(driver="process", cpu_milli=CORES * 1000, memory_bytes=MEMORY_MIB * MIB)
SQUAT_EVERY_S: Final = 0.1
RESET_EVERY_S: Final = 0.5
# To each victim in turn: so many streams on a connection, or so many frames.
FUZZ_EVERY_S: Final = 0.5
STREAMS: Final = 8
FRAMES: Final = 4


@dataclass(frozen=True)
class Victim:
    """A node at an address that it keeps when it comes back."""

    contact: Contact

    @classmethod
    def at(cls, address: str) -> Victim:
        where, _, peer = address.rpartition("/p2p/")
        return cls(Contact(parse_peer_id(peer), (where,)))

    @property
    def peer_id(self) -> PeerId:
        return self.contact.peer_id

    @property
    def port(self) -> int:
        return int(self.contact.addresses[0].rpartition("/")[2])


async def resets(victims: Sequence[Victim], rng: random.Random) -> None:
    while True:
        with suppress(*LOST, OSError):
            async with aclosing(opens_and_resets(rng.choice(victims))) as bursts:
                async for _ in bursts:
                    await trio.sleep(RESET_EVERY_S)
        await trio.sleep(RESET_EVERY_S)


async def fuzzes_without_a_grant(victims: Sequence[Victim], rng: random.Random) -> None:
    while True:
        with suppress(*LOST, OSError):
            hand = await mallory.muxed(rng.choice(victims))
            for sid in range(1, 2 * STREAMS, 2):
                protocol = rng.choice((KAD_PROTOCOL, WORK_PROTOCOL))
                frame = kad_message(rng) if protocol == KAD_PROTOCOL else work_frame(rng, b"none")
                await hand.open(sid, protocol)
                await hand.data(sid, encode_frame(frame))
            await trio.sleep(FUZZ_EVERY_S)
            await hand.pipe.close()
        await trio.sleep(FUZZ_EVERY_S)


async def fuzzes_with_a_grant(victims: Sequence[Victim], rng: random.Random, invite: str) -> None:
    """Also takes leases, and dispatches under them what is no work; gives back one in two."""
    member = Node(())
    grant = parse_invite(invite).bound_to(member.peer_id).grant
    by_lease: dict[str, Contact] = {}

    def take(frame: bytes) -> None:
        sender = member.frames[-1][0]
        member.frames.clear()
        try:
            message = parse(frame)
        except Malformed as malformed:
            say("malformed", why=str(malformed))
            return
        match message:
            case Offer(lease_id=lease_id):
                by_lease[lease_id] = sender
                member.stack.send(sender, pack(Commit(lease_id)))
            case Leased(lease_id, fence) if lease_id in by_lease:
                member.stack.send(sender, pack(junk_dispatch(rng, lease_id, fence)))
                if rng.random() < 0.5:
                    member.stack.send(sender, pack(Release(lease_id)))
                del by_lease[lease_id]
            case _:
                pass

    member.take = take
    async with running(member):
        while True:
            victim = rng.choice(victims).contact
            for _ in range(FRAMES):
                member.stack.send(victim, work_frame(rng, grant))
            member.stack.send(victim, pack(PlacementRequest(rng.getrandbits(30), SMALL, grant)))
            with suppress(*LOST, OSError):
                await member.ask(victim, kad_message(rng), timeout_s=1)
            _forget(member)
            await trio.sleep(FUZZ_EVERY_S)


async def squats(workers: Sequence[Victim], invite: str) -> None:
    member = Node(())
    member.take = lambda frame: _forget(member)
    grant = parse_invite(invite).bound_to(member.peer_id).grant
    async with running(member):
        await squat(member, [each.contact for each in workers], WHOLE, grant, SQUAT_EVERY_S)


def _forget(member: Node) -> None:
    """What a stack was told, of which a recorder keeps everything."""
    for told in (member.frames, member.requests, member.lost, member.gone, member.met):
        told.clear()


async def main(gate: str, workers: str, invite: str, seed: str) -> None:
    working = [Victim.at(address) for address in workers.split(",")]
    everybody = [Victim.at(gate), *working]
    attacks: list[Callable[[], Awaitable[None]]] = [
        lambda: squats(working, invite),
        lambda: resets(everybody, random.Random(f"resets {seed}")),
        lambda: fuzzes_without_a_grant(everybody, random.Random(f"stranger {seed}")),
        lambda: fuzzes_with_a_grant(everybody, random.Random(f"member {seed}"), invite),
    ]
    async with trio.open_nursery() as nursery:
        for attack in attacks:
            nursery.start_soon(attack)
        say("goes on")


if __name__ == "__main__":
    trio.run(main, *sys.argv[1:])

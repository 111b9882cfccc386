"""A member asks a worker for all that it has, again and again, and commits to nothing."""

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from formation_p2p import Limits, ProcessSpec
from formation_p2p.core.effects import Contact
from formation_p2p.core.identity import parse_peer_id
from formation_p2p.core.units import MIB
from formation_p2p.leases.core.messages import Offer, parse
from formation_p2p.machine.core.requirements import Requirements
from formation_p2p.trust.core.network import parse_invite
from tests.support import stacks
from tests.support.network import small_network
from tests.support.squatter import squat
from tests.support.waiting import HANGS_S, wait_until

ALL = Requirements(driver="process", cpu_milli=1000, memory_bytes=256 * MIB)
EVERY_S = 0.02


@contextmanager
def squatting(invite: str, address: str) -> Iterator[list[str]]:
    """Mallory, on a thread of her own. What it gives grows with each offer that she gets."""
    where, _, peer = address.rpartition("/p2p/")
    alice = Contact(parse_peer_id(peer), (where,))
    mallory, offers, over = stacks.Node(()), list[str](), threading.Event()
    grant = parse_invite(invite).bound_to(mallory.peer_id).grant

    def take(frame: bytes) -> None:
        if isinstance(message := parse(frame), Offer):
            offers.append(message.lease_id)

    async def story() -> None:
        mallory.take = take
        async with stacks.running(mallory):
            await squat(mallory, (alice,), ALL, grant, EVERY_S, over.is_set)

    thread = threading.Thread(target=stacks.run, args=(story, HANGS_S))
    thread.start()
    try:
        yield offers
    finally:
        over.set()
        thread.join()


async def test_an_honest_job_is_done_while_a_squatter_asks(tmp_path: Path) -> None:
    """How soon, tests/unit/test_negotiation_squatter.py says, on a virtual clock."""
    limits = Limits(cpu_milli=1000, memory_bytes=256 * MIB)
    async with small_network(tmp_path, limits=limits) as network:
        with squatting(network.invite, network.alice.addresses[0]) as offers:
            await asyncio.to_thread(wait_until, lambda: offers)
            # All is taken now, and from the second time on nothing is.
            for _ in range(2):
                job = await network.bob.submit(ProcessSpec(("true",)), needs="cpu=1,memory=256MiB")
                (done,) = await job
                assert done.status == "succeeded"

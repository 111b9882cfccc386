"""Three owners found a network, and two of them ban the third: all on this machine.

python -m examples.charter

Owners on machines of their own do the same by `formation charter init`, `ban` and `sign`.
"""

import asyncio
import tempfile
import time
from dataclasses import replace
from pathlib import Path

from formation_p2p import FormationError, Home, InvalidInput, Limits, Node, Rights
from formation_p2p.core.identity import Identity
from formation_p2p.trust.core.charter import Charter
from formation_p2p.trust.core.network import parse_invite
from formation_p2p.trust.core.root_keys import KeySet
from formation_p2p.trust.core.signed_charter import SignedCharter, draft, sign

LISTEN = ("/ip4/127.0.0.1/tcp/0",)
DAY_S = 86_400
CAN = Limits(cpu_milli=1000, memory_bytes=1 << 30, network_mbps=100)


def signed(made: SignedCharter, *by: Identity) -> SignedCharter:
    for each in by:
        made = sign(made, each)
    return made


async def refused(node: Node) -> str:
    """Why it may not run anything more, once its worker has heard of that."""
    async with asyncio.timeout(60):
        while True:
            try:
                await node.run(["true"])
            except FormationError as error:
                return str(error)


async def main(folder: Path) -> None:
    anna, ben, cleo = homes = [Home(folder / name) for name in ("anna", "ben", "cleo")]
    network, now = anna.create_network(), int(time.time())
    async with Node.join(home=anna.path, listen=LISTEN) as gate:
        anna.add_gate(gate.addresses[0])
        for home in (ben, cleo):
            home.join(parse_invite(anna.invite(Rights(now + DAY_S))))
        async with (
            Node.join(home=ben.path, listen=LISTEN) as worker,
            Node.join(home=cleo.path, listen=()) as node,
        ):
            await worker.worker(limits=CAN)
            # The root signs the first version, and from then on two of the three owners.
            a, b, c = (home.identity() for home in homes)
            (key,) = anna.root_keys()
            root = KeySet(1, (key.public_key,))
            owners = KeySet(2, (a.public_key, b.public_key, c.public_key))
            rules = Charter(
                version=1,
                network=network.network_id,
                keys=owners,
                issued_unix_s=now,
                expires_unix_s=now + DAY_S,
            )
            first = signed(draft(rules, root), key, a, b)
            await gate.offer_charter(first.raw)
            for _ in range(1200):  # a minute at most
                if await node.workers():
                    break
                await asyncio.sleep(0.05)
            done = await node.run(["true"])
            print(f"cleo's task ends with exit code {done.exit_code}")
            ban = replace(rules, version=2, banned_keys=frozenset({c.peer_id}))
            proposal = draft(ban, root, first)
            try:
                await worker.offer_charter(signed(proposal, b).raw)
            except InvalidInput as error:
                print(error.problem)
            await worker.offer_charter(signed(proposal, a, b).raw)
            print(f"cleo is out: {'bans this peer' in await refused(node)}")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as given:
        asyncio.run(main(Path(given)))

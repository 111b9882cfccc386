"""A member whom the charter names renews the grants of others, also of a home that runs no node."""

import asyncio
import time
from pathlib import Path

from formation_p2p import Node
from formation_p2p.machine.home import Home
from formation_p2p.trust.core.grant_form import MAX_EXPIRY_UNIX_S, Life
from formation_p2p.trust.core.grants import GrantTerms, Rights, read_grant
from formation_p2p.trust.core.network import parse_invite
from tests.support.loopback import LISTEN
from tests.system.test_charter import formation


async def test_an_inviter_renews_where_the_root_key_is_not_used(tmp_path: Path) -> None:
    root, bobs = Home(tmp_path / "gate"), Home(tmp_path / "bob")
    key = root.create_network().root_public_key
    async with Node.join(home=root.path, listen=LISTEN, renew=False) as gate:
        root.add_gate(gate.addresses[0])
        until_unix_s = int(time.time()) + 600  # less than half of its life is left
        invite = root.invite(Rights(until_unix_s, life=Life(3600, MAX_EXPIRY_UNIX_S)))
        others = root.invite(Rights(int(time.time()) + 3600))
        async with Node.join(others, home=tmp_path / "anna", listen=LISTEN) as anna:
            names = "charter", "init", "--inviter", anna.peer_id
            done = await asyncio.to_thread(formation, root.path, *names)
            assert done.stdout.startswith("version 1 of the charter counts; "), done.output
            await asyncio.to_thread(bobs.join, parse_invite(invite))

            def grant() -> GrantTerms:
                network = bobs.network()
                assert network is not None
                return read_grant(network.grant, key)

            renewed = await asyncio.to_thread(formation, bobs.path, "network", "renew")
            assert renewed.exit_code == 0, renewed.output
            assert grant().rights.expires_unix_s > until_unix_s
            assert grant().inviter == anna.peer_id

"""A machine that changes its network, in a network namespace of its own: run by `test_moves.py`.

Prints one line of JSON: what the node that moved told, and how soon.
"""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import trio

from formation_p2p.core.effects import Contact
from tests.support.stacks import Node, running
from tests.support.waiting import run, until

HERE, THERE = "10.1.2.3", "10.9.8.7"
HERE6, THERE6 = "2a00:1::3", "2a00:9::7"


def ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True)


async def moves() -> dict[str, Any]:
    """Of two connections, the one from the address that goes breaks at once."""
    alice, bob = Node(listen=("/ip4/0.0.0.0/tcp/0", "/ip6/::/tcp/0")), Node()
    async with running(alice, bob):
        before = alice.stack.addresses
        await bob.ask(Contact(alice.peer_id, before[:1]), b"hello")
        await alice.ask(bob, b"hello")  # over that connection
        begun_s = trio.current_time()
        ip("address", "add", f"{THERE}/24", "dev", "lo")
        ip("address", "del", f"{HERE}/24", "dev", "lo")
        ip("-6", "address", "add", f"{THERE6}/64", "dev", "lo", "nodad")
        ip("-6", "address", "del", f"{HERE6}/64", "dev", "lo")
        await until(lambda: alice.gone and bob.gone)
        broken_s = trio.current_time() - begun_s
        await until(lambda: alice.moved and THERE in str(alice.moved[-1]))
        told_s = trio.current_time() - begun_s
        await until(lambda: THERE6 in str(alice.moved[-1]) and HERE6 not in str(alice.moved[-1]))
        await bob.ask(Contact(alice.peer_id, alice.moved[-1][0][:1]), b"there?")
        return {
            "before": before,
            "after": alice.moved[-1],
            "changes": len(alice.moved),
            "broken_s": broken_s,
            "told_s": told_s,
        }


async def stays() -> dict[str, Any]:
    """One that listens at one address alone, which goes and comes back."""
    alice = Node(listen=(f"/ip4/{HERE}/tcp/0", "/ip4/127.0.0.1/tcp/0"))
    async with running(alice):
        before = alice.stack.addresses
        ip("address", "del", f"{HERE}/24", "dev", "lo")
        await until(lambda: alice.moved)
        ip("address", "add", f"{HERE}/24", "dev", "lo")
        await until(lambda: len(alice.moved) == 2)
        bob = Node()
        async with running(bob):
            await bob.ask(Contact(alice.peer_id, before[:1]), b"back?")
        return {"before": before, "moved": alice.moved}


async def without_ipv6() -> dict[str, Any]:
    """The kernel has it turned off, as some machines do."""
    await trio.run_process(["sysctl", "-qw", "net.ipv6.conf.all.disable_ipv6=1"])
    both = Node(listen=("/ip4/0.0.0.0/tcp/0", "/ip6/::/tcp/0"))
    async with running(both):
        listens = both.stack.addresses
    return {"listens": listens}


STORIES = {"moves": moves, "stays": stays, "without_ipv6": without_ipv6}


def main() -> None:
    ip("link", "set", "lo", "up")
    ip("address", "add", f"{HERE}/24", "dev", "lo")
    ip("-6", "address", "add", f"{HERE6}/64", "dev", "lo", "nodad")
    print(json.dumps(run(STORIES[sys.argv[1]])))


if __name__ == "__main__":
    main()

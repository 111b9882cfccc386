"""Lease this machine to a network of its own, made for the occasion.

    python examples/worker.py          # then paste what it prints into a second terminal

Both terminals share a home: the folder of the identity and the network, which its owner alone
can read. So there is no secret to copy. It is a new one each time, unless FORMATION_HOME names one.
"""

import os
import shlex
import signal
import sys
import time
from contextlib import ExitStack, suppress
from pathlib import Path
from tempfile import TemporaryDirectory

from formation_p2p import Home, SyncNode

# This machine alone. Leave `listen` out below to be reached by others.
LOOPBACK = "/ip4/127.0.0.1/tcp/0"


def in_second_terminal(home: Home) -> str:
    scheduler = Path(__file__).with_name("scheduler.py")
    return f"FORMATION_HOME={shlex.quote(str(home.path))} " + shlex.join(
        [sys.executable, str(scheduler)]
    )


def main() -> None:
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # as Ctrl-C: leave in good order
    with ExitStack() as until_the_end:
        folder = os.environ.get("FORMATION_HOME") or until_the_end.enter_context(
            TemporaryDirectory(prefix="formation-", ignore_cleanup_errors=True)
        )
        work(Home(Path(folder)))


def work(home: Home) -> None:
    if home.network() is None:
        home.create_network()
    with SyncNode.join(home=home.path, listen=[LOOPBACK]) as node, suppress(KeyboardInterrupt):
        home.add_gate(node.addresses[0])  # where others of this network find it
        machine = node.worker().capability
        cores, memory_gib = machine.cpu_milli / 1000, machine.memory_bytes / 2**30
        print(f"{node.peer_id} offers {cores:g} cores, {memory_gib:.1f} GiB; Ctrl-C ends it.")
        print(f"In a second terminal, run:\n\n  {in_second_terminal(home)}\n")
        print("The other examples run there as well, with the same FORMATION_HOME.", flush=True)
        while True:  # a signal that comes just before a wait is noticed after it
            time.sleep(1)


if __name__ == "__main__":
    main()

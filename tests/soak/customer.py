"""An honest member of the soak, who wants one small job done after the other, and soon.

    python -m tests.soak.customer HOME

It prints a line of JSON for each: when it began, by the system's clock since its start, and how
long it took. SIGTERM: it ends.
"""

import asyncio
import signal
import sys
import time
from pathlib import Path
from typing import Final

from formation_p2p import FormationError, Node
from tests.soak.submitter import say

NEEDS: Final = "cpu=0.1,memory=64MiB"
PAUSE_S: Final = 0.3


async def main(home: str) -> None:
    over = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, over.set)
    async with Node.join(home=Path(home), listen=()) as node:
        say("goes on")
        while not over.is_set():
            began_s = time.monotonic()
            try:
                ended = await node.run(["echo", "small"], needs=NEEDS)
            except FormationError as error:
                say("lost", job=f"at {began_s:.1f} s", why=[f"{type(error).__name__}: {error}"])
            else:
                if ended.stdout_tail != b"small\n":
                    say("wrong", job=f"at {began_s:.1f} s", name=repr(ended))
                say("small", began_s=began_s, took_s=time.monotonic() - began_s)
            try:
                await asyncio.wait_for(over.wait(), PAUSE_S)
            except TimeoutError:
                continue
    say("done")


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))

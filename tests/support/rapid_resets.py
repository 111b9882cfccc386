"""A stranger who opens streams and resets them at once."""

from collections.abc import AsyncGenerator
from functools import cache
from itertools import count

import trio

from formation_p2p.core.errors import FormationError
from formation_p2p.net.transport.errors import IOException, SwarmException
from tests.host import mallory
from tests.host.mallory import HEADER, RST, SYN, WINDOW_UPDATE

STREAMS = 2048
# What a stranger meets whose connection was ended, or was not taken.
LOST = (IOException, FormationError, SwarmException, trio.BrokenResourceError)


@cache
def opened_and_reset(number: int) -> bytes:
    """The frames of one burst on a connection; stream ids grow from burst to burst."""
    first = 2 * number * STREAMS + 1
    return b"".join(
        HEADER.pack(0, WINDOW_UPDATE, flags, first + 2 * i, 0)
        for i in range(STREAMS)
        for flags in (SYN, RST)
    )


async def opens_and_resets(victim: mallory.Victim) -> AsyncGenerator[int, None]:
    """On one connection: bursts of so many bytes, for as long as it lives. Raises one of LOST."""
    hand = await mallory.muxed(victim)
    for number in count():
        await hand.pipe.write(opened_and_reset(number))
        yield len(opened_and_reset(number))

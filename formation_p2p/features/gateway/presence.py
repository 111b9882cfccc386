"""Which of the workers that the network names are there: a profile outlives its worker by up to two
minutes."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable
from typing import TYPE_CHECKING, Final

from formation_p2p.core.effects import Contact
from formation_p2p.core.errors import FormationError
from formation_p2p.core.identity import PeerId

if TYPE_CHECKING:
    from formation_p2p.records.core.profile import Profile

# Of one worker that this node is not connected to: between two questions.
AGAIN_S: Final = 10.0
# Workers that are asked at once, so that a network of hundreds is asked within some reads.
MAX_ASKING: Final = 16


class Presence:
    """`ping` raises FormationError where none answers. Questions go on beside what is read:
    who does not answer is left out of the next read, until it announces itself anew or answers."""

    def __init__(self, ping: Callable[[Contact], Awaitable[object]]) -> None:
        self._ping = ping
        self._asked_s: dict[PeerId, float] = {}
        self._asking: dict[PeerId, asyncio.Task[None]] = {}
        self._gone: dict[PeerId, int] = {}  # the profile of that number is of none that is there

    def there(self, found: Iterable[tuple[Profile, bool]]) -> list[Profile]:
        """Of profiles, each with whether its worker is connected."""
        pairs, now_s = list(found), time.monotonic()
        names = {each.peer_id for each, _ in pairs}
        for known in (self._asked_s, self._gone):
            for peer in known.keys() - names:
                del known[peer]
        for each, is_connected in pairs:
            peer = each.peer_id
            is_due = now_s - self._asked_s.get(peer, now_s - AGAIN_S) >= AGAIN_S
            if is_connected:
                self._gone.pop(peer, None)
            elif is_due and len(self._asking) < MAX_ASKING and peer not in self._asking:
                self._asked_s[peer] = now_s
                self._asking[peer] = asyncio.create_task(self._ask(each))
        return [each for each, _ in pairs if self._gone.get(each.peer_id) != each.sequence]

    async def _ask(self, profile: Profile) -> None:
        peer = profile.peer_id
        try:
            await self._ping(Contact(peer, profile.addresses))
            self._gone.pop(peer, None)
        except FormationError:
            self._gone[peer] = profile.sequence
        finally:
            del self._asking[peer]

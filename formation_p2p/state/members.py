"""The members of a network that a node meets, on their way into the file of its home."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Final

import trio

from formation_p2p.core.identity import PeerId
from formation_p2p.machine.clock import moment
from formation_p2p.machine.names import learn_name
from formation_p2p.peer.core.effects import MemberMet
from formation_p2p.state.member_file import (
    FILE,
    MAX_MEMBERS,
    ONLINE_S,
    Member,
    read_members,
    write_members,
)
from formation_p2p.trust.core.network import Network

log = logging.getLogger(__name__)

# As soon as that a command which begins now knows the names that another sees.
WRITE_EVERY_S: Final = 2.0
# Where only the time of the last meeting changed, the file is written this often.
AGAIN_S: Final = 60


class SeenMembers:
    """Of one network. For one thread at a time; other nodes of the home may use the file, and each
    adds to what the others wrote."""

    def __init__(
        self,
        home: Path,
        network: Network,
        *,
        max_members: int = MAX_MEMBERS,
        again_s: float = AGAIN_S,
    ) -> None:
        self._max_members = max_members
        self._again_s = again_s
        self._home = home
        self._network_id = network.network_id
        self._known: dict[PeerId, Member] = {}  # the one met last at the end
        self._unwritten: set[PeerId] = set()

    def met(self, met: MemberMet) -> None:
        """Cheap where nothing is new."""
        now_unix_s = int(moment().unix_s)
        known = self._known.get(met.peer_id)
        name = met.name or ("" if known is None else known.name)
        member = Member(met.peer_id, name, met.grant, now_unix_s, now_unix_s)
        if met.has_left:
            member = member._replace(since_unix_s=0)
        elif known is not None:
            member = _going_on(member, known)
        if known is not None:
            same = known._replace(seen_unix_s=now_unix_s) == member
            if same and now_unix_s < known.seen_unix_s + self._again_s:
                return
            del self._known[met.peer_id]
        elif len(self._known) >= self._max_members:
            first = next(iter(self._known))
            del self._known[first]
            self._unwritten.discard(first)
        self._known[met.peer_id] = member
        self._unwritten.add(met.peer_id)
        learn_name(met.peer_id, name)

    async def keep(self) -> None:
        """Until it is cancelled, write down who was met."""
        while True:
            await trio.sleep(WRITE_EVERY_S)
            self.write()

    def write(self) -> None:
        """What was not written yet, if there is anything."""
        if not self._unwritten:
            return
        rows = {each.peer_id: each for each in read_members(self._home, self._network_id)}
        for peer_id in self._unwritten:
            met = self._known[peer_id]
            known = rows.pop(peer_id, met)
            met = _going_on(met, known) if met.since_unix_s else met
            rows[peer_id] = met._replace(name=met.name or known.name)
        kept = sorted(rows.values(), key=lambda each: each.seen_unix_s)[-self._max_members :]
        try:
            write_members(self._home, self._network_id, kept)
        except OSError as error:
            log.warning("%s could not be written: %s", self._home / FILE, error.strerror or error)
        else:
            self._unwritten.clear()


def _going_on(met: Member, before: Member) -> Member:
    """Online for as long as before, unless it was gone in between."""
    is_new = not before.since_unix_s or met.since_unix_s > before.seen_unix_s + ONLINE_S
    return met if is_new else met._replace(since_unix_s=before.since_unix_s)

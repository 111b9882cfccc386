"""The members of a gateway on disk: read as it starts, written as they come and go."""

from __future__ import annotations

import asyncio
import logging

from formation_p2p.core.errors import InvalidInput, StateError
from formation_p2p.features.gateway.member import Member
from formation_p2p.state.http_members import HttpMemberFile

log = logging.getLogger(__name__)


class KeptMembers:
    """Puts those that `file` has into `members`. Raises StateError."""

    def __init__(
        self,
        file: HttpMemberFile | None,
        members: dict[str, Member],
        most: int,
        *,
        allows_private: bool,
    ) -> None:
        self._file = file
        self._members = members
        self._changed: set[str] = set()
        self._writing = asyncio.Lock()
        for row in () if file is None else file.rows(most):
            try:
                member = Member.of_row(row, allows_private=allows_private)
            except InvalidInput as error:
                log.info("%s is not taken on again: %s", row["worker_id"], error)
            else:
                members[member.worker_id] = member

    def changed(self, worker_id: str) -> None:
        """It came, or went."""
        self._changed.add(worker_id)

    async def write(self) -> None:
        """Returns once what has changed is on the disk. Where it cannot be, the log says so."""
        async with self._writing:
            changed, self._changed = self._changed, set()
            if self._file is None or not changed:
                return
            put = {x: self._members[x].as_row() for x in changed if x in self._members}
            try:
                await asyncio.to_thread(self._file.write, put, changed - put.keys())
            except StateError as error:
                log.warning("%s; who registers is forgotten when the gateway ends", error)

    async def close(self) -> None:
        """What comes from now on is not kept."""
        await self.write()
        if self._file is not None:
            self._file.close()
            self._file = None

"""The file of the members that the nodes of a home have met: `members` in its folder, as JSON.

It is for people, and no decision depends on it. A grant is bound to its holder and is no secret.
Where the file is damaged it is begun anew. Commands read it to show names, before they import what
a node needs.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final, NamedTuple

from formation_p2p.core.identity import PeerId, parse_peer_id
from formation_p2p.machine.core.bounds import check_host_name
from formation_p2p.machine.names import learn_name
from formation_p2p.machine.whole_file import read_rows, write_whole

FILE: Final = "members"
# More than a person looks through. Of more, those met last are kept.
MAX_MEMBERS: Final = 1024
# Workers announce themselves again before two minutes have passed. Who was not met for twice as
# long was offline.
ONLINE_S: Final = 240
# Each has a grant of 2 KiB at most, in base64, and a name of 63 characters.
_MAX_FILE_BYTES: Final = MAX_MEMBERS * 3072


class Member(NamedTuple):
    """`name` is what it goes by, empty where it has not said; `seen_unix_s` when it was met last,
    and showed this grant. It is online since `since_unix_s`, as far as it was met again and again;
    0 once it has said that it leaves."""

    peer_id: PeerId
    name: str
    grant: bytes
    seen_unix_s: int
    since_unix_s: int = 0


def learn_names(home: Path) -> None:
    """Of all that the nodes of a home have met."""
    for each in read_members(home):
        learn_name(each.peer_id, each.name)


def read_members(home: Path, network_id: bytes | None = None) -> list[Member]:
    """Those of this network, or of whichever it is; the one that was met last comes last. Empty
    where nothing can be read."""
    return read_rows(
        home / FILE,
        "members",
        _row,
        network_id,
        max_bytes=_MAX_FILE_BYTES,
        max_rows=MAX_MEMBERS,
    )


def write_members(home: Path, network_id: bytes, members: Iterable[Member]) -> None:
    """Whole or not at all, also where another process writes it at the same moment. Raises
    OSError."""
    rows = [
        [peer_id, name, base64.b64encode(grant).decode(), seen, since]
        for peer_id, name, grant, seen, since in members
    ]
    text = json.dumps({"network": network_id.hex(), "members": rows})
    write_whole(home / FILE, text)


def _row(peer: Any, name: Any, grant: Any, unix_s: Any, since: Any = 0) -> Member:
    """Raises ValueError, TypeError, InvalidInput."""
    if name != "":
        check_host_name("name", name)
    token = base64.b64decode(grant, validate=True)
    return Member(parse_peer_id(peer), name, token, int(unix_s), int(since))

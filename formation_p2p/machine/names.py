"""How peers are shown to people: by name, where one is known, and the end of their id.

What each peer of this process said that it goes by is kept here, for all of its nodes: an id means
the same peer to all of them.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import Final

from formation_p2p.core.errors import AmbiguousPeer
from formation_p2p.core.identity import PeerId, parse_peer_id, shown_peer
from formation_p2p.core.refusals import Refusal, TooClose

# As many as a node knows members of (state/members.py), and some more for other networks.
MAX_NAMES: Final = 4096

_names: dict[str, str] = {}  # by peer id; the one learnt first comes first


def learn_name(peer_id: PeerId, name: str) -> None:
    """From any thread. Of a name that was checked; empty does not change what is known."""
    if not name or _names.get(peer_id) == name:
        return
    _names[peer_id] = name
    while len(_names) > MAX_NAMES:
        _names.pop(next(iter(_names)), None)


def name_of(peer_id: str) -> str | None:
    """What a peer goes by; None where that is not known."""
    return _names.get(peer_id)


def named_peers() -> frozenset[str]:
    """All those whose name is known."""
    return frozenset(_names)


def is_name(text: str) -> bool:
    """Whether a peer that is known goes by it."""
    return text in _names.values()


def named(peer_id: str) -> str:
    """`anna-desktop …Zk3nVq7w`: of every peer that a person reads of. Others may have the same
    name; the end of the id tells them apart."""
    return shown_peer(peer_id, _names.get(peer_id))


def with_names(refusal: Refusal) -> str:
    """As `str(refusal)`, where another peer is in it by its name."""
    if isinstance(refusal, TooClose):
        refusal = replace(refusal, other=named(refusal.other))
    return str(refusal)


def peer_meant(
    text: str, known: Collection[str] | None = None, field: str = "peer"
) -> PeerId | None:
    """The peer that a person means: by its id, the end of it, its name, or both as they are shown.

    It is one of those `known`, by default all that have a name; a whole id may be any. None where
    there is no such peer. Raises AmbiguousPeer where there are several.
    """
    try:
        return parse_peer_id(text)
    except ValueError:
        pass
    name, _, end = text.rpartition(" ")
    is_end = end.startswith(("…", "..."))
    end = end.removeprefix("…").removeprefix("...")
    among = list(_names) if known is None else known
    found = {
        peer_id
        for peer_id in among
        if (name_of(peer_id) == text and not is_end)
        or (end and peer_id.endswith(end) and name in ("", name_of(peer_id)))
    }
    if len(found) > 1:
        raise AmbiguousPeer(field, text, sorted(found))
    return PeerId(found.pop()) if found else None

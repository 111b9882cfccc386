"""The peer or the invitation that a person means by what `formation members` shows."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from formation_p2p.command.members import SHOWN_DIGITS, invitations
from formation_p2p.core.errors import InvalidInput
from formation_p2p.machine.home import Home
from formation_p2p.machine.names import peer_meant
from formation_p2p.state.member_file import learn_names
from formation_p2p.trust.core.charter import is_invitation
from formation_p2p.trust.core.quota import GRANT_DIGITS

# As `formation members` shows an invitation, or more of it.
_BEGIN: Final = re.compile(rf"[0-9a-f]{{{SHOWN_DIGITS},{GRANT_DIGITS - 1}}}")


def peer_or_invitation(home: Home, text: str, field: str, others: Iterable[str] = ()) -> str:
    """One that the nodes of this home have met, or one of the invitations `others`. Raises
    InvalidInput unless exactly one is meant."""
    if is_invitation(text):
        return text
    found: list[str] = []
    if _BEGIN.fullmatch(text):
        begun = (each for each in others if each.startswith(text))
        found = sorted({*invitations(home, text), *begun})
    learn_names(home.path)
    if (peer_id := peer_meant(text, field=field)) is not None:
        found.append(peer_id)
    if not found:
        hint = "write a peer id, or an invitation's 32 hexadecimal digits"
        problem = f"no member known here is {text!r}; {hint} (`formation members --json`)"
        raise InvalidInput(field, problem)
    if len(found) > 1:
        listed = ", ".join(found[:8]) + (" and more" if len(found) > 8 else "")
        problem = f"{text!r} may be any of {len(found)}: {listed}; write the one that is meant"
        raise InvalidInput(field, problem)
    return found[0]

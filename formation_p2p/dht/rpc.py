"""What the DHT asks of the shell, and what the shell tells it.

Every `Ask` ends in exactly one `Answered` or `AskFailed`, at most `timeout_s` after it was
handed over. The shell keeps that promise; the core arms no timer of its own for it.
"""

from __future__ import annotations

from dataclasses import dataclass

from formation_p2p.dht.messages import Reply, Request
from formation_p2p.effects import Contact, Effect


@dataclass(frozen=True, slots=True)
class Ask(Effect):
    """Send a request to a peer, dialling it if need be. `ask_id` is the asker's own count.

    A request that the specification leaves without an answer (ADD_PROVIDER) is Answered, with
    no message, once it is written out.
    """

    ask_id: int
    to: Contact
    message: Request
    timeout_s: float


@dataclass(frozen=True, slots=True)
class Answer(Effect):
    """Reply to what arrived as `Asked(ask_id)`; None where the protocol has no answer."""

    ask_id: int
    message: Reply | None


@dataclass(frozen=True, slots=True)
class Asked:
    """A peer's request. `ask_id` is the shell's count and goes back with the `Answer`."""

    ask_id: int
    sender: Contact
    message: Request


@dataclass(frozen=True, slots=True)
class Answered:
    """`sender` is who was asked, with the addresses that identify told of since."""

    ask_id: int
    sender: Contact
    message: Reply | None


@dataclass(frozen=True, slots=True)
class AskFailed:
    """No answer: out of reach, too late, or not to be parsed. `reason` is for people."""

    ask_id: int
    reason: str

"""How long announcements count, and with how many peers they are left."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PublicationParameters:
    """The defaults are measured (docs/performance.md, "Announcements").

    A worker that dies without a word is offered for at most `ttl_s`. It publishes itself again
    at `republish_s` with each of the `replicas` peers nearest to each of its names: longer than
    half the TTL costs less, and a message that is lost then leaves that one peer without it for
    a while, and the other seven with it.
    """

    ttl_s: float = 120.0
    replicas: int = 8

    @property
    def republish_s(self) -> float:
        return 0.7 * self.ttl_s

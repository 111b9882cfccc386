"""What a DHT is about: the records that its peers keep, and what one may believe of a reply."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import Protocol, TypeVar

from formation_p2p.core.dht import messages as kad
from formation_p2p.core.effects import Contact, Moment

R = TypeVar("R")


class Records(Protocol[R]):
    """`store.py` has Formation's, signed profiles; tests/interop the specification's. `R` is what a
    search finds."""

    def keep(self, sender: Contact, write: kad.Write, now: Moment) -> bool:
        """Whether the record is one to keep, under every name of the write; then it is kept."""

    def providers(self, request: kad.GetProviders, now: Moment) -> kad.Providers:
        """What is held under the name; the server adds the closer peers."""

    def counts(self, write: kad.AddProvider, now: Moment) -> tuple[kad.ShardCount, ...]:
        """What is held under each name of a write, as its author is to see it."""

    def value(self, name: bytes, now: Moment) -> bytes | None:
        """The value record under the name, fresh."""

    def verified(
        self, name: bytes, reply: kad.Providers | kad.Value, now: Moment
    ) -> Iterable[tuple[Hashable, R]]:
        """What may be believed of a reply about a name: whose record each is, and the record."""

    def supersedes(self, new: R, old: R) -> bool:
        """Which of two records of the same author counts."""

    def is_live(self, record: R) -> bool:
        """False for an author's word that it is gone: it counts, but is not to be found."""

    def expire(self, now: Moment) -> None:
        """Drop what has expired; nothing expired is returned in between."""

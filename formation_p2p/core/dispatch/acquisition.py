"""How far a group has come in getting leases: a search, a round, commits without an answer."""

from __future__ import annotations

from collections.abc import Iterable

from formation_p2p.core.discovery.finder import FindId
from formation_p2p.core.identity import PeerId
from formation_p2p.core.negotiation.round import RoundId


class Acquisition:
    """`find` and `round` are open, `committing` have not answered a commit. `searched_s` is when
    discovery was asked last, minus infinity where it is to be asked at once; `fruitless` searches
    in a row began with no worker known."""

    def __init__(self) -> None:
        self.find: FindId | None = None
        self.round: RoundId | None = None
        self.committing: set[PeerId] = set()
        self.searched_s = float("-inf")
        self.fruitless = 0
        self._had_leases = False
        self._was_answered = True

    @property
    def is_open(self) -> bool:
        return self.round is not None or bool(self.committing)

    @property
    def is_patient(self) -> bool:
        """Whether workers may come back: there was one, or no peer answered the last search."""
        return self._had_leases or not self._was_answered

    def search_began(self, find: FindId, now_s: float, *, stranded: bool) -> None:
        self.find, self.searched_s = find, now_s
        self.fruitless = self.fruitless + 1 if stranded else 0

    def search_ended(self, *, answered: bool) -> None:
        """`answered`: whether any peer did."""
        self.find, self._was_answered = None, answered

    def found_more(self) -> None:
        """Where there were more workers, there may be more yet."""
        self.searched_s = float("-inf")

    def round_began(self, asked: RoundId) -> None:
        self.round = asked

    def round_ended(self, committed: Iterable[PeerId]) -> None:
        self.round = None
        self.committing |= set(committed)

    def leased(self, worker: PeerId) -> None:
        self.committing.discard(worker)
        self._had_leases = True

    def refused(self, worker: PeerId) -> None:
        self.committing.discard(worker)

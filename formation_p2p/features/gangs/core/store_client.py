"""One node's side of the store: a copy of what the store holds, and the requests of what runs here.

The copy answers what may be a little old (a shared value, a watched key) at once. The tunnel to the
store may break: requests that can be made twice are made again once there is another, and the
others (`Add`, `CompareSet`, `Delete`) that were under way are refused as MOVED, since they may have
been done.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from formation_p2p.core.errors import ProtocolViolation
from formation_p2p.features.gangs.core import store_messages as said
from formation_p2p.features.gangs.core.store import MAX_KEYS, MAX_STORE_BYTES, MAX_WAITING
from formation_p2p.features.gangs.core.store_messages import (
    BARRIERS,
    Answer,
    Entry,
    FromClient,
    FromStore,
    Problem,
    Refused,
    StoreRequest,
)

_ONCE: Final = (said.Add, said.CompareSet, said.Delete)
_MOVED: Final = (
    "the connection to the store was lost meanwhile, and whether this was done is not known; look, "
    "and ask again if it was not"
)


@dataclass(frozen=True, slots=True)
class Say:
    """Over the tunnel."""

    message: FromClient


@dataclass(frozen=True, slots=True)
class Answered:
    """To the one whose request it was."""

    answer: Answer


@dataclass(frozen=True, slots=True)
class Changed:
    """The copy has another value of this key, or none any more."""

    entry: Entry


ClientEffect = Say | Answered | Changed


class StoreClient:
    """The caller numbers the requests. Each gets one answer, unless it is cancelled."""

    def __init__(self) -> None:
        self._entries: dict[str, Entry] = {}
        self._bytes = 0
        self._version = 0
        # What the store tells of itself since the tunnel was opened, until it has told all.
        self._coming: dict[str, Entry] | None = None
        self._coming_bytes = 0
        self.is_open = False
        self._requests: dict[int, StoreRequest] = {}

    @property
    def values(self) -> Mapping[str, Entry]:
        """The copy, by key; also of the store's own keys."""
        return self._entries

    def connected(self) -> None:
        """There is a tunnel to the store."""
        self._coming, self._coming_bytes = {}, 0

    def lost(self) -> list[ClientEffect]:
        """The tunnel has ended."""
        was_open, self.is_open, self._coming = self.is_open, False, None
        if not was_open:
            return []
        once = [number for number, each in self._requests.items() if isinstance(each, _ONCE)]
        for number in once:
            del self._requests[number]
        return [Answered(Refused(number, Problem.MOVED, _MOVED)) for number in once]

    def ask(self, request: StoreRequest) -> list[ClientEffect]:
        """The turn of an `Arrive` is filled in here."""
        if len(self._requests) >= MAX_WAITING:
            why = f"{MAX_WAITING} requests wait already; wait for fewer at once"
            return [Answered(Refused(request.number, Problem.FULL, why))]
        self._requests[request.number] = request
        return [self._sent(request)] if self.is_open else []

    def cancel(self, number: int) -> list[ClientEffect]:
        """The one who asked is gone, or has waited long enough."""
        if self._requests.pop(number, None) is None or not self.is_open:
            return []
        return [Say(said.CancelRequest(number))]

    def came(self, message: FromStore) -> list[ClientEffect]:
        """Raises ProtocolViolation: the tunnel is to be ended, and `lost` called."""
        match message:
            case Entry():
                return self._told(message)
            case said.Opened(version):
                return self._opened(version)
            case _:
                # One that was cancelled may be answered still.
                if self._requests.pop(message.number, None) is None:
                    return []
                return [Answered(message)]

    def _told(self, entry: Entry) -> list[ClientEffect]:
        if self._coming is not None:
            self._coming_bytes += entry.size_bytes
            if self._coming_bytes > MAX_STORE_BYTES or len(self._coming) >= MAX_KEYS:
                raise ProtocolViolation("the store tells more than one holds")
            self._coming[entry.key] = entry
            return []
        if not self.is_open or entry.version <= self._version:
            raise ProtocolViolation("the store tells a change out of order")
        old = self._entries.pop(entry.key, None)
        self._bytes -= 0 if old is None else old.size_bytes
        if entry.value is not None:
            self._entries[entry.key] = entry
            self._bytes += entry.size_bytes
            if self._bytes > MAX_STORE_BYTES or len(self._entries) > MAX_KEYS:
                raise ProtocolViolation("the store tells more than one holds")
        self._version = entry.version
        return [Changed(entry)]

    def _opened(self, version: int) -> list[ClientEffect]:
        if self._coming is None:
            raise ProtocolViolation("the store opens twice")
        old, self._entries, self._coming = self._entries, self._coming, None
        self._bytes, self._version, self.is_open = self._coming_bytes, version, True
        gone = [Entry(key, version, None) for key in old if key not in self._entries]
        changed = [each for each in self._entries.values() if each != old.get(each.key)]
        return [
            *map(Changed, [*gone, *changed]),
            *(self._sent(each) for each in list(self._requests.values())),
        ]

    def _sent(self, request: StoreRequest) -> Say:
        if isinstance(request, said.Arrive) and request.turn == 0:
            passed = self._entries.get(BARRIERS + request.barrier)
            turn = int(passed.value or b"0") + 1 if passed is not None else 1
            request = replace(request, turn=turn)
            self._requests[request.number] = request
        return Say(request)

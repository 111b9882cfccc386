"""The store of a gang: values under keys that all members read and write, and its barriers.

It lives on the node of the gang's owner, who is there for as long as the gang
(host/store_host.py). What its requests mean is torch's `Store`
(torch/csrc/distributed/c10d/Store.hpp): a value that is asked for is waited for, and a number is
kept in decimal. Every change has the next version, and all clients are told of it in that order, so
that each of them has what the store had at some moment, and a shared value is that of the last
writer everywhere.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from typing import Final, assert_never

from formation_p2p.core.errors import ProtocolViolation
from formation_p2p.core.units import MIB, format_bytes
from formation_p2p.features.gangs.core import store_messages as said
from formation_p2p.features.gangs.core.roster import MAX_MEMBERS
from formation_p2p.features.gangs.core.store_messages import (
    BARRIERS,
    KEY_BYTES,
    Answer,
    Attached,
    Came,
    Detached,
    Done,
    Entry,
    FromClient,
    Problem,
    Refused,
    Resized,
    StoreEvent,
    StoreRequest,
    Tell,
    Tick,
    Value,
)
from formation_p2p.records.core.codec import MAX_INT

# Every client has a copy, and gets it whole when it connects. 64 members with a KiB each use a
# thousandth.
MAX_STORE_BYTES: Final = 16 * MIB
# Each is told to every client when it connects.
MAX_KEYS: Final = 8192
# Of one client, that are not answered yet: each of its tasks waits for one, and a program may have
# a thread that waits for each other rank.
MAX_WAITING: Final = 1024
# That they take here, with their keys: a request may name 256, of 2 KiB each. 64 members that each
# wait for all others by names of torch's take a twentieth.
MAX_WAITING_BYTES: Final = 4 * MIB
# The members, and the owner; once more for those that are about to be seen to be gone.
MAX_CLIENTS: Final = 2 * (MAX_MEMBERS + 1)
# What is longer has more than 64 bits.
_INTEGER: Final = re.compile(rb"-?[0-9]{1,19}")
_NEVER: Final = float("inf")


@dataclass(slots=True)
class _Client:
    rank: int | None
    waiting: set[int] = field(default_factory=set)
    waiting_bytes: int = 0


@dataclass(frozen=True, slots=True)
class _Waiter:
    """`missing` are the keys that have no value yet; of an arrival, none."""

    client: int
    request: said.Get | said.Wait | said.Arrive
    due_s: float
    missing: set[str]

    @property
    def size_bytes(self) -> int:
        asked = self.request
        if isinstance(asked, said.Wait):
            return sum(KEY_BYTES + len(key.encode()) for key in asked.keys)
        key = asked.key if isinstance(asked, said.Get) else asked.barrier
        return KEY_BYTES + len(key.encode())


_At = tuple[int, int]  # a client, and the number of its request


class Store:
    """`handle` each event; again at `next_timeout_s`.

    Raises ProtocolViolation for what a client may not say: it costs the client its tunnel, and the
    caller says Detached.
    """

    def __init__(self, size: int) -> None:
        self._size = size
        self._clients: dict[int, _Client] = {}
        self._entries: dict[str, Entry] = {}
        self._bytes = self._barriers = self._version = 0
        self._waiters: dict[_At, _Waiter] = {}
        self.next_timeout_s = _NEVER  # when the next waiter may be late
        self._by_key: dict[str, dict[_At, None]] = {}
        self._arrived: dict[str, dict[_At, int]] = {}  # by barrier: the rank
        self._told: list[Tell] = []

    def handle(self, event: StoreEvent, now_s: float) -> list[Tell]:
        match event:
            case Attached(client, rank):
                if len(self._clients) >= MAX_CLIENTS:
                    raise ProtocolViolation(f"the store has {MAX_CLIENTS} clients")
                self._clients[client] = _Client(rank)
                self._welcome(client)
            case Detached(client):
                self._detached(client)
            case Came(client, message):
                self._came(client, message, now_s)
            case Resized(size):
                self._size = size
                for barrier in list(self._arrived):
                    self._pass(barrier)
            case Tick():
                pass
            case _:
                assert_never(event)
        self._settle(now_s)
        told, self._told = self._told, []
        return told

    def _settle(self, now_s: float) -> None:
        """What is due by now."""
        if now_s < self.next_timeout_s:
            return
        late = [at for at, each in self._waiters.items() if each.due_s <= now_s]
        for at in late:
            waiter = self._forget(at)
            why = "this did not come in time; wait longer, or see what the other members do"
            self._answer(waiter.client, Refused(at[1], Problem.TIMEOUT, why))
        self.next_timeout_s = min((each.due_s for each in self._waiters.values()), default=_NEVER)

    # -- clients ----------------------------------------------------------------------------------

    def _welcome(self, client: int) -> None:
        for entry in sorted(self._entries.values(), key=lambda each: each.version):
            self._told.append(Tell(client, entry))
        self._told.append(Tell(client, said.Opened(self._version)))

    def _detached(self, client: int) -> None:
        gone = self._clients[client]
        for number in list(gone.waiting):
            self._forget((client, number))
        del self._clients[client]

    def _came(self, client: int, message: FromClient, now_s: float) -> None:
        known = self._clients[client]
        match message:
            case said.CancelRequest(number):
                if number in known.waiting:
                    self._forget((client, number))
            case _:
                if message.number in known.waiting:
                    raise ProtocolViolation("two of its requests have the same number")
                self._asked(client, message, now_s)

    def _asked(self, client: int, request: StoreRequest, now_s: float) -> None:
        number = request.number
        match request:
            case said.Set(_, key, value):
                self._answer(client, self._put(number, key, value) or Done(number))
            case said.Get(_, key, _):
                self._wait(client, request, {key} - self._entries.keys(), now_s)
            case said.Wait(_, keys, _):
                self._wait(client, request, set(keys) - self._entries.keys(), now_s)
            case said.Add(_, key, amount):
                self._answer(client, self._sum(number, key, amount))
            case said.CompareSet(_, key, expected, desired):
                now = self._value(key)
                if (now or b"") == expected:
                    refused = self._put(number, key, desired)
                    self._answer(client, refused or Value(number, desired))
                else:
                    self._answer(client, Value(number, expected if now is None else now))
            case said.Delete(_, key):
                self._answer(client, Done(number, int(self._delete(key))))
            case said.CountKeys():
                self._answer(client, Done(number, len(self._entries) - self._barriers))
            case said.Arrive(_, barrier, turn, _):
                self._arrive(client, request, barrier, turn, now_s)
            case _:
                assert_never(request)

    # -- values -----------------------------------------------------------------------------------

    def _value(self, key: str) -> bytes | None:
        entry = self._entries.get(key)
        return None if entry is None else entry.value

    def _put(self, number: int, key: str, value: bytes) -> Refused | None:
        entry, old = Entry(key, self._version + 1, value), self._entries.get(key)
        more = entry.size_bytes - (0 if old is None else old.size_bytes)
        if self._bytes + more > MAX_STORE_BYTES or (old is None and len(self._entries) >= MAX_KEYS):
            most = f"{format_bytes(MAX_STORE_BYTES)} in {MAX_KEYS} keys"
            why = f"the store holds {most}; delete what is not needed, or send it over a stream"
            return Refused(number, Problem.FULL, why)
        self._version += 1
        self._bytes += more
        self._entries[key] = entry
        self._tell(entry)
        for at in self._by_key.pop(key, ()):
            waiter = self._waiters[at]
            waiter.missing.discard(key)
            if not waiter.missing:
                self._forget(at)
                self._reached(waiter)
        return None

    def _sum(self, number: int, key: str, amount: int) -> Answer:
        now = self._value(key)
        if now is not None and _INTEGER.fullmatch(now) is None:
            return Refused(number, Problem.INVALID, "its value is not a whole number; set one")
        total = int(now or b"0") + amount
        if abs(total) > MAX_INT:
            return Refused(number, Problem.INVALID, "the sum does not fit into 64 bits")
        return self._put(number, key, b"%d" % total) or Done(number, total)

    def _delete(self, key: str) -> bool:
        entry = self._entries.pop(key, None)
        if entry is None:
            return False
        self._version += 1
        self._bytes -= entry.size_bytes
        self._tell(Entry(key, self._version, None))
        return True

    def _tell(self, entry: Entry) -> None:
        self._told += [Tell(id, entry) for id in self._clients]

    def _answer(self, client: int, answer: Answer) -> None:
        self._told.append(Tell(client, answer))

    # -- waiting ----------------------------------------------------------------------------------

    def _wait(
        self, client: int, request: said.Get | said.Wait, missing: set[str], now_s: float
    ) -> None:
        waiter = _Waiter(client, request, now_s + request.timeout_ms / 1000, missing)
        if missing:
            if self._hold(waiter):
                for key in missing:
                    self._by_key.setdefault(key, {})[client, request.number] = None
        else:
            self._reached(waiter)

    def _hold(self, waiter: _Waiter) -> bool:
        client, number = waiter.client, waiter.request.number
        known, size_bytes = self._clients[client], waiter.size_bytes
        full_bytes = known.waiting_bytes + size_bytes > MAX_WAITING_BYTES
        if len(known.waiting) >= MAX_WAITING or full_bytes:
            most = f"{MAX_WAITING} requests, with keys of {format_bytes(MAX_WAITING_BYTES)}"
            why = f"of one member {most}, may wait; wait for fewer at once"
            self._answer(client, Refused(number, Problem.FULL, why))
            return False
        known.waiting.add(number)
        known.waiting_bytes += size_bytes
        self._waiters[client, number] = waiter
        self.next_timeout_s = min(self.next_timeout_s, waiter.due_s)
        return True

    def _reached(self, waiter: _Waiter) -> None:
        number = waiter.request.number
        value = self._value(waiter.request.key) if isinstance(waiter.request, said.Get) else None
        self._answer(waiter.client, Done(number) if value is None else Value(number, value))

    def _forget(self, at: _At) -> _Waiter:
        waiter = self._waiters.pop(at)
        client = self._clients[at[0]]
        client.waiting.discard(at[1])
        client.waiting_bytes -= waiter.size_bytes
        for key in waiter.missing:
            self._by_key[key].pop(at)
        for key in [key for key in waiter.missing if not self._by_key[key]]:
            del self._by_key[key]
        if isinstance(waiter.request, said.Arrive):
            arrived = self._arrived[waiter.request.barrier]
            del arrived[at]
            if not arrived:
                del self._arrived[waiter.request.barrier]
        return waiter

    def _arrive(
        self, client: int, request: said.Arrive, barrier: str, turn: int, now_s: float
    ) -> None:
        rank = self._clients[client].rank
        if rank is None:
            why = "the owner of a gang has no rank; members meet at a barrier"
            self._answer(client, Refused(request.number, Problem.INVALID, why))
        elif turn <= int(self._value(BARRIERS + barrier) or b"0"):
            # It was passed, and the connection was lost before this client was told.
            self._answer(client, Done(request.number))
        elif self._hold(_Waiter(client, request, now_s + request.timeout_ms / 1000, set())):
            self._arrived.setdefault(barrier, {})[client, request.number] = rank
            self._pass(barrier)

    def _pass(self, barrier: str) -> None:
        arrived = self._arrived[barrier]
        if not set(range(self._size)) <= set(arrived.values()):
            return
        passed = int(self._value(BARRIERS + barrier) or b"0") + 1
        is_new = BARRIERS + barrier not in self._entries
        refused = self._put(0, BARRIERS + barrier, b"%d" % passed)
        self._barriers += is_new and refused is None
        for client, number in list(arrived):
            self._forget((client, number))
            self._answer(client, replace(refused, number=number) if refused else Done(number))

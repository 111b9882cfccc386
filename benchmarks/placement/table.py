"""All workers that a node knows of, and which of them can run a task, for up to millions."""

from __future__ import annotations

import sys
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import Final

import numpy as np

from benchmarks.placement.columns import LARGE_STEPS, Columns, Condition, Slots, Steps
from benchmarks.placement.key_trie import KeyTrie, Leaf
from benchmarks.placement.question import Question
from formation_p2p.core.identity import PeerId, key_of_peer
from formation_p2p.core.keyspace import Key, distance
from formation_p2p.machine.core.bounds import check_amount
from formation_p2p.machine.core.requirements import Requirements
from formation_p2p.records.core.profile import Profile

# Four times the largest network that was tried; 8 GiB at 2 KiB for a worker and its profile.
MAX_WORKERS: Final = 1 << 22


class Table:
    """Profiles, the newest that was put in of each worker.

    They are kept in columns of numbers, 92 bytes a worker besides the profile itself, and by key
    in a trie. Both change with each profile: 10 to 20 us, whatever the size of the table. When
    the columns are full they are copied, some tens of milliseconds for half a million workers,
    and have room for as many again.
    """

    def __init__(
        self,
        limit: int = MAX_WORKERS,
        steps: Steps = LARGE_STEPS,
        key_of: Callable[[PeerId], Key] = key_of_peer,
    ) -> None:
        self._limit = limit
        self._steps = steps
        self._key_of = key_of
        self._slots: dict[PeerId, int] = {}
        # By slot. An empty one keeps what it held last.
        self._profiles: list[Profile] = []
        self._keys: list[Key] = []
        self._empty: list[int] = []
        self.columns = Columns(steps)
        self._trie = KeyTrie(self._keys)

    def __len__(self) -> int:
        return len(self._slots)

    def __contains__(self, peer_id: PeerId) -> bool:
        return peer_id in self._slots

    def put(self, profile: Profile) -> bool:
        """Takes the place of what the worker said before; a last word removes it.

        False where the table is full of others. Which profile is newer, and whether it is
        genuine, is for the caller to know.
        """
        peer_id = profile.peer_id
        if profile.withdrawn:
            self.remove(peer_id)
            return True
        slot = self._slots.get(peer_id)
        if slot is None:
            if len(self._slots) >= self._limit:
                return False
            slot = self._add(peer_id, profile)
        self._profiles[slot] = profile
        self.columns.write(slot, self._keys[slot], profile)
        return True

    def remove(self, peer_id: PeerId) -> bool:
        """False where it is not there."""
        slot = self._slots.pop(peer_id, None)
        if slot is None:
            return False
        self._trie.remove(slot)
        self.columns.erase(slot)
        self._empty.append(slot)
        return True

    def match(
        self,
        needs: Requirements,
        now_unix_s: float,
        *,
        free_now: bool = False,
        max_price_micro: int | None = None,
    ) -> list[Profile]:
        """Every worker that `nearest` could name, in the order of their keys.

        It takes a pass over the columns that the needs ask for and, where they ask for GPUs,
        labels, a driver, or sizes that are no whole MiB, 3 us for each worker found. Raises
        InvalidInput.
        """
        question = Question(needs, now_unix_s, free_now, max_price_micro)
        slots = self.columns.scan(question.conditions(), len(self._profiles))
        return list(self._admitted(question, self._in_order(slots, Key(0))))

    def nearest(
        self,
        needs: Requirements,
        target: Key,
        count: int,
        now_unix_s: float,
        *,
        free_now: bool = False,
        max_price_micro: int | None = None,
    ) -> list[Profile]:
        """The `count` workers at the least XOR distance from a key, nearest first, of those whose
        profile has not expired, that ask no more than this price, and that `fits` the needs, or
        with `free_now` that `fits_now` does; all of them where there are no more.

        Needs that one in a hundred workers meets take 0.3 ms among a million, those that hardly
        any meets up to four passes over the columns that they ask for: 1 to 4 ms. Raises
        InvalidInput.
        """
        check_amount("count", count, 0, sys.maxsize)
        question = Question(needs, now_unix_s, free_now, max_price_micro)
        slots = self._nearest_first(question.conditions(), target)
        return list(islice(self._admitted(question, slots), count))

    def _add(self, peer_id: PeerId, profile: Profile) -> int:
        key = self._key_of(peer_id)
        if self._empty:
            slot = self._empty.pop()
            self._keys[slot] = key
        else:
            slot = len(self._keys)
            self._keys.append(key)
            self._profiles.append(profile)
        self._slots[peer_id] = slot
        self._trie.add(slot)
        return slot

    def _admitted(self, question: Question, slots: Iterable[int]) -> Iterator[Profile]:
        profiles = (self._profiles[slot] for slot in slots)
        return profiles if question.settled() else filter(question.admits, profiles)

    def _nearest_first(self, conditions: Sequence[Condition], target: Key) -> Iterator[int]:
        """Whoever meets the conditions. No more is looked at than is taken."""
        tried = passed = 0
        for block in self._neighbourhood(target):
            near = self.columns.passing(conditions, block)
            yield from self._in_order(near, target)
            tried += len(block)
            passed += len(near)
            if tried * self._steps.neighbourhood > len(self._slots):
                break
        everyone = self.columns.scan(conditions, len(self._profiles))
        yield from islice(self._in_order(everyone, target), passed, None)

    def _neighbourhood(self, target: Key) -> Iterator[Slots]:
        """All slots in ever larger blocks: all of one are nearer than all of the next."""
        block: Leaf = array("q")
        size = self._steps.first_block
        for leaf in self._trie.leaves(target):
            block += leaf
            if len(block) >= size:
                yield np.array(block, np.intp)
                block = array("q")
                size *= self._steps.block_growth
        yield np.array(block, np.intp)

    def _in_order(self, slots: Slots, target: Key) -> Iterator[int]:
        """By distance, then by peer id. Columns have the first bits of the keys, which is enough
        unless somebody has gone to great lengths to find keys that share them."""

        def rank(slot: int) -> tuple[int, PeerId]:
            return distance(self._keys[slot], target), self._profiles[slot].peer_id

        ordered, far = self.columns.nearest_first(slots, target)
        at_once = self._steps.ordered_at_once
        start = 0
        while start < len(ordered):
            last = far[min(start + at_once, len(ordered)) - 1]
            end = int(np.searchsorted(far, last, side="right"))
            some = ordered[start:end].tolist()
            if (far[start + 1 : end] == far[start : end - 1]).any():
                some.sort(key=rank)
            yield from some
            start = end

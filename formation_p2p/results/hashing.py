"""What hashing and comparing the keys of a result costs.

A tuple hashes all that it holds, each time, however often it holds the same. Forty pairs, each of
the one before twice, take hours, in 200 bytes; a hundred thousand, each in the next, take more
stack than a thread has. So before a pickle is read its keys are weighed: what is the key of a dict,
or in a set. What is called with arguments looks up none of them but texts.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from formation_p2p.core.errors import NotPlain
from formation_p2p.results.budget import Budget
from formation_p2p.results.opcodes import ONE, TUPLES, last, spans_of

TOO_MUCH: Final = 1 << 60
# Fewer tuples than these in all neither double often enough nor nest deep enough.
FEW_TUPLES: Final = 16

# As a value that is hashed: how many values it has in it, and how deep they are.
Weight = tuple[int, int]
LEAF: Final[Weight] = (1, 0)

_MAKE_TUPLES: Final = b"t\x85\x86\x87\x91"
_INSERTS: Final = re.compile(rb"[us\x90\x91]")


def check_hashed(pickled: bytes, opcodes: bytes, budget: Budget) -> None:
    """Raises NotPlain where the keys of a result would take too long, or too much stack. `opcodes`
    are what `check_opcodes` returned for it."""
    if sum(map(opcodes.count, _MAKE_TUPLES)) < FEW_TUPLES or not inserts(opcodes):
        return
    try:
        _Weighing(budget).follow(pickled)
    except (IndexError, ValueError) as problem:
        raise NotPlain("a result could not be read: its pickle is none") from problem


def inserts(opcodes: bytes) -> bool:
    """Whether any of them adds to a dict or a set."""
    return _INSERTS.search(opcodes) is not None


class _Weighing:
    def __init__(self, budget: Budget) -> None:
        self._budget = budget
        self._stack: list[Weight | None] = []  # None is a mark
        self._memo: list[Weight] = []

    def follow(self, pickled: bytes) -> None:
        for start, at, end in spans_of(pickled):
            self._follow(ONE.findall(pickled, start, at))
            if end > at:  # a long text, bytes, a large number
                self._stack.append(LEAF)

    def _follow(self, some: Iterable[bytes]) -> None:
        stack, memo = self._stack, self._memo
        for one in some:
            opcode = one[0]
            if opcode in _LEAVES:
                stack.append(LEAF)
            elif opcode == _GET:
                stack.append(memo[one[1]])
            elif opcode == _MEMOIZE:
                memo.append(stack[-1] or LEAF)
            elif opcode in TUPLES:
                self._made(last(stack, TUPLES[opcode]))
            elif opcode == _MARK:
                stack.append(None)
            elif opcode == _TUPLE:
                at = _mark(stack)
                self._made(at + 1)
                del stack[at]
            elif opcode == _SETITEMS:
                at = _mark(stack)
                self._hash(stack[at + 1 :: 2])
                del stack[at:]
            elif opcode == _SETITEM:
                self._hash(stack[-2:-1])
                del stack[last(stack, 2) :]
            elif opcode in (_ADDITEMS, _FROZENSET):
                at = _mark(stack)
                self._hash(stack[at + 1 :])
                if opcode == _FROZENSET:
                    self._made(at + 1)
                    del stack[at]
                else:
                    del stack[at:]
            elif opcode == _REDUCE:
                # What is called may give back its arguments, as a namedtuple.
                stack[-1] = stack.pop()
            elif opcode in (_APPENDS, _POP_MARK):
                del stack[_mark(stack) :]
            elif opcode == _LONG_GET:
                stack.append(memo[int.from_bytes(one[1:], "little")])
            elif opcode == _STACK_GLOBAL:
                del stack[last(stack, 2) :]
                stack.append(LEAF)
            elif opcode in (_APPEND, _POP):
                stack.pop()

    def _made(self, at: int) -> None:
        """Of what lies there and above, one tuple."""
        items = self._stack[at:]
        weight, depth = 1, 0
        for item in items:
            if item is not None:
                weight = min(weight + item[0], TOO_MUCH)
                depth = max(depth, item[1])
        self._stack[at:] = [(weight, depth + 1)]

    def _hash(self, items: Iterable[Weight | None]) -> None:
        for item in items:
            if item is not None:
                self._budget.hash(item[0], item[1])


_MARK, _GET, _MEMOIZE, _TUPLE, _REDUCE = b"(h\x94tR"
_SETITEMS, _SETITEM, _ADDITEMS, _FROZENSET = b"us\x90\x91"
_APPENDS, _APPEND, _POP, _POP_MARK, _LONG_GET, _STACK_GLOBAL = b"ea01j\x93"
_LEAVES: Final = frozenset(b"N\x88\x89KMJG)\x97]}\x8f\x8cC\x8a")


def _mark(stack: list[Weight | None]) -> int:
    """Where the last one is. Raises ValueError."""
    for at in range(len(stack) - 1, -1, -1):
        if stack[at] is None:
            return at
    raise ValueError


def weight_of(value: object, known: Mapping[int, Weight]) -> Weight:
    """As `check_hashed` weighs it, but of what is made already. `known` has the weights of
    instances, by their `id`. Counts no further than where a budget ends."""
    found: dict[int, Weight] = {}
    waiting = [value]
    while waiting:
        each = waiting[-1]
        if id(each) in found:
            waiting.pop()
        elif not isinstance(each, tuple | frozenset):
            found[id(waiting.pop())] = known.get(id(each), LEAF)
        elif inner := [x for x in _items(each) if id(x) not in found]:
            waiting += inner
        else:
            weights = [found[id(x)] for x in _items(each)]
            weight = min(1 + sum(w for w, _ in weights), TOO_MUCH)
            found[id(waiting.pop())] = weight, 1 + max((d for _, d in weights), default=0)
    return found[id(value)]


def _items(value: tuple[object, ...] | frozenset[object]) -> Iterator[object]:
    """Whatever its class says."""
    return tuple.__iter__(value) if isinstance(value, tuple) else frozenset.__iter__(value)

"""The opcodes that a result's pickle may hold, checked before it is read.

A pickle is a program for a stack machine. `check_opcodes` holds it to the opcodes that data needs,
and adds up what they make. `check_calls` follows that machine, without making anything: only what
was looked up by its name is called, and only containers get items.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sized
from operator import itemgetter
from typing import Final

from formation_p2p.core.errors import NotPlain
from formation_p2p.host.results.budget import Budget

# What pickles from protocol 4 on are made of (PEP 3154, PEP 574): opcodes of a fixed length, and
# how long the length of the others is. Left out are those that no data needs. PUT and its like name
# a place in a table that is then made as long as they say: seven bytes take 16 GiB. BUILD and
# NEWOBJ give an object a state of the pickle's choice: a numpy.dtype becomes another one by it.
_FIXED: Final = re.compile(
    rb"(?:[()N\x88\x89\]aetsu}\x85-\x87\x8f-\x91\x93\x94\x97\x98R01]"
    rb"|[\x80Kh].|M..|[Jj].{4}|[G\x95].{8})*+",
    re.DOTALL,
)
_LENGTHS: Final = {
    **dict.fromkeys((b"\x8c", b"C", b"\x8a"), 1),
    **dict.fromkeys((b"X", b"B", b"\x8b"), 4),
    **dict.fromkeys((b"\x8d", b"\x8e", b"\x96"), 8),
}
_STOP: Final = b"."
_SHORT_TEXT: Final = ord(b"\x8c")
# With the opcodes that make instances of classes: read only to say of which class.
_WITH_OBJECTS: Final = re.compile(_FIXED.pattern.replace(rb"R01]", rb"R01b\x81\x92]"), re.DOTALL)

# What values of CPython 3.11 to 3.14 take at the most, with their place in a container. An opcode
# makes one value, most of them small; these make larger ones.
_VALUE_BYTES: Final = 48
_LARGER: Final = {
    **dict.fromkeys((b"]", b"}", b"t", b"\x85", b"\x86", b"\x87"), 48),
    **dict.fromkeys((b"\x8f", b"\x91", b"\x97", b"\x98"), 200),
}
# What so few make is not worth counting: 256 KiB at the most, of the 64 MiB that any may take.
_SMALL_PICKLE_BYTES: Final = 1024
# And these make none, but a place in the memo or on the stack; what a call makes is counted where
# it is made.
_SMALLER_BYTES: Final = 16
_SMALLER: Final = (b"h", b"j", b"\x94", b"R", b"0", b"1", b"(")
# Each opcode of a fixed length, with its argument; and as many as are taken apart at a time.
ONE: Final = re.compile(rb"[\x80Kh].|M..|[Jj].{4}|[G\x95].{8}|.", re.DOTALL)
SOME: Final = re.compile(rb"(?:[\x80Kh].|M..|[Jj].{4}|[G\x95].{8}|.){1,4096}+", re.DOTALL)


def check_opcodes(
    pickled: bytes, budget: Budget, made_by: Callable[[str, str], str]
) -> list[bytes]:
    """The opcodes of a fixed length, with their arguments, as `runs_of` has them. Raises NotPlain
    for opcodes that plain data does not need, and where the values that they make take too much
    memory."""
    try:
        runs = [run for run, _, _ in spans_of(pickled)]
    except NotPlain:
        check_calls(pickled, made_by)  # it may know of which class
        raise
    if len(pickled) <= _SMALL_PICKLE_BYTES:
        return runs
    opcodes = b"".join(runs)
    texts = _VALUE_BYTES * len(runs)
    # Too much, with the arguments taken for opcodes: that is known at once.
    most = _cost(opcodes)
    budget.spend_at_most(most + texts, lambda: _exact_cost(opcodes) + texts)
    return runs


def check_opcodes_of_objects(pickled: bytes) -> None:
    """As `check_opcodes`, and allows those that make instances of classes and give them a state:
    for a reader that finds no class where this does harm. Raises NotPlain."""
    for _ in spans_of(pickled, _WITH_OBJECTS):
        pass


def _cost(opcodes: bytes) -> int:
    larger = sum(more * opcodes.count(opcode) for opcode, more in _LARGER.items())
    return _VALUE_BYTES * len(opcodes) + larger


def _exact_cost(opcodes: bytes) -> int:
    total = 0
    for some in SOME.findall(opcodes):
        without_arguments = bytes(map(itemgetter(0), ONE.findall(some)))
        smaller = sum(map(without_arguments.count, _SMALLER))
        total += _cost(without_arguments) - smaller * (_VALUE_BYTES - _SMALLER_BYTES)
    return total


def runs_of(pickled: bytes, fixed: re.Pattern[bytes] = _FIXED) -> Iterator[tuple[bytes, bytes]]:
    """The opcodes of a fixed length, with their arguments, up to each of another length; and the
    argument of that one, empty where it is no short text. Raises NotPlain."""
    for run, at, end in spans_of(pickled, fixed):
        yield run, pickled[at + 2 : end] if pickled[at] == _SHORT_TEXT else b""


def spans_of(pickled: bytes, fixed: re.Pattern[bytes] = _FIXED) -> Iterator[tuple[bytes, int, int]]:
    """As `runs_of`; and where the opcode of another length begins, and its argument ends. The last
    is STOP. Raises NotPlain."""
    at = 0
    while True:
        run = fixed.match(pickled, at)
        assert run is not None, "it matches nothing, too"
        at = run.end()
        opcode = pickled[at : at + 1]
        if opcode == _STOP:
            yield run[0], at, at + 1
            return
        if opcode not in _LENGTHS:
            what = f"holds the opcode {opcode!r}" if opcode else "is cut short"
            raise NotPlain(f"a result {what}; pickle it whole, with protocol 4 or 5")
        after = at + 1 + _LENGTHS[opcode]
        end = min(after + int.from_bytes(pickled[at + 1 : after], "little"), len(pickled))
        yield run[0], at, end
        at = end


# What is on the stack, as far as it matters: a short text is its bytes; a name that was looked up
# is what its call makes, in a tuple.
_Item = int | bytes | tuple[int]
_MARK, _VALUE, _LIST, _DICT, _SET = range(5)
CONTAINERS: Final = {"list": _LIST, "dict": _DICT}
_PUSHES: Final[dict[int, _Item]] = {
    **dict.fromkeys(b"N\x88\x89KMJG)\x97", _VALUE),
    **dict.fromkeys(b"(", _MARK),
    **dict.fromkeys(b"]", _LIST),
    **dict.fromkeys(b"}", _DICT),
    **dict.fromkeys(b"\x8f", _SET),
}
_BINGET, _LONG_BINGET, _MEMOIZE, _REDUCE = b"hj\x94R"
_STACK_GLOBAL, _POP, _POP_MARK = b"\x930\x31"
TUPLES: Final = {0x85: 1, 0x86: 2, 0x87: 3}
_OF_MARKED: Final = b"t\x91"
# To what an opcode adds its items: those after the mark, or the last one or two.
_ADDS: Final = {ord("e"): _LIST, ord("u"): _DICT, 0x90: _SET, ord("a"): _LIST, ord("s"): _DICT}
_ADDED: Final = {ord("a"): 1, ord("s"): 2}
_LEFT_AS_IT_IS: Final = b"\x80\x95\x98"  # PROTO, FRAME, READONLY_BUFFER


def check_calls(pickled: bytes, made_by: Callable[[str, str], str]) -> None:
    """Raises NotPlain where anything is called but what was looked up by its name, or gets items
    but a container: an object's own `__call__` and `append` are code. `made_by` says which of
    CONTAINERS, if any, the call of a name makes, and raises NotPlain for a name that it refuses."""
    stack: list[_Item] = []
    memo: list[_Item] = []
    try:
        for run, text in runs_of(pickled, _WITH_OBJECTS):
            for some in SOME.findall(run):
                _follow(some, stack, memo, made_by)
            stack.append(text or _VALUE)
    except (IndexError, ValueError) as problem:
        raise NotPlain("a result could not be read: its pickle is none") from problem


def _follow(
    some: bytes, stack: list[_Item], memo: list[_Item], made_by: Callable[[str, str], str]
) -> None:
    push, remember = stack.append, memo.append
    for one in ONE.findall(some):
        opcode = one[0]
        if opcode in _PUSHES:
            push(_PUSHES[opcode])
        elif opcode == _BINGET:
            push(memo[one[1]])
        elif opcode == _MEMOIZE:
            remember(stack[-1])
        elif opcode in TUPLES:
            del stack[last(stack, TUPLES[opcode]) :]
            push(_VALUE)
        elif opcode == _REDUCE:
            stack.pop()
            called = stack.pop()
            if type(called) is not tuple:
                raise _refusal()
            push(called[0])
        elif opcode == _LONG_BINGET:
            push(memo[int.from_bytes(one[1:], "little")])
        elif opcode in _OF_MARKED:
            del stack[_mark(stack) :]
            push(_VALUE)
        elif opcode in _ADDS:
            added = _ADDED.get(opcode)
            del stack[_mark(stack) if added is None else last(stack, added) :]
            if stack[-1] != _ADDS[opcode]:
                raise _refusal()
        elif opcode == _STACK_GLOBAL:
            name, module = stack.pop(), stack.pop()
            if type(name) is not bytes or type(module) is not bytes:
                raise _refusal()
            makes = made_by(module.decode(errors="replace"), name.decode(errors="replace"))
            push((CONTAINERS.get(makes, _VALUE),))
        elif opcode == _POP:
            stack.pop()
        elif opcode == _POP_MARK:
            del stack[_mark(stack) :]
        elif opcode not in _LEFT_AS_IT_IS:
            raise _refusal()


def last(stack: Sized, count: int) -> int:
    """Where the last `count` begin. Raises IndexError."""
    if len(stack) < count:
        raise IndexError
    return len(stack) - count


def _mark(stack: list[_Item]) -> int:
    """Where the last one is. Raises ValueError."""
    for at in range(len(stack) - 1, -1, -1):
        if stack[at] == _MARK:
            return at
    raise ValueError


def _refusal() -> NotPlain:
    return NotPlain(
        "a result calls what is not a name, or adds to what is not a container; no pickle of a"
        " result does that, so do not trust its worker"
    )

"""The opcodes that a result's pickle may hold, checked before it is read.

A pickle is a program for a stack machine. `check_opcodes` holds it to the opcodes that data needs,
and adds up what they make. `check_calls` follows that machine, without making anything: only what
was looked up by its name is called, and only containers get items.
"""

from __future__ import annotations

import io
import re
import struct
from collections.abc import Callable, Iterator, Sized
from operator import itemgetter
from typing import Final

from formation_p2p.core.errors import NotPlain
from formation_p2p.results.budget import Budget

# What pickles from protocol 4 on are made of (PEP 3154, PEP 574). Left out are those opcodes that
# no data needs. PUT and its like name a place in a table that is then made as long as they say:
# seven bytes take 16 GiB. BUILD and NEWOBJ give an object a state of the pickle's choice: a
# numpy.dtype becomes another one by it. They are read only to say of which class the object is.
_OBJECTS: Final = rb"b\x81\x92"
# What is short is stepped over in C: each length of a text, of bytes or of a number is an
# alternative of its own.
_LENGTHS_OF_SHORT: Final = b"|".join(re.escape(bytes([n])) + b".{%d}" % n for n in range(256))
WITH_ARGUMENT: Final = rb"[\x80Kh].|M..|[Jj].{4}|G.{8}|[\x8cC\x8a](?:%b)" % _LENGTHS_OF_SHORT
_FRAME: Final = rb"\x95.{8}"
# So many are taken apart at a time. The alternative that never fits, last in each group that gives
# nothing back, is for Python before 3.11.5, which goes on from where the last one failed (CPython
# gh-106052).
_SHORT: Final = re.compile(
    rb"(?:[()N\x88\x89\]aetsu}\x85-\x87\x8f-\x91\x93\x94\x97\x98R01%b]|%b|%b|(?!)){0,4096}+"
    % (_OBJECTS, WITH_ARGUMENT, _FRAME),
    re.DOTALL,
)
_LONGEST_SHORT: Final = 257
# Of these none is worth a look but the bytes that they have, and the value of each takes no more
# than so much for each byte.
_QUIET: Final = re.compile(rb"(?:[\x94(]|%b|%b|(?!))++" % (WITH_ARGUMENT, _FRAME), re.DOTALL)
_QUIET_BYTES: Final = 24
# Each opcode, with its argument.
ONE: Final = re.compile(rb"%b|%b|." % (WITH_ARGUMENT, _FRAME), re.DOTALL)
# How long the length is that begins the argument of the others. One byte only where the argument
# is cut short.
_LENGTHS: Final = {
    **dict.fromkeys((b"\x8c", b"C", b"\x8a"), 1),
    **dict.fromkeys((b"X", b"B", b"\x8b"), 4),
    **dict.fromkeys((b"\x8d", b"\x8e", b"\x96"), 8),
}
_STOP: Final = b"."
_ONE_FRAME: Final = struct.Struct("<3sQ")
_MAKES_OBJECTS: Final = re.compile(b"[%b]" % _OBJECTS)

# What values of CPython 3.11 to 3.14 take at the most, with their place in a container. An opcode
# makes one value, most of them small.
_VALUE_BYTES: Final = 48
_MORE_BYTES: Final = {
    **dict.fromkeys(b"]}", 32),
    **dict.fromkeys(b"t\x85\x86\x87", 48),
    **dict.fromkeys(b"\x8f\x91\x97\x98", 200),
    # These make none, but a place in the memo or on the stack; what a call makes is counted where
    # it is made.
    **dict.fromkeys(b"hj\x94R01(", -32),
}
# What so few make is not worth counting: 256 KiB at the most, of the 64 MiB that any may take.
_SMALL_PICKLE_BYTES: Final = 1024


def check_opcodes(pickled: bytes, budget: Budget, made_by: Callable[[str, str], str]) -> bytes:
    """The opcodes, but the quiet ones and without arguments. Raises NotPlain for those that plain
    data does not need, and where the values that they make take too much memory."""
    found: list[bytes] = []
    quiet = 0
    try:
        for start, at, end in spans_of(pickled):
            loud = _QUIET.sub(b"", pickled[start:at])
            quiet += at - start - len(loud)
            found += loud, pickled[at : min(at + 1, end)]
        opcodes = b"".join(found)
        if makes := _MAKES_OBJECTS.search(opcodes):
            raise _unfit(makes[0])
    except NotPlain:
        check_calls(pickled, made_by)  # it may know of which class
        raise
    if len(pickled) > _SMALL_PICKLE_BYTES:
        most = _QUIET_BYTES * quiet + _cost(opcodes)
        budget.spend_at_most(most, lambda: _exact_cost(pickled))
    return opcodes


def check_opcodes_of_objects(pickled: bytes) -> None:
    """As `check_opcodes`, and allows those that make instances of classes and give them a state:
    for a reader that finds no class where this does harm. Raises NotPlain."""
    for _ in spans_of(pickled):
        pass


def _cost(opcodes: bytes) -> int:
    more = sum(bytes_ * opcodes.count(opcode) for opcode, bytes_ in _MORE_BYTES.items())
    return _VALUE_BYTES * len(opcodes) + more


def _exact_cost(pickled: bytes) -> int:
    total = 0
    for start, at, end in spans_of(pickled):
        total += _cost(bytes(map(itemgetter(0), ONE.findall(pickled, start, at))))
        total += _VALUE_BYTES * (end > at)
    return total


def spans_of(pickled: bytes) -> Iterator[tuple[int, int, int]]:
    """Where some short opcodes begin, with their arguments, and where they end; and where the long
    one ends that follows, or the last, which is STOP. None may follow. Raises NotPlain."""
    at = 0
    while True:
        start, at = at, _end_of_short(pickled, at, len(pickled))
        opcode = pickled[at : at + 1]
        if opcode == _STOP:
            yield start, at, at + 1
            return
        if opcode in _LENGTHS:
            after = at + 1 + _LENGTHS[opcode]
            size = int.from_bytes(pickled[at + 1 : after], "little")
            end = min(after + size, len(pickled))
        elif _end_of_short(pickled, at, at + _LONGEST_SHORT) > at:  # there are more of them
            end = at
        else:
            raise _unfit(opcode)
        yield start, at, end
        at = end


def in_one_frame(pickled: bytes) -> io.BytesIO:
    """For an unpickler. Where a frame ends within an opcode, one of a file goes on at another place
    than `spans_of` does: what that took for a text would be run."""
    return io.BytesIO(_ONE_FRAME.pack(b"\x80\x05\x95", len(pickled)) + pickled)


def _end_of_short(pickled: bytes, at: int, until: int) -> int:
    short = _SHORT.match(pickled, at, until)
    assert short is not None, "it matches nothing, too"
    return short.end()


def _unfit(opcode: bytes) -> NotPlain:
    what = f"holds the opcode {opcode!r}" if opcode else "is cut short"
    return NotPlain(f"a result {what}; pickle it whole, with protocol 4 or 5")


# What is on the stack, as far as it matters: a short text is its bytes; a name that was looked up
# is what its call makes, in a tuple.
_Item = int | bytes | tuple[int]
_MARK, _VALUE, _LIST, _DICT, _SET = range(5)
CONTAINERS: Final = {"list": _LIST, "dict": _DICT}
_PUSHES: Final[dict[int, _Item]] = {
    **dict.fromkeys(b"N\x88\x89KMJG)\x97C\x8a", _VALUE),
    **dict.fromkeys(b"(", _MARK),
    **dict.fromkeys(b"]", _LIST),
    **dict.fromkeys(b"}", _DICT),
    **dict.fromkeys(b"\x8f", _SET),
}
_BINGET, _LONG_BINGET, _MEMOIZE, _REDUCE, _SHORT_TEXT = b"hj\x94R\x8c"
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
        for start, at, end in spans_of(pickled):
            _follow(ONE.findall(pickled, start, at), stack, memo, made_by)
            if end > at:
                stack.append(_VALUE)
    except (IndexError, ValueError) as problem:
        raise NotPlain("a result could not be read: its pickle is none") from problem


def _follow(
    some: list[bytes], stack: list[_Item], memo: list[_Item], made_by: Callable[[str, str], str]
) -> None:
    push, remember = stack.append, memo.append
    for one in some:
        opcode = one[0]
        if opcode in _PUSHES:
            push(_PUSHES[opcode])
        elif opcode == _SHORT_TEXT:
            push(one[2:])
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

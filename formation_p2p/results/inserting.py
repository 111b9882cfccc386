"""Items into the dicts and sets of a result, a few at a time and on the clock.

Hashes of numbers, and of all that is made of numbers, can be chosen. Of keys that have the same
one, each is compared with all before it: a hundred thousand of them, in one megabyte, take minutes,
in one opcode that nothing interrupts. So a pickle is read with other opcodes in place of those that
insert: they collect the same items, and hand them to `persistent_load`. What that takes counts, in
time of the processor, since no count of comparisons knows what a comparison takes.
"""

from __future__ import annotations

import pickle
import re
import time
from collections.abc import Sequence
from itertools import islice
from typing import Any, Final

from formation_p2p.core.errors import NotPlain
from formation_p2p.core.units import KIB
from formation_p2p.results.budget import Budget
from formation_p2p.results.opcodes import WITH_ARGUMENT, in_one_frame, spans_of

# A pickle up to here has fewer keys than take 20 ms, however they were chosen.
SHORT_BYTES: Final = 8 * KIB
# Into a container with fewer, inserting takes next to nothing: the clock would take longer.
_FEW: Final = 64
# So many are inserted at a time.
_BATCH: Final = 256

# None of these takes what is below a mark from the stack, or puts more than one value there.
_VALUES: Final = rb"[N\x88\x89)\]\x94\x85-\x87]|%b" % WITH_ARGUMENT
# A new dict of a few of them, and of lists and tuples of them: it is left to the unpickler.
_SMALL_DICT: Final = rb"}\x94?+\((?:%b|\((?:%b|(?!))*+[et]|(?!)){1,%d}+u" % (_VALUES, _VALUES, _FEW)
# Opcodes up to one that inserts, or that begins a frame; and that one.
_STEPS: Final = re.compile(
    rb"((?:%b|[()N\x88\x89\]aet}\x85-\x87\x8f\x93\x94\x97\x98R01]|%b|(?!))*+)"
    rb"([us\x90\x91]|\x95.{8}|\Z)" % (_SMALL_DICT, WITH_ARGUMENT),
    re.DOTALL,
)
# LIST, TUPLE2, TUPLE3 and BINPERSID: the container with a list of items, or with a key and its
# value; of a frozenset the list alone. Frames have other lengths now.
_INSTEAD: Final = {
    b"u": b"l\x86Q",
    b"\x90": b"l\x86Q",
    b"s": b"\x87Q",
    b"\x91": b"lQ",
    b"\x95": b"",
    b"": b"",
}


class InsertingUnpickler(pickle.Unpickler):
    """Of a pickle whose opcodes were checked. Raises NotPlain where its keys take too long."""

    def __init__(
        self,
        pickled: bytes,
        budget: Budget,
        buffers: Sequence[bytes | bytearray | memoryview] = (),
        *,
        inserts: bool = True,
    ) -> None:
        self._budget = budget
        body = _rewritten(pickled) if inserts else pickled
        super().__init__(in_one_frame(body), buffers=buffers)

    def persistent_load(self, collected: Any) -> Any:
        if type(collected) is list:
            return self.frozen(collected)
        container, *rest = collected
        if not isinstance(container, dict | set):
            raise NotPlain("a result adds to what is not a container; do not trust its worker")
        items = rest[0] if len(rest) == 1 else rest
        if len(container) + len(items) <= _FEW:
            _insert(container, items)
            return container
        # Of a dict every other one is a key.
        for at in range(0, len(items), 2 * _BATCH):
            began_s = time.thread_time()
            _insert(container, items[at : at + 2 * _BATCH])
            self._budget.inserted(time.thread_time() - began_s)
        return container

    def frozen(self, items: Sequence[Any]) -> frozenset[Any]:
        return frozenset(of_items(items, self._budget))


def of_items(items: Sequence[Any], budget: Budget) -> set[Any]:
    """A set of these. Raises NotPlain where that takes too long."""
    found: set[Any] = set()
    rest = iter(items)
    while batch := list(islice(rest, _BATCH)):
        began_s = time.thread_time()
        found.update(batch)
        budget.inserted(time.thread_time() - began_s)
    return found


def _insert(container: dict[Any, Any] | set[Any], items: Sequence[Any]) -> None:
    if isinstance(container, set):
        container.update(items)
        return
    pairs = zip(items[::2], items[1::2], strict=True)
    if type(container) is dict:
        container.update(pairs)
        return
    for key, value in pairs:  # to update a Counter is to add
        container[key] = value


def _rewritten(pickled: bytes) -> bytes:
    """The same pickle, for `persistent_load`."""
    parts: list[bytes] = []
    for start, at, end in spans_of(pickled):
        for kept, opcode in _STEPS.findall(pickled, start, at):
            parts += kept, _INSTEAD[opcode[:1]]
        parts.append(pickled[at:end])
    return b"".join(parts)

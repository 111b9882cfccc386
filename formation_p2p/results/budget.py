"""The memory that reading one result may take, and the time for its keys."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from formation_p2p.core.errors import NotPlain
from formation_p2p.core.units import MIB, format_bytes

# An allowance, and so much for each byte of the pickle: plain data takes two to thirty times its
# pickle, and only long lists of empty containers take more. Any result may take the least amount:
# 100 MiB of it, with what reading it holds besides. Buffers beside the pickle are there already,
# and count once more for what is copied of them.
LEAST_BYTES: Final = 128 * MIB
ALLOWANCE_BYTES: Final = 64 * MIB
BYTES_PER_BYTE: Final = 32
# Of a dtype, a time zone or an array of objects, beside what it holds.
OBJECT_BYTES: Final = 768
# A container has a place for each of its items.
ITEM_BYTES: Final = 128
# Hashing and comparing take some 50 ns for each value; an honest key is hashed once or twice for
# each time that the pickle names it.
ALLOWANCE_HASHED: Final = 1_000_000
HASHED_PER_BYTE: Final = 16
# C code recurses for each level, 200 bytes of the stack at a time. So does a pickler: of honest
# results none is deeper.
MAX_HASHED_DEPTH: Final = 2_000
# To insert a key takes 0.1 us, on a small machine 1 us, and no pickle has one in less than two
# bytes: a byte may take as long as an honest one does there.
ALLOWANCE_INSERTING_S: Final = 2.0
INSERTING_S_PER_BYTE: Final = 1e-6


class Budget:
    """Shared by all that is made for one result: a value may be named any number of times, and is
    counted each time."""

    def __init__(self, pickle_bytes: int, buffer_bytes: int = 0, most: int | None = None) -> None:
        """`most` is how much memory it may take, where its size does not say it."""
        self._size = pickle_bytes + buffer_bytes
        if most is None:
            most = max(LEAST_BYTES, ALLOWANCE_BYTES + BYTES_PER_BYTE * pickle_bytes)
        self._most = self._left = most + buffer_bytes
        self._hashed_left = ALLOWANCE_HASHED + HASHED_PER_BYTE * pickle_bytes
        self._inserting_left_s = ALLOWANCE_INSERTING_S + INSERTING_S_PER_BYTE * pickle_bytes
        self._estimate = 0
        self._exact: Callable[[], int] | None = None

    def spend_at_most(self, bytes_: int, exact: Callable[[], int]) -> None:
        """Once: as `spend`, of an amount that `exact` corrects where there is not enough left."""
        self._estimate, self._exact = bytes_, exact
        self.spend(bytes_)

    def spend(self, bytes_: int) -> None:
        """Raises NotPlain."""
        self._left -= bytes_
        if self._left < 0 and self._exact is not None:
            exact, self._exact = self._exact, None
            self._left += self._estimate - exact()
        if self._left < 0:
            raise NotPlain(
                f"a result of {format_bytes(self._size)} would take far more memory than"
                f" {format_bytes(self._most)}; return larger pieces, as bytes or text"
            )

    def hash(self, values: int, depth: int) -> None:
        """Of a key that is hashed now: how many values are in it, as often as they are named, and
        how deep. Raises NotPlain."""
        self._hashed_left -= values
        if self._hashed_left < 0 or depth > MAX_HASHED_DEPTH:
            raise NotPlain(
                "a result has keys that hold one another, so that reading it would take very long;"
                " no honest result does, so do not trust its worker"
            )

    def inserted(self, took_s: float) -> None:
        """Keys into a container, in so much time of the processor. Raises NotPlain."""
        self._inserting_left_s -= took_s
        if self._inserting_left_s < 0:
            raise NotPlain(
                "a result has keys that take very long to tell apart; no honest result does, so do"
                " not trust its worker"
            )


class Unlimited(Budget):
    """For a caller that trusts its workers."""

    def __init__(self) -> None:
        super().__init__(0)

    def spend(self, bytes_: int) -> None:
        return

    def hash(self, values: int, depth: int) -> None:
        return

    def inserted(self, took_s: float) -> None:
        return

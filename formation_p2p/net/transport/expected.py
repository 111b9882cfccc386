"""What is sure to come next on a stream: bodies that were asked for, each behind a known head.

The muxer puts each where it is to lie, whether or not its reader waits for it at that moment: bulk
data is decrypted there, and the reader is woken once for each body.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable


class Expected:
    """The bodies in the order in which they come. The owner of the stream bounds how many."""

    def __init__(self) -> None:
        self.whole: deque[memoryview] = deque()
        """Those that have come, the first one first."""
        self.is_wrong = False
        """Something else came: nothing is expected any more."""
        self._next: deque[tuple[bytes, Callable[[], memoryview]]] = deque()
        self._head_bytes = 0  # that have come of the next head
        self._body: memoryview | None = None  # that has begun
        self._body_bytes = 0  # that have come of it

    def add(self, head: bytes, room: Callable[[], memoryview]) -> None:
        """`room` is asked where the body goes once its head has come."""
        if not self.is_wrong:
            self._next.append((head, room))
            self._begin()

    def clear(self) -> None:
        """Expect nothing, and write no more into a body."""
        self._next.clear()
        self._head_bytes = 0
        self._body = None

    @property
    def rest(self) -> memoryview | None:
        """Where what comes next goes; None where that is no body."""
        return None if self._body is None else self._body[self._body_bytes :]

    def filled(self, size: int) -> None:
        """So many bytes of `rest` have come."""
        assert self._body is not None, "a body has begun"
        self._body_bytes += size
        if self._body_bytes == len(self._body):
            self.whole.append(self._body)
            self._body = None
            self._begin()

    def take(self, data: memoryview) -> memoryview:
        """What has come. Returns what is not expected, with what was taken for a head before it."""
        while data and not self.is_wrong:
            if (rest := self.rest) is not None:
                piece = data[: len(rest)]
                rest[: len(piece)] = piece
                self.filled(len(piece))
            elif self._next:
                head, _ = self._next[0]
                piece = data[: len(head) - self._head_bytes]
                if piece != head[self._head_bytes : self._head_bytes + len(piece)]:
                    data = memoryview(head[: self._head_bytes] + data)
                    self.clear()
                    self.is_wrong = True
                    break
                self._head_bytes += len(piece)
                self._begin()
            else:
                break
            data = data[len(piece) :]
        return data

    def _begin(self) -> None:
        """With the next body, where its head has come."""
        while self._body is None and self._next and self._head_bytes == len(self._next[0][0]):
            _, room = self._next.popleft()
            self._head_bytes = self._body_bytes = 0
            self._body = room()
            if not self._body:
                self.filled(0)

"""The store of a gang, for Python: `member.store` and `member.barrier`.

It is loaded as a file, in whatever Python runs the call: it imports the standard library alone. It
speaks what features/gangs/host/store_socket.py says. The names and what they mean are those of
torch's `Store`.
"""

from __future__ import annotations

import os
import socket

TYPE_CHECKING = False  # as in supervisor.py
if TYPE_CHECKING:
    from collections.abc import Generator, Sequence

# As torch.
TIMEOUT_S = 300.0
# Connections that are kept for the next request: as many threads as usually ask at once.
MAX_IDLE = 4


class StoreError(OSError):
    """The store did not do it; the message says why."""


class Store:
    """Values are bytes, or text, which is written in UTF-8. Threads may share it. Its methods raise
    TimeoutError, ValueError for a key that it cannot have, and StoreError."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._idle: list[Connection] = []

    def set(self, key: str, value: bytes | str) -> None:
        value = as_bytes(value)
        self._ask(f"set {named(key)} {len(value)}", value)

    def get(self, key: str, timeout: float = TIMEOUT_S) -> bytes:
        """Waits for a value."""
        return self._ask(f"get {named(key)} {timeout}")

    def wait(self, keys: Sequence[str], timeout: float = TIMEOUT_S) -> None:
        """Until all of them have a value."""
        if keys:
            self._ask(f"wait {timeout} {' '.join(map(named, keys))}")

    def check(self, keys: Sequence[str]) -> bool:
        """Whether all of them have a value."""
        try:
            self.wait(keys, 0)
        except TimeoutError:
            return False
        return True

    def add(self, key: str, amount: int) -> int:
        """The sum, which is kept in decimal. A key without a value counts as 0."""
        return int(self._ask(f"add {named(key)} {amount}"))

    def compare_set(self, key: str, expected: bytes | str, desired: bytes | str) -> bytes:
        """Sets `desired` where the value is `expected`, or where there is none and that is empty.
        Returns the value then; `expected` where there is none."""
        old, new = as_bytes(expected), as_bytes(desired)
        return self._ask(f"compare_set {named(key)} {len(old)} {len(new)}", old + new)

    def delete_key(self, key: str) -> bool:
        """Whether there was a value."""
        return self._ask(f"delete {named(key)}") == b"1"

    def num_keys(self) -> int:
        return int(self._ask("num_keys"))

    def read(self, key: str) -> bytes | None:
        """What this node was told last, at once; None without a value."""
        return self._ask(f"read {named(key)}", optional=True)

    def watch(self, key: str) -> Generator[bytes | None, None, None]:
        """The value, and then each newer one, without those that came and went in between."""
        connection = Connection(self._folder)
        try:
            yield connection.ask(f"watch {named(key)}", b"")
            while True:
                yield connection.answer()
        finally:
            connection.close()

    def barrier(self, name: str = "barrier", timeout: float = TIMEOUT_S) -> None:
        """Waits until all ranks are there."""
        self._ask(f"barrier {named(name)} {timeout}")

    def _ask(self, line: str, values: bytes = b"", optional: bool = False) -> bytes:
        try:
            connection = self._idle.pop()
        except IndexError:
            connection = Connection(self._folder)
        answer = connection.ask(line, values)  # which closes it where it fails
        if len(self._idle) < MAX_IDLE:
            self._idle.append(connection)
        else:
            connection.close()
        return answer  # type: ignore[return-value]  # None where it is optional


class Connection:
    def __init__(self, folder: str) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        # The path of a socket has 107 bytes at most.
        opened = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            self._socket.connect(f"/proc/self/fd/{opened}/store")
        except BaseException:
            self._socket.close()
            raise
        finally:
            os.close(opened)
        self._answers = self._socket.makefile("rb")

    def ask(self, line: str, values: bytes) -> bytes | None:
        try:
            self._socket.sendall(line.encode() + b"\n" + values)
            return self.answer()
        except BaseException:
            self.close()
            raise

    def answer(self) -> bytes | None:
        word, _, rest = self._answers.readline().rstrip(b"\n").partition(b" ")
        if word == b"value":
            return self._answers.read(int(rest))
        if word == b"number":
            return rest
        if word in (b"ok", b"none"):
            return None if word == b"none" else b""
        text = rest.decode(errors="replace") if word == b"error" else "moved it has ended"
        raise problem_of(text)

    def close(self) -> None:
        self._answers.close()
        self._socket.close()


def problem_of(text: str) -> Exception:
    kind, _, why = text.partition(" ")
    if kind == "timeout":
        return TimeoutError(why)
    if kind == "invalid":
        return ValueError(why)
    return StoreError(f"{kind}: {why}")


def named(key: str) -> str:
    if not key.isprintable() or " " in key or not key:
        raise ValueError(f"the key {key!r} has a space, or characters that do not print")
    return key


def as_bytes(value: bytes | str) -> bytes:
    return value.encode() if isinstance(value, str) else bytes(value)

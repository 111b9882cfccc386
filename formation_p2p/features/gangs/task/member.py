"""The member of a gang that a call runs as, which is its first argument, and the store that all
members share, as `member.store`: it speaks what features/gangs/host/store_socket.py says, and the
names and what they mean are those of torch's `Store`.

It is loaded as a file, in whatever Python runs the call: it imports the standard library alone.
"""

from __future__ import annotations

import os
import select
import socket
from contextlib import suppress
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

TYPE_CHECKING = False  # as in supervisor.py
if TYPE_CHECKING:
    from collections.abc import Generator, Sequence
    from typing import Any

# Of an answer of the node, with its end (features/gangs/host/leases.py).
MAX_ANSWER_BYTES = 1024
# Programs that wait to be accepted.
BACKLOG = 64
# As torch.
TIMEOUT_S = 300.0
# Connections that are kept for the next request: as many threads as usually ask at once.
MAX_IDLE = 4


class Member:
    """`rank` is from 0 to `size` - 1; `gang_id` names the gang. `folder` is where streams begin and
    end: empty where there are none."""

    def __init__(self, gang_id: str, rank: int, size: int, folder: str = "") -> None:
        self.gang_id = gang_id
        self.rank = rank
        self.size = size
        self.folder = folder
        self._store: Store | None = None

    def checkpoint(self, data: bytes | os.PathLike[str]) -> None:
        """Save bytes, or a file, from which this rank goes on where it is started again."""
        checkpoints().checkpoint(data)

    @property
    def restored(self) -> bytes | None:
        """What this rank's call had saved before it was started again."""
        saved: bytes | None = checkpoints().restored()
        return saved

    def __repr__(self) -> str:
        return f"<member {self.rank} of {self.size}>"

    def connect(self, rank: int | str, service: str) -> socket.socket:
        """A stream to a service of another member, or of the `"owner"`: waits for it to listen.
        Raises ConnectionError, which says why there is none."""
        return self._asked(f"{rank} {service}\n")

    def forward(self, port: int, rank: int | str, to: int | str) -> None:
        """From now on `port` of this task's 127.0.0.1 leads to a port, or a service, of another
        member, until the lease ends. Raises ConnectionError where it cannot: a task that shares the
        machine's network has no ports of its own."""
        service = f":{to}" if isinstance(to, int) else to
        self._asked(f"forward {port} {rank} {service}\n").close()

    def _asked(self, line: str) -> Stream:
        stream = Stream(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            with InFolder(self.folder) as folder:
                stream.connect(f"{folder}/connect")
            stream.sendall(line.encode())
            answer = b""
            while not answer.endswith(b"\n"):
                piece = stream.recv(1)  # what follows is the stream's
                if not piece or len(answer) > MAX_ANSWER_BYTES:
                    raise ConnectionAbortedError("the node ended the stream without an answer")
                answer += piece
            if answer != b"ok\n":
                raise ConnectionRefusedError(answer.decode(errors="replace").strip())
        except BaseException:
            stream.close()
            raise
        return stream

    @property
    def store(self) -> Store:
        """The store that all members share."""
        if self._store is None:
            self._store = Store(self.folder)
        return self._store

    def barrier(self, name: str = "barrier", timeout: float = 300.0) -> None:
        """Waits until all ranks are at this barrier. Raises TimeoutError."""
        self.store.barrier(name, timeout)

    def listen(self, service: str) -> socket.socket:
        """A socket that listens: others `connect` to this service, and it accepts them. The name is
        free again when it is closed, or listened on anew."""
        listening = Listening(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            with InFolder(os.path.join(self.folder, "services")) as folder:
                path = f"{folder}/{service}"
                with suppress(FileNotFoundError):
                    os.unlink(path)
                listening.bind(path)
            listening.path = os.path.join(self.folder, "services", service)
            listening.listen(BACKLOG)
        except BaseException:
            listening.close()
            raise
        return listening


class Stream(socket.socket):
    """A stream that has broken gives an error in place of its end, unless this side has shut its
    own way before: then the two look the same."""

    has_shut = False

    def shutdown(self, how: int) -> None:
        self.has_shut = True
        super().shutdown(how)

    def recv(self, size: int, flags: int = 0) -> bytes:
        data = super().recv(size, flags)
        if not data and size:
            self.check()
        return data

    def recv_into(self, buffer: Any, size: int = 0, flags: int = 0) -> int:
        count = super().recv_into(buffer, size, flags)
        if not count and len(buffer):
            self.check()
        return count

    def check(self) -> None:
        """The node ends both ways at once only where there is an error."""
        poll = select.poll()
        poll.register(self, 0)
        if poll.poll(0) and not self.has_shut:
            raise ConnectionResetError("the stream has broken, or its member has left the gang")


class Listening(socket.socket):
    path = ""

    def close(self) -> None:
        if self.path and self.fileno() >= 0:
            with suppress(OSError):
                os.unlink(self.path)
        super().close()

    def accept(self) -> tuple[socket.socket, Any]:
        accepted, address = super().accept()
        timeout = accepted.gettimeout()
        stream = Stream(accepted.family, accepted.type, accepted.proto, accepted.detach())
        stream.settimeout(timeout)
        return stream, address


class InFolder:
    """A name for a folder that is short: the path of a socket has 107 bytes at most."""

    def __init__(self, path: str) -> None:
        if not path:
            raise OSError("this worker could not set up streams for its gang; its log says why")
        self.path = path

    def __enter__(self) -> str:
        self.folder = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY)
        return f"/proc/self/fd/{self.folder}"

    def __exit__(self, *_: object) -> None:
        os.close(self.folder)


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
        try:
            with InFolder(folder) as short:
                self._socket.connect(f"{short}/store")
        except BaseException:
            self._socket.close()
            raise
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


def checkpoints() -> Any:
    """drivers/python_checkpoint.py, which is loaded as this file is."""
    path = Path(__file__).resolve().parents[3] / "drivers" / "python_checkpoint.py"
    spec = spec_from_file_location("formation_p2p_checkpoint", path)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def own() -> Member:
    """Raises RuntimeError in a call that runs outside of a gang."""
    try:
        gang_id = os.environ["FORMATION_GANG_ID"]
        rank, size = (int(os.environ[f"FORMATION_{x}"]) for x in ("RANK", "SIZE"))
    except KeyError as error:
        raise RuntimeError(
            "this call is for a member of a gang, and runs outside of one"
        ) from error
    return Member(gang_id, rank, size, os.environ.get("FORMATION_GANG", ""))

"""The member of a gang that a call runs as: its first argument.

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
    from typing import Any

    from formation_p2p.drivers.python_store import Store

# Of an answer of the node, with its end (features/gangs/host/leases.py).
MAX_ANSWER_BYTES = 1024
# Programs that wait to be accepted.
BACKLOG = 64


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
        """The store that all members share: see python_store.py."""
        if self._store is None:
            # Beside this file, which no path leads to.
            path = os.path.join(os.path.dirname(os.path.abspath(__file__)), "python_store.py")
            spec = spec_from_file_location("formation_p2p_member_store", path)
            assert spec is not None
            assert spec.loader is not None
            module = module_from_spec(spec)
            spec.loader.exec_module(module)
            self._store = module.Store(self.folder)
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


def checkpoints() -> Any:
    """python_checkpoint.py, which is loaded as this file is."""
    path = Path(__file__).resolve().parent / "python_checkpoint.py"
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

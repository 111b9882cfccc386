"""The nodes that run from a home, as other programs of the user see them
(observe/status.py)."""

from __future__ import annotations

import contextlib
import json
import queue
import socket
import threading
import time
from collections.abc import Iterator, Sequence, Set
from pathlib import Path
from typing import Final

from formation_p2p.command.words import Json
from formation_p2p.core.errors import LocalError
from formation_p2p.machine.unix_socket import reachable

# A node answers at once, but for a look at the network; one that is suspended does not.
ANSWER_S: Final = 20.0
# Lines that wait to be shown, of all nodes together; a reader that lags behind waits here.
MAX_UNSHOWN: Final = 1024
# Who follows does not miss a command that takes longer than this.
LOOK_AGAIN_S: Final = 0.2


def sockets_of(home: Path) -> list[Path]:
    """The sockets of the nodes that run from here. Raises LocalError where there is none."""
    found = _open_sockets(home)
    if not found:
        problem = f"no node runs from {home}"
        raise LocalError(f"{problem}; start one, such as `formation worker`, or name its --home")
    return found


def any_runs(home: Path) -> bool:
    """Whether a node runs from here, or has not ended yet."""
    return bool(_open_sockets(home))


def answers(path: Path, question: Json, timeout_s: float | None = ANSWER_S) -> Iterator[Json]:
    """Each line of the answer. Raises LocalError where the node does not answer."""
    try:
        with _connected(path, timeout_s) as client:
            client.sendall(f"{json.dumps(question)}\n".encode())
            with client.makefile(encoding="utf-8") as lines:
                for line in lines:
                    yield json.loads(line)
    except (OSError, ValueError) as error:
        raise LocalError(f"the node at {path} does not answer: {error}") from error


def answer(path: Path, question: Json) -> Json:
    """The only line of an answer; {} where the node left meanwhile. Raises LocalError where it is
    there and does not answer."""
    try:
        return next(answers(path, question), {})
    except LocalError:
        if _is_open(path):
            raise
        return {}


def told_by_all(home: Path, question: Json, *, follow: bool) -> Iterator[Json]:
    """What the nodes that run from here tell, as it comes, until all of them have ended. To
    `follow` is to listen to those as well that begin meanwhile. Raises LocalError where there is
    none."""
    unshown: queue.Queue[Json | Path] = queue.Queue(MAX_UNSHOWN)
    running: set[Path] = set()

    def read(path: Path) -> None:
        try:
            for line in answers(path, question, timeout_s=None):
                unshown.put(line)
        except LocalError as error:
            unshown.put({"event": "gone", "why": str(error)})
        finally:
            unshown.put(path)

    def listen(sockets: Sequence[Path]) -> None:
        for path in sockets:
            running.add(path)
            threading.Thread(target=read, args=(path,), daemon=True).start()

    listen(sockets_of(home))
    looked_s = time.monotonic()
    while running:
        with contextlib.suppress(queue.Empty):
            news = unshown.get(timeout=LOOK_AGAIN_S if follow else None)
            if isinstance(news, Path):
                running.discard(news)
            else:
                yield news
        if follow and running and time.monotonic() - looked_s >= LOOK_AGAIN_S:
            listen(_open_sockets(home, but=running))
            looked_s = time.monotonic()


def _open_sockets(home: Path, but: Set[Path] = frozenset()) -> list[Path]:
    there = (path for path in sorted(home.glob("status-*.sock")) if path not in but)
    return [path for path in there if _is_open(path)]


def _is_open(path: Path) -> bool:
    """Whether somebody listens; a node that was killed leaves its socket behind."""
    with contextlib.suppress(OSError), _connected(path, ANSWER_S):
        return True
    return False


@contextlib.contextmanager
def _connected(path: Path, timeout_s: float | None) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
        client.settimeout(timeout_s)
        with reachable(path) as name:
            client.connect(name)
        yield client

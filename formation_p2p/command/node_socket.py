"""The nodes that run from a home, as other programs of the user see them (observe/status.py), and
who of the network is online by what they tell."""

from __future__ import annotations

import queue
import socket
import threading
import time
from collections.abc import Iterable, Iterator, Sequence, Set
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from formation_p2p.command.words import Json
from formation_p2p.core.errors import FormationError, InvalidInput, LocalError
from formation_p2p.machine.unix_socket import reachable
from formation_p2p.rpc.wire import asked, error_from_wire, told
from formation_p2p.state.member_file import ONLINE_S, read_members

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


def answers(
    path: Path, method: str, timeout_s: float | None = ANSWER_S, /, **question: object
) -> Iterator[Any]:
    """Each of its documents. Raises LocalError where the node does not answer, and what it raised
    itself."""
    try:
        connection = asked(path, method, question, greets_s=ANSWER_S, answers_s=timeout_s)
        with connection, suppress(EOFError):
            while True:
                message = told(connection)
                if "error" in message:
                    raise error_from_wire(message["error"])
                yield message["is"]
    except (OSError, InvalidInput) as error:
        raise LocalError(f"the node at {path} does not answer: {error}") from error


def answer(path: Path, method: str, /, **question: object) -> Json:
    """The only document of an answer; {} where the node left meanwhile. Raises LocalError where it
    is there and does not answer."""
    try:
        found: Json = next(answers(path, method, **question), {})
    except LocalError:
        if _is_open(path):
            raise
        return {}
    return found


def statuses(home: Path) -> tuple[list[Json], list[str]]:
    """Of the nodes that run from here, and why others do not answer."""
    nodes: list[Json] = []
    silent: list[str] = []
    for path in _open_sockets(home):
        try:
            nodes.append(answer(path, "status"))
        except LocalError as error:
            silent.append(str(error))
    return [each for each in nodes if each], silent


def answers_of(home: Path, method: str, /, **question: object) -> list[Json]:
    """Of each node that runs from here. Raises LocalError where there is none."""
    found = (answer(path, method, **question) for path in sockets_of(home))
    return [each for each in found if each]


def events_of_all(home: Path, job: str, *, follow: bool) -> Iterator[Json]:
    """What happens to the jobs of the nodes that run from here whose id begins so, as it comes,
    until all of these nodes have ended. To `follow` is to listen to those as well that begin
    meanwhile. Raises LocalError where there is none."""
    unshown: queue.Queue[Json | Path] = queue.Queue(MAX_UNSHOWN)
    running: set[Path] = set()

    def read(path: Path) -> None:
        try:
            for events in answers(path, "events", None, job=job, follow=follow):
                for each in events:
                    unshown.put(each)
        except FormationError as error:
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
        with suppress(queue.Empty):
            news = unshown.get(timeout=LOOK_AGAIN_S if follow else None)
            if isinstance(news, Path):
                running.discard(news)
            else:
                yield news
        if follow and running and time.monotonic() - looked_s >= LOOK_AGAIN_S:
            listen(_open_sockets(home, but=running))
            looked_s = time.monotonic()


def _open_sockets(home: Path, but: Set[Path] = frozenset()) -> list[Path]:
    there = (path for path in sorted(home.glob("node-*.sock")) if path not in but)
    return [path for path in there if _is_open(path)]


def _is_open(path: Path) -> bool:
    """Whether somebody listens; a node that was killed leaves its socket behind."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client, suppress(OSError):
        client.settimeout(ANSWER_S)
        with reachable(path) as name:
            client.connect(name)
        return True
    return False


def online(home: Path, nodes: Iterable[Json]) -> dict[str, int]:
    """Since when each peer is there, in Unix time: those that are connected to one of `nodes`, of
    which these are the statuses, and members that announced themselves lately."""
    found: dict[str, int] = {}
    for node in nodes:
        told = [*node.get("connections", ()), node]
        for each in told:
            since = int(each.get("since_unix_s", time.time()))
            found[each["peer_id"]] = min(found.get(each["peer_id"], since), since)
    if found:
        least_unix_s = time.time() - ONLINE_S
        for member in read_members(home):
            since = member.since_unix_s
            if since and (member.seen_unix_s >= least_unix_s or member.peer_id in found):
                found[member.peer_id] = min(found.get(member.peer_id, since), since)
    return found

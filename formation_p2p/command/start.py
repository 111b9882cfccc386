"""The start of the `formation` command, of as few modules as can be.

`formation run PROGRAM…`, without options, through the node that runs on this machine: to import
what asks a question takes four times as long as its answer. So this asks, and passes on what
comes, where that is what nearly always comes. All else is the command's (main.py), which goes on
with the question that was asked: an error, a failure, a retry, a signal, a worker that is not
there at once.
"""

from __future__ import annotations

import os
import sys
from collections import deque
from typing import TYPE_CHECKING, Any, Final, NoReturn

if TYPE_CHECKING:
    import socket
    from collections.abc import Sequence

    from formation_p2p.rpc.wire import Message

# With one of these a command does something else, or elsewhere.
_VARIABLES: Final = ("FORMATION_JOIN", "FORMATION_STATE", "FORMATION_METRICS")
_COMPLETION: Final = "_FORMATION_COMPLETE"
# Those of `run` that are not those of the node (run.py, RUN_DEFAULTS).
_KWARGS: Final = {"attempts": 1}
# Of all arguments, of the program's name, and how many: below what a task may have (process.py).
_MAX_CHARS: Final = 16_384
_MAX_NAME_CHARS: Final = 256
_MAX_WORDS: Final = 64
# As exits.py has it.
_INTERRUPTED: Final = 130
# For a node to greet: one that takes longer has the command greet it again, with more patience.
_GREETS_S: Final = 1.0
# A task that is not placed by then waits for a worker, which a person is told a while later.
_PLACED_S: Final = 0.5
# What a pipe that has room takes without waiting (pipe(7), PIPE_BUF).
_AT_ONCE_BYTES: Final = 4096
# What a result holds of stdout (workload/core/process.py).
_MAX_TAIL_BYTES: Final = 65_536
# Events that say nothing to a person, until it is handed over.
_MAX_HEARD: Final = 64


class Begun:
    """A question that was asked on `connection`. Of what came in answer, `heard` is what was not
    acted on; none of it is in part. `stdout` is what was passed on. `interrupted` is the signal
    that came, or 0. The task was `placed`, has `succeeded`, and all `is_over`, as far as was
    heard."""

    def __init__(self, home: str, connection: socket.socket) -> None:
        self.home = home
        self.connection = connection
        self.heard: deque[Message] = deque()
        self.stdout = bytearray()
        self.interrupted = 0
        self.placed = self.succeeded = self.is_over = False


# For the command of this program, which would ask the same.
waiting: list[Begun] = []


def main() -> NoReturn:
    _open_all()
    from formation_p2p.command.stacks import print_on_quit

    print_on_quit()
    try:
        argv = program_of(sys.argv[1:])
        begun = None if argv is None else _asked(argv)
        if begun is not None:
            if _followed(begun):
                sys.exit(0)
            waiting.append(begun)
        from formation_p2p.command.main import app
    except KeyboardInterrupt:
        sys.exit(_INTERRUPTED)
    sys.exit(app(prog_name="formation"))


def _open_all() -> None:
    """A closed standard stream would be the next file that is opened: a socket, or a database.
    Nothing is read from it, stdout refuses what is written, and stderr forgets it."""
    for number, (name, flags) in enumerate(
        (("stdin", os.O_RDONLY), ("stdout", os.O_RDONLY), ("stderr", os.O_WRONLY))
    ):
        if getattr(sys, name) is None:
            if (opened := os.open(os.devnull, flags)) != number:
                os.dup2(opened, number)
                os.close(opened)
            stream = open(number, "w" if number else "r", closefd=False)  # noqa: SIM115 - ours
            setattr(sys, name, stream)


def program_of(words: Sequence[str]) -> list[str] | None:
    """The program that `formation run` is to run, where there is nothing else to heed."""
    if not words or words[0] != "run":
        return None
    argv = list(words[2:] if words[1:2] == ["--"] else words[1:])
    if not argv or argv[0].split() != [argv[0]] or argv[0].startswith("-") or "--" in argv:
        return None
    if any(os.environ.get(each) for each in _VARIABLES) or _COMPLETION in os.environ:
        return None
    if any(word.endswith(".py") for word in argv[:2]):  # script.py may send it along
        return None
    if len(argv) > _MAX_WORDS or sum(map(len, argv)) > _MAX_CHARS:
        return None
    is_text = len(argv[0]) <= _MAX_NAME_CHARS and all(word.isprintable() for word in argv)
    return argv if is_text else None


def question_of(argv: list[str]) -> dict[str, Any]:
    """As run.py and client.py ask it."""
    work: list[Any] = ["ProcessSpec", argv, {}, None, {}, [], {}, [], [], 85, {}]
    name = {"name": argv[0], "labels": [argv[0]]}
    return {"work": work, "kwargs": _KWARGS, **name, "options": None}


def _asked(argv: list[str]) -> Begun | None:
    """None where no node runs here, or one that does not answer as it should."""
    from formation_p2p.core.errors import LocalError
    from formation_p2p.machine.home_path import home_path
    from formation_p2p.rpc.wire import EXCHANGE_S, asked, socket_of

    home, within_s = home_path(), {"greets_s": _GREETS_S, "answers_s": EXCHANGE_S}
    try:
        connection = asked(socket_of(home), "submit", question_of(argv), **within_s)
    except (OSError, LocalError):
        return None
    return Begun(str(home), connection)


def _followed(begun: Begun) -> bool:
    """Pass on what comes. True where the program ran to a good end, and all is told; else the
    command goes on from here."""
    import select
    import signal

    from formation_p2p.rpc.wire import told

    wakes, rings = os.pipe()
    os.set_blocking(rings, False)
    before = {}
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) != signal.SIG_IGN:
            before[number] = signal.signal(number, lambda *_: None)
    signal.set_wakeup_fd(rings)
    try:
        while len(begun.heard) < _MAX_HEARD and not begun.is_over:
            within_s = None if begun.placed else _PLACED_S
            ready, _, _ = select.select([begun.connection.fileno(), wakes], [], [], within_s)
            if wakes in ready:
                begun.interrupted = os.read(wakes, 1)[0]
                return False
            if not ready:
                return False
            try:
                message = told(begun.connection)
            except (EOFError, OSError, ValueError):
                begun.connection.shutdown(2)  # the command finds that the node has left
                return False
            begun.heard.append(message)
            if not _acted_on(begun, message):
                return False
        return begun.is_over
    finally:
        signal.set_wakeup_fd(-1)
        for number, handler in before.items():
            signal.signal(number, handler)
        os.close(wakes)
        os.close(rings)


def _acted_on(begun: Begun, message: Message) -> bool:
    """Whether it is what nearly always comes."""
    match message:
        case {"is": ["_Begun", str(), [[str(), str()]], [*sizes]]}:
            _tell(sizes)
            message["is"][3] = []  # they are told
        case {"event": ["TaskPlaced", *_]}:
            begun.placed = True
        case {"event": ["TaskBegan", *_]}:
            pass
        case {"event": ["TaskPrinted", str(), bool(is_stderr), bytes(data), str()]}:
            message["event"][3] = rest = _printed(is_stderr, data)
            if not is_stderr:
                begun.stdout += data[: len(data) - len(rest)]
            if rest:
                return False
            begun.heard.pop()
            return len(begun.stdout) <= _MAX_TAIL_BYTES  # else its digest tells whether that is all
        case {"event": ["TaskSucceeded", str(), str(), bytes(result), *_]}:
            begun.succeeded = _is_good(result, bytes(begun.stdout))
            return begun.succeeded
        case {"event": ["JobEnded", *_]} if begun.succeeded:
            begun.is_over = True
        case _:
            return False
    return True


def _tell(sizes: list[Any]) -> None:
    """As `tell_sizes` of outcomes.py."""
    if sizes:
        from formation_p2p.command.words import say
        from formation_p2p.workload.core.learnt import learnt_in_words

        for size in sizes:
            say(f"formation: {learnt_in_words(*size)}")


def _printed(is_stderr: bool, data: bytes) -> bytes:
    """What is left of it, where its reader takes its time, or is gone."""
    import select

    file = 2 if is_stderr else 1
    try:
        room = data and select.select([], [file], [], 0)[1]
        written = os.write(file, data[:_AT_ONCE_BYTES]) if room else 0
    except OSError:
        return data
    return data[written:]


def _is_good(result: bytes, stdout: bytes) -> bool:
    """Whether a process ended well, all that it printed is here, and nothing is to be fetched."""
    from formation_p2p.core import cbor

    try:
        ended: Any = cbor.decode(result)
    except ValueError:
        return False
    match ended:
        case {"exit_code": 0, "files": files, "outputs": outputs, "stdout_tail": tail}:
            is_whole = tail == stdout and "stdout_sha256" not in ended
            return bool(is_whole and files == {} == outputs)
        case _:
            return False

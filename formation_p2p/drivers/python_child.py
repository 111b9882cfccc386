"""A warm interpreter: runs the calls of one lease, one after the other, and is their process.

Run as a file, under `supervisor.py`, as

    python -I -u python_child.py <calls fd> <data fd> <max kept bytes> <cloudpickle> <path>…
        "" <path>…

It imports little, and of this package `result_pickler.py` alone. `python.py` is its other end.
`cloudpickle` is a folder, or empty where it is found by its name. Modules are looked for in the
first paths before all else, and in those after the empty one after all else.

Once it is ready it writes READY. Then it reads, one after the other and as many as are there,
headers of HEADER with what each announces: the pickle of a FUNCTION, to be kept by its number, or
a CALL of a function by its number, with the pickle of the arguments. Before its pickle a function
has a line with the Python that wrote it, how many bytes a call may return, and `member` where it is
called as the member of a gang. To each call it
writes a header of REPLY and its two parts (a message for people, a pickle), before it begins the
next one. A result that is large is handed over: see python_parcels.py. So is one that is too large
for its caller, up to a bound, so that the work is not lost.

Calls are counted from 1, and replies say to which call. After a call that has printed, or taken
long, the reply says that it waits: for GO_ON, which lists the calls not to be run after all. So
the node reads what was printed before anything else is, and can have back what waits behind a
call that takes long.

Each call runs in a folder that is its own and empty.
"""

from __future__ import annotations

import errno
import faulthandler
import fcntl
import io
import os
import pickle
import resource
import shutil
import struct
import sys
import termios
import time
import traceback
import types
from collections import deque
from contextlib import suppress
from functools import partial

TYPE_CHECKING = False  # as in supervisor.py
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from formation_p2p.drivers.python_parcels import Parcels

    # By number: what reads the pickles of its calls, itself, and how many bytes a call may return.
    # Before it is read, the name of the Python that has pickled it, and the pickle.
    # Whether it is called as the member of a gang, and what it brings for `__main__`.
    Functions = dict[int, tuple[bytes | Callable[..., Any], Any, int, bool, dict[str, Any]]]
    # What to reply to a call: its kind, a message for people, a pickle, and what lies beside that.
    Answer = tuple[bytes, bytes, bytes, list[pickle.PickleBuffer]]

# On it this prints its stacks to the output of the task. `signal` itself takes 7 ms to import.
SIGQUIT = 3
READY = b"+"
HEADER = struct.Struct("!cQI")  # a kind, the number of a function, and the size of what follows
FUNCTION, CALL, GO_ON = b"F", b"C", b"G"
# In lower case, one whose data is handed over beside it: see python_parcels.py.
PARCEL_FUNCTION, PARCEL_CALL = b"f", b"c"
# A kind, which call, whether it waits, whether it keeps memory that was handed over, what it used:
# the most bytes of memory that this process has had so far, and microseconds of processor time; the
# sizes of what follows.
REPLY = struct.Struct("!cQ??QQII")
WHICH = struct.Struct("!Q")  # a call that is not to be run
RETURNED, RAISED, MISSING, OUT_OF_MEMORY, TOO_LARGE = b"R", b"E", b"I", b"M", b"L"
# In lower case, a result that is handed over beside it.
PARCEL_RETURNED, PARCEL_TOO_LARGE = b"r", b"l"

# The node needs the newest 16 (leases/core/in_flight.py), and calls of 16 more may wait.
MAX_FUNCTIONS = 64
# The end of a traceback, where it says what went wrong.
MAX_MESSAGE_BYTES = 4096
# The kernel takes more in one go only from a larger buffer.
READ_BYTES = 256 * 1024
# A call that takes longer has the next one wait. Less than what the node takes for long, since
# its clock may have begun earlier.
LONG_S = 0.01
# As machine/core/python.py names it.
OWN = "{}-{}.{}".format(sys.implementation.name, *sys.version_info[:2])
# What lies beside this file, and the start of the names of its modules, which no task's has.
HERE = os.path.dirname(os.path.abspath(__file__))
# What a call of a gang has as its first argument, as a file from here.
MEMBER = "../features/gangs/task/member"
BESIDE = "formation_p2p_"
# A pickle of more, or a buffer of one, is handed over; how many buffers (workload/core/parcel.py).
# An exception is not: one that is longer is told as text alone (workload/core/work.py).
LARGE_BYTES = 256 * 1024
MAX_BUFFERS = 16_384
MAX_ERROR_BYTES = 8 * 1024 * 1024
# The folders of what goes along, of which a traceback says the names of files alone.
CODE: list[str] = []
# Whose pickles cannot hold what only cloudpickle knows, and that makes each ten times as fast.
PLAIN = frozenset({int, float, bool, str, bytes, type(None)})


def main() -> None:
    faulthandler.register(SIGQUIT)
    calls, data, max_kept_bytes = map(int, sys.argv[1:4])
    cloudpickle_folder, between = sys.argv[4], sys.argv.index("", 5)
    CODE.extend(sys.argv[5:between])
    sys.path[:0] = CODE
    sys.path += [path for path in sys.argv[between + 1 :] if path not in sys.path]
    import_cloudpickle(cloudpickle_folder)
    sys.meta_path.append(AbsentPackage)
    sys.argv[1:] = []
    # The calls are not for what the task starts, nor for what it forks.
    for fd in (calls, data):
        os.set_inheritable(fd, False)
    os.register_at_fork(after_in_child=lambda: forget(calls, data))
    # The task may point its output elsewhere; these stay what the node reads.
    outputs = [os.dup(1), os.dup(2)]
    around = own_module("main")
    defined, surroundings = around.Main(), around.Surroundings([os.dup(0), *outputs])
    folder = Folder()
    read_calls = Calls(calls, data)
    told_cpu_us = usage()[1]
    write(calls, READY)
    while (call := read_calls.next()) is not None:
        which, number, arguments = call
        folder.enter()
        os.environ["FORMATION_CHECKPOINT"] = f"{folder.home}/.checkpoint-{which}"  # as saves.py
        began_s = time.monotonic()
        kind, message, value, buffers = answer(
            read_calls.functions, number, arguments, defined, surroundings
        )
        surroundings.restore()
        if buffers or kind == TOO_LARGE or (kind == RETURNED and len(value) > LARGE_BYTES):
            large = value, buffers, data, max_kept_bytes
            kind, message, value = own_module("parcels").handed_over(kind, message, *large)
        buffers.clear()
        keeps = not isinstance(arguments, bytes) and arguments.are_kept()
        waits = time.monotonic() - began_s > LONG_S or any(unread(fd) for fd in outputs)
        read_calls.waits = waits
        memory_bytes, cpu_us = usage()
        used = memory_bytes, cpu_us - told_cpu_us
        told_cpu_us = cpu_us
        reply = REPLY.pack(kind, which, waits, keeps, *used, len(message), len(value))
        try:
            write(calls, reply + message + value)
        except OSError as error:
            if error.errno != errno.EBADF:
                raise
            sys.exit("the call closed a descriptor of its interpreter; close what it opened alone")
        folder.leave()


class Calls:
    """What the node sends. Once it `waits` nothing is run until the node says so."""

    def __init__(self, calls: int, data: int) -> None:
        self.functions: Functions = {}
        self.waits = False
        self.data = data
        self.reader = os.fdopen(calls, "rb", buffering=READ_BYTES, closefd=False)
        self.count = 0
        self.waiting: deque[tuple[int, int, bytes | Parcels]] = deque()
        self.unwanted: set[int] = set()

    def next(self) -> tuple[int, int, bytes | Parcels] | None:
        """Which call is to be run, of which function, and its arguments; None where the node is
        gone, or wants no more."""
        while True:
            while self.waits or not self.waiting:
                if not self.read():
                    return None
            call = self.waiting.popleft()
            if call[0] not in self.unwanted:
                return call
            self.unwanted.discard(call[0])

    def read(self) -> bool:
        """Whether there was another message."""
        header = self.reader.read(HEADER.size)
        if len(header) < HEADER.size:
            return False
        kind, number, size = HEADER.unpack(header)
        body = self.reader.read(size)
        if len(body) < size:
            return False
        if kind in (FUNCTION, PARCEL_FUNCTION):
            line, _, pickled = body.partition(b"\n")
            python, most, *how = line.split()
            function = handed(kind, pickled, self.data)
            self.functions[number] = python, function, int(most), bool(how), {}
            if len(self.functions) > MAX_FUNCTIONS:
                del self.functions[min(self.functions)]
        elif kind in (CALL, PARCEL_CALL):
            self.count += 1
            self.waiting.append((self.count, number, handed(kind, body, self.data)))
        else:
            self.unwanted.update(which for (which,) in WHICH.iter_unpack(body))
            self.waits = False
        return True


def answer(
    functions: Functions, number: int, arguments: bytes | Parcels, main: Any, surroundings: Any
) -> Answer:
    buffers: list[pickle.PickleBuffer] = []
    surroundings.keep()
    main.reads()
    try:
        reader, function, most, as_member, names = functions[number]
        if isinstance(reader, bytes):  # it is not read yet
            reader = own if reader.decode(errors="replace") == OWN else partial(foreign, reader)
            function = read(reader, function)
            names = main.taken()
            functions[number] = reader, function, most, as_member, names
        args, kwargs = read(reader, arguments)
        main.define(names)
        surroundings.keep()
        if as_member:
            args = (own_module("member", MEMBER).own(), *args)
        result = function(*args, **kwargs)
        if type(result) in PLAIN:
            value = pickle.dumps(result, 5)
        else:
            value = result_pickler().dumps(result, partial(goes_in, kept=buffers))
    except MemoryError as error:
        return OUT_OF_MEMORY, explained(error), b"", []
    except ModuleNotFoundError as error:
        name_cure(error)
        return MISSING, explained(error), pickled(error), []
    except BaseException as error:  # noqa: BLE001 - whatever the task raises is its outcome
        return RAISED, explained(error), pickled(error), []
    size = len(value) + sum(each.raw().nbytes for each in buffers)
    if size > most:
        problem = f"the result has {size} bytes, where the call allows {most}"
        return TOO_LARGE, problem.encode(), value, buffers
    return RETURNED, b"", value, buffers


def goes_in(buffer: pickle.PickleBuffer, kept: list[pickle.PickleBuffer]) -> bool:
    """Whether it goes into the pickle. Else it is `kept`, as it is, for what comes of that."""
    if buffer.raw().nbytes <= LARGE_BYTES or len(kept) >= MAX_BUFFERS:
        return True
    kept.append(buffer)
    return False


def import_cloudpickle(folder: str) -> None:
    """The node's, of `folder` where this is another Python. That one is not to find what lies
    beside it: the node's packages are compiled for the node's version."""
    from importlib import import_module

    if folder:
        load("cloudpickle", os.path.join(folder, "__init__.py"), submodules=[folder])
    else:
        import_module("cloudpickle")


class AbsentPackage:
    """Asked where nothing else finds a module: see absent_package.py."""

    @staticmethod
    def find_spec(name: str, *_: object) -> Any:
        if name.partition(".")[0] != "formation_p2p":
            return None
        return own_module("absent_package", "absent_package").spec_of(name)


def load(name: str, file: str, submodules: list[str] | None = None) -> types.ModuleType:
    """The module of a file that no path leads to."""
    from importlib.util import module_from_spec, spec_from_file_location

    spec = spec_from_file_location(name, file, submodule_search_locations=submodules)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[name] = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def result_pickler() -> Any:
    """Its pickles are data, as far as they can be. It needs cloudpickle, which main imports."""
    return own_module("result_pickler", "result_pickler")


def handed(kind: bytes, body: bytes, data: int) -> bytes | Parcels:
    """What came is a pickle, or says where one lies."""
    if kind in (FUNCTION, CALL):
        return body
    return own_module("parcels").Parcels(body, data)  # type: ignore[no-any-return]  # of any kind


def own_module(name: str, file: str = "") -> Any:
    """A module that most calls never need, under a name of its own."""
    file, name = os.path.join(HERE, f"{file or 'python_' + name}.py"), BESIDE + name
    return sys.modules.get(name) or load(name, file)


def read(reader: Callable[..., Any], pickled: bytes | Parcels) -> Any:
    return reader(pickled) if isinstance(pickled, bytes) else pickled.load(reader)


class Reader(pickle.Unpickler):
    """`referred` gives the values that a pickle refers to, by their numbers."""

    def __init__(
        self,
        pickled: Any,
        buffers: list[memoryview] | None = None,
        referred: Callable[[int], Any] | None = None,
    ) -> None:
        super().__init__(io.BytesIO(pickled), buffers=buffers)
        self.referred = referred

    def persistent_load(self, number: Any) -> Any:
        assert self.referred is not None
        return self.referred(number)


def own(
    pickled: Any,
    buffers: list[memoryview] | None = None,
    referred: Callable[[int], Any] | None = None,
) -> Any:
    """What this version has pickled."""
    if referred is None:
        return pickle.loads(pickled, buffers=buffers)
    return Reader(pickled, buffers, referred).load()


def foreign(python: bytes, *pickled: Any) -> Any:
    """What another version has pickled, as for `own`. Its bytecode would end this process."""

    def refuse(*_: object) -> None:
        raise TypeError(
            f"the call holds code of {python.decode(errors='replace')}, which {OWN} cannot run; "
            "leave python= out, or put the function into a module that the worker has"
        )

    class Unpickler(Reader):
        def find_class(self, module: str, name: str) -> Any:
            found = super().find_class(module, name)
            if found is types.CodeType:
                return refuse
            if name != "_builtin_type":  # with which cloudpickle names the types of `types`
                return found
            return lambda kind: refuse if kind == "CodeType" else found(kind)

    return Unpickler(*pickled).load()


def usage() -> tuple[int, int]:
    """The most bytes of memory that this process has had, with the largest of those that it has
    waited for; and microseconds of processor time of them all."""
    own, others = map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    cpu_s = own.ru_utime + own.ru_stime + others.ru_utime + others.ru_stime
    return 1024 * (own.ru_maxrss + others.ru_maxrss), round(cpu_s * 1e6)


class Folder:
    """Where calls run. One that a call has left empty is the next one's too."""

    def __init__(self) -> None:
        self.home = os.getcwd()
        self.count = 0
        self.path = ""

    def enter(self) -> None:
        try:
            os.chdir(self.path)
        except OSError:  # the first one, or a call has removed it
            self.path = self.make()
            os.chdir(self.path)

    def make(self) -> str:
        """A new one. Those of an interpreter that was killed may be there still."""
        while True:
            self.count += 1
            path = os.path.join(self.home, f"call-{self.count}")
            with suppress(FileExistsError):
                os.mkdir(path, 0o700)
                return path
            shutil.rmtree(path, ignore_errors=True)

    def leave(self) -> None:
        with suppress(OSError):  # a call may have locked it up: the next one gets another
            if not os.listdir(self.path):
                return
        os.chdir(self.home)
        # What cannot be removed goes with the lease.
        shutil.rmtree(self.path, ignore_errors=True)
        self.path = ""


def unread(fd: int) -> int:
    """How many bytes wait in a pipe."""
    count = bytearray(4)  # which takes the answer; with bytes it costs five times as much
    try:
        fcntl.ioctl(fd, termios.FIONREAD, count)
    except OSError:  # a call has closed it
        return 0
    return int.from_bytes(count, sys.byteorder)


def name_cure(error: ModuleNotFoundError) -> None:
    """Say in the error what its reader can do about it."""
    if error.name and error.msg == f"No module named {error.name!r}":
        error.msg += (
            " on this worker; a module of your own goes along with code= of Node.join, a package "
            "is installed with env=; or put the function into a module that imports only what it "
            "needs"
        )
        error.args = (error.msg,)


def explained(error: BaseException) -> bytes:
    # The first frame is `answer` above, not the task's.
    below = error.__traceback__ and error.__traceback__.tb_next
    text = "".join(traceback.format_exception(type(error), error, below))
    for folder in CODE:
        text = text.replace(f'  File "{folder}/', '  File "')
    return text.encode(errors="replace")[-MAX_MESSAGE_BYTES:]


def pickled(error: BaseException) -> bytes:
    try:
        value: bytes = own_module("error").dumps(error, result_pickler())
    except BaseException:  # noqa: BLE001 - anything can hide in it; its traceback is told anyway
        return b""
    return value if len(value) <= MAX_ERROR_BYTES else b""


def forget(*fds: int) -> None:
    for fd in fds:
        with suppress(OSError):  # a fork of a fork
            os.close(fd)


def write(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


if __name__ == "__main__":
    main()

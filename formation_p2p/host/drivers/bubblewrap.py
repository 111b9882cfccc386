"""The sandbox around a task: bubblewrap (`bwrap`), where it is installed and may be used.

docs/drivers.md says what a task has inside. The supervisor has the first of its process numbers:
that one cannot be killed from inside, and the kernel ends all others with it. No capabilities are
left, and no user namespaces to get some in, where bubblewrap can forbid those (0.8 and later).
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Self

from formation_p2p.core.errors import LocalError
from formation_p2p.core.execution.limits import MAX_PROCESSES
from formation_p2p.host.drivers.lent import Lent
from formation_p2p.host.machine.command import printed_by
from formation_p2p.host.machine.gpus import AMD, INTEL, NVIDIA

# It starts in milliseconds; a disk that has to wake up takes seconds.
_PROBE_S: Final = 20.0
# Where people, services and other tasks keep what is theirs, sockets to them included.
_HIDDEN: Final = ("/home", "/root", "/run")
# What is only root's to read: where this user is root, there is nothing to read in their places.
_SECRETS: Final = (
    *("/etc/shadow", "/etc/shadow-", "/etc/gshadow", "/etc/gshadow-", "/etc/sudoers"),
    *("/etc/ssh/ssh_host_*_key", "/etc/ssl/private"),
)
# Hidden too, but to be written to. They are held in memory, which the supervisor counts.
_TEMPORARY: Final = ("/tmp", "/var/tmp")
_SHARED_MEMORY: Final = "/dev/shm"
_HOSTS: Final = "/etc/hosts"
# What the GPUs of a vendor need beside their libraries, which are on the root.
_RENDER: Final = "dri/renderD*"
_GPUS: Final[Mapping[str, tuple[str, ...]]] = {
    NVIDIA: ("nvidia*", _RENDER),
    AMD: ("kfd", _RENDER),
    INTEL: (_RENDER,),
}
_PACKAGE: Final = Path(__file__).parents[2]
# Without further user namespaces a task reaches less of the kernel. Older than 0.8 cannot do it,
# and a kernel that lets only root make any needs none.
_USER: Final = (("--unshare-user", "--disable-userns"), ("--unshare-user-try",))


def readable(places: Iterable[str] = _SECRETS) -> tuple[str, ...]:
    """Those that are there and that this user can read, without links."""
    found = (path for each in places for path in Path("/").glob(each[1:]))
    return tuple(os.path.realpath(path) for path in found if os.access(path, os.R_OK))


@dataclass(frozen=True, slots=True)
class Hosts:
    """What a task in a network of its own is called there, and the `file` with the others' names
    and addresses."""

    name: str
    file: Path


class NoSandbox(LocalError):
    """bubblewrap cannot be used here. The message says why, and what to do."""


@dataclass(frozen=True, slots=True)
class Bubblewrap:
    """`home` is the node's home folder. `user` are the options for a user namespace, `devices` the
    names below /dev of the GPUs of each vendor, `secrets` what is read by nobody inside."""

    program: str
    home: Path
    user: tuple[str, ...] = _USER[0]
    devices: Mapping[str, tuple[str, ...]] = field(default_factory=lambda: _GPUS)
    shown: tuple[str, ...] = ()
    lent: tuple[Lent, ...] = ()
    secrets: tuple[str, ...] = field(default_factory=readable)

    @classmethod
    def found(cls, home: Path, environment: Mapping[str, str], shown: tuple[str, ...] = ()) -> Self:
        """One that was seen to start this interpreter with `environment`. Raises NoSandbox."""
        program = shutil.which("bwrap")
        if program is None:
            raise NoSandbox("bwrap is not on PATH; install the package bubblewrap")
        for user in _USER:
            sandbox = cls(program, home, user, shown=shown)
            with tempfile.TemporaryDirectory() as folder:
                inside = sandbox.command(Path(folder), network=False, gpus=())
                argv = (*inside, sys.executable, "-I", "-S", "-c", "import ctypes")
                try:
                    printed_by(argv, _PROBE_S, environment)
                except LocalError as error:
                    problem = error
                else:
                    return sandbox
        raise NoSandbox(
            f"{program} does not work here ({problem}); allow this user to make user namespaces: "
            "see sysctl kernel.unprivileged_userns_clone, user.max_user_namespaces and "
            "kernel.apparmor_restrict_unprivileged_userns, or the options of the container"
        )

    def command(
        self,
        folder: Path,
        *,
        network: bool,
        gpus: Iterable[str],
        shown: Iterable[Path] = (),
        writable: Iterable[Path] = (),
        hosts: Hosts | None = None,
    ) -> tuple[str, ...]:
        """What goes in front of the supervisor's argv. `folder` and `writable` are what the task
        may write to, `shown` are more folders that it may read, also in the node's home; `gpus` are
        the vendors whose devices it sees. With `hosts` it keeps the network that it is started in,
        which is one of its own already."""
        hidden = _folders((*_HIDDEN, str(Path.home())))
        temporary = _folders(_TEMPORARY)
        own = _folders((str(self.home),))
        needed = _below((*hidden, *temporary), (*_needed(network), *self.shown))
        kinds = sorted({kind for vendor in gpus for kind in self.devices[vendor]})
        secrets = [path for path in self.secrets if Path(path).exists()]
        secret_folders = [path for path in secrets if Path(path).is_dir()]
        devices = [str(path) for kind in kinds for path in sorted(Path("/dev").glob(kind))]
        return (
            *(self.program, *self.user, "--cap-drop", "ALL", "--unshare-pid", "--as-pid-1"),
            *("--unshare-ipc", "--unshare-uts"),
            *(() if network or hosts else ("--unshare-net",)),
            *(() if hosts is None else ("--hostname", hosts.name)),
            *("--ro-bind", "/", "/", "--dev", "/dev", "--proc", "/proc"),
            # Its files are the real root's to write to, if the node is that one.
            *("--ro-bind-try", "/proc/sys", "/proc/sys"),
            *(
                word
                for path in secrets
                if path not in secret_folders
                for word in ("--ro-bind", os.devnull, path)
            ),
            # One may be below another.
            *_each("--tmpfs", sorted((*hidden, *secret_folders, *temporary))),
            *(word for path in needed for word in ("--ro-bind", path, path)),
            # After what is shown: it may be below that.
            *_each("--tmpfs", own),
            *(word for path in shown for word in ("--ro-bind", str(path), str(path))),
            *(
                word
                for each in self.lent
                for word in (
                    "--bind" if each.writable else "--ro-bind",
                    str(each.path),
                    str(each.path),
                )
            ),
            *("--tmpfs", _SHARED_MEMORY),
            *(word for path in devices for word in ("--dev-bind", path, path)),
            *(word for path in (folder, *writable) for word in ("--bind", str(path), str(path))),
            *(() if hosts is None else ("--ro-bind", str(hosts.file), _HOSTS)),
            *_each("--remount-ro", (*hidden, *secret_folders, *own, "/dev")),
            "--",
        )

    @property
    def resource_limits(self) -> dict[str, int]:
        """Beside those of a lease. Linux counts the processes of each user namespace by itself
        (5.14, and not root's); before it counts all of the user's, and the node's with them."""
        return {"RLIMIT_NPROC": MAX_PROCESSES}

    @property
    def in_memory(self) -> tuple[str, ...]:
        """The folders whose files take memory, as the task sees them."""
        return (*_folders(_TEMPORARY), _SHARED_MEMORY)


def _each(option: str, values: Iterable[str]) -> tuple[str, ...]:
    return tuple(word for value in values for word in (option, value))


def _folders(names: Iterable[str]) -> tuple[str, ...]:
    """Those that are there, without links, and without those that are below another."""
    found = sorted({os.path.realpath(name) for name in names if Path(name).is_dir()})
    return tuple(
        path for path in found if path != "/" and not any(_is_below(path, other) for other in found)
    )


def _is_below(path: str, folder: str) -> bool:
    """Of two without links. No folder is below itself."""
    return path.startswith(f"{folder}/")


def _needed(network: bool) -> Iterator[str]:
    """What this interpreter reads: itself, its library, this package, which may be installed from
    where its sources lie, and all modules."""
    yield from (sys.prefix, sys.base_prefix, sys.exec_prefix, str(_PACKAGE))
    yield from filter(None, sys.path)
    if network:
        yield "/etc/resolv.conf"


def _below(covered: Iterable[str], needed: Iterable[str]) -> tuple[str, ...]:
    """Those of `needed`, by name and without links, that would be hidden. Not a folder that is to
    be hidden itself, nor one above it: modules that lie loose in a person's home are not found."""
    folders = tuple(covered)
    paths = {
        path for name in needed for path in (str(Path(name).absolute()), os.path.realpath(name))
    }
    hidden = {
        path
        for path in paths
        if any(_is_below(path, folder) for folder in folders)
        and not any(path == folder or _is_below(folder, path) for folder in folders)
        and Path(path).exists()
    }
    return tuple(
        path for path in sorted(hidden) if not any(_is_below(path, other) for other in hidden)
    )

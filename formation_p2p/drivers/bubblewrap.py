"""The sandbox around a task: bubblewrap (`bwrap`), where it is installed and may be used.

docs/explanation/drivers.md says what a task has inside. The supervisor has the first of its process
numbers: that one cannot be killed from inside, and the kernel ends all others with it. A task has
no capabilities, and no user namespaces to get some in, where bubblewrap can forbid those (0.8 and
later).
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from glob import glob
from pathlib import Path
from typing import Final, Self

from formation_p2p.core.errors import LocalError
from formation_p2p.drivers.core.limits import MAX_PROCESSES
from formation_p2p.drivers.etc_copy import HOSTS, NAMESERVERS, EtcCopy, leads_to_software
from formation_p2p.drivers.lent import Lent
from formation_p2p.machine.command import printed_by
from formation_p2p.machine.gpus import AMD, INTEL, NVIDIA

# It starts in milliseconds; a disk that has to wake up takes seconds.
_PROBE_S: Final = 20.0
# What programs are installed to. In a root that is a link, such as /bin, it stays one.
_SOFTWARE: Final = tuple(
    f"/{name}"
    for name in ("usr", "bin", "sbin", "lib", "lib32", "lib64", "libx32", "nix/store", "gnu/store")
)
# Of /etc, what programs and libraries of the distribution do not work without. None is secret:
# /etc/environment, gitconfig, pip.conf or npmrc may hold passwords. Files are copied (EtcCopy).
_SETTINGS: Final = (
    *("ld.so.cache", "ld.so.conf", "ld.so.conf.d/*", "alternatives", "localtime", "fonts"),
    *("*-release", "debian_version", "chromium*/*", "maven/m2.conf", "maven/logging/*", "perl"),
    *("passwd", "group", "nsswitch.conf", "protocols", "services", "crypto-policies", "xml/*"),
    *("ssl/certs", "ssl/cert.pem", "ssl/ca-bundle.pem", "ssl/openssl.cnf", "mime.types"),
    *("pki/tls/certs", "pki/tls/cert.pem", "pki/tls/openssl.cnf"),
    *("pki/ca-trust/extracted", "ca-certificates/extracted", "ImageMagick-*"),
    *("java*", "R", "openmpi*", "texmf", "OpenCL", "vulkan"),
)
_HOSTS: Final = f"/etc/{HOSTS}"
_NAMESERVERS: Final = f"/etc/{NAMESERVERS}"
# What the kernel tells of processors, memory and devices, and of the task's own control group.
_HARDWARE: Final = ("/sys/bus", "/sys/class", "/sys/dev", "/sys/devices", "/sys/fs/cgroup")
# Beside what is in /usr: formats of TeX, fonts by name.
_DATA: Final = ("/var/lib/texmf", "/var/cache/fontconfig")
# To be written to. They are held in memory, which the supervisor counts.
_TEMPORARY: Final = "/tmp"
_SHARED_MEMORY: Final = "/dev/shm"
# What the GPUs of a vendor need beside their libraries, which are on the root.
_RENDER: Final = "dri/renderD*"
_GPUS: Final[Mapping[str, tuple[str, ...]]] = {
    NVIDIA: ("nvidia*", _RENDER),
    AMD: ("kfd", _RENDER),
    INTEL: (_RENDER,),
}
# Their libraries, where those are not in /usr either.
_GPU_SOFTWARE: Final[Mapping[str, tuple[str, ...]]] = {
    AMD: ("opt/rocm*", "opt/amdgpu", "sys/module/amdgpu"),
    INTEL: ("opt/intel",),
}
_PACKAGE: Final = Path(__file__).parents[1]
# Where packages of Python are installed to; what else a program has on its path is its own.
_PACKAGES: Final = ("site-packages", "dist-packages")
# What of the prefix of an interpreter is Python's, where other things may lie in it too: a virtual
# environment may be the folder of a project.
_PREFIX: Final = ("bin", "include", "lib", "lib64", "share", "pyvenv.cfg")
# Without further user namespaces a task reaches less of the kernel. Older than 0.8 cannot do it,
# and a kernel that lets only root make any needs none.
_LIMITED: Final = ("--unshare-user", "--disable-userns")
# With these the supervisor limits what the kernel counts for a user, and looks into each process of
# the task; nothing of a task has them. A bubblewrap that is setuid gives none.
_CAPABILITIES: Final = (
    *("--cap-add", "CAP_SYS_RESOURCE", "--cap-add", "CAP_SETPCAP"),
    *("--cap-add", "CAP_SYS_PTRACE"),
)
_USER: Final = ((*_LIMITED, *_CAPABILITIES), _LIMITED, ("--unshare-user-try",))


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
    names below /dev of the GPUs of each vendor, `shown` what tasks may read beside the software of
    the machine: the prefixes of interpreters, and programs of theirs; `needed` is what there is of
    that. Without a copy of /etc each of its files is bound by itself."""

    program: str
    home: Path
    user: tuple[str, ...] = _USER[0]
    devices: Mapping[str, tuple[str, ...]] = field(default_factory=lambda: _GPUS)
    shown: tuple[str, ...] = ()
    lent: tuple[Lent, ...] = ()
    etc: EtcCopy | None = None
    needed: tuple[str, ...] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "needed", _needed(self.shown))

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
        software = tuple(filter(os.path.lexists, _SOFTWARE))
        own = _below((os.path.realpath(self.home),), (*software, *self.needed, _TEMPORARY))
        kinds = sorted({kind for vendor in gpus for kind in self.devices[vendor]})
        devices = (str(path) for kind in kinds for path in sorted(Path("/dev").glob(kind)))
        libraries = (path for vendor in gpus for path in _there("", _GPU_SOFTWARE.get(vendor, ())))
        settings = tuple(_there("/etc", _SETTINGS))
        etc = None if self.etc is None else self.etc.folder(settings)
        bound = self.etc.places if self.etc is not None and etc is not None else settings
        return (
            *(self.program, "--cap-drop", "ALL", *self.user, "--unshare-pid", "--as-pid-1"),
            *("--unshare-ipc", "--unshare-uts"),
            *(() if network or hosts else ("--unshare-net",)),
            *(() if hosts is None else ("--hostname", hosts.name)),
            # The root is empty at first.
            *(word for path in software for word in _as_it_is(path)),
            *(() if etc is None else ("--ro-bind", str(etc), "/etc")),
            *(word for path in bound for word in _as_it_is(path)),
            *_each("--ro-bind-try", (_HOSTS, *((_NAMESERVERS,) if network else ()))),
            *_each("--ro-bind-try", (*_HARDWARE, *_DATA)),
            *_each("--ro-bind", libraries),
            *("--dev", "/dev", "--proc", "/proc", "--tmpfs", _TEMPORARY),
            *("--symlink", "../tmp", "/var/tmp", "--tmpfs", _SHARED_MEMORY),
            *_each("--ro-bind", self.needed),
            # After what is shown: it may be below that.
            *(word for path in own for word in ("--tmpfs", path)),
            *_each("--ro-bind", map(str, shown)),
            *(
                word
                for each in self.lent
                for word in _each("--bind" if each.writable else "--ro-bind", (str(each.path),))
            ),
            *_each("--dev-bind", devices),
            *_each("--bind", map(str, (folder, *writable))),
            *(() if hosts is None else ("--ro-bind", str(hosts.file), _HOSTS)),
            # Some of /proc is the real root's to write to, if the node is that one; and a task that
            # does not write there keeps the place in which the kernel ends what takes memory.
            *(word for path in (*own, "/dev", "/proc", "/") for word in ("--remount-ro", path)),
            "--",
        )

    @property
    def limits_user(self) -> bool:
        """Whether its supervisor limits what the kernel counts for a user."""
        return self.user[-len(_CAPABILITIES) :] == _CAPABILITIES

    @property
    def resource_limits(self) -> dict[str, int]:
        """Beside those of a lease. Linux counts the processes of each user namespace by itself
        (5.14, and not root's); before it counts all of the user's, and the node's with them."""
        return {"RLIMIT_NPROC": MAX_PROCESSES}

    @property
    def in_memory(self) -> tuple[str, ...]:
        """The folders whose files take memory, as the task sees them."""
        return _TEMPORARY, _SHARED_MEMORY


def _each(option: str, paths: Iterable[str]) -> Iterator[str]:
    """Each at the same path inside."""
    for path in paths:
        yield from (option, path, path)


def _there(folder: str, patterns: Iterable[str]) -> Iterator[str]:
    for pattern in patterns:
        yield from sorted(glob(f"{folder}/{pattern}"))  # noqa: PTH207 - faster than pathlib


def _as_it_is(path: str) -> tuple[str, str, str]:
    if leads_to_software(Path(path)):
        return "--symlink", str(Path(path).readlink()), path
    return "--ro-bind-try", path, path


def _needed(shown: Iterable[str]) -> tuple[str, ...]:
    """What the interpreters in `shown` and this one read, by name and without links: themselves,
    their libraries, packages that are installed for them, and this package, which may be installed
    from where its sources lie."""
    named = [_PACKAGE, *(Path(each) for each in sys.path if Path(each).name in _PACKAGES)]
    libraries = filter(os.path.isabs, os.environ.get("LD_LIBRARY_PATH", "").split(":"))
    prefixes = (sys.prefix, sys.base_prefix, sys.exec_prefix)
    for each in map(Path, (sys.executable, *prefixes, *libraries, *shown)):
        if not each.is_dir():
            named += _links(each)
        elif (each / "pyvenv.cfg").exists() or Path.home().is_relative_to(each):
            named += (each / name for name in _PREFIX)
        else:
            named.append(each)
    paths = {str(path.absolute()) for path in named} | {str(path.resolve()) for path in named}
    found = {path for path in paths if Path(path).exists()}
    found -= {*_below(found, _SOFTWARE), *_SOFTWARE}
    return tuple(sorted(found - set(_below(found, found))))


def _links(program: Path) -> Iterator[Path]:
    """By which it is found."""
    yield program
    while program.is_symlink():
        program = Path(os.path.normpath(program.parent / program.readlink()))
        yield program


def _below(paths: Iterable[str], folders: Iterable[str]) -> tuple[str, ...]:
    """Those of `paths` that are below one of `folders`. No folder is below itself."""
    starts = tuple(f"{folder}/" for folder in folders)
    return tuple(path for path in paths if path.startswith(starts))

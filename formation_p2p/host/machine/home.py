"""The node's folder: its identity, its network, and for a network's creator the root key.

| file           | what it holds |
| -------------- | ------------- |
| `identity.key` | the node's private key and its peer id, in one line of text |
| `identity-1.key`… | the same for further nodes that run from here at the same time (claim.py) |
| `trust-0.db`…  | the peer histories of each of them (storage/trust.py) |
| `peers`        | addresses of peers that were met lately (host/net/remembered.py) |
| `name`         | what the node goes by, where that is not the name of its host |
| `members`      | the members of the network that were met (storage/member_file.py) |
| `network`      | the invite of the network; each node binds its grant to itself |
| `grant-0`…     | a renewed grant of each of them, where there is one, as an invite |
| `withdrawn`    | peers and invitations whose grants are not renewed; only beside `root.key` |
| `root.key`     | the network's root key, like `identity.key`; only where it was created |

The folder is for its owner alone (0700), and so are the files (0600): what is open to others is
refused, with the command that mends it. A file is written whole or not at all. Keys are never
written over. Processes that come at once take turns.
"""

from __future__ import annotations

import contextlib
import logging
import os
import shlex
import stat
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Final

from formation_p2p.core.errors import InvalidInput, LocalError
from formation_p2p.core.identity import Identity, PeerId
from formation_p2p.core.resources.bounds import check_host_name
from formation_p2p.core.trust.grants import Rights, issue
from formation_p2p.core.trust.life import MAX_EXPIRY_UNIX_S
from formation_p2p.core.trust.network import Network, parse_invite
from formation_p2p.core.workload.scope import NOWHERE, Place
from formation_p2p.host.machine.file_lock import lock_file, unlock_file
from formation_p2p.host.machine.folders import sync_folder
from formation_p2p.host.machine.home_path import home_path
from formation_p2p.host.machine.host_name import host_name

_log = logging.getLogger(__name__)

# The lock is held for as long as it takes to write two small files.
LOCK_TIMEOUT_S: Final = 10.0
# An invite with all the gates that it may have takes 6 KiB.
_MAX_FILE_BYTES: Final = 16 * 1024
# A peer id takes 53 bytes; so the file stays within the bound of all files here.
MAX_WITHDRAWN: Final = 256
_SEED_BYTES: Final = 32

_IDENTITY: Final = "identity.key"
_NETWORK: Final = "network"
_ROOT: Final = "root.key"
_GRANT: Final = "grant"
_WITHDRAWN: Final = "withdrawn"
_NAME: Final = "name"

# Nodes that run from one home at the same time: a worker, a gate, and a person's commands.
MAX_IDENTITIES: Final = 16

_MEND: Final = {
    _IDENTITY: "move it away for a new identity, which will need a new grant",
    _NETWORK: "move it away and join again",
    _NAME: "move it away to go by the name of the host",
    _WITHDRAWN: "move it away, and withdraw again what is to end",
    _GRANT: "move it away to go back to the grant of the invite",
    _ROOT: "without it, this network takes no further members",
}


class Home:
    """Every method raises LocalError for a folder or file that is damaged, out of reach, or open
    to others; the message says what to do."""

    def __init__(self, path: Path | None = None, *, lock_timeout_s: float = LOCK_TIMEOUT_S) -> None:
        self.path = home_path(path)
        self._lock_timeout_s = lock_timeout_s

    def __repr__(self) -> str:
        return f"Home({self.path})"

    def identity(self, index: int = 0) -> Identity:
        """The node's identity, or that of a further node; a new one the first time."""
        with self._locked():
            return self._load_or_make(_identity_file(index))

    def network(self, index: int = 0) -> Network | None:
        """The network that the node is in, with a grant that serves this node only.

        Raises InvalidInput where the grant is another node's, as one invited by its peer id has
        for all nodes of this home but the first.
        """
        with self._locked():
            network = self._network()
            if network is None:
                return None
            peer_id = self._load_or_make(_identity_file(index)).peer_id
            return self._renewed(index, network, peer_id) or network.bound_to(peer_id)

    def renewed(self, index: int, network: Network) -> None:
        """Keep a renewed grant of a node, until a new invite takes its place.

        Raises InvalidInput where it is of another network, or of another node.
        """
        with self._locked():
            known = self._known_network()
            if known.root_public_key != network.root_public_key:
                raise InvalidInput("grant", "it is of another network than this home")
            bound = network.bound_to(self._load_or_make(_identity_file(index)).peer_id)
            self._write(_grant_file(index), bound.invite())

    def issuer(self) -> tuple[Identity, frozenset[str]] | None:
        """The root's key, where this network was created here, and what is not renewed with it:
        peers, and invitations."""
        with self._locked():
            network = self._network()
            root = None if network is None else self._root_of(network)
            return None if root is None else (root, frozenset(self._withdrawn()))

    def withdraw(self, name: str) -> None:
        """Have the grants of a peer, or those that were made of an invitation, not renewed: they
        end when they end. Does nothing to one that is withdrawn already.

        Raises InvalidInput unless the network that the node is in was created in this home, or
        where too many are.
        """
        with self._locked():
            if self._root_of(self._known_network()) is None:
                problem = f"{self.path / _ROOT} is not that of this network"
                raise InvalidInput("root key", f"{problem}; withdraw where it was created")
            names = dict.fromkeys((*self._withdrawn(), name))
            if len(names) > MAX_WITHDRAWN:
                problem = f"there are {MAX_WITHDRAWN} already"
                raise InvalidInput("withdrawn", f"{problem}; take out what has ended long ago")
            self._write(_WITHDRAWN, "\n".join(names))

    def stamp(self, index: int = 0) -> tuple[int, ...]:
        """What is another number once the node may have another grant, or may not issue what it
        did. Needs no lock."""
        stamps = []
        for name in (_NETWORK, _grant_file(index), _ROOT, _WITHDRAWN):
            try:
                status = (self.path / name).stat()
            except OSError:
                stamps += [0, 0]
            else:
                stamps += [status.st_mtime_ns, status.st_ino]
        return tuple(stamps)

    def create_network(self, place: Place = NOWHERE) -> Network:
        """Make a network and put this node in it, at a place, with every right and no end. A root
        key that is here already is used again.

        Raises InvalidInput where the node is in one.
        """
        with self._locked():
            if self._network() is not None:
                raise InvalidInput("network", f"this node is in one; {self._how_to_leave()}")
            root = self._load_or_make(_ROOT)
            grant = issue(root, Rights(MAX_EXPIRY_UNIX_S, place=place))
            return self._enter(Network(root.public_key, (), grant))

    def join(self, network: Network) -> Network:
        """Put this node in a network; again, for a newer grant. The file keeps the grant as it
        came, so that further nodes of this home can bind it too.

        Raises InvalidInput where the node is in another one, or created this one, or the grant
        has expired or is another node's.
        """
        if network.rights.expires_unix_s <= time.time():
            raise InvalidInput("grant", "it has expired; ask for a new invite")
        with self._locked():
            known = self._network()
            if known is not None and known.root_public_key != network.root_public_key:
                raise InvalidInput("network", f"this node is in another; {self._how_to_leave()}")
            root = self._root_of(network)
            if known is not None and root is not None:
                problem = "this node created it and has every right in it already"
                raise InvalidInput("network", f"{problem}; join from another machine, or --home")
            bound = self._enter(network)
            for index in range(MAX_IDENTITIES):  # they are renewals of the one before
                (self.path / _grant_file(index)).unlink(missing_ok=True)
            return bound

    def invite(self, rights: Rights, peer_id: PeerId | None = None) -> str:
        """An invite for its bearer, or for one peer. It is a secret: see `Network`.

        Raises InvalidInput unless the network that the node is in was created in this home.
        """
        with self._locked():
            network = self._known_network()
            root = self._root_of(network)
        if root is None:
            problem = f"{self.path / _ROOT} is not that of this network"
            raise InvalidInput("root key", f"{problem}; invite from where it was created")
        grant = issue(root, rights, peer_id)
        return Network(network.root_public_key, network.gates, grant).invite()

    def add_gate(self, gate: str) -> Network:
        """Put a gate first in the network's list, here and in the invites made here.

        Raises InvalidInput for what is not a gate, or where the node is in no network.
        """
        with self._locked():
            return self._enter(self._known_network().with_gate(gate))

    def name(self) -> str:
        """What the nodes of this home go by: the name of the host, unless one was given."""
        with self._locked():
            text = self._read(_NAME)
        if text is None:
            return host_name()
        try:
            check_host_name("name", text.strip())
        except InvalidInput:
            raise self._damaged(_NAME) from None
        return text.strip()

    def rename(self, name: str) -> None:
        """Have the nodes that are started from here go by this name. Raises InvalidInput."""
        check_host_name("name", name)
        with self._locked():
            self._write(_NAME, name)

    def has_root_key(self) -> bool:
        """Whether this home may invite: its network was created here."""
        with self._locked():
            network = self._network()
            return network is not None and self._root_of(network) is not None

    # -- all below hold the lock ------------------------------------------------------------

    def _network(self) -> Network | None:
        text = self._read(_NETWORK)
        if text is None:
            return None
        try:
            return parse_invite(text)
        except InvalidInput:
            raise self._damaged(_NETWORK) from None

    def _renewed(self, index: int, network: Network, peer_id: PeerId) -> Network | None:
        """With the renewed grant of a node, if there is one."""
        text = self._read(_grant_file(index))
        if text is None:
            return None
        try:
            renewed = parse_invite(text)
            if renewed.root_public_key != network.root_public_key:
                return None  # left behind, as the network was
            return replace(network, grant=renewed.bound_to(peer_id).grant)
        except InvalidInput:
            raise self._damaged(_grant_file(index)) from None

    def _withdrawn(self) -> list[str]:
        return (self._read(_WITHDRAWN) or "").split()

    def _known_network(self) -> Network:
        network = self._network()
        if network is None:
            raise InvalidInput("network", "this node is in none; create one or join one first")
        return network

    def _root_of(self, network: Network) -> Identity | None:
        """The root key, where it is that of this network."""
        root = self._load_key(_ROOT)
        return root if root and root.public_key == network.root_public_key else None

    def _enter(self, network: Network) -> Network:
        bound = network.bound_to(self._load_or_make(_IDENTITY).peer_id)
        self._write(_NETWORK, network.invite())
        return bound

    def _how_to_leave(self) -> str:
        return f"to leave it, run: rm {shlex.quote(str(self.path / _NETWORK))}"

    def _load_or_make(self, name: str) -> Identity:
        known = self._load_key(name)
        if known is not None:
            return known
        made = Identity.from_seed(os.urandom(_SEED_BYTES))
        self._write(name, f"{made.seed.hex()} {made.peer_id}")
        _log.info("made %s: %s", self.path / name, made.peer_id)
        return made

    def _load_key(self, name: str) -> Identity | None:
        text = self._read(name)
        if text is None:
            return None
        try:
            seed, peer_id = text.split()
            key = Identity.from_seed(bytes.fromhex(seed))
        except ValueError:
            raise self._damaged(name) from None
        if key.peer_id != peer_id:
            raise self._damaged(name)
        return key

    def _damaged(self, name: str) -> LocalError:
        is_grant = name.startswith(f"{_GRANT}-")
        mend = _MEND.get(_GRANT if is_grant else name, _MEND[_IDENTITY])
        return LocalError(f"{self.path / name} is damaged: put a copy back, or {mend}")

    def _read(self, name: str) -> str | None:
        """The text of a file, None where there is none."""
        path = self.path / name
        try:
            status = path.stat()
        except FileNotFoundError:
            return None
        if not stat.S_ISREG(status.st_mode):
            raise LocalError(f"{path} is not a file; move it away")
        _refuse_open_to_others(path, status.st_mode, "600")
        if status.st_size > _MAX_FILE_BYTES:
            raise self._damaged(name)
        return path.read_bytes().decode("ascii", errors="replace")

    def _write(self, name: str, text: str) -> None:
        """Put a file in place whole, and on the disk, before this returns."""
        path, unfinished = self.path / name, self.path / f"{name}.unfinished"
        unfinished.unlink(missing_ok=True)  # of a process that was killed here
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        with os.fdopen(os.open(unfinished, flags, 0o600), "w", encoding="ascii") as file:
            file.write(text + "\n")
            file.flush()
            os.fsync(file.fileno())
        unfinished.replace(path)
        sync_folder(self.path)

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        """The folder, for this process alone. What the system refuses becomes a LocalError."""
        try:
            self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
            _refuse_open_to_others(self.path, self.path.stat().st_mode, "700")
            lock = lock_file(self.path / ".lock", wait_s=self._lock_timeout_s)
            if lock is None:
                problem = f"another process has held {self.path} for {self._lock_timeout_s:.0f} s"
                raise LocalError(f"{problem}; see what `fuser {self.path}/.lock` names")
            try:
                yield
            finally:
                unlock_file(lock)
        except OSError as error:
            problem = f"{error.filename or self.path}: {error.strerror}"
            raise LocalError(f"{problem}; see that this user may read and write there") from error


def in_no_network(path: Path) -> LocalError:
    """What is wrong with a home in that case, and what to do."""
    return LocalError(
        f"{path} is in no network; run `formation network create`, or join one with an invite: "
        "formation network join -"
    )


def joined_network(place: Home, index: int = 0) -> Network:
    """The network that the nodes of a home are in. Raises LocalError where it is in none."""
    network = place.network(index)
    if network is None:
        raise in_no_network(place.path)
    return network


def _identity_file(index: int) -> str:
    return _IDENTITY if index == 0 else f"identity-{index}.key"


def _grant_file(index: int) -> str:
    return f"{_GRANT}-{index}"


def _refuse_open_to_others(path: Path, mode: int, wanted: str) -> None:
    if mode & 0o077:
        command = f"chmod {wanted} {shlex.quote(str(path))}"
        raise LocalError(f"{path} is open to other users of this machine; run: {command}")

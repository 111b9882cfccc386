"""The node's folder: its identity, its network, and for a network's creator the root key.

| file           | what it holds |
| -------------- | ------------- |
| `identity.key` | the node's private key and its peer id, in one line of text |
| `identity-1.key`… | the same for further nodes that run from here at the same time (claim.py) |
| `trust-0.db`…  | the peer histories of each of them (state/trust.py) |
| `peers`        | addresses of peers that were met lately (reach/remembered.py) |
| `name`         | what the node goes by, where that is not the name of its host |
| `members`      | the members of the network that were met (state/member_file.py) |
| `network`      | the invite of the network; each node binds its grant to itself |
| `grant-0`…     | a renewed grant of each of them, where there is one, as an invite |
| `withdrawn`    | peers and invitations whose grants are not renewed; only beside `root.key` |
| `root.key`     | the network's root key, like `identity.key`; only where it was created |
| `root-2.key`…  | further keys of a root that is split, until they are with their holders |

The folder is for its owner alone (0700), and so are the files (0600): what is open to others is
refused, with the command that mends it. A file is written whole or not at all. Keys are never
written over. Processes that come at once take turns.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import shlex
import socket
import stat
import time
import unicodedata
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Final

from formation_p2p.core.errors import InvalidInput, LocalError
from formation_p2p.core.identity import Identity, PeerId
from formation_p2p.machine.core import bounds
from formation_p2p.machine.core.bounds import MAX_HOST_NAME_CHARS
from formation_p2p.machine.file_lock import lock_file, unlock_file
from formation_p2p.machine.folders import remove_folder_now, write_durably
from formation_p2p.machine.home_path import IDENTITY, home_path
from formation_p2p.trust.core.grant_form import MAX_EXPIRY_UNIX_S, MAX_ROOT_KEYS
from formation_p2p.trust.core.grants import Rights
from formation_p2p.trust.core.network import Network, parse_invite
from formation_p2p.trust.core.root_keys import KeySet
from formation_p2p.trust.core.split_root import GrantRequest, renewal_of, request_of, root_of
from formation_p2p.workload.core.scope import NOWHERE, Place

_log = logging.getLogger(__name__)

# The lock is held for as long as it takes to write two small files.
LOCK_TIMEOUT_S: Final = 10.0
# An invite with all the gates that it may have takes 6 KiB.
_MAX_FILE_BYTES: Final = 16 * 1024
_SEED_BYTES: Final = 32


# By the first word of a file's name: what to do where it is damaged.
_MEND: Final = {
    "identity": "move it away for a new identity, which will need a new grant",
    "network": "move it away and join again",
    "name": "move it away to go by the name of the host",
    "withdrawn": "move it away, and withdraw again what is to end",
    "grant": "move it away to go back to the grant of the invite",
    "root": "without it, this network takes no further members",
}


# What nodes keep in a home, but for the keys of a root: --state files lie where people put them.
_OURS: Final = re.compile(
    r"identity(-\d+)?\.(key|lock)|grant-\d+|network|withdrawn|name|charter|members|peers"
    r"|(held|usage|http-members)\.sqlite(-wal|-shm|\.lock)?|(trust-\d+|sizes)\.db(-wal|-shm|\.lock)?"
    r"|(scratch|blobs|services|environments)-\d+(\.lock)?|environments-\d+\.seal|node-\d+\.sock"
    r"|control\.(sock|lock)|worker\.lock|published|code|wheels|.*\.unfinished"
)
_IS_ROOT: Final = re.compile(r"root(-\d+)?\.key")


class HomeFolder:
    """What a Home does to its files. All that follows `_locked` is called under that lock."""

    def __init__(self, path: Path | None = None, *, lock_timeout_s: float = LOCK_TIMEOUT_S) -> None:
        self.path = home_path(path)
        self._lock_timeout_s = lock_timeout_s

    def __repr__(self) -> str:
        return f"Home({self.path})"

    def purge(self) -> list[str]:
        """Remove all that nodes keep in the folder, and the folder where nothing else is in it; not
        the keys of a root, whose files it returns: they are all that this network has."""
        with self._locked():
            for path in self.path.iterdir():
                if _OURS.fullmatch(path.name) is None:
                    continue
                remove_folder_now(path)
            stay = [path.name for path in self.path.iterdir() if path.name != ".lock"]
            if not stay:
                (self.path / ".lock").unlink()
                self.path.rmdir()
        return sorted(name for name in stay if _IS_ROOT.fullmatch(name))

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

    def _load_or_make(self, name: str) -> Identity:
        known = self._load_key(name)
        if known is not None:
            return known
        made = Identity.from_seed(os.urandom(_SEED_BYTES))
        self._write(name, key_line(made))
        _log.info("made %s: %s", self.path / name, made.peer_id)
        return made

    def _load_key(self, name: str) -> Identity | None:
        text = self._read(name)
        if text is None:
            return None
        key = identity_in(text)
        if key is None:
            raise self._damaged(name)
        return key

    def _damaged(self, name: str) -> LocalError:
        mend = _MEND[name.partition(".")[0].partition("-")[0]]
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
        write_durably(self.path / name, f"{text}\n".encode("ascii"), f"{name}.unfinished")


def key_line(key: Identity) -> str:
    """A private key as its file has it."""
    return f"{key.seed.hex()} {key.peer_id}"


def identity_in(text: str) -> Identity | None:
    """What such a line says; None where it is damaged."""
    try:
        seed, peer_id = text.split()
        key = Identity.from_seed(bytes.fromhex(seed))
    except ValueError:
        return None
    return key if key.peer_id == peer_id else None


def _refuse_open_to_others(path: Path, mode: int, wanted: str) -> None:
    if mode & 0o077:
        command = f"chmod {wanted} {shlex.quote(str(path))}"
        raise LocalError(f"{path} is open to other users of this machine; run: {command}")


# Of a machine whose own name has no letter or digit that may be in a name.
NAMELESS: Final = "node"
_OTHERS: Final = re.compile(r"[^a-z0-9_-]+", re.ASCII)


def host_name() -> str:
    """Of this host, without its domain."""
    return name_from(socket.gethostname())


def name_from(host: str) -> str:
    """What is nearest to a host's name among the names of nodes.

    >>> name_from("Büro PC.example.org")
    'buro-pc'
    """
    letters = unicodedata.normalize("NFKD", host.partition(".")[0])
    plain = letters.encode("ascii", "ignore").decode().lower()
    return _OTHERS.sub("-", plain)[:MAX_HOST_NAME_CHARS].strip("_-") or NAMELESS


# A peer id takes 53 bytes; so the file stays within the bound of all files here.
MAX_WITHDRAWN: Final = 256

_NETWORK: Final = "network"
_ROOT: Final = "root.key"
_GRANT: Final = "grant"
_WITHDRAWN: Final = "withdrawn"
_NAME: Final = "name"
# What nodes keep of their network (state, reach/remembered.py).
_OF_NETWORK: Final = (
    *("charter", "members", "peers"),
    *("held.sqlite", "held.sqlite-wal", "held.sqlite-shm", "held.sqlite.lock"),
)

# Nodes that run from one home at the same time: a worker, a gate, and a person's commands.
MAX_IDENTITIES: Final = 16


class Home(HomeFolder):
    """Every method raises LocalError for a folder or file that is damaged, out of reach, or open
    to others; the message says what to do."""

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
        peers, and invitations. None where the root is split: then no key renews alone."""
        with self._locked():
            network = self._network()
            root = None if network is None else self._root_of(network)
            return None if root is None else (root, frozenset(self._withdrawn()))

    def root_keys(self) -> list[Identity]:
        """The keys of this network's root that are here."""
        with self._locked():
            network = self._network()
            return [] if network is None else self._root_keys_of(network)

    def hold(self, key: str) -> Identity:
        """Keep a key of this network's split root, as the file has it that its creator handed out.

        Raises InvalidInput where it is none, or another one is here.
        """
        with self._locked():
            part, network = identity_in(key), self._known_network()
            if part is None:
                raise InvalidInput("root key", "it is incomplete; copy the whole file")
            if part.public_key not in root_of(network.grant, network.root_public_key).keys:
                raise InvalidInput("root key", "it is not one of this network's root")
            known = self._load_key(_ROOT)
            if known is not None and known.public_key != part.public_key:
                problem = f"{self.path / _ROOT} is another one"
                raise InvalidInput("root key", f"{problem}; hold one key in each home")
            self._write(_ROOT, key_line(part))
            return part

    def withdraw(self, name: str) -> None:
        """Have the grants of a peer, or those that were made of an invitation, not renewed: they
        end when they end. Does nothing to one that is withdrawn already.

        Raises InvalidInput unless the network that the node is in was created in this home, or
        where too many are.
        """
        with self._locked():
            if self._root_of(self._known_network()) is None:
                problem = f"{self.path / _ROOT} is not that of this network, or a part of it"
                cure = "withdraw where it was created, or ban it: formation charter ban"
                raise InvalidInput("root key", f"{problem}; {cure}")
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

    def create_network(self, place: Place = NOWHERE, *, threshold: int = 1, of: int = 1) -> Network:
        """Make a network and put this node in it, at a place, with every right and no end. A root
        key that is here already is used again. With `of` keys, `threshold` of them sign each grant.

        Raises InvalidInput where the node is in one.
        """
        bounds.check_amount("of", of, 1, MAX_ROOT_KEYS)
        bounds.check_amount("threshold", threshold, 1, of)
        with self._locked():
            if self._network() is not None:
                raise InvalidInput("network", f"this node is in one; {self._how_to_leave()}")
            if of > 1 and (known := self._first_root_file()) is not None:
                problem = f"{known} is of another network; move it away, or name another --home"
                raise InvalidInput("root key", problem)
            made = [self._load_or_make(_root_file(number)) for number in range(of)]
            keys = KeySet(threshold, tuple(each.public_key for each in made))
            rights = Rights(MAX_EXPIRY_UNIX_S, place=place)
            return self._enter(request_of(keys, made, (), rights).network())

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

    def leave(self) -> list[str]:
        """Forget the network: its invite and grants, its members and charter. What it does not
        forget are keys: the node's, and those of a root, whose files it returns."""
        with self._locked():
            names = [_NETWORK, _WITHDRAWN, *_OF_NETWORK]
            for name in (*names, *map(_grant_file, range(MAX_IDENTITIES))):
                (self.path / name).unlink(missing_ok=True)
            files = map(_root_file, range(MAX_ROOT_KEYS))
            return [name for name in files if (self.path / name).exists()]

    def invite(self, rights: Rights, peer_id: PeerId | None = None) -> str:
        """An invite for its bearer, or for one peer. It is a secret: see `Network`.

        Raises InvalidInput unless the network that the node is in was created in this home, or
        where keys of its root are missing.
        """
        return self.request(rights, peer_id).network().invite()

    def request(self, rights: Rights, peer_id: PeerId | None = None) -> GrantRequest:
        """What becomes such an invite, signed with the keys of the root that are here.

        Raises InvalidInput where there are none.
        """
        network, here = self._inviting()
        keys = root_of(network.grant, network.root_public_key)
        return request_of(keys, here, network.gates, rights, peer_id)

    def request_again(self, grant: bytes) -> GrantRequest:
        """What becomes an invite for a member whose grant that is: the same for longer, signed with
        the keys of the root that are here.

        Raises InvalidInput where there are none, or the grant is not to be renewed.
        """
        network, here = self._inviting()
        root_id = network.root_public_key
        return renewal_of(grant, root_id, here, network.gates, time.time())

    def _inviting(self) -> tuple[Network, list[Identity]]:
        """With the keys that sign. Raises InvalidInput where there are none."""
        with self._locked():
            network = self._known_network()
            here = self._root_keys_of(network)
        if not here:
            problem = f"{self.path / _ROOT} is not that of this network"
            raise InvalidInput("root key", f"{problem}; invite from where it was created")
        return network, here

    def add_gate(self, gate: str) -> Network:
        """Put a gate first in the network's list, here and in the invites made here.

        Raises InvalidInput for what is not a gate; LocalError where the node is in no network.
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
            bounds.check_host_name("name", text.strip())
        except InvalidInput:
            raise self._damaged(_NAME) from None
        return text.strip()

    def rename(self, name: str) -> None:
        """Have the nodes that are started from here go by this name. Raises InvalidInput."""
        bounds.check_host_name("name", name)
        with self._locked():
            self._write(_NAME, name)

    def has_root_key(self) -> bool:
        """Whether this home may invite, or sign for an invite: its network was created here, or it
        holds a key of the root."""
        return bool(self.root_keys())

    # -- all below is called under the lock ---------------------------------------------------

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
        """Raises LocalError where there is none."""
        network = self._network()
        if network is None:
            raise in_no_network(self.path)
        return network

    def _root_keys_of(self, network: Network) -> list[Identity]:
        known = root_of(network.grant, network.root_public_key).keys
        here = (self._load_key(_root_file(number)) for number in range(MAX_ROOT_KEYS))
        return [key for key in here if key is not None and key.public_key in known]

    def _first_root_file(self) -> Path | None:
        files = (self.path / _root_file(number) for number in range(MAX_ROOT_KEYS))
        return next((path for path in files if path.exists()), None)

    def _root_of(self, network: Network) -> Identity | None:
        """The root key, where it is that of this network."""
        root = self._load_key(_ROOT)
        return root if root and root.public_key == network.root_public_key else None

    def _enter(self, network: Network) -> Network:
        bound = network.bound_to(self._load_or_make(IDENTITY).peer_id)
        self._write(_NETWORK, network.invite())
        return bound

    def _how_to_leave(self) -> str:
        return f"to leave it, run: formation network leave --home {shlex.quote(str(self.path))}"


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
    return IDENTITY if index == 0 else f"identity-{index}.key"


def _root_file(number: int) -> str:
    return _ROOT if number == 0 else f"root-{number + 1}.key"


def _grant_file(index: int) -> str:
    return f"{_GRANT}-{index}"

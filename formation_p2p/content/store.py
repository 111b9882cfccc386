"""The blobs of this node, on disk: a cache with a bound, and files that were put by their path.

| file               | what it holds |
| ------------------ | ------------- |
| `<cid>`            | content, whole: it was verified before it got this name |
| `<cid>.part`       | content that is still being fetched; what there is of it is verified anew |
| `<cid>.manifest`   | the manifest of either |
| `<cid>.put`        | where a file lies that was put, and how it looked then |
| `<cid>.rules`      | who may read it, where not all members may (rules.py) |
| `.holders/`        | which jobs need which content (holders.py) |

What was put stays where it is and counts for nothing; it is served while it looks as it did. The
rest is bounded: for something new the least lately used goes, unless it has a holder. All methods
block on the disk, and may be called from any thread.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Final

from formation_p2p.content import files
from formation_p2p.content.core.fetch import Manifest
from formation_p2p.content.files import BlobFolder, local_errors
from formation_p2p.content.holders import Holders
from formation_p2p.content.places import UNKNOWN
from formation_p2p.content.rules import BlobRules, rule_of
from formation_p2p.core.errors import InvalidInput, LocalError
from formation_p2p.core.identity import PeerId
from formation_p2p.core.units import GIB, format_bytes
from formation_p2p.records.core.codec import Malformed
from formation_p2p.workload.core.blob import Blob, Buffer, Cid
from formation_p2p.workload.core.data_rule import OPEN, DataRule

log = logging.getLogger(__name__)

# A machine that somebody lends has other uses for its disk.
DEFAULT_LIMIT_BYTES: Final = 10 * GIB
DEFAULT_SHARE: Final = 10  # or a tenth of what is free, where that is less
# Files that were put; each is an entry of a few hundred bytes, and a file of as many.
MAX_PUT: Final = 16_384
# Blobs in the cache: each has two files in one folder.
MAX_CACHED: Final = 16_384
_MAX_PUT_FILE_BYTES: Final = 16 * 1024
_LARGER: Final = "give it more there (formation worker --cache SIZE)"
_HOLDERS: Final = ".holders"

# What is here by now, and what is gone.
Changed = Callable[[tuple[Cid, ...], tuple[Cid, ...]], None]


@dataclass(slots=True)
class _Entry:
    """Of the cache. `size_bytes` counts in full from the first chunk on; `keep_s`: see `adopt`."""

    size_bytes: int
    whole: bool
    pins: int = 0
    keep_s: float = 0.0
    kept_until_s: float = 0.0


class BlobStore:
    """See the module. Call `load` first."""

    def __init__(self, root: Path, limit_bytes: int | None = None) -> None:
        self._root = root
        self._folder = BlobFolder(root)
        self._limit_bytes = limit_bytes
        self._lock = threading.RLock()
        self._cached: OrderedDict[Cid, _Entry] = OrderedDict()  # the latest used at the end
        self._used_bytes = 0  # of all of these: to add them up takes long where there are many
        self._put: OrderedDict[Cid, files.Put] = OrderedDict()  # likewise
        self._holders = Holders(root / _HOLDERS)
        self._rules = BlobRules(self._folder)
        self._changed: Changed = lambda here, gone: None
        # Whole since an earlier incarnation of this node, in which the machine may have lost power.
        self._unverified: set[Cid] = set()

    def load(self) -> None:
        """Find what an earlier incarnation left. Raises LocalError; InvalidInput for a limit that
        is more than the disk has."""
        with local_errors(self._root):
            self._root.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._holders.load()
            paths = (path for path in self._root.iterdir() if path.name != _HOLDERS)
            found = [(path, path.stat()) for path in paths]
        for path, status in sorted(found, key=lambda each: each[1].st_mtime_ns):
            name, _, kind = path.name.partition(".")
            try:
                self._load(Cid.parse(name), kind, path, status)
            except (InvalidInput, ValueError, KeyError, TypeError, OSError) as error:
                log.warning("%s is none of ours and is removed: %s", path, error)
                path.unlink(missing_ok=True)
        for cid in self._rules.known():
            self.restrict_no_more(cid)  # it was on its way when the node ended
        room = shutil.disk_usage(self._root).free + self.used_bytes
        if self._limit_bytes is None:
            self._limit_bytes = min(DEFAULT_LIMIT_BYTES, room // DEFAULT_SHARE)
        elif self._limit_bytes > room:
            problem = f"{format_bytes(self._limit_bytes)}, and the disk at {self._root} has"
            raise InvalidInput("cache", f"{problem} {format_bytes(room)}; write less")

    def _load(self, cid: Cid, kind: str, path: Path, status: os.stat_result) -> None:
        if kind == "":
            self._resize(self._entry(cid), status.st_size)
            self._cached[cid].whole = True
            self._unverified.add(cid)
        elif kind == "part" and cid not in self._cached:
            self._resize(self._entry(cid), status.st_size)
        elif kind == "put":
            if status.st_size > _MAX_PUT_FILE_BYTES:
                raise ValueError("it is too long")
            self._put[cid] = files.Put(**json.loads(path.read_text()))
        elif kind == "rules":
            self._rules.load(cid, path)
        elif kind not in ("manifest", "part"):
            raise ValueError("it has no kind that is known")

    def watch(self, changed: Changed) -> None:
        """Have it told which blobs of the cache are whole: all of them now, and then what changes,
        in order, on whichever thread changes it. Must return at once, and not raise."""
        with self._lock:
            self._changed = changed
            changed(tuple(cid for cid, entry in self._cached.items() if entry.whole), ())

    @property
    def limit_bytes(self) -> int:
        assert self._limit_bytes is not None, "load the store first"
        return self._limit_bytes

    @property
    def used_bytes(self) -> int:
        with self._lock:
            return self._used_bytes

    def _entry(self, cid: Cid) -> _Entry:
        return self._cached.setdefault(cid, _Entry(0, whole=False))

    def _resize(self, entry: _Entry, size_bytes: int) -> None:
        """Of the cache, which a pinned one stays in."""
        with self._lock:
            self._used_bytes += size_bytes - entry.size_bytes
            entry.size_bytes = size_bytes

    def rules(self, cid: Cid) -> tuple[DataRule, ...]:
        """Who may read what is here; empty for all members."""
        with self._lock:
            return self._rules.of(cid)

    def check_rule(self, blob: Blob) -> None:
        """Raises LocalError where what is here has other rules than this reference: who knows its
        name alone may not read it."""
        with self._lock:
            known = self._rules.of(blob.cid)
            if known and rule_of(blob) not in known and self._is_here(blob.cid):
                problem = f"{blob.cid} is here for others, by the rule of its owner"
                raise LocalError(f"{problem}; pass on the reference that the owner made")

    def parties(self, cid: Cid) -> tuple[PeerId, ...]:
        """For whose leases it came here, or was made."""
        with self._lock:
            return self._rules.parties(cid)

    def is_own(self, cid: Cid) -> bool:
        """Whether this node has put it, or a job of its state needs it."""
        with self._lock:
            return cid in self._put or self._holders.need_durably(cid)

    def is_now_for(self, cid: Cid, party: PeerId) -> None:
        """It came here for this one. Raises LocalError."""
        with self._lock, local_errors(self._root):
            if party != UNKNOWN and self._is_here(cid):
                self._rules.add_party(cid, party)

    def is_for_others(self, blob: Blob, *, is_party: bool) -> bool:
        """Whether the cache has it, by other references than this alone, or for the parties of jobs
        of which this one is none."""
        with self._lock:
            known, rule = self._rules.of(blob.cid), rule_of(blob)
            is_new = rule not in known or (rule.is_for_parties and not is_party)
            return bool(known) and is_new and self.holds(blob.cid)

    def again(self, manifest: Manifest, rule: DataRule) -> files.Part:
        """To fetch once more what is here for others: who has all of it from sources of his own
        reads it here, too. Of a pinned blob. Raises NoRoom, OSError."""
        cid = manifest.blob.cid
        path = self._folder.path(cid, f"again-{threading.get_ident()}")

        def came() -> None:
            with self._lock:
                if self._rules.of(cid):
                    self._rules.add(cid, rule)

        with self._lock:
            files.check_disk(self._root, manifest.blob.size_bytes)
            part = files.Part(manifest, path, came, 0o400)
            path.unlink()  # it is here: this is to be gone with its descriptor
            return part

    def _made_here(self, blob: Blob, owner: PeerId) -> None:
        """Others that had it here before, by rules of theirs, do not say who reads it. OSError."""
        self.is_now_for(blob.cid, owner)
        with self._lock:
            if self._rules.of(blob.cid) and self.holds(blob.cid):
                self._rules.add(blob.cid, rule_of(blob))

    def restrict(self, blob: Blob) -> None:
        """Content comes by this reference: from now on its rule holds here. Raises LocalError as
        `check_rule` does."""
        with self._lock, local_errors(self._root):
            self.check_rule(blob)
            if blob.rule is not None and not self._is_here(blob.cid):
                self._rules.add(blob.cid, blob.rule)

    def restrict_no_more(self, cid: Cid) -> None:
        """Where it did not come, a rule that somebody said is nobody's. Raises LocalError."""
        with self._lock, local_errors(self._root):
            if not self._is_here(cid):
                self._rules.forget(cid)

    def _is_here(self, cid: Cid) -> bool:
        return self.holds(cid) or cid in self._put

    def put(self, path: Path, rule: DataRule | None = None) -> Blob:
        """Offer a file to others from where it lies, to those that the rule allows. Raises
        LocalError.

        It must stay as it is until its receivers have it; the reference names no sources.
        """
        path = path.absolute()
        with local_errors(path):
            file = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
            try:
                manifest, status = files.read_through(file, path)
            finally:
                os.close(file)
            put = files.Put.of(str(path), status)
            blob = manifest.blob
            with self._lock:
                self._folder.write(blob.cid, "manifest", manifest.encode())
                if rule is None:
                    self._rules.forget(blob.cid)
                elif rule == OPEN or blob.cid not in self._put or self._rules.of(blob.cid):
                    self._rules.add(blob.cid, rule)
                self._folder.write(blob.cid, "put", json.dumps(asdict(put)).encode())
                self._put[blob.cid] = put
                self._put.move_to_end(blob.cid)
                if len(self._put) > MAX_PUT:
                    self._forget_put(next(iter(self._put)))
        return replace(blob, rule=rule)

    def add(
        self,
        content: Buffer,
        holder: str,
        owner: PeerId = UNKNOWN,
        rule: DataRule | None = None,
        *,
        durable: bool = False,
    ) -> Blob:
        """Keep content of that owner of a lease, or job, and serve it as far as the rule allows,
        until `holder` is released: see `hold`. The reference names no sources. Raises LocalError,
        NoRoom, InvalidInput."""
        manifest = Manifest.of(content)
        blob = manifest.blob
        with local_errors(self._root), self.pinned(blob.cid):
            with self._lock:
                if rule is not None and not self._is_here(blob.cid):
                    self._rules.add(blob.cid, rule)
            if not self.holds(blob.cid) or blob.cid in self._unverified:
                self._add(manifest, content, durable=durable)
            self._made_here(replace(blob, rule=rule), owner)
            self.hold(holder, (blob.cid,), durable=durable)
        return replace(blob, rule=rule)

    def add_file(self, file: int, size_bytes: int, holder: str, owner: PeerId = UNKNOWN) -> Blob:
        """As `add`, what a file of this size has, which others may write to: a copy, by the file
        system's own means where it has any. Raises LocalError, NoRoom."""
        new = self._root / f"added.new-{threading.get_ident()}"  # its CID is not known yet
        with local_errors(self._root):
            with self._lock:
                self._make_room(size_bytes, on_disk=False)
            try:
                manifest = files.copied(file, new, size_bytes)
                if manifest is None:
                    raise LocalError("a file is written to while it is kept; rename it once whole")
                blob = manifest.blob
                with self.pinned(blob.cid):
                    if not self.holds(blob.cid) or blob.cid in self._unverified:
                        self._name(manifest, new, self._room_for(blob, on_disk=True))
                    self._made_here(blob, owner)
                    self.hold(holder, (blob.cid,))
            finally:
                new.unlink(missing_ok=True)
        return blob

    def add_copy(self, blob: Blob, file: int) -> bool:
        """Keep a copy of what a file of another node has, of a pinned blob. False where that is
        other content. Raises LocalError, NoRoom."""
        if blob.size_bytes > files.READ_BYTES:
            return self._copy(blob, file)
        with local_errors(self._root):
            if (read := files.read_whole(file, blob)) is None:
                return False
            self._add(*read, durable=False)
        return True

    def _copy(self, blob: Blob, file: int) -> bool:
        """As `add_copy`, by the file system's own means where it has any."""
        new = self._folder.path(blob.cid, f"new-{threading.get_ident()}")
        with local_errors(self._root):
            entry = self._room_for(blob)
            try:
                manifest = files.copied(file, new, blob.size_bytes)
                if manifest is not None and manifest.blob.cid == blob.cid:
                    self._name(manifest, new, entry)
                    return True
            finally:
                new.unlink(missing_ok=True)
                self._resize(entry, blob.size_bytes if entry.whole else 0)
        return False

    def _add(self, manifest: Manifest, content: Buffer, *, durable: bool) -> None:
        """Of a pinned blob. Raises OSError, NoRoom."""
        entry = self._room_for(manifest.blob)
        try:
            new = self._folder.write_new(manifest.blob.cid, content, durable=durable)
            self._name(manifest, new, entry)
        except OSError:
            self._resize(entry, manifest.blob.size_bytes if entry.whole else 0)
            raise

    def _room_for(self, blob: Blob, *, on_disk: bool = False) -> _Entry:
        """Of a pinned blob. Raises NoRoom."""
        with self._lock:
            entry = self._cached[blob.cid]
            self._resize(entry, 0)
            self._make_room(blob.size_bytes, on_disk=on_disk)
            self._resize(entry, blob.size_bytes)
            return entry

    def _name(self, manifest: Manifest, new: Path, entry: _Entry) -> None:
        """All of it lies at `new`. Raises OSError."""
        cid = manifest.blob.cid
        with self._lock:
            self._folder.write(cid, "manifest", manifest.encode())
            new.rename(self._folder.path(cid))
            self._folder.remove(cid, "part")
            self._resize(entry, manifest.blob.size_bytes)
            entry.whole = True
            self._unverified.discard(cid)
            self._changed((cid,), ())

    def hold(self, holder: str, cids: Iterable[Cid], *, durable: bool = False) -> None:
        """Content that is here, or comes, is not evicted until `holder` is released: a job's id, a
        digest, or another name of letters, digits, `-` and `_`. With `durable`, which is for jobs
        of the node's state, also not after a restart. Raises LocalError, InvalidInput."""
        with self._lock, local_errors(self._root):
            self._holders.hold(holder, cids, durable=durable)

    def release(self, holder: str) -> None:
        """It needs nothing any more; an unknown holder is ignored. What has no other holder stays
        while there is room. Raises LocalError."""
        with self._lock, local_errors(self._root):
            self._holders.release(holder)

    def is_holder(self, holder: str) -> bool:
        with self._lock:
            return holder in self._holders

    @property
    def durable_holders(self) -> frozenset[str]:
        with self._lock:
            return self._holders.durable

    def adopt(
        self,
        file: int,
        path: Path,
        keep_s: float,
        rule: DataRule | None = None,
        owner: PeerId = UNKNOWN,
    ) -> Blob:
        """Move a file, open as `file`, into the cache, and keep it for `keep_s` at least after
        each use, for those that the rule allows; it was made for that owner of a lease. `path` is
        where it lies, on the disk of the cache, not written any more. Raises LocalError, NoRoom."""
        with local_errors(path):
            # Before it is read: a file of holes is long at no cost, and reading it takes minutes.
            self._check_fits(os.fstat(file).st_size)
            manifest, status = files.read_through(file, path)
            blob = manifest.blob
            with self._lock:
                entry = self._cached.get(blob.cid)
                if entry is None or not entry.whole:
                    if entry is None:
                        self._make_room(blob.size_bytes, on_disk=True)
                    self._folder.write(blob.cid, "manifest", manifest.encode())
                    os.fchmod(file, 0o400)
                    self._folder.take(path, status, blob.cid)
                    self._folder.path(blob.cid, "part").unlink(missing_ok=True)
                    entry = self._entry(blob.cid)
                    self._resize(entry, blob.size_bytes)
                    entry.whole = True
                    if rule is not None and blob.cid not in self._put:
                        self._rules.add(blob.cid, rule)
                self._made_here(replace(blob, rule=rule), owner)
                entry.keep_s = max(entry.keep_s, keep_s)
                self._used(blob.cid)
                self._changed((blob.cid,), ())
        return replace(blob, rule=rule)

    def part(self, manifest: Manifest) -> files.Part:
        """Make room for a blob, which must be pinned, and begin to fetch it, or go on. Raises
        NoRoom, OSError."""
        blob = manifest.blob
        with self._lock:
            self._room_for(blob)
            self._folder.write(blob.cid, "manifest", manifest.encode())
            path = self._folder.path(blob.cid, "part")
            return files.Part(manifest, path, lambda: self._finish(blob.cid), 0o400)

    def _finish(self, cid: Cid) -> None:
        with self._lock:
            self._folder.path(cid, "part").rename(self._folder.path(cid))
            self._cached[cid].whole = True
            self._changed((cid,), ())

    def holds(self, cid: Cid) -> bool:
        with self._lock:
            return cid in self._cached and self._cached[cid].whole

    def content(self, cid: Cid) -> files.Content | None:
        """To serve it; None where it is not here, or was changed since it was put."""
        with self._lock:
            is_cached = self.holds(cid)
            put = None if is_cached else self._put.get(cid)
            if put is None and not is_cached:
                return None
            path = self._folder.path(cid) if put is None else Path(put.path)
            self._used(cid)
            try:
                file = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
            except FileNotFoundError as error:
                log.warning("%s is gone: %s", path, error)
                self._forget(cid)
                return None
            except OSError as error:
                # For want of descriptors, say: it is there still, for a later request.
                log.warning("%s cannot be opened now: %s", path, error)
                return None
        try:
            status = os.fstat(file)
            if put is not None and files.Put.of(put.path, status) != put:
                raise ValueError("it was changed after it was put")
            block = self._folder.manifest_block(cid)
            blob = Blob(cid, status.st_size)
            return files.Content(Manifest.read(blob, block), file, put)
        except OSError as error:
            os.close(file)
            log.warning("%s cannot be served now: %s", path, error)
            return None
        except (Malformed, ValueError) as error:
            os.close(file)
            log.warning("%s is served no longer: %s", path, error)
            self._forget(cid)
            return None

    def copy(self, cid: Cid, to: Path) -> None:
        """Put a copy, which may be read and executed, at `to`. The blob must be whole, and
        pinned. Raises LocalError.

        A copy, for the owner of a file may write to it, whatever its mode; where the file system
        can, both share their blocks until then.
        """
        path = self._folder.path(cid)
        with local_errors(to), path.open("rb", buffering=0) as source:
            if cid in self._unverified:
                if files.read_through(source.fileno(), to)[0].blob.cid != cid:
                    self._forget(cid)
                    raise LocalError(f"{cid} was damaged on the disk; it is fetched again")
                self._unverified.discard(cid)
            into = files.new_input(to)
            try:
                files.copy_file(source.fileno(), into, os.fstat(source.fileno()).st_size)
            finally:
                os.close(into)

    def copy_over(self, cid: Cid, to: Path) -> bool:
        """As `copy`, over what is there, and as a file like any other of this user; of what was put
        here, too. Returns whether it is here."""
        with local_errors(to):
            beside = files.beside(to, cid, "copy")
            beside.unlink(missing_ok=True)
            if self.holds(cid):
                self.copy(cid, beside)
            elif not self._copy_of_put(cid, beside):
                beside.unlink(missing_ok=True)
                return False
            beside.chmod(files.usual_mode())
            beside.replace(to)
        return True

    def _copy_of_put(self, cid: Cid, to: Path) -> bool:
        """Whether the file is still what was put."""
        content = self.content(cid)
        if content is None:
            return False
        with content:
            manifest = files.copied(content.file, to, content.blob.size_bytes)
        return manifest is not None and manifest.blob.cid == cid

    @contextmanager
    def pinned(self, cid: Cid) -> Iterator[None]:
        """What is used, or fetched, is not evicted meanwhile."""
        with self._lock:
            if cid not in self._cached and len(self._cached) >= MAX_CACHED:
                self._evict_one()
            entry = self._entry(cid)
            entry.pins += 1
            self._used(cid)
        try:
            yield
        finally:
            with self._lock:
                entry.pins -= 1
                if not entry.pins and not entry.size_bytes and not entry.whole:
                    if cid in self._put:  # it is served from its place still
                        self._cached.pop(cid, None)
                        self._folder.remove(cid, "part")
                    else:
                        self._forget(cid)  # nothing came of it

    def _used(self, cid: Cid) -> None:
        for known in (self._cached, self._put):
            if cid in known:
                known.move_to_end(cid)
        if self.holds(cid):
            entry = self._cached[cid]
            entry.kept_until_s = time.monotonic() + entry.keep_s
            with suppress(OSError):  # the order in which they go does not matter
                os.utime(self._folder.path(cid))

    def _make_room(self, size_bytes: int, *, on_disk: bool) -> None:
        """Evict until so many bytes more fit. Raises NoRoom."""
        self._check_fits(size_bytes)
        while self.used_bytes + size_bytes > self.limit_bytes or len(self._cached) > MAX_CACHED:
            self._evict_one()
        while not on_disk:
            try:
                files.check_disk(self._root, size_bytes)
                break
            except files.NoRoom:
                self._evict_one()

    def _check_fits(self, size_bytes: int) -> None:
        """Raises NoRoom for what never will."""
        if size_bytes > self.limit_bytes:
            raise files.NoRoom(
                f"{format_bytes(size_bytes)} do not fit into this machine's cache of "
                f"{format_bytes(self.limit_bytes)}; {_LARGER}, split the data, or choose another "
                "machine"
            )

    def _evict_one(self) -> None:
        now_s = time.monotonic()
        for cid, entry in self._cached.items():
            if not (entry.pins or entry.kept_until_s > now_s or self._holders.need(cid)):
                self._forget(cid)
                return
        limit = format_bytes(self.limit_bytes)
        raise files.NoRoom(
            f"all of this machine's cache of {limit} is in use; {_LARGER}, or try again later"
        )

    def _forget(self, cid: Cid) -> None:
        with self._lock:
            self._forget_put(cid)
            entry = self._cached.get(cid)
            if entry is not None and entry.pins:
                entry.whole = False
                self._resize(entry, 0)
            elif entry is not None:
                self._resize(self._cached.pop(cid), 0)
            self._unverified.discard(cid)
            self._changed((), (cid,))
            self._folder.remove(cid, "", "part", "manifest")
            self._rules.forget(cid)

    def _forget_put(self, cid: Cid) -> None:
        if self._put.pop(cid, None) is not None:
            self._folder.remove(cid, "put", *(() if cid in self._cached else ("manifest",)))
            if cid not in self._cached:
                self._rules.forget(cid)

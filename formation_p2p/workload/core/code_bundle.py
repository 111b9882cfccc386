"""The code that calls need, as one blob: the files of Python modules and packages.

    magic | size of the index, 4 bytes | index | the content of each file, one after the other

The index is a CBOR list of `[name, size_bytes, executable]`, ascending by name. A name is relative
to a folder of `sys.path`, such as `package/data/table.csv`. The same files have the same bytes, and
thus the same CID. A bundle holds files alone: there is no way to say a link, a device or a folder,
and nothing in it is compressed.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

import cbor2

from formation_p2p.core import cbor
from formation_p2p.core.errors import InvalidInput
from formation_p2p.core.units import MIB, format_bytes
from formation_p2p.machine.core.bounds import shown
from formation_p2p.workload.core.blob import Blob

# The source of a large project is some 10 MiB in 3,000 files. What has more holds data.
MAX_CODE_BYTES: Final = 64 * MIB
MAX_CODE_FILES: Final = 10_000
# Linux takes 255 bytes (NAME_MAX), and 4096 for the whole (PATH_MAX) with the folder of the cache.
MAX_PART_BYTES: Final = 255
MAX_NAME_BYTES: Final = 1024
MAX_DEPTH: Final = 32

# The last character is the version of the format.
_MAGIC: Final = b"formcod1"
_SIZE: Final = struct.Struct("!I")
_MAX_INDEX_BYTES: Final = MAX_CODE_FILES * (MAX_NAME_BYTES + 16)
MAX_BUNDLE_BYTES: Final = len(_MAGIC) + _SIZE.size + _MAX_INDEX_BYTES + MAX_CODE_BYTES

_FIELD: Final = "code"


@dataclass(frozen=True, slots=True)
class ModuleNames:
    """Dotted names of modules: those that a pickle refers to, without which it cannot be read, and
    those that its functions may import."""

    referred: frozenset[str] = frozenset()
    imported: frozenset[str] = frozenset()

    def __or__(self, other: ModuleNames) -> ModuleNames:
        return ModuleNames(self.referred | other.referred, self.imported | other.imported)

    def __sub__(self, other: ModuleNames) -> ModuleNames:
        return ModuleNames(self.referred - other.referred, self.imported - other.imported)

    def __bool__(self) -> bool:
        return bool(self.referred or self.imported)


NO_MODULES: Final = ModuleNames()


@dataclass(frozen=True, slots=True)
class CodeFile:
    """`name` has `/` between its parts. `content` may be a view of the bundle."""

    name: str
    content: bytes | memoryview
    executable: bool = False


@dataclass(frozen=True, slots=True)
class Code:
    """A bundle that goes along with calls: `names` are what can be imported from it, `files` and
    `size_bytes` what it holds. `left_out` names some of what was beside it and did not go:
    modules that are imported and git does not track, files that look like secrets."""

    blob: Blob
    names: tuple[str, ...]
    files: int
    size_bytes: int
    left_out: tuple[str, ...] = ()

    def __str__(self) -> str:
        count = "1 file" if self.files == 1 else f"{self.files:,} files"
        size = format_bytes(self.size_bytes)
        without = f"; left out: {', '.join(self.left_out)}" if self.left_out else ""
        return f"{', '.join(self.names) or 'nothing'} ({count}, {size}, {self.blob.cid}){without}"


def write_bundle(files: Iterable[CodeFile]) -> bytes:
    """The bundle of these files, in whatever order they come. Raises InvalidInput where
    `read_bundle` would not take it."""
    ordered = sorted(files, key=lambda file: file.name)
    _check_bounds(len(ordered), sum(len(file.content) for file in ordered))
    _check_names([file.name for file in ordered])
    index = cbor2.dumps([[file.name, len(file.content), file.executable] for file in ordered])
    return b"".join(
        (_MAGIC, _SIZE.pack(len(index)), index, *(file.content for file in ordered)),
    )


def read_bundle(bundle: bytes | memoryview) -> tuple[CodeFile, ...]:
    """The files of a bundle, ascending by name. Raises InvalidInput, whatever the bytes are."""
    if len(bundle) > MAX_BUNDLE_BYTES:
        raise InvalidInput(_FIELD, f"the bundle has more than {format_bytes(MAX_BUNDLE_BYTES)}")
    start = len(_MAGIC) + _SIZE.size
    if len(bundle) < start or bundle[: len(_MAGIC)] != _MAGIC:
        raise InvalidInput(_FIELD, "not a bundle of this version")
    (index_bytes,) = _SIZE.unpack_from(bundle, len(_MAGIC))
    if index_bytes > min(_MAX_INDEX_BYTES, len(bundle) - start):
        raise InvalidInput(_FIELD, "the index is longer than it may be")
    try:
        index = cbor.decode(bytes(bundle[start : start + index_bytes]))
    except ValueError as problem:
        raise InvalidInput(_FIELD, f"the index is not plain CBOR: {problem}") from problem
    entries = list(_entries(index))
    total = sum(size for _, size, _ in entries)
    _check_bounds(len(entries), total)
    _check_names([name for name, _, _ in entries])
    content = memoryview(bundle)[start + index_bytes :]
    if len(content) != total:
        raise InvalidInput(_FIELD, f"{len(content)} bytes of content, where the index says {total}")
    return tuple(_files(entries, content))


def _entries(index: object) -> Iterator[tuple[str, int, bool]]:
    if type(index) is not list:
        raise InvalidInput(_FIELD, "the index is not a list")
    for entry in index:
        match entry:
            case [str(name), int(size), bool(executable)] if type(size) is int and size >= 0:
                yield name, size, executable
            case _:
                raise InvalidInput(_FIELD, "an entry of the index is not a name, a size, a boolean")


def _files(entries: list[tuple[str, int, bool]], content: memoryview) -> Iterator[CodeFile]:
    at = 0
    for name, size, executable in entries:
        yield CodeFile(name, content[at : at + size], executable)
        at += size


def _check_bounds(files: int, size_bytes: int) -> None:
    if files > MAX_CODE_FILES:
        raise InvalidInput(_FIELD, f"{files:,} files, of at most {MAX_CODE_FILES:,}")
    if size_bytes > MAX_CODE_BYTES:
        sizes = f"{format_bytes(size_bytes)}, of at most {format_bytes(MAX_CODE_BYTES)}"
        raise InvalidInput(_FIELD, sizes)


def _check_names(names: list[str]) -> None:
    """That each is a file's, ascending, and none of them is a folder that another is in."""
    known: set[str] = set()
    last = ""
    for name in names:
        _check_name(name)
        if name <= last:
            raise InvalidInput(_FIELD, f"{shown(name)} comes twice, or not in its order")
        last = name
        known.add(name)
    for name in names:
        folder, slash, _ = name.rpartition("/")
        while slash:
            if folder in known:
                raise InvalidInput(_FIELD, f"{shown(folder)} is a file and a folder")
            folder, slash, _ = folder.rpartition("/")


def _check_name(name: str) -> None:
    try:
        size = len(name.encode())
    except UnicodeEncodeError:
        raise InvalidInput(_FIELD, f"{shown(name)} is not text") from None
    parts = name.split("/")
    if size > MAX_NAME_BYTES or len(parts) > MAX_DEPTH:
        most = f"{MAX_NAME_BYTES} bytes and {MAX_DEPTH} folders"
        raise InvalidInput(_FIELD, f"the name {shown(name)} has more than {most}")
    for part in parts:
        if part in ("", ".", "..") or min(part) < " ":
            raise InvalidInput(_FIELD, f"{shown(name)} is not a relative name of a file")
        if len(part.encode()) > MAX_PART_BYTES:
            raise InvalidInput(_FIELD, f"a part of {shown(name)} has over {MAX_PART_BYTES} bytes")

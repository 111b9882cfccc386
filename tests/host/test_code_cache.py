"""The code of calls on a worker's disk: whole, for reading only, bounded; nothing of a bad bundle
stays."""

import os
import stat
import struct
import subprocess
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import cbor2
import pytest
import trio
import trio.testing

from formation_p2p.content.core.fetch import Manifest
from formation_p2p.content.places import UNKNOWN
from formation_p2p.core.errors import InvalidInput, LocalError, Unreachable
from formation_p2p.core.identity import PeerId
from formation_p2p.core.units import KIB, MIB
from formation_p2p.drivers.code_cache import CodeCache
from formation_p2p.workload.core.blob import RAW, Blob, Cid, digest_of
from formation_p2p.workload.core.code_bundle import MAX_BUNDLE_BYTES, CodeFile, write_bundle
from simulations.branch import branches
from tests.support.users import be_ordinary
from tests.support.waiting import in_trio, run


class Blobs:
    """Content as other nodes would have it; counts what is fetched."""

    def __init__(self) -> None:
        self.content: dict[Cid, bytes] = {}
        self.fetched = 0

    def has(self, content: bytes) -> Blob:
        blob = Manifest.of(content).blob
        self.content[blob.cid] = content
        return blob

    async def fetch_ahead(self, blobs: Iterable[Blob], owner: PeerId = UNKNOWN) -> None:
        pass

    async def copies(self, inputs: Iterable[tuple[Path, Blob]], owner: PeerId = UNKNOWN) -> None:
        for path, blob in inputs:
            await trio.sleep(0.01)
            if blob.cid not in self.content:
                raise Unreachable("it is nowhere")
            self.fetched += 1
            path.write_bytes(self.content[blob.cid])


def code(text: str = "x = 1\n", **more: str) -> bytes:
    files = {"shop/__init__.py": "", "shop/prices.py": text, **more}
    return write_bundle(CodeFile(name, content.encode()) for name, content in files.items())


def left(root: Path) -> list[Path]:
    """What is in the cache: one folder for each bundle."""
    return sorted(path for boot in root.iterdir() for path in boot.iterdir())


@in_trio
async def test_a_bundle_is_fetched_once_and_cannot_be_written_to(tmp_path: Path) -> None:
    blobs, cache = Blobs(), CodeCache(tmp_path)
    tool = CodeFile("shop/tool", b"#!/bin/sh\n", executable=True)
    blob = blobs.has(write_bundle([tool, CodeFile("shop/prices.py", b"x = 1\n")]))
    seen: list[Path] = []

    async def use() -> None:
        async with cache.held(blob, blobs) as folder:
            seen.append(folder)
            assert (folder / "shop" / "prices.py").read_text() == "x = 1\n"

    async with trio.open_nursery() as nursery:
        nursery.start_soon(use)
        nursery.start_soon(use)
    async with CodeCache(tmp_path).held(blob, blobs) as folder:  # another node of the home
        seen.append(folder)
    assert blobs.fetched == 1
    assert len(set(seen)) == 1
    modes = {path: stat.S_IMODE(path.stat().st_mode) for path in (seen[0], *seen[0].rglob("*"))}
    names = {str(path.relative_to(seen[0])): mode for path, mode in modes.items()}
    assert names == {".": 0o555, "shop": 0o555, "shop/prices.py": 0o444, "shop/tool": 0o555}


def test_who_is_not_root_has_bundles_and_removes_them(tmp_path: Path) -> None:
    """None but root may move a folder that is for reading only into another one."""
    blobs, cache = Blobs(), CodeCache(tmp_path, max_bundles=1)
    first, second = blobs.has(code("x = 1\n")), blobs.has(code("x = 2\n"))

    async def use() -> None:
        for blob, text in ((first, "x = 1\n"), (second, "x = 2\n")):
            async with cache.held(blob, blobs) as folder:
                assert (folder / "shop" / "prices.py").read_text() == text
                assert stat.S_IMODE(folder.stat().st_mode) == 0o555
                assert left(tmp_path) == [folder]

    def used_as_anyone() -> None:
        be_ordinary()
        run(use)

    assert list(branches([used_as_anyone])) == [None]


@in_trio
async def test_a_bundle_that_does_not_come_keeps_no_other_waiting(tmp_path: Path) -> None:
    """Of another owner, on a worker of both: the first names the sources of his."""
    blobs, cache = Blobs(), CodeCache(tmp_path)
    stuck, other = blobs.has(code("stuck")), blobs.has(code("other"))

    class Silent(Blobs):
        async def copies(
            self, inputs: Iterable[tuple[Path, Blob]], owner: PeerId = UNKNOWN
        ) -> None:
            await trio.sleep_forever()

    async def wait() -> None:
        async with cache.held(stuck, Silent()):
            raise AssertionError("it came")

    async with trio.open_nursery() as nursery:
        nursery.start_soon(wait)
        await trio.testing.wait_all_tasks_blocked(0.05)
        async with cache.held(other, blobs) as folder:
            assert (folder / "shop" / "prices.py").read_text() == "other"
        nursery.cancel_scope.cancel()
    assert len(left(tmp_path)) == 1


def hostile(index: Any, content: bytes = b"") -> bytes:
    encoded = cbor2.dumps(index)
    return b"formcod1" + struct.pack("!I", len(encoded)) + encoded + content


def million() -> bytes:
    """Of a million files; encoded at once, as each process that collects tests makes it."""
    encoded = b"\x9a" + struct.pack("!I", 10**6) + cbor2.dumps(["a.py", 1, False]) * 10**6
    return b"formcod1" + struct.pack("!I", len(encoded)) + encoded


@pytest.mark.parametrize(
    "bundle",
    [
        b"",
        b"no bundle",
        hostile([["../../escaped.py", 1, False]], b"x"),
        hostile([["/tmp/escaped.py", 1, False]], b"x"),
        hostile([["a", 0, False], ["a/b", 0, False]]),
        hostile([["a.py", 2**40, False]]),
        million(),
        code()[:-1],
        code() + b"more",
    ],
    ids=["empty", "other", "up", "absolute", "both", "huge", "million", "short", "long"],
)
@in_trio
async def test_a_bad_bundle_is_refused_and_nothing_of_it_stays(
    tmp_path: Path, bundle: bytes
) -> None:
    blobs, cache = Blobs(), CodeCache(tmp_path / "cache")
    with pytest.raises(InvalidInput, match="code"):
        async with cache.held(blobs.has(bundle), blobs):
            raise AssertionError("it was taken")
    assert left(tmp_path / "cache") == []
    assert [path.name for path in tmp_path.iterdir()] == ["cache"]  # noqa: ASYNC240


@in_trio
async def test_one_that_is_too_long_is_not_even_fetched(tmp_path: Path) -> None:
    blobs, cache = Blobs(), CodeCache(tmp_path)
    huge = Blob(Cid(0x71, digest_of(b"")), MAX_BUNDLE_BYTES + 1)
    with pytest.raises(InvalidInput, match="has"):
        async with cache.held(huge, blobs):
            raise AssertionError("it was taken")
    nowhere = Blob(Cid(RAW, digest_of(b"gone")), 4)
    with pytest.raises(Unreachable):
        async with cache.held(nowhere, blobs):
            raise AssertionError("it was taken")
    assert left(tmp_path) == []


@in_trio
async def test_the_least_lately_used_goes_and_never_what_is_in_use(tmp_path: Path) -> None:
    blobs = Blobs()
    cache = CodeCache(tmp_path, max_bytes=100 * KIB, max_bundles=3)
    bundles = [blobs.has(code(f"x = {number}\n")) for number in range(5)]
    large = blobs.has(code(data="x" * 200 * KIB))

    async def use(blob: Blob) -> Path:
        async with cache.held(blob, blobs) as folder:
            return folder

    async with cache.held(bundles[0], blobs) as first:
        folders = [first]
        for number, blob in enumerate(bundles[1:], 1):
            folders.append(await use(blob))
            os.utime(folders[-1], (number, number))
        assert [path.exists() for path in folders] == [True, False, False, True, True]
        with pytest.raises(LocalError, match="code in use fills the cache"):
            await use(large)
        assert [path.exists() for path in folders] == [True, False, False, False, False]
    assert not any(path.name.startswith(("new-", "dead-")) for path in left(tmp_path))


def test_what_an_earlier_boot_or_a_killed_process_left_is_removed(tmp_path: Path) -> None:
    blobs = Blobs()
    blob = blobs.has(code())

    async def use() -> Path:
        async with CodeCache(tmp_path).held(blob, blobs) as folder:
            return folder

    folder = run(use)
    (folder.parent / "new-killed" / "files").mkdir(parents=True)
    (tmp_path / "an-earlier-boot" / "a").mkdir(parents=True)
    assert run(use) == folder
    assert left(tmp_path) == [folder]
    assert blobs.fetched == 1


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Callable[[int], Path]]:
    """File systems of so many MiB."""
    mounted: list[Path] = []

    def mount(size_mib: int) -> Path:
        folder = tmp_path / f"disk-{size_mib}"
        folder.mkdir()
        command = ("mount", "-t", "tmpfs", "-o", f"size={size_mib}m", "formation-test", str(folder))
        if os.geteuid() or subprocess.run(command, check=False, timeout=10).returncode:
            pytest.skip("no file system can be mounted here")
        mounted.append(folder)
        return folder

    yield mount
    for folder in mounted:
        subprocess.run(("umount", "-l", str(folder)), check=True, timeout=10)


@in_trio
async def test_a_disk_that_is_full_in_the_middle_is_an_error_and_nothing_stays(
    small_disk: Callable[[int], Path],
) -> None:
    folder = small_disk(200)
    blobs, cache = Blobs(), CodeCache(folder)
    blob = blobs.has(code(**{f"data-{n}": "x" * MIB for n in range(40)}))

    class FillsUp(Blobs):
        """Others write to the disk while the bundle is fetched."""

        async def copies(
            self, inputs: Iterable[tuple[Path, Blob]], owner: PeerId = UNKNOWN
        ) -> None:
            await blobs.copies(inputs, owner)
            free = os.statvfs(folder)
            with (folder / "others").open("wb") as file:
                file.write(bytes(free.f_bavail * free.f_frsize - 20 * MIB))

    with pytest.raises(OSError, match="No space left"):
        async with cache.held(blob, FillsUp()):
            raise AssertionError("it was taken")
    (folder / "others").unlink()
    assert left(folder) == []
    async with cache.held(blob, blobs) as there:
        assert len(list(there.rglob("data-*"))) == 40

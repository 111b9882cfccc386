"""Content that somebody needs stays in the cache, for as long as it is needed and no longer."""

import os
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from formation_p2p.content import files
from formation_p2p.content import store as blob_store
from formation_p2p.content.core.fetch import Manifest
from formation_p2p.content.files import NoRoom
from formation_p2p.content.holders import FORGOTTEN_S, MAX_HOLDERS, MAX_HOLDS, Holders
from formation_p2p.content.store import BlobStore
from formation_p2p.core.errors import InvalidInput, LocalError
from formation_p2p.core.units import MIB
from formation_p2p.workload.core.blob import RAW, Blob, Cid
from tests.support.data_world import Holder, content
from tests.support.stacks import running
from tests.support.waiting import in_trio


def opened(folder: Path, limit_bytes: int = 4 * MIB) -> BlobStore:
    store = BlobStore(folder, limit_bytes)
    store.load()
    return store


def read(store: BlobStore, blob: Blob) -> bytes:
    found = store.content(blob.cid)
    assert found is not None
    buffer = memoryview(bytearray(MIB))
    with found:
        return b"".join(bytes(found.read(index, buffer)) for index in range(blob.chunks))


@pytest.mark.parametrize("size", [0, 1, MIB, MIB + 1, 3 * MIB + 7])
def test_content_of_any_size_is_kept_by_its_name(tmp_path: Path, size: int) -> None:
    store = opened(tmp_path / "blobs")
    data = os.urandom(size)
    blob = store.add(memoryview(data), "job-1")
    assert blob == Manifest.of(data).blob == store.put(_file(tmp_path, data))
    assert read(store, blob) == data
    assert not list((tmp_path / "blobs").glob("*new*"))


def _file(folder: Path, data: bytes) -> Path:
    path = folder / "file"
    path.write_bytes(data)
    return path


def test_what_has_a_holder_is_not_evicted_and_goes_once_its_last_is_released(
    tmp_path: Path,
) -> None:
    store = opened(tmp_path)
    blob = store.add(content(3), "a")
    store.hold("b", [blob.cid])
    for holder in ("a", "unknown"):
        with pytest.raises(NoRoom, match="in use"):
            store.add(content(2), "other")
        store.release(holder)
    with pytest.raises(NoRoom, match="in use"):
        store.add(content(2), "other")
    store.release("b")
    assert store.holds(blob.cid)  # while there is room
    store.add(content(2), "other")
    assert not store.holds(blob.cid)


def test_the_same_content_is_kept_once(tmp_path: Path) -> None:
    store = opened(tmp_path)
    data = content(3)
    assert store.add(data, "a") == store.add(data, "b")
    assert store.used_bytes == 3 * MIB


def test_what_is_used_is_what_lies_there_however_it_came_and_went(tmp_path: Path) -> None:
    folder = tmp_path / "blobs"
    store = opened(folder, 8 * MIB)

    def lies_there() -> int:
        names = [path for path in folder.iterdir() if "." not in path.name]
        return sum(path.stat().st_size for path in names)

    for number in range(12):  # of which the first are evicted
        data = content(1) + bytes([number])
        made = _file(tmp_path, data)
        with made.open("rb") as file:
            match number % 4:
                case 0:
                    store.add(data, "job")
                case 1:
                    store.add_file(file.fileno(), len(data), "job")
                case 2:
                    store.adopt(file.fileno(), made, 0.0)
                case 3:
                    blob = Manifest.of(data).blob
                    with store.pinned(blob.cid):
                        assert not store.add_copy(replace(blob, size_bytes=MIB + 7), file.fileno())
                        store.adopt(file.fileno(), made, 0.0)
        store.release("job")
        assert store.used_bytes == lies_there() > 0
    (folder / str(blob.cid)).unlink()
    assert store.content(blob.cid) is None
    assert store.used_bytes == lies_there() == opened(folder, 8 * MIB).used_bytes


def test_content_may_be_held_before_it_comes(tmp_path: Path) -> None:
    store = opened(tmp_path)
    data = content(3)
    blob = Manifest.of(data).blob
    store.hold("a", [blob.cid])
    assert not store.holds(blob.cid)
    made = _file(tmp_path, data)
    with made.open("rb") as file:
        store.adopt(file.fileno(), made, 0.0)
    with pytest.raises(NoRoom, match="in use"):
        store.add(content(2), "b")


def test_what_a_task_has_made_is_kept_for_a_while_after_each_use(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_s = 0.0
    monkeypatch.setattr(blob_store, "time", SimpleNamespace(monotonic=lambda: now_s))
    store = opened(tmp_path / "blobs")
    data = content(3)
    made = _file(tmp_path, data)
    with made.open("rb") as file:
        blob = store.adopt(file.fileno(), made, 60.0)
    for now_s in (50.0, 100.0, 150.0):  # noqa: B007  # the store reads it
        with pytest.raises(NoRoom, match="in use"):
            store.add(content(2), "other")
        assert read(store, blob) == data
    now_s = 209.0
    with pytest.raises(NoRoom, match="in use"):
        store.add(content(2), "other")
    now_s = 211.0
    store.add(content(2), "other")
    assert not store.holds(blob.cid)


def test_durable_holders_survive_a_restart_and_others_do_not(tmp_path: Path) -> None:
    store = opened(tmp_path)
    data = content(1)
    kept = store.add(data, "durable", durable=True)
    more = store.add(content(1.5), "durable")
    store.add(content(1.2), "not")
    again = opened(tmp_path)
    assert again.durable_holders == {"durable"}
    again.add(content(1.4), "other")
    assert again.holds(kept.cid)
    assert again.holds(more.cid)
    assert read(again, kept) == data
    again.release("durable")
    assert opened(tmp_path).durable_holders == frozenset()


def test_a_line_that_a_crash_cut_short_is_passed_over(tmp_path: Path) -> None:
    store = opened(tmp_path)
    first = store.add(content(1), "job", durable=True)
    with (tmp_path / ".holders" / "job").open("a") as file:
        file.write("\nbafkr4i")
    again = opened(tmp_path)
    second = again.add(content(1.5), "job", durable=True)
    last = opened(tmp_path, limit_bytes=3 * MIB)
    last.add(content(0.5), "other")
    assert last.holds(first.cid)
    assert last.holds(second.cid)


def test_a_holder_that_was_forgotten_holds_nothing(tmp_path: Path) -> None:
    opened(tmp_path).add(content(1), "job", durable=True)
    long_ago_s = time.time() - FORGOTTEN_S - 60
    os.utime(tmp_path / ".holders" / "job", (long_ago_s, long_ago_s))
    (tmp_path / ".holders" / "no.name").touch()
    assert opened(tmp_path).durable_holders == frozenset()
    assert not list((tmp_path / ".holders").iterdir())


@pytest.mark.parametrize("name", ["", "a/b", "..", "é", "a" * 129])
def test_a_holder_whose_name_could_be_a_path_is_refused(tmp_path: Path, name: str) -> None:
    store = opened(tmp_path)
    with pytest.raises(InvalidInput, match="holder"):
        store.add(b"x", name, durable=True)


def test_holders_are_bounded(tmp_path: Path) -> None:
    held = Holders(tmp_path)
    cids = [Cid(RAW, n.to_bytes(32)) for n in range(MAX_HOLDS)]
    for n in range(MAX_HOLDERS):
        held.hold(str(n), cids[:1], durable=False)
    with pytest.raises(LocalError, match="4096 holders"):
        held.hold("another", cids[:1], durable=False)
    held.hold("0", cids[1 : 1 + MAX_HOLDS - MAX_HOLDERS], durable=False)
    with pytest.raises(LocalError, match="more than 65536 blobs"):
        held.hold("0", cids[-1:], durable=False)
    assert not held.need(cids[-1])
    held.release("1")
    held.hold("another", cids[-1:], durable=False)
    assert held.need(cids[-1])
    assert "1" not in held


def test_a_full_disk_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = opened(tmp_path)
    full = files.NoRoom("the disk is full")
    with monkeypatch.context() as patch:
        patch.setattr(files, "check_disk", lambda folder, size: (_ for _ in ()).throw(full))
        with pytest.raises(NoRoom):
            store.add(content(1), "job")
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", _full)
        with pytest.raises(LocalError, match="No space left"):
            store.add(content(1), "job", durable=True)
    assert list(tmp_path.iterdir()) == []
    assert store.used_bytes == 0
    store.add(content(1), "job")


def _full(file: int) -> None:
    raise OSError(28, "No space left on device")


@in_trio
async def test_another_node_fetches_what_was_added(tmp_path: Path) -> None:
    alice, bob = Holder(tmp_path / "alice"), Holder(tmp_path / "bob")
    data = content(2.5)
    async with running(alice, bob):
        blob = await alice.exchange.add(data, "job")
        assert blob.sources == (alice.contact,)
        assert await bob.get(blob) == data
        await bob.exchange.hold("job", [blob.cid])
        await bob.exchange.release("job")

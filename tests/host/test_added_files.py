"""Files that tasks save, and may still write to: kept as copies of their own."""

import os
from pathlib import Path

import pytest

from formation_p2p.content.files import NoRoom
from formation_p2p.content.store import BlobStore
from formation_p2p.core.errors import LocalError
from formation_p2p.core.units import MIB
from formation_p2p.workload.core.blob import Blob
from tests.support.data_world import content


def test_a_file_is_kept_as_it_was(tmp_path: Path) -> None:
    store = loaded(tmp_path / "blobs")
    much = content(3)
    path = tmp_path / "saved"
    path.write_bytes(much)
    blob = added(store, path, len(much))
    assert blob == store.add(much, "other")  # the same content has the same name
    path.write_bytes(b"changed since")
    assert added(store, path, 13) != blob
    store.copy(blob.cid, tmp_path / "copy")
    assert (tmp_path / "copy").read_bytes() == much
    assert added(store, tmp_path / "copy", len(much)) == blob  # which is here
    assert [each.name for each in (tmp_path / "blobs").glob("*.new*")] == []


def test_one_that_changes_or_is_too_large_is_not_kept(tmp_path: Path) -> None:
    store = loaded(tmp_path / "blobs", limit_bytes=2 * MIB)
    path = tmp_path / "saved"
    path.write_bytes(content(1))
    with pytest.raises(LocalError, match="is written to while it is kept"):
        added(store, path, 7)
    path.write_bytes(content(3))
    with pytest.raises(NoRoom):
        added(store, path, path.stat().st_size)
    assert store.used_bytes == 0


def loaded(root: Path, limit_bytes: int | None = None) -> BlobStore:
    store = BlobStore(root, limit_bytes)
    store.load()
    return store


def added(store: BlobStore, path: Path, size_bytes: int) -> Blob:
    file = os.open(path, os.O_RDONLY)
    try:
        return store.add_file(file, size_bytes, "holder")
    finally:
        os.close(file)

"""What is large in the calls of jobs that a state keeps: files that outlive the node."""

import os
from pathlib import Path

import pytest

from formation_p2p.api.calls import reference_to
from formation_p2p.api.reference import JobPacker
from formation_p2p.content.job_data import JobData
from formation_p2p.content.memory import PrivateBlobs
from formation_p2p.core.errors import InvalidInput, LocalError
from formation_p2p.core.units import KIB
from formation_p2p.workload.core.parcel import Parcel
from tests.support.parcels import a_packer

DATA = b"data" * 70 * KIB


class Life:
    """One incarnation of a node."""

    def __init__(self, root: Path, *jobs: str) -> None:
        self.blobs = PrivateBlobs()
        self.packer = a_packer(self.blobs)
        self.data = JobData(self.blobs, root / "calls")
        self.data.load(jobs)

    def packed(self, job_id: str) -> Parcel:
        return JobPacker(self.packer, self.data, job_id).pack(DATA)

    def read(self, parcel: Parcel) -> bytes:
        assert parcel.blob is not None
        lent = self.blobs.lend(parcel.blob.name)
        if lent is None:
            return b""
        found = os.pread(lent.file, len(DATA), 0)
        lent.done(clean=True)
        return found


def test_the_next_life_has_what_jobs_need_that_go_on(tmp_path: Path) -> None:
    first = Life(tmp_path)
    goes_on, over = first.packed("goes-on"), first.packed("over")
    (tmp_path / "calls" / "goes-on" / "of another program").touch()
    first.data.sync("goes-on")
    first.data.sync("unknown")
    first.packer.release(goes_on)
    first.blobs.close()
    second = Life(tmp_path, "goes-on")
    assert second.read(goes_on) == DATA
    assert second.read(over) == b""
    assert [each.name for each in (tmp_path / "calls").iterdir()] == ["goes-on"]
    second.data.release("goes-on")
    assert second.read(goes_on) == b""
    assert not (tmp_path / "calls").exists()
    second.data.release("goes-on")


def test_a_reference_is_copied_once_for_a_job(tmp_path: Path) -> None:
    life = Life(tmp_path)
    reference = reference_to(list(range(1000)), life.packer)
    packer = JobPacker(life.packer, life.data, "job")
    reference.check(packer)
    first, second = (packer.pack(b"pickle", references=[reference.parcel]) for _ in range(2))
    assert first == second
    (copy,) = first.references
    before = reference.parcel.blob
    assert copy.blob is not None
    assert before is not None
    assert copy.blob.name != before.name
    assert life.read(copy)[:2000] == life.read(reference.parcel)[:2000]
    reference.release()
    packer.release(first)
    assert life.read(copy)
    with pytest.raises(InvalidInput, match="it was released"):
        reference.check(packer)
    with pytest.raises(InvalidInput, match="it was released"):
        JobPacker(life.packer, life.data, "job").pack(b"pickle", references=[reference.parcel])


def test_a_disk_that_refuses_is_an_error(tmp_path: Path) -> None:
    life = Life(tmp_path)
    (tmp_path / "calls").write_text("a file")
    with pytest.raises(LocalError, match="free some of the disk"):
        life.packed("job")
    assert len(life.blobs) == 0

"""The files of processes that save by ending: taken, and put where they are started again."""

from pathlib import Path

import cbor2
import pytest

from formation_p2p.core.errors import InvalidInput
from formation_p2p.drivers.process import packed_files, put_files, take_restored
from formation_p2p.workload.core.process import ProcessSpec

SPEC = ProcessSpec(("a",), checkpoint_files=("state", "models/last"))


def test_files_are_put_as_they_were_taken(tmp_path: Path) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    (here / "models").mkdir(parents=True)
    there.mkdir()
    (here / "state").write_bytes(b"7")
    (here / "models" / "last").write_bytes(b"weights")
    (here / "other").write_bytes(b"not this")
    (there / "state").write_bytes(b"of its start")
    put_files(SPEC, there, packed_files(SPEC, here))
    assert (there / "state").read_bytes() == b"7"
    assert (there / "models" / "last").read_bytes() == b"weights"
    assert not (there / "other").exists()


def test_one_that_is_not_there_is_left_out(tmp_path: Path) -> None:
    (tmp_path / "state").write_bytes(b"7")
    assert cbor2.loads(packed_files(SPEC, tmp_path)) == {"state": b"7"}


def test_a_link_is_no_file_of_the_task(tmp_path: Path) -> None:
    (tmp_path / "state").symlink_to("/etc/hostname")
    with pytest.raises(OSError, match="leads out of the task's folder"):
        packed_files(SPEC, tmp_path)


@pytest.mark.parametrize(
    "packed", [b"no cbor", cbor2.dumps([]), cbor2.dumps({"x": b""}), cbor2.dumps({"state": 7})]
)
def test_what_is_no_checkpoint_of_it_is_refused(tmp_path: Path, packed: bytes) -> None:
    with pytest.raises(InvalidInput, match="checkpoint"):
        put_files(SPEC, tmp_path, packed)
    assert not list(tmp_path.iterdir())


def test_what_was_restored_is_taken_once(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"saved")
    assert take_restored(tmp_path, "x") == b"saved"
    assert take_restored(tmp_path, "x") is None

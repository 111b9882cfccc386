"""Folders that a worker lends, as a person writes them."""

from itertools import islice
from pathlib import Path

import pytest

from formation_p2p.core.errors import InvalidInput
from formation_p2p.drivers.lent import MAX_LENT, Lent, labels_of, lent_folders
from formation_p2p.drivers.machine import Machine
from formation_p2p.machine.home_path import home_near


def test_a_folder_is_read_only_unless_it_is_said(tmp_path: Path) -> None:
    (tmp_path / "target").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "target")
    lent = lent_folders(["/usr", "/var:rw"])
    assert lent == (Lent(Path("/usr")), Lent(Path("/var"), writable=True))
    data = Lent(Path("/mnt/data-1")), Lent(Path("/scratch"), writable=True)
    assert labels_of(data) == {"bind.mnt.data-1": "ro", "bind.scratch": "rw"}


@pytest.mark.parametrize("text", ["/", "/none-there", "usr", "", ":rw", "/etc/passwd", "/.."])
def test_what_is_no_folder_below_the_root_is_refused(text: str) -> None:
    with pytest.raises(InvalidInput, match="is not a folder below /"):
        lent_folders([text])


def test_what_makes_no_label_and_what_is_there_twice_is_refused(tmp_path: Path) -> None:
    odd = tmp_path / "a b"
    odd.mkdir()
    with pytest.raises(InvalidInput, match="makes no label"):
        lent_folders([str(odd)])
    with pytest.raises(InvalidInput, match="is there twice"):
        lent_folders(["/usr", "/usr:rw"])


def test_no_folder_with_the_keys_of_a_node_is_lent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home, data = tmp_path / "above" / "home", tmp_path / "data"
    for folder in (home / "blobs", data):
        folder.mkdir(parents=True)
    (home / "identity.key").touch()
    for near in (home.parent, home, home / "blobs"):
        with pytest.raises(InvalidInput, match=f"the keys of a node.* in {home}; lend a folder"):
            lent_folders([str(near)])
    assert home_near(data) is None
    assert home_near(tmp_path, most=0) is None
    monkeypatch.setenv("FORMATION_HOME", str(home))
    assert home_near(tmp_path, most=0) == home


@pytest.mark.at_length
def test_there_are_no_more_than_a_worker_has_labels() -> None:
    folders = (path for path in Path("/usr/lib").rglob("*") if path.is_dir())
    own = (str(path) for path in folders if not path.is_symlink())
    plain = (each for each in own if each.replace("/", "").isalnum() and len(each) < 50)
    with pytest.raises(InvalidInput, match=f"more than {MAX_LENT}"):
        lent_folders(list(islice(plain, MAX_LENT + 1)))


def test_folders_are_lent_in_a_sandbox_alone_and_never_the_nodes_own(tmp_path: Path) -> None:
    (tmp_path / "home" / "blobs").mkdir(parents=True)
    with pytest.raises(InvalidInput, match="without a sandbox"):
        Machine.found(tmp_path / "home", "off", lent=(Lent(Path("/usr")),))
    for near in (tmp_path, tmp_path / "home", tmp_path / "home" / "blobs"):
        with pytest.raises(InvalidInput, match="the node's own files"):
            Machine.found(tmp_path / "home", "auto", lent=(Lent(near.resolve()),))

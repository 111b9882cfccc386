"""Sealed boxes, and the secrets that a node keeps in them."""

import os
import stat
from pathlib import Path

import pytest

from formation_p2p.core.errors import InvalidInput, LocalError
from formation_p2p.core.identity import Identity, parse_peer_id
from formation_p2p.secrets import shown
from formation_p2p.secrets.store import MAX_OF_TASKS, OVERHEAD_BYTES, Secrets, opened, seal
from formation_p2p.workload.core.blob import RAW, Cid
from formation_p2p.workload.core.process import MAX_SECRET_BYTES

ALICE, BOB = Identity.from_seed(b"a" * 32), Identity.from_seed(b"b" * 32)
RSA = parse_peer_id("QmYyQSo1c1Ym7orWxLYvCrM2EmxFTANf8wXmmE7DWjhx5N")
SECRET = b"correct horse"


def test_a_box_is_opened_by_its_peer_and_in_its_context_alone() -> None:
    for seed in range(20):
        who = Identity.from_seed(bytes([seed]) * 32)
        assert opened(who, seal(who.peer_id, SECRET, b"notes"), b"notes") == SECRET
    box = seal(ALICE.peer_id, SECRET, b"notes")
    assert (len(box), SECRET in box) == (len(SECRET) + OVERHEAD_BYTES, False)
    assert box != seal(ALICE.peer_id, SECRET, b"notes")
    altered = [box[:n] + bytes([box[n] ^ 1]) + box[n + 1 :] for n in range(len(box))]
    for other in (*altered, b"", box[:40], bytes(len(box))):
        with pytest.raises(InvalidInput, match="not sealed for this peer, or was altered"):
            opened(ALICE, other, b"notes")
    for identity, context in ((BOB, b"notes"), (ALICE, b"")):
        with pytest.raises(InvalidInput):
            opened(identity, box, context)
    with pytest.raises(InvalidInput, match="no Ed25519 key"):
        seal(RSA, SECRET)


def test_what_is_kept_is_for_one_use_and_no_file_shows_it(tmp_path: Path) -> None:
    secrets = Secrets(ALICE, tmp_path / "secrets")
    of_task, of_notes = secrets.put(SECRET), secrets.put(SECRET, "notes")
    assert secrets.get(of_task.cid) == secrets.get(of_notes.cid, "notes") == SECRET
    assert secrets.get(of_notes.cid) is None
    assert secrets.get(of_notes.cid, "other") is None
    assert secrets.get(of_task.cid, "notes") is None
    assert Secrets(BOB, tmp_path / "secrets").get(of_task.cid) is None
    assert secrets.put(SECRET, "notes", of_notes) == of_notes
    assert secrets.put(b"another", "notes", of_notes).cid != of_notes.cid
    secrets.keep(Cid(RAW, bytes(32)), SECRET, "notes")
    assert secrets.get(Cid(RAW, bytes(32)), "notes") == SECRET
    for path in (tmp_path / "secrets").iterdir():
        assert SECRET not in path.read_bytes()
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    secrets.drop(of_task.cid)
    assert secrets.get(of_task.cid) is None
    with pytest.raises(InvalidInput, match="of at most 8KiB"):
        secrets.put(bytes(MAX_SECRET_BYTES + 1))
    with pytest.raises(LocalError, match="no folder"):
        Secrets(ALICE, None).put(SECRET)


def test_the_oldest_secrets_of_tasks_give_way_and_none_of_services(tmp_path: Path) -> None:
    secrets = Secrets(ALICE, tmp_path)
    kept, first = secrets.put(SECRET, "notes"), secrets.put(SECRET)
    for path in tmp_path.iterdir():
        os.utime(path, (1, 1))
    for _ in range(MAX_OF_TASKS):
        last = secrets.put(SECRET)
    assert (secrets.get(first.cid), secrets.get(last.cid)) == (None, SECRET)
    assert secrets.get(kept.cid, "notes") == SECRET


def test_what_killed_nodes_have_left_in_memory_goes_though_others_remove_it_as_well(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    most = int(Path("/proc/sys/kernel/pid_max").read_text())  # no process has this number
    for name in ("removed", "left", "mine"):
        pid = os.getpid() if name == "mine" else most
        (tmp_path / f"formation-secrets-{pid}-{name}").mkdir()
    looked, exists = tmp_path / f"formation-secrets-{most}-removed", Path.exists

    def removed_meanwhile(path: Path) -> bool:
        if path == Path(f"/proc/{most}") and exists(looked):
            looked.rmdir()
        return exists(path)

    monkeypatch.setattr(Path, "exists", removed_meanwhile)

    shown.sweep(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [f"formation-secrets-{os.getpid()}-mine"]

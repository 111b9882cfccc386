"""Services by the `formation` command, from another machine than the one that runs them."""

from __future__ import annotations

import json
from pathlib import Path

from tests.support.commands import LOOPBACK, formation, started
from tests.support.sandboxes import needs_sandbox
from tests.support.waiting import wait_until

PROGRAM = (
    "import os, socket, time; end = socket.socket(socket.AF_UNIX); "
    "end.bind(os.environ['FORMATION_SOCKET']); end.listen(); "
    "print('listens', flush=True); time.sleep(1e6)"
)
CATALOG = f"""
[notes]
tier = 2
port = 8100
needs = "cpu=0.1,memory=64MiB"
argv = ["python3", "-c", "{PROGRAM}"]
replicas = {{ min = 1, target = 1, max = 1 }}
"""


@needs_sandbox
def test_the_publisher_reads_scales_and_looks_into_a_service_from_afar(tmp_path: Path) -> None:
    gate, worker = tmp_path / "gate", tmp_path / "worker"
    assert formation(gate, "network", "create").code == 0
    with started(gate, "gate", *LOOPBACK) as serving:
        serving.line_with("to invite others")
        invite = formation(gate, "network", "invite").out
        assert formation(worker, "network", "join", "-", stdin=invite).code == 0
        options = ("--serve", "cpu", "--allow-exec", "--name", "kitchen", *LOOPBACK)
        with started(worker, "worker", "--json", *options) as working:
            working.line_with("ready")
            (tmp_path / "catalog.toml").write_text(CATALOG)
            assert formation(gate, "service", "apply", tmp_path / "catalog.toml").code == 0

            def services() -> dict[str, int]:
                [told] = json.loads(formation(gate, "services", "--json").out)["services"]
                return {key: told[key] for key in ("ready", "version", "target")}

            wait_until(lambda: services()["ready"] == 1, every_s=0.5)
            for home in (gate, worker):
                printed = formation(home, "service", "logs", "notes", "--since", "1h")
                assert (printed.code, printed.err) == (0, "")
                assert b"ready (version 1, slot 0)" in printed.out
                assert b"\nlistens\n" in printed.out
            ran = formation(
                gate, "service", "exec", "notes", "--on", "kitchen", "--", "sh", stdin=b"echo $HOST"
            )
            assert (ran.code, ran.out) == (0, b"127.0.0.1\n")
            failed = formation(worker, "service", "exec", "notes", "--", "sh", "-c", "exit 7")
            assert failed.code == 1
            assert "exit code 7" in failed.err
            scaled = formation(gate, "service", "scale", "notes", "2")
            assert (scaled.code, b"version 2" in scaled.out) == (0, True)
            wait_until(lambda: services() == {"ready": 1, "version": 2, "target": 2}, every_s=0.5)
            refused = formation(gate, "service", "scale", "notes", "65")
            assert refused.code == 2
            assert "replicas" in refused.err
            missing = formation(gate, "service", "logs", "other")
            assert missing.code == 3

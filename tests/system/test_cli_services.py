"""Services by the `formation` command, from another machine than the one that runs them."""

import hashlib
import json
from contextlib import suppress
from functools import partial
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

            def printed(home: Path) -> bytes:
                logs = formation(home, "service", "logs", "notes", "--since", "1h")
                assert (logs.code, logs.err) == (0, "")
                return logs.out

            def has_printed(home: Path) -> bool:
                return b"\nlistens\n" in printed(home)

            for home in (gate, worker):
                # The program prints once it is ready.
                wait_until(partial(has_printed, home), every_s=0.5)
                assert b"ready (version 1, slot 0)" in printed(home)
            ran = formation(
                gate, "service", "exec", "notes", "--on", "kitchen", "--", "sh", stdin=b"echo $HOST"
            )
            assert (ran.code, ran.out) == (0, b"127.0.0.1\n")
            failed = formation(worker, "service", "exec", "notes", "--", "sh", "-c", "exit 7")
            assert failed.code == 1
            assert "exit code 7" in failed.err
            asleep = ("sh", "-c", "echo begun; exec sleep 1000")
            command = ("service", "exec", "notes", "--on", "kitchen", "--", *asleep)
            with started(gate, *command) as left:
                left.line_with("begun")
                left.interrupt()
            listed = ("service", "exec", "notes", "--", "sh", "-c", "cat /proc/*/cmdline")
            wait_until(lambda: b"1000" not in formation(worker, *listed).out, every_s=0.5)
            scaled = formation(gate, "service", "scale", "notes", "2")
            assert (scaled.code, b"version 2" in scaled.out) == (0, True)
            wait_until(lambda: services() == {"ready": 1, "version": 2, "target": 2}, every_s=0.5)
            refused = formation(gate, "service", "scale", "notes", "65")
            assert refused.code == 2
            assert "replicas" in refused.err
            missing = formation(gate, "service", "logs", "other")
            assert (missing.code, "other" in missing.err) == (3, True)
            broken = CATALOG.replace("notes", "broken").replace("python3", "no-such-program")
            (tmp_path / "broken.toml").write_text(broken)
            assert formation(gate, "service", "apply", tmp_path / "broken.toml").code == 0

            wait_until(
                lambda: b"no-such-program" in formation(gate, "service", "logs", "broken").out,
                every_s=0.5,
            )


SECRET = b"a-secret-that-is-in-no-file"
DIGEST = hashlib.sha256(SECRET).hexdigest()
# What of it a program may tell.
TELLS = "sha256sum $FORMATION_SECRETS/TOKEN | cut -c1-64"
JOB = f"""
[[task]]
secrets = ["TOKEN=token"]
argv = ["sh", "-c", "{TELLS}"]
"""
HIDING = f"""
[hiding]
tier = 2
port = 8100
needs = "cpu=0.1,memory=64MiB"
argv = ["sh", "-c", "{TELLS}; exec sleep 1000"]
secrets = ["TOKEN=token"]
replicas = {{ min = 1, target = 1, max = 1 }}
"""


@needs_sandbox
def test_a_secret_reaches_its_program_and_no_store_log_or_listing(tmp_path: Path) -> None:
    homes, given = tmp_path / "homes", tmp_path / "given"
    gate, worker = homes / "gate", homes / "worker"
    given.mkdir()
    (given / "token").write_bytes(SECRET)
    (given / "job.toml").write_text(JOB)
    (given / "catalog.toml").write_text(HIDING)
    assert formation(gate, "network", "create").code == 0
    told: list[bytes] = []

    def told_by(home: Path, *words: str | Path) -> bytes:
        done = formation(home, *words, cwd=given)
        assert done.code == 0, done.err
        told.extend((done.out, done.err.encode()))
        return done.out

    with started(gate, "gate", "-vv", *LOOPBACK) as serving:
        serving.line_with("to invite others")
        invite = formation(gate, "network", "invite").out
        assert formation(worker, "network", "join", "-", stdin=invite).code == 0
        options = ("-vv", "--serve", "cpu", "--name", "kitchen", *LOOPBACK)
        with started(worker, "worker", "--json", *options) as working:
            working.line_with("ready")
            command = ("run", "-vv", "--secret", "TOKEN=token", "--", "sh", "-c", TELLS)
            assert told_by(gate, *command).decode().strip() == DIGEST
            kept = ("run", "--state", given / "jobs.db", *command[2:])
            assert told_by(gate, *kept).decode().strip() == DIGEST
            assert DIGEST.encode() in told_by(gate, "submit", "--json", "job.toml")
            told_by(gate, "service", "apply", "catalog.toml")

            def printed() -> bool:
                logs = formation(gate, "service", "logs", "hiding", "--json")
                return DIGEST.encode() in logs.out

            wait_until(printed, every_s=0.5)
            # As it was: a secret that has not changed makes no version.
            assert b"version 1" in told_by(gate, "service", "apply", "catalog.toml")
            inside = "cat /proc/*/environ /proc/*/cmdline; ls -l $FORMATION_SECRETS/"
            told_by(worker, "service", "exec", "hiding", "--", "sh", "-c", inside)
            assert b"-r--------" in told[-2]
            for words in (("services", "--json"), ("logs", "--json"), ("status", "--json")):
                told_by(gate, *words)
                told_by(worker, *words)
            for process in Path("/proc").glob("[0-9]*"):
                for name in ("cmdline", "environ"):
                    with suppress(OSError):  # it may have ended meanwhile
                        told.append((process / name).read_bytes())
            missing = formation(gate, "run", "--secret", "TOKEN=none", "--", "true", cwd=given)
            assert missing.code == 2
            named = formation(gate, "run", "--secret", "../x=token", "--", "true", cwd=given)
            assert "no name of a secret" in named.err
    told += [serving.output.encode(), working.output.encode()]
    for path in (*homes.rglob("*"), *given.glob("jobs*")):
        if path.is_file():
            told.append(path.read_bytes())
    assert len(told) > 30
    assert not any(SECRET in each for each in told)
    mine = f"formation-secrets-{working.pid}-"
    assert not any(path.name.startswith(mine) for path in Path("/dev/shm").iterdir())

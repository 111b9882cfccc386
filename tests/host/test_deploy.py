"""The files of docs/deploy, read by the programs that are made to read them."""

import configparser
import os
import re
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from formation_p2p.command.flags import parse_duration_s
from formation_p2p.command.main import app
from formation_p2p.leases.core.parameters import LEASE_DEFAULTS
from formation_p2p.machine.service_manager import ENDING_S, stops_within
from formation_p2p.peer.shell import LEAVE_S, VACATE_S
from tests.support.programs import ROOT

DEPLOY = ROOT / "docs" / "deploy"
PROGRAM = re.compile(r"(?:/opt/formation/bin|%h/\.local/bin)/formation")
# Newer than some systemd that is still in use, which ignores it.
SINCE_254 = "Unknown key 'DelegateSubgroup'"
NODES = ("gate", "worker", "agent")


def linter(name: str) -> str:
    """Of the extra `dev`, beside this interpreter."""
    found = shutil.which(name, path=str(Path(sys.executable).parent)) or shutil.which(name)
    assert found is not None, f"{name} is not installed: pip install '.[dev]'"
    return found


def unit_of(kind: str) -> configparser.RawConfigParser:
    parser = configparser.RawConfigParser(strict=False)
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read(DEPLOY / kind / "formation@.service")
    return parser


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not installed")
@pytest.mark.parametrize("kind", ["system", "user"])
def test_systemd_accepts_the_units(kind: str, tmp_path: Path) -> None:
    text = (DEPLOY / kind / "formation@.service").read_text()
    (tmp_path / "formation@.service").write_text(PROGRAM.sub("/bin/true", text))
    done = subprocess.run(
        ["systemd-analyze", f"--{kind}", "--man=no", "verify", "formation@worker.service"],
        cwd=tmp_path,
        env={**os.environ, "XDG_RUNTIME_DIR": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    said = [line for line in done.stderr.splitlines() if SINCE_254 not in line]
    assert (done.returncode, [line for line in said if "formation@" in line]) == (0, []), said


@pytest.mark.parametrize("kind", ["system", "user"])
def test_the_units_run_commands_that_there_are_and_let_them_have_what_workers_need(
    kind: str,
) -> None:
    service = unit_of(kind)["Service"]
    assert PROGRAM.sub("formation", service["ExecStart"]) == "formation %i $OPTIONS"
    assert set(NODES) <= set(app.commands)
    assert (service["Delegate"], service["OOMPolicy"]) == ("yes", "continue")
    # bubblewrap does not start under any of these: see docs/how-to/deploy.md.
    forbidden = {
        *("ProtectKernelTunables", "ProtectKernelLogs", "ProtectProc", "ProcSubset"),
        *("RestrictNamespaces", "ProtectControlGroups", "SystemCallFilter", "PrivateDevices"),
    }
    assert not forbidden & set(service)


def test_a_linter_accepts_the_dockerfile() -> None:
    subprocess.run([linter("hadolint"), DEPLOY / "docker" / "Dockerfile"], check=True, timeout=60)


def test_the_compose_file_keeps_to_its_schema() -> None:
    command = [linter("check-jsonschema"), "--builtin-schema", "vendor.compose-spec"]
    subprocess.run([*command, DEPLOY / "docker" / "compose.yaml"], check=True, timeout=60)


def test_the_image_has_what_it_copies_and_a_health_check_that_is_a_command() -> None:
    text = (DEPLOY / "docker" / "Dockerfile").read_text()
    for line in re.findall(r"^COPY (?!--from)(.+)$", text, re.MULTILINE):
        assert all((ROOT / name).exists() for name in line.split()[:-1])
    check = re.search(r'CMD \["formation", "(\w+)", "(--\w+)", "(--\w+)"\]', text)
    assert check is not None
    name, *options = check.groups()
    taken = {each for option in app.commands[name].params for each in option.opts}
    assert set(options) <= taken


@pytest.mark.parametrize(
    ("variables", "arguments", "given"),
    [
        ({}, ["worker"], "- worker"),
        (
            {"WORKER_TYPE": "gpu", "COORDINATOR_URL": "http://192.0.2.1:8080/#token"},
            ["worker", "--cpu", "2"],
            "http://192.0.2.1:8080/#token worker --serve gpu --cpu 2",
        ),
        ({"COORDINATOR_URL": "no", "FORMATION_JOIN": "yes"}, ["gate"], "yes gate"),
        ({"WORKER_TYPE": "gpu"}, ["gate"], "- gate"),
        ({}, [], "- "),
    ],
)
def test_the_container_takes_the_variables_of_a_worker(
    variables: dict[str, str], arguments: list[str], given: str, tmp_path: Path
) -> None:
    formation = tmp_path / "formation"
    formation.write_text('#!/bin/sh\necho "${FORMATION_JOIN:--} $*"\n')
    formation.chmod(0o755)
    done = subprocess.run(
        [DEPLOY / "docker" / "entrypoint.sh", *arguments],
        env={"PATH": f"{tmp_path}:/usr/bin:/bin", **variables},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert done.stdout == f"{given}\n"


def compose_grace_s() -> float:
    found = re.search(r"stop_grace_period: (\d+)s", (DEPLOY / "docker/compose.yaml").read_text())
    assert found is not None
    return float(found[1])


@pytest.mark.parametrize("of", ["system", "user", "compose"])
def test_who_stops_a_worker_waits_for_the_grace_of_its_tasks_and_its_end(of: str) -> None:
    default = next(each.default for each in app.commands["worker"].params if each.name == "grace")
    ends_s = VACATE_S + LEASE_DEFAULTS.saving_s + LEAVE_S + 10  # as `Runtime.stop` waits
    assert ends_s <= ENDING_S
    least_s = parse_duration_s(str(default), "grace") + ENDING_S
    if of == "compose":
        assert compose_grace_s() >= least_s
    else:
        service = unit_of(of)["Service"]
        assert parse_duration_s(service["TimeoutStopSec"], "stop") >= least_s
        assert service["NotifyAccess"] == "main"  # for a longer --grace


@pytest.mark.parametrize("begins", ["/", "@"])
def test_the_service_manager_is_told_how_long_the_end_takes(
    begins: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = f"{tmp_path}/notify"[1:]
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(f"/{name}" if begins == "/" else f"\0{name}")
        monkeypatch.setenv("NOTIFY_SOCKET", begins + name)
        stops_within(90)
        manager.setblocking(False)
        assert manager.recv(1024) == b"STOPPING=1\nEXTEND_TIMEOUT_USEC=90000000"


def test_without_a_service_manager_there_is_nobody_to_tell(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.delenv("NOTIFY_SOCKET", raising=False)
    stops_within(90)
    assert not caplog.records
    monkeypatch.setenv("NOTIFY_SOCKET", "/nowhere/at/all")
    stops_within(90)
    assert "cannot be told how long the end takes" in caplog.text

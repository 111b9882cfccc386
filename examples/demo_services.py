"""The catalog of fourteen services on one machine: a gate, three workers of different kinds and a
gateway. One worker is killed, its services move to another, and a picture of the page is saved.

    make demo-services

Everything is below a folder in /tmp, on loopback, and ends with this program.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

HERE: Final = Path(__file__).parent
LOOPBACK: Final = "/ip4/127.0.0.1/tcp/0"
KINDS: Final = {"gpu": "gpu,edge", "cpu": "cpu,gpu,edge", "storage": "storage,cpu"}
# What is not in the picture: it needs gigabytes, or a package of the system.
OPTIONAL: Final = ("rag-embeddings", "redis", "postgres")
READY_S: Final = 240.0
GATEWAY_S: Final = 20.0


class Demo:
    """Its programs run until `close`."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.programs: dict[str, subprocess.Popen[bytes]] = {}

    def say(self, text: str) -> None:
        print(f"{time.strftime('%H:%M:%S')}  {text}", flush=True)

    def formation(self, home: str, *words: str) -> str:
        command = [sys.executable, "-m", "formation_p2p", *words, "--home", str(self.root / home)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise SystemExit(f"formation {' '.join(words)}: {done.stderr.strip()}")
        return done.stdout

    def start(self, name: str, *words: str) -> None:
        """And wait until it is there."""
        home = str(self.root / name)
        log = (self.root / f"{name}.log").open("wb")
        command = [sys.executable, "-m", "formation_p2p", *words, "--home", home, "--no-mdns"]
        self.programs[name] = subprocess.Popen(command, stdout=log, stderr=log)
        until_s = time.monotonic() + 60
        while not list((self.root / name).glob("status-*.sock")):
            if self.programs[name].poll() is not None or time.monotonic() > until_s:
                raise SystemExit((self.root / f"{name}.log").read_text())
            time.sleep(0.1)

    def close(self) -> None:
        for each in self.programs.values():
            each.send_signal(signal.SIGINT)
        for each in self.programs.values():
            try:
                each.wait(20)
            except subprocess.TimeoutExpired:
                each.kill()

    def services(self, home: str = "gate") -> Any:
        return json.loads(self.formation(home, "services", "--json"))

    def peer_id(self, home: str) -> str:
        return str(json.loads(self.formation(home, "status", "--json"))["peer_id"])

    def ready(self, dead: str) -> set[str]:
        """The services that have a replica on another node than the dead one."""
        replicas = self.services()["replicas"]
        alive = [each for each in replicas if each["peer_id"] != dead]
        return {each["service"] for each in alive if each["state"] == "ready"}

    def wait_ready(self, names: Sequence[str], what: str, dead: str = "") -> float:
        """How long it took until each of them had a replica that is ready."""
        begun_s = time.monotonic()
        missing: list[str] = []
        while time.monotonic() - begun_s < READY_S:
            ready = self.ready(dead)
            before, missing = missing, [name for name in names if name not in ready]
            if len(missing) != len(before):
                self.say(f"{len(names) - len(missing)} of {len(names)} services are ready")
            if not missing:
                return time.monotonic() - begun_s
            time.sleep(1)
        raise SystemExit(f"{what}: not ready after {READY_S:.0f} s: {', '.join(missing)}")


def written(folder: Path, is_whole: bool) -> Path:
    """The catalog and its programs; without what takes gigabytes or a package of the system."""
    shutil.copytree(HERE / "services", folder / "services")
    tables = re.split(r"(?m)^(?=\[[a-z])", (HERE / "catalog.toml").read_text())
    left_out = () if is_whole else OPTIONAL
    kept = [x for x in tables if x.partition("]")[0].removeprefix("[") not in left_out]
    path = folder / "catalog.toml"
    path.write_text("".join(kept))
    return path


@contextmanager
def demo() -> Iterator[Demo]:
    root = Path(tempfile.mkdtemp(prefix="formation-demo-"))
    running = Demo(root)
    try:
        yield running
    finally:
        running.close()
        shutil.rmtree(root, ignore_errors=True)


def asked(url: str, body: Any = None) -> Any:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"Content-Type": "application/json"})
    until_s = time.monotonic() + GATEWAY_S
    while True:
        try:
            with urllib.request.urlopen(request, timeout=30) as answer:
                return json.loads(answer.read())
        except urllib.error.HTTPError:
            raise
        except urllib.error.URLError:  # it does not listen yet
            if time.monotonic() > until_s:
                raise
            time.sleep(0.2)


def picture(url: str, path: Path) -> bool:
    """Of the page, by chromium where it is installed."""
    browser = shutil.which("chromium") or shutil.which("chromium-browser")
    if browser is None:
        return False
    options = ["--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"]
    shown = ["--window-size=1400,1800", "--virtual-time-budget=6000", f"--screenshot={path}"]
    done = subprocess.run(
        [browser, *options, *shown, f"{url}/?still"], capture_output=True, check=False, timeout=60
    )
    return done.returncode == 0 and path.exists()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--picture", type=Path, default=Path("services.png"))
    parser.add_argument("--port", type=int, default=8080)
    parser.add_argument("--all", action="store_true", help="also what takes gigabytes to install")
    given = parser.parse_args()
    os.environ.pop("FORMATION_HOME", None)
    with demo() as running:
        running.formation("gate", "network", "create")
        running.start("gate", "gate", "--listen", LOOPBACK)
        for name, types in KINDS.items():
            invite = running.formation("gate", "network", "invite").strip()
            running.formation(name, "network", "join", invite)
            words = ["--listen", LOOPBACK, "--serve", types, "--services", "14"]
            running.start(name, "worker", "--name", name, *words)
            running.say(f"a worker of the type {types} has joined")
        home, mortal = running.peer_id("storage"), running.peer_id("cpu")
        catalog = str(written(running.root, given.all))
        running.say("publishing the catalog")
        print(running.formation("gate", "service", "apply", catalog, "--pin-to", home), end="")
        names = [each["service"] for each in running.services()["services"]]
        sure = [name for name in names if name not in OPTIONAL]
        took_s = running.wait_ready(sure, "the catalog")
        running.say(f"{len(sure)} services are ready after {took_s:.0f} s")
        invite = running.formation("gate", "network", "invite").strip()
        running.formation("gateway", "network", "join", invite)
        running.start("gateway", "gateway", "--listen", f"127.0.0.1:{given.port}")
        url = f"http://127.0.0.1:{given.port}"
        text = "Dr Ada Lovelace met Charles Babbage in London on 5 June 1833."
        found = asked(f"{url}/service/ner-extraction/extract", {"text": text})["entities"]
        running.say(f"ner-extraction, through the gateway: {[each['text'] for each in found]}")
        running.say("killing the worker `cpu`")
        running.programs.pop("cpu").kill()
        took_s = running.wait_ready(sure, "after the death of a worker", mortal)
        again = asked(f"{url}/service/ner-extraction/extract", {"text": text})["entities"]
        running.say(
            f"every service is ready elsewhere {took_s:.0f} s later, and ner-extraction answers"
        )
        assert again == found
        print(running.formation("gate", "services"))
        if picture(url, given.picture):
            running.say(f"the page is in {given.picture}")


if __name__ == "__main__":
    main()

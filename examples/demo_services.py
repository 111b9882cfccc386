"""The catalog of fourteen services on one machine: a gate, three workers of different kinds and a
gateway. One worker is killed, its services move to another, and a picture of the page is saved.

    make demo-services         or: python -m examples.demo_services [--port 8080]

Everything is below a folder of its own, on loopback, and ends with this program.
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
# A program imports for a second or two; on a busy machine for many.
START_S: Final = 60.0
LEAVE_S: Final = 20.0
ANSWER_S: Final = 30.0
PICTURE_S: Final = 60.0
# Of what a program printed, where it did not come up.
SHOWN_CHARS: Final = 2000


class DemoFailed(Exception):
    """It cannot go on; the text says why."""


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
            raise DemoFailed(f"formation {' '.join(words)}: {done.stderr.strip()}")
        return done.stdout

    def start(self, name: str, *words: str) -> Any:
        """And wait until it is there. Returns what it says of itself then."""
        home, printed = str(self.root / name), self.root / f"{name}.log"
        command = [sys.executable, "-m", "formation_p2p", *words, "--home", home, "--no-mdns"]
        with printed.open("wb") as log:
            program = subprocess.Popen(
                [*command, "--json"], stdout=log, stderr=log, start_new_session=True
            )
        self.programs[name] = program
        until_s = time.monotonic() + START_S
        while True:
            has_ended = program.poll() is not None
            text = printed.read_text(errors="replace")
            for line in text.splitlines(keepends=True):
                if line.startswith('{"event": "ready"') and line.endswith("\n"):
                    return json.loads(line)
            if has_ended or time.monotonic() > until_s:
                why = "ended" if has_ended else f"is not ready after {START_S:.0f} s"
                raise DemoFailed(f"the {name} {why}: {text[-SHOWN_CHARS:].strip()}")
            time.sleep(0.1)

    def join(self, home: str) -> None:
        self.formation(home, "network", "join", self.formation("gate", "network", "invite").strip())

    def close(self) -> None:
        for each in self.programs.values():
            each.send_signal(signal.SIGINT)
        for each in self.programs.values():
            try:
                each.wait(LEAVE_S)
            except subprocess.TimeoutExpired:
                each.kill()
                each.wait()

    def services(self, home: str = "gate") -> Any:
        return json.loads(self.formation(home, "services", "--json"))

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
        raise DemoFailed(f"{what}: not ready after {READY_S:.0f} s: {', '.join(missing)}")


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


def asked(url: str, body: Any) -> Any:
    """What a service answers through the gateway."""
    headers = {"Content-Type": "application/json"}
    request = urllib.request.Request(url, json.dumps(body).encode(), headers)
    try:
        with urllib.request.urlopen(request, timeout=ANSWER_S) as answer:
            return json.loads(answer.read())
    except urllib.error.HTTPError as error:
        said = error.read(SHOWN_CHARS).decode(errors="replace").strip()
        raise DemoFailed(f"{url} answers {error.code}: {said or error.reason}") from error
    except (OSError, ValueError) as error:
        raise DemoFailed(f"{url} does not answer: {error}") from error


def picture(url: str, path: Path) -> str:
    """Of the page, by chromium. What became of it."""
    browser = shutil.which("chromium") or shutil.which("chromium-browser")
    if browser is None:
        return "there is no picture of the page: chromium is not installed"
    options = ["--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"]
    shown = ["--window-size=1400,1800", "--virtual-time-budget=6000", f"--screenshot={path}"]
    try:
        done = subprocess.run(
            [browser, *options, *shown, f"{url}/?still"],
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
            timeout=PICTURE_S,
        )
    except subprocess.TimeoutExpired:
        return f"there is no picture of the page: {browser} took longer than {PICTURE_S:.0f} s"
    if done.returncode == 0 and path.exists():
        return f"the page is in {path}"
    said = done.stderr.strip().splitlines()[-1:] or [f"exit code {done.returncode}"]
    return f"there is no picture of the page: {browser}: {said[0]}"


def run(given: argparse.Namespace) -> None:
    with demo() as running:
        running.formation("gate", "network", "create")
        running.start("gate", "gate", "--listen", LOOPBACK)
        running.join("gateway")
        listen = f"127.0.0.1:{given.port}"
        url = running.start("gateway", "gateway", "--listen", listen)["url"].rstrip("/")
        running.say(f"the page is at {url}")
        peer_ids = {}
        for name, types in KINDS.items():
            running.join(name)
            words = ["--listen", LOOPBACK, "--serve", types, "--services", "14"]
            peer_ids[name] = running.start(name, "worker", "--name", name, *words)["peer_id"]
            running.say(f"a worker of the type {types} has joined")
        catalog = str(written(running.root, given.all))
        running.say("publishing the catalog")
        pinned = ("--pin-to", peer_ids["storage"])
        print(running.formation("gate", "service", "apply", catalog, *pinned), end="")
        names = [each["service"] for each in running.services()["services"]]
        sure = [name for name in names if name not in OPTIONAL]
        took_s = running.wait_ready(sure, "the catalog")
        running.say(f"{len(sure)} services are ready after {took_s:.0f} s")
        text = "Dr Ada Lovelace met Charles Babbage in London on 5 June 1833."
        service = f"{url}/service/ner-extraction/extract"
        found = asked(service, {"text": text})["entities"]
        running.say(f"ner-extraction, through the gateway: {[each['text'] for each in found]}")
        running.say("killing the worker `cpu`")
        running.programs["cpu"].kill()
        took_s = running.wait_ready(sure, "after the death of a worker", peer_ids["cpu"])
        again = asked(service, {"text": text})["entities"]
        if again != found:
            raise DemoFailed(f"ner-extraction answers {again}, and {found} before")
        running.say(
            f"every service is ready elsewhere {took_s:.0f} s later, and ner-extraction answers"
        )
        print(running.formation("gate", "services"))
        running.say(picture(url, given.picture))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--picture", type=Path, default=Path("services.png"))
    parser.add_argument("--port", type=int, default=0, help="the page's (default: a free one)")
    parser.add_argument("--all", action="store_true", help="also what takes gigabytes to install")
    given = parser.parse_args()
    os.environ.pop("FORMATION_HOME", None)
    # As Ctrl-C does: everything is ended and removed on the way out.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        run(given)
    except KeyboardInterrupt:
        print("interrupted; all of its programs are ended")
        return 130
    except DemoFailed as failed:
        print(f"the demo cannot go on: {failed}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

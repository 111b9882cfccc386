"""A container engine that is none: it runs commands as plain processes of this machine.

It stands where Docker would, behind a client of the name `docker` on PATH, so that what the
driver does around an engine can be tested where none runs: names, labels, streams, endings,
removal. That an engine holds a container as it is told to is not tested here, but for what it is
told, which `runs` has word for word.
"""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

# Hands its words and its three streams to the engine, and ends as that says. SIGTERM is passed
# on, as `docker run` does.
CLIENT = """#!{python} -IS
import signal, socket, sys
engine = socket.socket(socket.AF_UNIX)
engine.connect({place!r})
signal.signal(signal.SIGTERM, lambda *_: engine.send(b"T"))
socket.send_fds(engine, ["\\0".join(sys.argv[1:]).encode()], [0, 1, 2])
sys.exit(int(engine.recv(16) or b"1"))
"""


@dataclass
class Container:
    labels: dict[str, str]
    status: str = "created"
    code: int = 0
    out_of_memory: bool = False
    problem: str = ""
    process: subprocess.Popen[bytes] | None = None


@dataclass
class FakeEngine:
    place: Path
    containers: dict[str, Container] = field(default_factory=dict)
    runs: list[list[str]] = field(default_factory=list)
    removed: list[str] = field(default_factory=list)

    def serve(self, listener: socket.socket) -> None:
        while True:
            try:
                client, _ = listener.accept()
            except OSError:
                return
            threading.Thread(target=self._answer, args=(client,), daemon=True).start()

    def _answer(self, client: socket.socket) -> None:
        with client:
            words, fds, _, _ = socket.recv_fds(client, 1 << 20, 3)
            try:
                code = self._do(words.decode().split("\0"), fds, client)
            finally:
                for fd in fds:
                    os.close(fd)
            with contextlib.suppress(OSError):
                client.send(str(code).encode())

    def _do(self, words: list[str], fds: list[int], client: socket.socket) -> int:
        match words:
            case ["version"]:
                os.write(fds[1], b"a fake engine\n")
            case ["run", *rest]:
                return self._run(rest, fds, client)
            case ["container", "inspect", "--format", _, name] if name in self.containers:
                found = self.containers[name]
                killed = str(found.out_of_memory).lower()
                os.write(fds[1], f"{found.status}|{found.code}|{killed}|{found.problem}\n".encode())
            case ["rm", "--force", "--volumes", *names]:
                return max(self.remove(name) for name in names)
            case ["ps", "--all", "--filter", wanted, "--format", _]:
                key, _, value = wanted.removeprefix("label=").partition("=")
                for name, container in self.containers.items():
                    if container.labels.get(key) == value:
                        os.write(fds[1], f"{name} {container.labels['formation.owner']}\n".encode())
            case _:
                os.write(fds[2], f"the fake engine knows no {words}\n".encode())
                return 125
        return 0

    def _run(self, words: list[str], fds: list[int], client: socket.socket) -> int:
        self.runs.append(words)
        options: list[tuple[str, str]] = []
        flags = {"--read-only", "--interactive"}
        while words[0].startswith("--"):
            count = 1 if words[0] in flags else 2
            options.append((words[0], words[count - 1]))
            words = words[count:]
        image, *argv = words
        if image.startswith("missing"):
            os.write(fds[2], f"Unable to find image '{image}'\n".encode())
            return 125
        given = dict(options)
        labels = dict(value.split("=", 1) for name, value in options if name == "--label")
        container = self.containers[given["--name"]] = Container(labels)
        try:
            container.process = subprocess.Popen(
                argv,
                stdin=fds[0] if "--interactive" in given else subprocess.DEVNULL,
                stdout=fds[1],
                stderr=fds[2],
                cwd=given["--volume"].split(":")[0],
                env=dict(value.split("=", 1) for name, value in options if name == "--env"),
                start_new_session=True,
            )
        except OSError as problem:
            container.problem = f"exec: {problem.strerror}"
            container.code = 127
            os.write(fds[2], f"docker: {container.problem}\n".encode())
            return 127
        container.status = "running"
        threading.Thread(target=self._pass_on, args=(client, container), daemon=True).start()
        code = container.process.wait()
        container.code = code if code >= 0 else 128 - code
        container.out_of_memory = image.startswith("hungry")
        container.status = "exited"
        return container.code

    @staticmethod
    def _pass_on(client: socket.socket, container: Container) -> None:
        assert container.process is not None
        with contextlib.suppress(OSError):
            while client.recv(1) == b"T":
                container.process.send_signal(signal.SIGTERM)

    def remove(self, name: str) -> int:
        container = self.containers.pop(name, None)
        if container is None:
            return 1
        self.removed.append(name)
        if container.process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(container.process.pid, signal.SIGKILL)
            container.process.wait()
        return 0


@contextmanager
def fake_engine(folder: Path) -> Iterator[FakeEngine]:
    """Below `folder`, which then has the client to put on PATH."""
    engine = FakeEngine(folder / "engine.sock")
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(engine.place))
    listener.listen()
    client = folder / "docker"
    client.write_text(CLIENT.format(python=sys.executable, place=str(engine.place)))
    client.chmod(0o755)
    threading.Thread(target=engine.serve, args=(listener,), daemon=True).start()
    try:
        yield engine
    finally:
        listener.close()
        for name in list(engine.containers):
            engine.remove(name)

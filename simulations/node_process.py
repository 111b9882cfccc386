"""A node that is a process of its own: started, ended by its id, and started again."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from simulations import spaces
from simulations.forked import Forked

ROOT: Final = Path(__file__).parents[1]


@dataclass
class NodeProcess:
    """A node over all of its incarnations. Its output goes to a file, which is read from `read`. It
    is in the network namespace `space`, where that is given."""

    name: str
    argv: list[str]
    output: Path
    space: str = ""
    process: subprocess.Popen[bytes] | Forked | None = None
    incarnations: int = 0
    read: int = 0
    stopped: bool = False
    cut: bool = False

    @property
    def is_alive(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def start(self) -> None:
        self.incarnations += 1
        with self.output.open("ab") as output, Path(os.devnull).open() as nothing:
            self.read = output.tell()
            files = (nothing.fileno(), output.fileno(), output.fileno())
            match self.argv:
                case [sys.executable, "-m", module, *rest]:
                    self.process = Forked(
                        rest, os.environ, ROOT, files, module=module, space=self.space
                    )
                case _:
                    argv = spaces.inside(self.space, self.argv) if self.space else self.argv
                    reads, writes, _ = files
                    self.process = subprocess.Popen(
                        argv, cwd=ROOT, stdin=reads, stdout=writes, stderr=writes
                    )

    def signal(self, number: signal.Signals) -> None:
        """By its id, where it is still there."""
        assert self.process is not None
        if self.process.poll() is None:
            self.process.send_signal(number)

    def kill(self) -> None:
        self.signal(signal.SIGKILL)
        assert self.process is not None
        self.process.wait()
        self.stopped = False

    def said(self, event: str) -> dict[str, object] | None:
        """Of its present incarnation."""
        for line in self.output.read_bytes()[self.read :].splitlines():
            with suppress(ValueError):
                parsed = json.loads(line)
                if isinstance(parsed, dict) and parsed.get("event") == event:
                    return parsed
        return None


def until_said(node: NodeProcess, event: str, within_s: float) -> dict[str, object]:
    """Raises TimeoutError, with what it said."""
    until_s = time.monotonic() + within_s
    while (said := node.said(event)) is None:
        if time.monotonic() > until_s or not node.is_alive:
            output = node.output.read_text(errors="replace")[-2000:]
            raise TimeoutError(f"{node.name} did not say {event!r} in {within_s:.0f} s: {output}")
        time.sleep(0.05)
    return said

"""What a worker shows of its work: a line for each task, and one that lives on a terminal."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Final

from rich.live import Live
from rich.text import Text

from formation_p2p.cli.as_json import put
from formation_p2p.cli.tables import console
from formation_p2p.cli.watched import Watch, WorkBegan, WorkEnded, WorkEvent
from formation_p2p.cli.words import one_line, printable

# Tasks that end within one breath and have a line each; of more, only how many there were is told.
MAX_LINES: Final = 20


def show_as_json(events: Sequence[WorkEvent]) -> None:
    for event in events:
        put({"event": "began" if isinstance(event, WorkBegan) else "ended", **asdict(event)})


class WorkLog:
    """For people."""

    def __init__(self) -> None:
        self._console = console()

    def show(self, events: Sequence[WorkEvent]) -> None:
        ended = [event for event in events if isinstance(event, WorkEnded)]
        now = time.strftime("%H:%M:%S")
        if len(ended) > MAX_LINES:
            failed = [event for event in ended if event.how != "succeeded"]
            self.line(f"{now}  {len(ended)} tasks, {len(failed)} without a result")
            ended = failed[:MAX_LINES]
        for event in ended:
            self.line(f"{now}  {event.attempt}  {event.driver}  {_how(event)}")

    def line(self, text: str) -> None:
        self._console.print(printable(text), soft_wrap=True)

    @contextlib.contextmanager
    def counting(self, watch: Watch) -> Iterator[None]:
        """Keep the counts in the last line, where there is a terminal to keep them on."""
        if not self._console.is_terminal:
            yield
            return

        def counts() -> Text:
            return Text(
                f"{watch.running} running, {watch.succeeded} done, {watch.failed} failed", "dim"
            )

        with Live(get_renderable=counts, console=self._console, transient=True):
            yield


def _how(event: WorkEnded) -> str:
    took = f"{event.ran_ms / 1000:.1f} s"
    if event.how == "succeeded":
        return f"done in {took}"
    return one_line(f"{event.how} after {took}: {event.message}")

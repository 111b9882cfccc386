"""What the commands that submit have in common: the options for it, and where the outputs of jobs
that a state keeps are to go. For each of these that has not given them yet a note lies in a folder
beside the state; the next `formation resume` puts them there."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from formation_p2p.command import flags
from formation_p2p.command.files import local
from formation_p2p.command.interrupt import Interrupt
from formation_p2p.command.node_options import Asking
from formation_p2p.core.errors import LocalError

if TYPE_CHECKING:
    from formation_p2p.command.local.client import Link, WatchedJob


@dataclass(frozen=True, slots=True)
class Place:
    """`folder` itself, or the folder in it that has the label of a task."""

    folder: str
    by_label: bool


class Owed:
    """The notes of one state; None keeps none. At most one for each job that a state keeps."""

    def __init__(self, state: Path | None) -> None:
        self._folder = None if state is None else state.with_name(f"{state.name}.outputs")

    def note(self, job_id: str, folder: Path, *, by_label: bool) -> None:
        """Raises LocalError."""
        if self._folder is not None:
            from formation_p2p.machine.whole_file import write_whole

            with local(self._folder):
                self._folder.mkdir(mode=0o700, exist_ok=True)
                place = Place(str(folder.absolute()), by_label)
                write_whole(self._folder / job_id, json.dumps(asdict(place)))

    def given(self, job_id: str) -> None:
        """Raises LocalError."""
        if self._folder is not None:
            with local(self._folder):
                (self._folder / job_id).unlink(missing_ok=True)

    def places(self) -> dict[str, Place]:
        """By job. Raises LocalError."""
        if self._folder is None or not self._folder.is_dir():
            return {}
        with local(self._folder):
            return {path.name: _read(path) for path in self._folder.glob("[!.]*")}


@dataclass(frozen=True, slots=True, kw_only=True)
class Submitting(Asking):
    """Of a command that submits a job."""

    state: Path | None = flags.STATE
    metrics: str | None = flags.METRICS

    def node(self, place: Path, may: Callable[[], None]) -> AbstractAsyncContextManager[Link]:
        """For the job."""
        return self.reach(place, may, state=self.state, metrics=self.metrics)

    def begun(self, job: WatchedJob, interrupt: Interrupt, what: str) -> Owed:
        """The first signal cancels the job, or leaves it to its state."""
        from formation_p2p.command.outcomes import tell_sizes

        tell_sizes(job.sizes, as_json=self.as_json)
        if self.state is None:
            interrupt.first(job.cancel, f"cancelling {what}")
        else:
            interrupt.leaves(self.state)
        return Owed(self.state)


def _read(path: Path) -> Place:
    try:
        match json.loads(path.read_bytes()):
            case {"folder": str(folder), "by_label": bool(by_label)}:
                return Place(folder, by_label)
    except ValueError:
        pass
    raise LocalError(
        f"{path} does not say where the outputs of a job are to go; remove it, and name a folder: "
        "formation resume --out-dir DIR"
    )

"""Where the outputs of kept jobs are to go, in a folder beside the state: a note for each job that
has not given them yet. The next `formation resume` puts them there."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from formation_p2p.command.files import local
from formation_p2p.core.errors import LocalError


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

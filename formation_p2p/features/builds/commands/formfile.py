"""`formation submit Formfile`: one task that has the files of its COPYs, and runs its commands."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from formation_p2p.command.files import local
from formation_p2p.command.job_file import Form, JobFile, TaskLine
from formation_p2p.command.task_flags import Kind
from formation_p2p.command.words import say
from formation_p2p.core.errors import InvalidInput
from formation_p2p.features.builds.core.build_plan import CONTEXT, UNPACK
from formation_p2p.features.builds.core.formfile import (
    MAX_FORMFILE_CHARS,
    Formfile,
    copied,
    parse_formfile,
    run_of,
)
from formation_p2p.placement.core.task_options import TaskOptions

FORMFILE: Final = "Formfile"
# Names of secrets that are told.
_MAX_TOLD: Final = 8


def is_formfile(path: Path) -> bool:
    """By its name, as Formation has it: `Formfile`, or `agent.Formfile`."""
    return path.name == FORMFILE or path.suffix.lower() == f".{FORMFILE.lower()}"


def read_formfile(path: Path) -> Formfile:
    """Raises InvalidInput, LocalError."""
    try:
        with local(path), path.open(encoding="utf-8-sig") as file:
            return parse_formfile(file.read(MAX_FORMFILE_CHARS + 1))
    except UnicodeDecodeError:
        raise InvalidInput(FORMFILE, f"{path} is not UTF-8 text") from None


@contextmanager
def job_of_formfile(path: Path) -> Iterator[JobFile]:
    """The files that it copies lie in a folder of their own meanwhile, as one tar. Raises
    InvalidInput, LocalError."""
    formfile = read_formfile(path)
    run = run_of(formfile)
    with tempfile.TemporaryDirectory(prefix="formation-") as folder:
        files_in: dict[str, Path] = {}
        if run.copies:
            from formation_p2p.features.builds.context import context_of, write_tar

            context = context_of(path.parent)
            tell_left_out(context.left_out)
            chosen = copied(run.copies, context.files)
            files_in[CONTEXT] = Path(folder, CONTEXT)
            write_tar({x: context.files[y] for x, y in chosen.items()}, files_in[CONTEXT])
        line = TaskLine(
            formfile.name or FORMFILE,
            ("sh", "-c", (UNPACK if files_in else "") + run.script),
            run.env,
            None,
            files_in,
            (),
            Kind(image=run.image or None),
            needs=formfile.needs,
            memory_given=True,
        )
        yield JobFile(formfile.name, TaskOptions(), (line,))


FORM: Final = Form(is_formfile, job_of_formfile)


def tell_left_out(names: tuple[str, ...]) -> None:
    """That files which look like secrets stay here."""
    if names:
        more = f" and {len(names) - _MAX_TOLD} more" if len(names) > _MAX_TOLD else ""
        listed = ", ".join(names[:_MAX_TOLD])
        say(f"formation: not sent, since they look like secrets: {listed}{more}")

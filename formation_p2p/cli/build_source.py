"""What `formation build` finds in a folder: which files go along, and which targets they make."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from formation_p2p.cli.files import local
from formation_p2p.cli.formfile import FORMFILE, read_formfile
from formation_p2p.core.errors import InvalidInput, LocalError
from formation_p2p.core.workload.build_plan import (
    Around,
    Target,
    parse_targets,
    script_run,
    wanted_of,
)
from formation_p2p.core.workload.formfile import Formfile, run_of
from formation_p2p.core.workload.matrix import folder_label
from formation_p2p.core.workload.process import ContainerSpec, ImageSpec, ProcessSpec

if TYPE_CHECKING:
    from formation_p2p.core.resources.requirements import Requirements
    from formation_p2p.host.code.context import Context

TARGETS: Final = "build.toml"
SCRIPT: Final = "build.sh"
CONTAINERFILES: Final = ("Containerfile", "Dockerfile")


@dataclass(frozen=True, slots=True)
class Build:
    """`targets` are those to be built, `wanted` those whose results are brought back. `needs` are
    what the folder itself says, None for nothing."""

    name: str
    context: Context
    targets: Mapping[str, Target]
    wanted: Sequence[str]
    around: Around = Around()  # noqa: RUF009 - it is frozen
    needs: Requirements | None = None

    @property
    def driver(self) -> str:
        if any(each.containerfile for each in self.targets.values()):
            return ImageSpec.driver
        return ContainerSpec.driver if self.around.image else ProcessSpec.driver


def build_of(folder: Path, script: str | None, targets: Sequence[str], result: str | None) -> Build:
    """Raises InvalidInput, LocalError."""
    from formation_p2p.host.code.context import context_of

    context = context_of(folder)
    name = folder_label("DIR", folder.resolve().name[:60] or "build")
    if script is None and TARGETS in context.files:
        if result is not None:
            raise InvalidInput("--result", f"{TARGETS} says what each target makes; leave it out")
        with local(folder / TARGETS):
            every = parse_targets((folder / TARGETS).read_text(encoding="utf-8", errors="replace"))
        chosen = wanted_of(every, targets)
        read = {x for each in chosen.values() for x in each.after}
        wanted = list(dict.fromkeys(targets)) or [x for x in chosen if x not in read] or [*chosen]
        return Build(name, context, chosen, wanted)
    if targets:
        raise InvalidInput("--target", f"{folder} has no {TARGETS} with targets; write one")
    one = Build(name, context, {}, (name,))
    if script is None and SCRIPT not in context.files and FORMFILE in context.files:
        return _by_formfile(one, read_formfile(folder / FORMFILE), result or "")
    if script is None and SCRIPT not in context.files:
        for file in CONTAINERFILES:
            if file in context.files:
                if result is not None:
                    raise InvalidInput(
                        "--result", f"an image by a {file} is one file; leave it out"
                    )
                return replace(one, targets={name: Target(name, "", containerfile=file)})
    script = script or SCRIPT
    if script not in context.files:
        raise LocalError(_missing(folder, script, context))
    return _by_run(one, script_run(script), result or "")


def _by_run(one: Build, run: str, result: str) -> Build:
    return replace(one, targets={one.name: Target(one.name, run, result)})


def _by_formfile(one: Build, formfile: Formfile, result: str) -> Build:
    """Its RUNs make the result; what an ENTRYPOINT runs is for those who use it. All of the folder
    goes along, so that COPY has nothing left to do."""
    run = run_of(formfile)
    if not run.steps:
        raise InvalidInput(FORMFILE, f"has no RUN that builds anything; write one, or {SCRIPT}")
    name = formfile.name or one.name
    named = replace(one, name=name, wanted=(name,), needs=formfile.needs)
    around = Around(run.env, run.image)
    return _by_run(replace(named, around=around), replace(run, command="").script, result)


def _missing(folder: Path, script: str, context: Context) -> str:
    if (folder / script).exists():
        ignored = "is there, and does not go along: it is ignored, or looks like a secret"
        return f"{folder / script} {ignored}; see .gitignore and .dockerignore"
    if script != SCRIPT:
        return f"{folder} has no {script}; --script names a file from that folder"
    return (
        f"{folder} has nothing that says how it is built; write {SCRIPT}, {TARGETS}, a "
        f"{FORMFILE} or a Containerfile, or name a script with --script"
    )

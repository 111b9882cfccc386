"""What a task of `run` or a job file runs: a program of the worker's machine, a WebAssembly module,
or a command in a container image."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from formation_p2p.command.files import read_input
from formation_p2p.command.flags import option
from formation_p2p.core.errors import InvalidInput
from formation_p2p.workload.core.process import ContainerSpec, ProcessSpec, WasmSpec

if TYPE_CHECKING:
    from formation_p2p.workload.core.work import Work

WASM: Final = option(
    "--wasm", "FILE", "Run this WebAssembly module (WASI preview 1) with arguments ARGV."
)
FUEL: Final = option("--fuel", "N", "The most instructions that the module may run.", default=0)
IMAGE: Final = option("--image", "IMAGE", "Run the command in a container of this image.")


@dataclass(frozen=True, slots=True)
class Kind:
    """At most one of `wasm` and `image` is set. `program` precedes the arguments."""

    wasm: Path | None = None
    fuel: int = 0
    image: str | None = None

    def __post_init__(self) -> None:
        if self.wasm is not None and self.image is not None:
            raise InvalidInput("wasm", "a task is a module or in an image, not both")
        if self.fuel and self.wasm is None:
            raise InvalidInput("fuel", "is for a module; name one with wasm")

    @property
    def driver(self) -> str:
        if self.wasm is not None:
            return WasmSpec.driver
        return ProcessSpec.driver if self.image is None else ContainerSpec.driver

    @property
    def program(self) -> tuple[str, ...]:
        return () if self.wasm is None else (self.wasm.name,)

    def of(self, process: ProcessSpec) -> Work:
        """What to submit. Raises InvalidInput, LocalError."""
        if self.wasm is not None:
            try:
                return WasmSpec(read_input(self.wasm), process, self.fuel)
            except InvalidInput as error:
                if error.field != "module":
                    raise
                raise InvalidInput(str(self.wasm), error.problem) from None
        return process if self.image is None else ContainerSpec(self.image, process)

"""What the `wasm` driver runs: a WebAssembly module, as a program of WASI preview 1.

    WasmSpec(Path("count.wasm").read_bytes(), ProcessSpec(("count", "words.txt")), fuel=10**9)

What comes back is a `ProcessResult`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import ClassVar, Final, Self

from formation_p2p.core.errors import InvalidInput
from formation_p2p.core.workload.process import ProcessSpec
from formation_p2p.core.workload.task import MAX_PAYLOAD_BYTES
from formation_p2p.core.workload.work import check_size, decode_fields, encode_fields

# The WebAssembly core specification, 5.5.16: every module in the binary format begins so.
_MAGIC: Final = b"\0asm"
MAX_FUEL: Final = (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class WasmSpec:
    """`process` is what the program sees: `argv[0]` is its own name for itself, its folder is
    `/` and has the files. `fuel` is how many instructions it may take, 0 for no such limit.

    The module travels to a worker once for all tasks that have it, and is compiled there once
    for each lease.
    """

    driver: ClassVar[str] = "wasm"

    module: bytes
    process: ProcessSpec
    fuel: int = 0

    def __post_init__(self) -> None:
        if not isinstance(self.module, bytes) or not self.module.startswith(_MAGIC):
            raise InvalidInput("module", "is not WebAssembly in the binary format (.wasm)")
        check_size("module", self.module, MAX_PAYLOAD_BYTES)
        if type(self.fuel) is not int or not 0 <= self.fuel <= MAX_FUEL:
            raise InvalidInput("fuel", f"is not a number of instructions from 0 to {MAX_FUEL}")

    @property
    def shared(self) -> bytes:
        return self.module

    @property
    def kind(self) -> str:
        return self.process.kind

    def filled(self, text: Callable[[str], str]) -> Self:
        return replace(self, process=self.process.filled(text))

    def encode(self) -> bytes:
        """The payload. Raises InvalidInput where it is more than one message carries."""
        fields = {"process": self.process.encode(), "fuel": self.fuel}
        return encode_fields("payload", fields, MAX_PAYLOAD_BYTES - len(self.module))

    @classmethod
    def decode(cls, shared: bytes, payload: bytes) -> Self:
        """Raises InvalidInput."""
        fields = decode_fields("payload", payload, MAX_PAYLOAD_BYTES, ("process", "fuel"))
        if type(fields["process"]) is not bytes:
            raise InvalidInput("process", "is not bytes")
        return cls(shared, ProcessSpec.decode(fields["process"]), fields["fuel"])

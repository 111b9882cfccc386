"""What the `python` driver runs: one call of one function, both pickled.

A pickle runs code when it is read: only the process that runs the call reads the caller's, and only
the caller reads the result.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from formation_p2p.core.workload.payload import check_size
from formation_p2p.core.workload.task import MAX_PAYLOAD_BYTES


@dataclass(frozen=True, slots=True)
class PythonCall:
    """`function`, pickled with cloudpickle, is shared by any number of calls: it travels to a
    worker once, and is read there once. `arguments` is the pickle of `(args, kwargs)`. `kind` is
    the function's qualified name, under which its memory is learnt.
    """

    driver: ClassVar[str] = "python"

    function: bytes
    arguments: bytes
    kind: str = ""

    @property
    def shared(self) -> bytes:
        return self.function

    def encode(self) -> bytes:
        """The payload. Raises InvalidInput where it is more than one message carries."""
        return check_size("payload", self.arguments, MAX_PAYLOAD_BYTES - len(self.function))

"""What the calls of one function share: the function, and what is needed to import and run it.

It is the `shared` part of a PythonCall: it travels to a worker once, whose driver reads it once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Self

from formation_p2p.core.errors import InvalidInput
from formation_p2p.core.units import GIB
from formation_p2p.machine.core.bounds import check_amount
from formation_p2p.machine.core.python import python_name
from formation_p2p.workload.core.blob import MAX_BLOB_BYTES, Blob
from formation_p2p.workload.core.work import (
    MAX_KIND_CHARS,
    MAX_PAYLOAD_BYTES,
    decode_fields,
    encode_fields,
)

# Of what one call returns, unless its caller says otherwise: several fit into the memory of most
# machines, and a mistake does not fill it.
DEFAULT_MAX_RESULT_BYTES: Final = GIB


@dataclass(frozen=True, slots=True)
class CallContext:
    """`function` is a pickle that the Python named `python` has written (`cpython-3.11`). `code` is
    the bundle of the modules that go along with it (code_bundle.py), `environment` the packages
    that it imports, encoded (environment.py); empty for those of the worker. `max_result_bytes`
    bounds what a call returns: its pickle, with all buffers. `name` is what the caller says that
    the function is called, for the log of its worker. One that is called `as_member` of a gang has
    the member as its first argument. Raises InvalidInput.
    """

    python: str
    function: bytes
    code: Blob | None = None
    environment: bytes = b""
    max_result_bytes: int = DEFAULT_MAX_RESULT_BYTES
    name: str = ""
    as_member: bool = False

    def __post_init__(self) -> None:
        if python_name(self.python) != self.python:
            raise InvalidInput("python", f"{self.python!r} is not a name such as cpython-3.11")
        if type(self.function) is not bytes or type(self.environment) is not bytes:
            raise InvalidInput("function", "is not bytes, or what it needs is not")
        if type(self.name) is not str or not is_name(self.name):
            problem = f"is not a text of up to {MAX_KIND_CHARS} characters that print"
            raise InvalidInput("name", problem)
        if type(self.as_member) is not bool:
            raise InvalidInput("as_member", "is not True or False")
        check_amount("max_result", self.max_result_bytes, 1, MAX_BLOB_BYTES)

    @property
    def needs(self) -> tuple[object, ...]:
        """What an interpreter was prepared for: calls that differ in it do not share one."""
        return None if self.code is None else self.code.cid, self.environment

    def encode(self) -> bytes:
        """Raises InvalidInput where it is more than one message carries."""
        fields: dict[str, object] = {"python": self.python, "function": self.function}
        if self.code is not None:
            fields["code"] = self.code.pack()
        if self.environment:
            fields["environment"] = self.environment
        if self.max_result_bytes != DEFAULT_MAX_RESULT_BYTES:
            fields["max_result_bytes"] = self.max_result_bytes
        if self.name:
            fields["name"] = self.name
        if self.as_member:
            fields["as_member"] = True
        return encode_fields("shared", fields, MAX_PAYLOAD_BYTES)

    @classmethod
    def decode(cls, shared: bytes) -> Self:
        """Raises InvalidInput for anything else that a stranger sent."""
        required = ("python", "function")
        optional = ("code", "environment", "max_result_bytes", "name", "as_member")
        fields = decode_fields("shared", shared, MAX_PAYLOAD_BYTES, required, optional)
        code = Blob.unpack(fields["code"]) if "code" in fields else None
        return cls(
            fields["python"],
            fields["function"],
            code,
            fields.get("environment", b""),
            fields.get("max_result_bytes", DEFAULT_MAX_RESULT_BYTES),
            fields.get("name", ""),
            fields.get("as_member", False),
        )


def is_name(text: str) -> bool:
    """Whether a context may have it as its name."""
    return len(text) <= MAX_KIND_CHARS and text.isprintable()

"""What the `container` driver runs: a command in an image, by Docker or Podman.

    ContainerSpec("docker.io/library/python:3.13-slim", ProcessSpec(("python3", "-V")))

What comes back is a `ProcessResult`.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import ClassVar, Final, Self

from formation_p2p.core.errors import InvalidInput
from formation_p2p.core.workload.process import ProcessSpec
from formation_p2p.core.workload.task import MAX_PAYLOAD_BYTES
from formation_p2p.core.workload.work import decode_fields, encode_fields

# The reference grammar of the OCI distribution specification, without its fine points, which the
# engine knows: [host[:port]/]path[:tag][@digest]. A dash in front would make it an option of a
# program. A path after a colon, `dir:/home/ann/image` or `oci-archive:/srv/backup.tar`, would be
# files of the worker to Podman.
_IMAGE: Final = re.compile(
    r"(?=.{1,512}\Z)[A-Za-z0-9][A-Za-z0-9._-]*(:[0-9]{1,5}(?=/))?(/[A-Za-z0-9][A-Za-z0-9._-]*)*"
    r"(:[A-Za-z0-9_][A-Za-z0-9._-]{0,127})?(@[A-Za-z0-9+._-]+:[A-Fa-f0-9]{32,128})?"
)


@dataclass(frozen=True, slots=True)
class ContainerSpec:
    """`image` by tag (`alpine:3.22`) or, the same wherever it runs, by digest
    (`alpine@sha256:…`). `process.argv` is what `docker run` takes after the image; the folder
    with its files is where it starts, and all that it can write to but /tmp.
    """

    driver: ClassVar[str] = "container"
    shared: ClassVar[bytes] = b""

    image: str
    process: ProcessSpec

    def __post_init__(self) -> None:
        if not isinstance(self.image, str) or _IMAGE.fullmatch(self.image) is None:
            raise InvalidInput("image", "is not a name of an image such as alpine:3.22")

    @property
    def kind(self) -> str:
        return f"{self.image} {kind}" if (kind := self.process.kind) else ""

    def filled(self, text: Callable[[str], str]) -> Self:
        return replace(self, image=text(self.image), process=self.process.filled(text))

    def encode(self) -> bytes:
        """The payload. Raises InvalidInput where it is more than one message carries."""
        fields = {"image": self.image, "process": self.process.encode()}
        return encode_fields("payload", fields, MAX_PAYLOAD_BYTES)

    @classmethod
    def decode(cls, payload: bytes) -> Self:
        """Raises InvalidInput."""
        fields = decode_fields("payload", payload, MAX_PAYLOAD_BYTES, ("image", "process"))
        if type(fields["process"]) is not bytes:
            raise InvalidInput("process", "is not bytes")
        return cls(fields["image"], ProcessSpec.decode(fields["process"]))

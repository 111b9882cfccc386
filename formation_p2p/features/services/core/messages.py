"""The service protocol, `/formation/service/1.0.0`: byte streams to the replicas of services.

A stream of the connection is for one request, or for as many as its program sends one after the
other. The peer that opens it says `OpenService`, and is answered `ServiceOpened` or
`ServiceRefused`; then the bytes of two programs follow, both ways, and each way ends by itself.
Nothing of a request is sent before it is opened: what is refused has provably never run. A frame is
a CBOR array: the message's number, then its fields in order.

Members of the network alone may open one, as far as the scope of the service goes. Each stream
shows its grant, so that a worker keeps nothing of those who call.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Final

from formation_p2p.core.errors import RemoteError
from formation_p2p.features.services.core.spec import check_service_name
from formation_p2p.records.core import schema
from formation_p2p.records.core.codec import Malformed, take_text
from formation_p2p.records.core.profile import MAX_GRANT_BYTES
from formation_p2p.records.core.schema import Schema

# The largest is an OpenService: a grant, a name, a digest.
MAX_MESSAGE_BYTES: Final = MAX_GRANT_BYTES + 256
MAX_WHY_CHARS: Final = 256
DIGEST_BYTES: Final = 32
# Of any version.
ANY: Final = b""
_MAX_NAME_CHARS: Final = 40


class ServiceRefusal(StrEnum):
    """Why a replica takes no stream. Whatever the reason, nothing was run."""

    NOT_HERE = "not_here"
    """No replica of it is here, or none of that version, or its program does not listen."""
    DRAINING = "draining"
    """It is about to stop."""
    BUSY = "busy"
    """It has as many streams as it takes."""
    DENIED = "denied"
    """The caller may not call it. Asking elsewhere is of no use."""


class ServiceError(RemoteError):
    """A service is not reached, or a stream to it has broken. `never_ran` says whether it is
    certain that nothing of the request has run, so that it can be sent again."""

    def __init__(
        self, message: str, refusal: ServiceRefusal | None = None, *, never_ran: bool = False
    ) -> None:
        super().__init__(message)
        self.refusal = refusal
        self.never_ran = never_ran or refusal is not None


def read_name(value: object) -> str:
    name = take_text(value, "service", _MAX_NAME_CHARS)
    check_service_name("service", name)
    return name


def _read_digest(value: object) -> bytes:
    if type(value) is not bytes or len(value) not in (0, DIGEST_BYTES):
        raise Malformed("digest", f"is not {DIGEST_BYTES} bytes, nor empty")
    return value


def _read_refusal(value: object) -> ServiceRefusal:
    try:
        return ServiceRefusal(take_text(value, "refusal", _MAX_NAME_CHARS))
    except ValueError as error:
        raise Malformed("refusal", "is not one of this protocol") from error


SERVICE_NAME: Final = schema.custom(read_name)
WHY: Final = schema.custom(
    schema.text(MAX_WHY_CHARS).reader("why"), lambda why: why[:MAX_WHY_CHARS]
)
_PROTOCOL: Final[Schema[ServiceMessage]] = Schema("service protocol", MAX_MESSAGE_BYTES)


@_PROTOCOL.message(1)
@dataclass(frozen=True, slots=True)
class OpenService:
    """Lead me to the replica of `service` that is here. `digest` is of the spec that it must have;
    ANY takes whatever version it is of."""

    service: Annotated[str, SERVICE_NAME]
    grant: Annotated[bytes, schema.octets(MAX_GRANT_BYTES)]
    digest: Annotated[bytes, schema.custom(_read_digest)]


@_PROTOCOL.message(2)
@dataclass(frozen=True, slots=True)
class ServiceOpened:
    """What follows is the service's."""


@_PROTOCOL.message(3)
@dataclass(frozen=True, slots=True)
class ServiceRefused:
    """Nothing follows."""

    refusal: Annotated[ServiceRefusal, schema.custom(_read_refusal, str)]
    why: Annotated[str, WHY]


ServiceMessage = OpenService | ServiceOpened | ServiceRefused

pack = _PROTOCOL.pack
parse = _PROTOCOL.parse

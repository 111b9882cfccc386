"""The spec of a service as its publisher signs it: what travels, and what every node checks.

`seal_spec` makes the bytes, `open_spec` is the one way back. The digest of the bytes names the
spec in the DHT, so that who holds one holds what was published.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Final

from formation_p2p.core.errors import InvalidInput
from formation_p2p.core.identity import Identity, PeerId, peer_id_to_bytes
from formation_p2p.features.services.core.spec import (
    MAX_ARGUMENTS,
    MAX_FILES,
    MAX_PACKAGES,
    MAX_USES,
    MAX_VARIABLES,
    Check,
    CheckKind,
    Pinned,
    Program,
    Replicas,
    ServiceSpec,
)
from formation_p2p.records.core import codec, resources
from formation_p2p.records.core.codec import MAX_INT, Malformed, take_int, take_list, take_text
from formation_p2p.records.core.envelope import seal
from formation_p2p.records.core.profile import MAX_GRANT_BYTES
from formation_p2p.records.core.signed_fields import check_author, check_life, open_fields
from formation_p2p.workload.core.blob import Blob
from formation_p2p.workload.core.process import MAX_SECRETS
from formation_p2p.workload.core.scope import Scope

# With a grant of 2 KiB; an answer in the DHT carries 16 of them.
MAX_SPEC_BYTES: Final = 4096
# A spec outlives its publisher: its readers keep it in the DHT. What is not published again within
# a quarter of a year has been forgotten, and ends.
MAX_SPEC_TTL_S: Final = 90 * 24 * 3600
DIGEST_BYTES: Final = 32

_DOMAIN: Final = "formation-service-spec"
SPEC_PAYLOAD_TYPE: Final = b"/formation/service-spec/1"


@dataclass(frozen=True, slots=True)
class SignedSpec:
    """A spec, the peer that published it, and the very bytes that it signed. `digest` is their
    SHA-256. `grant` shows that the publisher may do so."""

    spec: ServiceSpec
    publisher: PeerId
    digest: bytes
    issued_unix_s: int
    expires_unix_s: int
    grant: bytes = field(repr=False)
    raw: bytes = field(repr=False)


def seal_spec(
    identity: Identity, spec: ServiceSpec, grant: bytes, issued_unix_s: int, expires_unix_s: int
) -> SignedSpec:
    """Sign a spec. Raises InvalidInput; where it is too big, naming what takes most."""
    if not 0 < expires_unix_s - issued_unix_s <= MAX_SPEC_TTL_S:
        days = MAX_SPEC_TTL_S // 86_400
        raise InvalidInput("expires", f"let it expire within {days} days after it is issued")
    if len(grant) > MAX_GRANT_BYTES:
        raise InvalidInput("grant", f"{len(grant)} bytes, more than {MAX_GRANT_BYTES}")
    parts = {
        "publisher": peer_id_to_bytes(identity.peer_id),
        "issued": issued_unix_s,
        "expires": expires_unix_s,
        "grant": grant,
        **_pack(spec),
    }
    raw = seal(identity, _DOMAIN, SPEC_PAYLOAD_TYPE, codec.encode(list(parts.values())))
    if len(raw) > MAX_SPEC_BYTES:
        biggest = max(parts, key=lambda name: len(codec.encode(parts[name])))
        problem = f"the spec of {spec.name} takes {len(raw)} bytes of {MAX_SPEC_BYTES}"
        raise InvalidInput(biggest, f"{problem}, and this the most of them; give less of it")
    return read_spec(raw)


def encode_spec(spec: ServiceSpec) -> bytes:
    """The spec alone, for another program of the same user."""
    return codec.encode(list(_pack(spec).values()))


def decode_spec(raw: bytes) -> ServiceSpec:
    """Raises Malformed."""
    row = resources.take_row(codec.decode(raw, MAX_SPEC_BYTES), 17, "spec", "has other fields")
    return _unpack(row)


def open_spec(raw: bytes, now_unix_s: float) -> SignedSpec:
    """Read a spec from anywhere. Raises BadRecord.

    OversizedRecord, MalformedRecord, ForgedRecord, or ExpiredRecord (also for a life too long, or
    from the future).
    """
    signed = read_spec(raw)
    life = signed.issued_unix_s, signed.expires_unix_s
    check_life("spec", *life, MAX_SPEC_TTL_S, now_unix_s, cure="publish it again")
    return signed


# The same bytes come from each of the 8 peers that hold them, at every reading of a catalog. At
# 4 KiB each these are 4 MiB at the worst.
@lru_cache(maxsize=1024)
def read_spec(raw: bytes) -> SignedSpec:
    """As `open_spec`, at whatever time it is."""

    def signed(fields: object, signer: PeerId) -> SignedSpec:
        row = resources.take_row(fields, 21, "spec", "is not a list of twenty-one fields")
        publisher, issued, expires, grant, *of_spec = row
        check_author("a spec", publisher, signer, "publisher")
        return SignedSpec(
            _unpack(of_spec),
            signer,
            hashlib.sha256(raw).digest(),
            take_int(issued, "issued", 0, MAX_INT),
            take_int(expires, "expires", 0, MAX_INT),
            codec.take_bytes(grant, "grant", MAX_GRANT_BYTES),
            raw,
        )

    kind = _DOMAIN, SPEC_PAYLOAD_TYPE, MAX_SPEC_BYTES
    return open_fields("a spec", raw, *kind, signed)


def _pack(spec: ServiceSpec) -> dict[str, object]:
    """The fields on the wire, in order; the names are for the message in `seal_spec`."""
    program, pinned = spec.program, spec.pinned
    return {
        "service": spec.name,
        "version": spec.version,
        "tier": spec.tier,
        "priority": spec.priority,
        "port": spec.port,
        "needs": resources.pack_requirements(spec.needs),
        "program": [
            program.driver,
            list(program.argv),
            list(map(list, program.variables)),
            _pack_pairs(program.files),
            list(program.environment),
            program.image,
            program.call and _pack_blob(program.call),
            # Older releases read those without any.
            *([_pack_pairs(program.secrets)] if program.secrets else []),
        ],
        "replicas": [spec.replicas.minimum, spec.replicas.target, spec.replicas.maximum],
        "readiness": _pack_check(spec.readiness),
        "liveness": _pack_check(spec.liveness),
        "start_grace": spec.start_grace_s,
        "drain": spec.drain_s,
        "max_requests": spec.max_requests,
        "pinned": pinned and [pinned.volume, pinned.home],
        "scope": int(spec.scope),
        "uses": list(spec.uses),
        "withdrawn": spec.withdrawn,
    }


def _unpack(row: list[Any]) -> ServiceSpec:
    name, version, tier, priority, port, needs, program, replicas, *others = row
    readiness, liveness, grace, drain, requests, pinned, scope, uses, withdrawn = others
    return resources.checked(
        ServiceSpec,
        name=name,
        version=version,
        tier=tier,
        priority=priority,
        port=port,
        needs=resources.unpack_requirements(needs),
        program=_unpack_program(program),
        replicas=resources.checked(
            Replicas, *resources.take_row(replicas, 3, "replicas", "are not three numbers")
        ),
        readiness=_unpack_check(readiness),
        liveness=_unpack_check(liveness),
        start_grace_s=grace,
        drain_s=drain,
        max_requests=requests,
        pinned=_unpack_pinned(pinned),
        scope=Scope(take_int(scope, "scope", 0, max(Scope))),
        uses=tuple(take_list(uses, "uses", MAX_USES)),
        withdrawn=codec.take_bool(withdrawn, "withdrawn"),
    )


def _unpack_program(value: object) -> Program:
    secrets: object = []
    if type(value) is list and len(value) == 8:
        *value, secrets = value
    row = resources.take_row(value, 7, "program", "is not a list of seven fields, or eight")
    driver, argv, variables, files, packages, image, call = row
    return resources.checked(
        Program,
        driver=driver,
        argv=tuple(take_list(argv, "argv", MAX_ARGUMENTS)),
        variables=_unpack_pairs(variables, "variables", MAX_VARIABLES),
        files=_unpack_blobs(files, "files", MAX_FILES),
        environment=tuple(take_list(packages, "environment", MAX_PACKAGES)),
        image=image,
        call=None if call is None else _unpack_blob(call),
        secrets=_unpack_blobs(secrets, "secrets", MAX_SECRETS),
    )


def _unpack_pairs(value: object, field: str, most: int) -> tuple[tuple[Any, Any], ...]:
    rows = take_list(value, field, most)
    pairs = [resources.take_row(row, 2, field, "holds what is no pair") for row in rows]
    return tuple((first, second) for first, second in pairs)


def _pack_pairs(pairs: tuple[tuple[str, Blob], ...]) -> list[object]:
    return [[name, _pack_blob(blob)] for name, blob in pairs]


def _unpack_blobs(value: object, field: str, most: int) -> tuple[tuple[Any, Blob], ...]:
    return tuple((name, _unpack_blob(blob)) for name, blob in _unpack_pairs(value, field, most))


def _pack_blob(blob: Blob) -> bytes:
    """As bytes: with its sources, lists would lie too deep in each other for a stranger's CBOR."""
    return codec.encode(blob.pack())


def _unpack_blob(value: object) -> Blob:
    raw = codec.take_bytes(value, "blob", MAX_SPEC_BYTES)
    return resources.checked(Blob.unpack, codec.decode(raw, MAX_SPEC_BYTES))


def _pack_check(check: Check | None) -> list[object] | None:
    if check is None:
        return None
    times = check.interval_ms, check.timeout_ms, check.failures, check.successes
    return [check.kind.value, check.path, list(check.argv), *times]


def _unpack_check(value: object) -> Check | None:
    if value is None:
        return None
    row = resources.take_row(value, 7, "check", "is not a list of seven fields")
    kind, path, argv, *times = row
    if kind not in list(CheckKind):
        raise Malformed("check", "is of an unknown kind")
    arguments = tuple(take_list(argv, "check.argv", MAX_ARGUMENTS))
    return resources.checked(Check, CheckKind(kind), path, arguments, *times)


def _unpack_pinned(value: object) -> Pinned | None:
    if value is None:
        return None
    volume, home = resources.take_row(value, 2, "pinned", "is not a volume and its home")
    return resources.checked(Pinned, volume, PeerId(take_text(home, "pinned.home", 72)))

"""A voucher: a grant's bearer says, signed, what its leases of one worker reserve right now.

It lets that worker take hours of the grant's quota from those who keep the account: none can use up
a quota that is not used there.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from formation_p2p.core.errors import ExpiredRecord
from formation_p2p.core.identity import Identity, PeerId, peer_id_to_bytes
from formation_p2p.machine.core.bounds import MAX_CPU_MILLI, MAX_GPUS
from formation_p2p.machine.core.gpu import WHOLE_GPU_MILLI
from formation_p2p.records.core import codec
from formation_p2p.records.core.envelope import seal
from formation_p2p.records.core.resources import take_peer_id, take_row
from formation_p2p.records.core.signed_fields import MAX_CLOCK_SKEW_S, open_fields
from formation_p2p.trust.core.quota import Used

# A key, a signature and a handful of numbers.
MAX_VOUCHER_BYTES: Final = 256
# A worker shows it for so long after it was signed. Renewals bring another every few seconds.
VOUCHER_S: Final = 600

_DOMAIN: Final = "formation-quota-voucher"
_PAYLOAD_TYPE: Final = b"/formation/quota-voucher/1"
# Of all leases at one worker: many times what the largest machine has.
_MAX_MILLI: Final = 64 * max(MAX_CPU_MILLI, MAX_GPUS * WHOLE_GPU_MILLI)


@dataclass(frozen=True, slots=True)
class Voucher:
    """By `bearer`, for `worker`; `reserved` is of one second. `raw` is what was signed."""

    bearer: PeerId
    worker: PeerId
    issued_unix_ms: int
    reserved: Used
    raw: bytes

    def is_fresh(self, unix_s: float) -> bool:
        """Whether it is still shown."""
        return self.issued_unix_ms / 1000 + VOUCHER_S > unix_s


def seal_voucher(identity: Identity, worker: PeerId, reserved: Used, issued_unix_ms: int) -> bytes:
    fields = [peer_id_to_bytes(worker), issued_unix_ms, reserved.cpu_milli_s, reserved.gpu_milli_s]
    return seal(identity, _DOMAIN, _PAYLOAD_TYPE, codec.encode(fields))


def open_voucher(raw: bytes, now_unix_s: float) -> Voucher:
    """Raises BadRecord: OversizedRecord, MalformedRecord, ForgedRecord, or ExpiredRecord (also for
    one from the future)."""
    voucher = open_fields(
        "a voucher",
        raw,
        _DOMAIN,
        _PAYLOAD_TYPE,
        MAX_VOUCHER_BYTES,
        lambda fields, bearer: _read(fields, bearer, raw),
    )
    if voucher.issued_unix_ms / 1000 > now_unix_s + MAX_CLOCK_SKEW_S:
        raise ExpiredRecord("the voucher is from the future; see that the clocks agree")
    if not voucher.is_fresh(now_unix_s):
        raise ExpiredRecord("the voucher has expired")
    return voucher


def _read(fields: object, bearer: PeerId, raw: bytes) -> Voucher:
    worker, issued, cpu, gpu = take_row(fields, 4, "voucher", "is not a list of four fields")
    return Voucher(
        bearer,
        take_peer_id(worker, "worker"),
        codec.take_int(issued, "issued", 0, codec.MAX_INT),
        Used(
            codec.take_int(cpu, "cpu", 0, _MAX_MILLI),
            codec.take_int(gpu, "gpu", 0, _MAX_MILLI),
        ),
        raw,
    )

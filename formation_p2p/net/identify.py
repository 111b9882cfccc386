"""identify: what a peer says of itself, above all where it can be dialled.

Source: libp2p identify specification 1.0.0.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from typing import Final, NamedTuple

from google.protobuf.message import DecodeError

from formation_p2p.core.errors import ProtocolViolation, Unreachable
from formation_p2p.core.units import KIB
from formation_p2p.core.version import VERSION
from formation_p2p.machine.clock import moment
from formation_p2p.net.transport.errors import IOException
from formation_p2p.net.transport.frames import encode_frame, read_frame
from formation_p2p.net.transport.libp2p_pb2 import Identify
from formation_p2p.net.transport.stream import MuxedStream
from formation_p2p.records.core.addresses import address_bytes, read_addresses

PROTOCOL: Final = "/ipfs/id/1.0.0"
PUSH_PROTOCOL: Final = "/ipfs/id/push/1.0.0"
PROTOCOL_VERSION: Final = "ipfs/0.1.0"
AGENT: Final = "formation_p2p"
_WORK: Final = "/formation/work/"
WORK_PROTOCOL: Final = f"{_WORK}{VERSION}.0.0"
_OF_WORK: Final = re.compile(rf"{_WORK}(\d{{1,6}})\.\d{{1,6}}\.\d{{1,6}}", re.ASCII)

# go-libp2p's bound is 8 KiB.
MAX_MESSAGE_BYTES: Final = 16 * KIB
# Of those at most eight are kept (MAX_ADDRESSES); the rest are transports that we lack.
MAX_PARSED_ADDRESSES: Final = 32


class Identified(NamedTuple):
    """What a peer told of itself, unchecked. A push may leave either out. `observed` is the address
    that it sees us come from; empty where it does not say. Nodes of Formation tell their clock, the
    number of their run, and whether another run with our identity is connected to them too."""

    addresses: tuple[str, ...]
    protocols: frozenset[str]
    observed: str = ""
    unix_s: float = 0.0
    run_id: int = 0
    is_twin: bool = False

    @property
    def other_version(self) -> int | None:
        """Of a node of Formation that does not speak ours; None for all others."""
        if WORK_PROTOCOL in self.protocols:
            return None
        matches = map(_OF_WORK.fullmatch, self.protocols)
        return max((int(match[1]) for match in matches if match), default=None)


async def read_message(stream: MuxedStream) -> Identified:
    """The one message on `stream`. The caller bounds the time.

    Raises ProtocolViolation, Unreachable.
    """
    try:
        identify = Identify.FromString(await read_frame(stream, MAX_MESSAGE_BYTES))
    except IOException as error:
        raise Unreachable(f"identify: {error}") from error
    except DecodeError as error:
        raise ProtocolViolation("an identify message that does not parse") from error
    addresses = read_addresses(itertools.islice(identify.listen_addrs, MAX_PARSED_ADDRESSES))
    observed = "".join(read_addresses(filter(None, (identify.observed_addr,))))
    protocols = frozenset(identify.protocols)
    ours = identify.unix_ms / 1000, identify.run_id, identify.is_twin
    return Identified(addresses, protocols, observed, *ours)


def message(
    public_key: bytes,
    addresses: Sequence[str],
    protocols: Sequence[str],
    stream: MuxedStream,
    run_id: int = 0,
    *,
    is_twin: bool = False,
) -> bytes:
    """What we say of ourselves, in a frame. `public_key` is libp2p's protobuf."""
    observed = b""
    if (seen := stream.get_remote_address()) is not None:
        host, port = seen
        observed = address_bytes(f"/{'ip6' if ':' in host else 'ip4'}/{host}/tcp/{port}")
    said = Identify(
        protocol_version=PROTOCOL_VERSION,
        agent_version=AGENT,
        public_key=public_key,
        listen_addrs=[address_bytes(address) for address in addresses],
        protocols=protocols,
        observed_addr=observed,
        unix_ms=max(round(moment().unix_s * 1000), 0),
        run_id=run_id,
        is_twin=is_twin,
    )
    return encode_frame(said.SerializeToString())

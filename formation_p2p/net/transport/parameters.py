"""What a stack is parameterised by, beside the formats of its protocols."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from formation_p2p.core.units import KIB, MIB


@dataclass(frozen=True, slots=True, kw_only=True)
class NetParameters:
    # -- connections

    # 0.03 MB each when idle, at most 0.2 MB (see `strangers.py`), and a file descriptor of the
    # 1,024 that a process usually has.
    max_inbound: int = 256
    max_outbound: int = 128
    # A peer has one, or two when both dialled at once; more while dead ones are not yet noticed.
    max_inbound_per_peer: int = 4
    # A campus behind one address has many machines; one machine must not take every place.
    # Addresses of this machine are not counted: a program that runs here can do worse.
    max_inbound_per_ip: int = 128
    # A handshake costs 3 ms of CPU and may last for `handshake_s`.
    max_handshakes: int = 192
    max_handshakes_per_ip: int = 32
    # When every place is taken, the connection idle the longest makes room, if for so long.
    evictable_after_s: float = 30.0
    # Two round trips for the side that listens, one for the one that dials; and a busy peer.
    handshake_s: float = 8.0
    # How long a peer's first requests wait for its addresses.
    identify_wait_s: float = 2.0

    # -- muxing

    # The peer takes nothing for so long: it is stuck. A Noise message in that time is 26 kbit/s.
    write_stall_s: float = 20.0
    # The peer gives no window for so long: nothing reads there.
    window_stall_s: float = 20.0
    # Each tick of silence asks for a pong; three in a row are the end: 24 to 32 s.
    tick_s: float = 8.0

    # -- rates

    # A negotiation costs 1 ms. A foreign implementation opens a stream for each request.
    streams_per_s: int = 128
    # Opened, whether served or reset. Past it, and a burst of four seconds' worth, the connection
    # ends: to open a stream and reset it costs 24 bytes there, and 50 us and an answer here.
    opens_per_s: int = 512
    # A kad request costs about 1 ms, so that one peer takes a quarter of a core at most; a lookup
    # asks each peer once or twice.
    kad_frames_per_s: int = 256

    # -- frames

    # A frame that began has this long to end, and longer by its size at the slowest link worth
    # having. Between two frames a stream may rest for as long as its connection lives, which the
    # muxer watches.
    frame_stall_s: float = 30.0
    slowest_bytes_per_s: int = 64 * KIB

    # -- protocols

    # The asked peer's state machine answers at once, or has lost the request.
    kad_answer_s: float = 10.0
    # Four of the largest work frames, or the events of some hundred tasks a second for the time
    # that a peer may stall.
    max_queued_bytes: int = 64 * MIB
    max_queued_frames: int = 4096
    # To say what is wanted, once a data stream is open; and to answer that, with a manifest of
    # 2 MiB.
    data_open_s: float = 20.0
    # Between two wants: a fetch that waits for its disk may pause.
    data_idle_s: float = 120.0
    # A data stream may outlive the grant that opened it by so much.
    data_admit_every_s: float = 60.0
    # Blobs open at once, for all peers: each is a file descriptor, of which a process has 1024 as a
    # rule, and one grant may stand behind any number of peers.
    max_open_blobs: int = 256


DEFAULTS: Final = NetParameters()
# Of a gate that relays: a place for each reservation (RelayParameters), and half as many again for
# those that come and go. Many members may be behind one router.
GATE: Final = NetParameters(max_inbound=1536, max_inbound_per_ip=512)

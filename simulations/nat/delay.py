"""Links that take their time, since the kernels of small machines have no netem.

A link is two TAP devices: what one sends, the other receives after so many milliseconds. One
process forwards for all links of a lab; it ends with the process that started it:

    python -m simulations.nat.delay       in a namespace; it reads lines `NEAR FAR MILLISECONDS`

The devices take segments of up to 64 KiB with their checksums still to be made, as the kernel
passes them between its own devices. So a packet here is a large one, and Python is fast enough.
"""

from __future__ import annotations

import fcntl
import os
import select
import struct
import subprocess
import sys
import time
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from simulations.spaces import TUN, Forbidden, inside

ROOT: Final = Path(__file__).parents[2]
# linux/if_tun.h.
TUNSETIFF: Final = 0x400454CA
TUNSETOFFLOAD: Final = 0x400454D0
TAP_WITHOUT_INFO_WITH_HEADER: Final = 0x0002 | 0x1000 | 0x4000
CHECKSUM_AND_SEGMENTS: Final = 0x01 | 0x02 | 0x04
# A segment of 64 KiB, with the headers of Ethernet, IP, TCP, and virtio's.
MAX_PACKET_BYTES: Final = 65_536 + 512
# What a link holds in one direction: 100 ms at 640 MB/s. What comes on top is dropped, as a
# router does whose queue is full.
MAX_HELD_BYTES: Final = 64 * 1024 * 1024
# Packets read from one device before the others have their turn.
AT_ONCE: Final = 32
READY_S: Final = 10.0


class Delay:
    """The forwarder, from outside. `close` it."""

    def __init__(self, space: str) -> None:
        self._process = subprocess.Popen(
            inside(space, [sys.executable, "-E", "-m", "simulations.nat.delay"]),
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            bufsize=1,
        )

    def link(self, near: str, far: str, one_way_ms: float) -> None:
        """Make two devices in the forwarder's namespace. Raises Forbidden."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write(f"{near} {far} {one_way_ms}\n")
        except OSError as error:
            raise Forbidden(f"the forwarder of slow links has ended: {error}") from None
        said = ""
        if select.select([self._process.stdout], [], [], READY_S)[0]:
            said = self._process.stdout.readline().strip()
        if said != "ready":
            raise Forbidden(f"there is no slow link {near}: {said or 'no answer'}")

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            pipe.close()


@dataclass(slots=True)
class Way:
    """One direction of a link."""

    source: int
    sink: int
    delay_s: float
    held: deque[tuple[float, bytes]] = field(default_factory=deque)
    held_bytes: int = 0

    def take(self) -> None:
        """What its source has, for later."""
        for _ in range(AT_ONCE):
            try:
                packet = os.read(self.source, MAX_PACKET_BYTES)
            except BlockingIOError:
                return
            if self.held_bytes + len(packet) <= MAX_HELD_BYTES:
                self.held.append((time.monotonic() + self.delay_s, packet))
                self.held_bytes += len(packet)

    def give(self) -> None:
        """What is due."""
        now_s = time.monotonic()
        while self.held and self.held[0][0] <= now_s:
            packet = self.held.popleft()[1]
            self.held_bytes -= len(packet)
            try:
                os.write(self.sink, packet)
            except OSError:
                # The device is down, or between two namespaces: a cable that is not plugged in.
                continue


def main() -> None:
    """Until the standard input ends."""
    ways: dict[int, Way] = {}
    poll = select.epoll()
    poll.register(sys.stdin.fileno(), select.EPOLLIN)
    while True:
        due_s = min((way.held[0][0] for way in ways.values() if way.held), default=None)
        # epoll counts in milliseconds and rounds up: half of one is taken off.
        wait_s = -1 if due_s is None else max(due_s - time.monotonic() - 0.0005, 0.0)
        for source, happened in poll.poll(wait_s):
            if source != sys.stdin.fileno():
                if happened & select.EPOLLIN:
                    ways[source].take()
                else:  # its namespace is gone, and the device with it
                    poll.unregister(source)
            elif line := sys.stdin.readline():
                _add(line, ways, poll)
            else:
                return
        for way in ways.values():
            way.give()


def _add(line: str, ways: dict[int, Way], poll: select.epoll) -> None:
    near, far, milliseconds = line.split()
    try:
        ends = _tap(near), _tap(far)
    except OSError as error:
        print(f"{TUN}: {error}", flush=True)
        return
    for source, sink in (ends, ends[::-1]):
        ways[source] = Way(source, sink, float(milliseconds) / 1000)
        poll.register(source, select.EPOLLIN)
    print("ready", flush=True)


def _tap(name: str) -> int:
    device = os.open(TUN, os.O_RDWR | os.O_NONBLOCK)
    request = struct.pack("16sH22x", name.encode(), TAP_WITHOUT_INFO_WITH_HEADER)
    fcntl.ioctl(device, TUNSETIFF, request)
    fcntl.ioctl(device, TUNSETOFFLOAD, CHECKSUM_AND_SEGMENTS)
    return device


if __name__ == "__main__":
    main()

"""A small internet on one machine: a WAN, routers, LANs behind them, and machines.

    with Lab(latency_ms=20) as lab:
        gate = lab.host("gate")                      # on the WAN, with an address of its own
        home = lab.router("home", "cone")
        worker = home.host("worker")                 # behind the router
        inner = lab.router("inner", "cone", behind=home)     # behind two
        subprocess.Popen(worker.inside(["formation", "worker"]))
        worker.cut(); worker.heal(); worker.move(lab.wan); home.flush()

Every LAN has the same private addresses, as those of most homes do. Nothing of this touches the
machine's own network. It needs root, iproute2 and nftables: entering raises Forbidden otherwise.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from ipaddress import IPv4Network
from pathlib import Path
from threading import Lock
from types import TracebackType
from typing import Final, Self, TypeVar

from simulations import spaces
from simulations.nat.delay import Delay
from simulations.nat.rules import Kind, RouterKind, rules
from simulations.spaces import Forbidden

__all__ = ["Forbidden", "Host", "Lab", "Router", "Segment"]

# The networks of documentation are not global to Python's ipaddress, which decides what is private.
WAN: Final = IPv4Network("11.0.0.0/24")
LAN: Final = IPv4Network("192.168.1.0/24")
# A LAN whose router is itself in a LAN; the two must differ, as they do for real.
INNER_LAN: Final = IPv4Network("192.168.2.0/24")
# What passes through after its table was flushed has to begin anew, as after a restart.
_FORWARDS: Final = "echo 1 > /proc/sys/net/ipv4/ip_forward"
_STRICT: Final = "echo 0 > /proc/sys/net/netfilter/nf_conntrack_tcp_loose"


class Segment:
    """A bridge, and the cables in it. The first address is the router's, where there is one."""

    def __init__(self, space: str, bridge: str, subnet: IPv4Network, *, routed: bool) -> None:
        self.subnet = subnet
        self._space, self._bridge = space, bridge
        self._addresses = subnet.hosts()
        self.gateway = next(self._addresses) if routed else None
        self._ports = 0
        self._lock = Lock()  # of threads that build beside each other
        self._delay: tuple[Delay, float] | None = None
        of_its_own = f"address add {self.gateway}/{subnet.prefixlen} dev {bridge}"
        spaces.ip(
            space,
            f"link add {bridge} type bridge stp_state 0 forward_delay 0",
            *([of_its_own] if routed else []),
            f"link set {bridge} up",
            "link set lo up",
        )

    def delayed(self, delay: Delay, one_way_ms: float) -> None:
        """From now on each new cable takes so long, each way."""
        self._delay = delay, one_way_ms

    def plug(self, space: str, device: str) -> tuple[str, str]:
        """Returns the name of the port at the bridge and the address of the device."""
        with self._lock:
            return self._plug(space, device)

    def _plug(self, space: str, device: str) -> tuple[str, str]:
        self._ports += 1
        port, address = f"p{self._ports}", str(next(self._addresses))
        if self._delay is None:
            add = f"link add {port} type veth peer name {device} netns {space}"
            spaces.ip(self._space, add, f"link set {port} master {self._bridge} up")
        else:
            delay, one_way_ms = self._delay
            far = f"f{self._ports}"
            delay.link(port, far, one_way_ms)
            spaces.ip(
                self._space,
                f"link set {far} netns {space} name {device}",
                f"link set {port} master {self._bridge} up",
            )
        spaces.ip(
            space,
            f"address add {address}/{self.subnet.prefixlen} dev {device}",
            f"link set {device} up",
            "link set lo up",
            *([f"route replace default via {self.gateway}"] if self.gateway is not None else []),
        )
        return port, address

    def unplug(self, port: str) -> None:
        """Its device goes too."""
        spaces.ip(self._space, f"link delete {port}")

    def cut(self, port: str) -> None:
        """Both ends stay up; packets vanish."""
        spaces.ip(self._space, f"link set {port} nomaster")

    def heal(self, port: str) -> None:
        spaces.ip(self._space, f"link set {port} master {self._bridge}")


class Machine:
    """A namespace with one cable."""

    def __init__(self, name: str, segment: Segment, device: str) -> None:
        self.name = name
        self.space = spaces.name_of(name)
        self._device = device
        spaces.run("ip", "netns", "add", self.space)
        try:
            self._segment = segment
            self._port, self.address = segment.plug(self.space, device)
        except Forbidden:
            spaces.delete(self.space)
            raise

    def inside(self, argv: Sequence[str]) -> list[str]:
        """The command that runs a program there, as the same process."""
        return spaces.inside(self.space, argv)

    def cut(self) -> None:
        self._segment.cut(self._port)

    def heal(self) -> None:
        self._segment.heal(self._port)

    @property
    def bytes(self) -> int:
        """Sent and received by its cable so far, headers of Ethernet, IP and TCP included."""
        folder = f"/sys/class/net/{self._device}/statistics"
        read = spaces.run(*self.inside(["cat", f"{folder}/tx_bytes", f"{folder}/rx_bytes"]))
        return sum(map(int, read.split()))


M = TypeVar("M", bound=Machine)


class Host(Machine):
    """A machine that a node runs on. `address` is its IPv4 address where it is plugged in."""

    def __init__(self, name: str, segment: Segment) -> None:
        super().__init__(name, segment, "eth0")

    def meter(self) -> Meter:
        """For one who looks often."""
        return Meter(self)

    def count_syns(self) -> None:
        """From now on: what tries to connect to it."""
        table = "table inet seen {\nchain input {\ntype filter hook input priority filter\n"
        syns = "tcp flags & (syn | ack) == syn counter\n}\n}\n"
        spaces.run(*self.inside(["nft", "-f", "-"]), told=table + syns)

    @property
    def syns(self) -> int:
        """Counted since `count_syns`."""
        listed = spaces.run(*self.inside(["nft", "list", "table", "inet", "seen"]))
        return int(listed.split("packets ")[1].split()[0])

    def move(self, to: Segment) -> None:
        """Carry it to another network: the old address is gone, and so is what it was used for."""
        self._segment.unplug(self._port)
        self._segment = to
        self._port, self.address = to.plug(self.space, "eth0")


class Meter:
    """Reads what has passed a machine's cable, without a process for each look. `close` it."""

    def __init__(self, host: Host) -> None:
        folder = "/sys/class/net/eth0/statistics"
        look = f"read t <{folder}/tx_bytes; read r <{folder}/rx_bytes; echo $t $r"
        self._process = subprocess.Popen(
            host.inside(["sh", "-c", f"while read _; do {look}; done"]),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            bufsize=1,
        )

    @property
    def bytes(self) -> int:
        """As `Host.bytes`."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write("\n")
        return sum(map(int, self._process.stdout.readline().split()))

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            pipe.close()


class Router(Machine):
    """`lan` is behind it. `address` is where the rest of the world sees its machines."""

    def __init__(self, lab: Lab, name: str, kind: RouterKind, behind: Segment) -> None:
        super().__init__(name, behind, "wan0")
        lab.own(self)
        self._lab = lab
        subnet = LAN if behind is lab.wan else INNER_LAN
        self.lan = Segment(self.space, "lan0", subnet, routed=True)
        script = f"{_FORWARDS} && nft -f - && {_STRICT}"
        spaces.run(*self.inside(["sh", "-c", script]), told=rules(kind))

    def host(self, name: str) -> Host:
        return self._lab.own(Host(name, self.lan))

    def block(self, other: Router) -> None:
        """Until `unblock` nothing goes from its LAN to the other router, nor is answered there."""
        table = "table ip blocked {\nchain forward {\ntype filter hook forward priority -1\n"
        drop = f"ip daddr {other.address} drop\n}}\n}}\n"
        spaces.run(*self.inside(["nft", "-f", "-"]), told=table + drop)

    def unblock(self) -> None:
        spaces.run(*self.inside(["nft", "delete", "table", "ip", "blocked"]))

    def flush(self) -> None:
        """Forget all connections, as a router does that is started again. Packets of the old ones
        are dropped without a word from then on."""
        conntrack = str(Path(__file__).with_name("conntrack.py"))
        spaces.run(*self.inside([sys.executable, "-S", "-E", conntrack]))


class Lab:
    """Enter it, add machines and routers; leaving it deletes them, and ends what runs in them.

    `latency_ms` is one way between two machines of the WAN, so that a round trip takes twice as
    long; links without are those of the kernel, which carry gigabytes a second. LANs have none.
    """

    wan: Segment

    def __init__(self, latency_ms: float = 0.0) -> None:
        self._latency_ms = latency_ms
        self._hub = spaces.name_of("hub")
        self._spaces: list[str] = []
        self._delay: Delay | None = None

    def __enter__(self) -> Self:
        why = spaces.why_not()
        if why is not None:
            raise Forbidden(why)
        try:
            spaces.delete_leftovers()
            spaces.run("ip", "netns", "add", self._hub)
            self._spaces.append(self._hub)
            self.wan = Segment(self._hub, "wan", WAN, routed=False)
            if self._latency_ms:
                self._delay = Delay(self._hub)
                self.wan.delayed(self._delay, self._latency_ms / 2)
        except Forbidden:
            self._delete()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._delete()

    def host(self, name: str) -> Host:
        """On the WAN."""
        return self.own(Host(name, self.wan))

    def router(self, name: str, kind: RouterKind, *, behind: Router | None = None) -> Router:
        return Router(self, name, kind, self.wan if behind is None else behind.lan)

    def behind(self, kind: Kind, name: str) -> Host:
        """A machine behind a router of its own, or none."""
        return self.host(name) if kind == "public" else self.router(f"{name}-r", kind).host(name)

    def own(self, machine: M) -> M:
        """It goes when the lab does."""
        self._spaces.append(machine.space)
        return machine

    def _delete(self) -> None:
        while self._spaces:
            spaces.delete(self._spaces.pop())
        if self._delay is not None:
            self._delay.close()

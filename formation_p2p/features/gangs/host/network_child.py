"""Makes the network of a gang's member around a task: run before the task's sandbox, in its place.

Run as a file, which then becomes the program that follows:

    python -I -S network_child.py <socket fd> <address> <prefix bits> <mtu bytes> <program> <word>…

In user, network and mount namespaces of its own it opens a TUN device, gives it the address, mounts
a sysfs that shows this network alone, and sends the device's descriptor over the socket, or a line
that says what failed. What it becomes has the device as its only way out. It imports only what
starts quickly, and nothing of this package; `network.py` is its other end.

Source: tun.rst of the Linux kernel, netdevice(7), user_namespaces(7), network_namespaces(7).
"""

from __future__ import annotations

import array
import ctypes
import fcntl
import os
import socket
import struct
import sys

DEVICE = b"gang0"

# <linux/sched.h>
CLONE_NEWNS, CLONE_NEWUSER, CLONE_NEWNET = 0x00020000, 0x10000000, 0x40000000
# <linux/if_tun.h>
TUNSETIFF, IFF_TUN, IFF_NO_PI = 0x400454CA, 0x0001, 0x1000
# <linux/sockios.h>
SIOCGIFFLAGS, SIOCSIFFLAGS, SIOCSIFADDR = 0x8913, 0x8914, 0x8916
SIOCSIFNETMASK, SIOCSIFMTU = 0x891C, 0x8922
IFF_UP = 1
# <linux/mount.h>
MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC = 1, 2, 4, 8
MS_REC, MS_PRIVATE = 0x4000, 0x40000
MAX_WHY_BYTES = 512


def main() -> None:
    channel = int(sys.argv[1])
    address, prefix_bits, mtu_bytes = sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
    argv = sys.argv[5:]
    libc = ctypes.CDLL(None, use_errno=True)
    with socket.socket(fileno=channel) as node:
        try:
            enter(libc)
            device = opened(address, prefix_bits, mtu_bytes)
        except OSError as problem:
            node.send(f"{problem.strerror} ({problem.filename})".encode()[:MAX_WHY_BYTES])
            sys.exit(1)
        show_own_interfaces(libc)
        fds = array.array("i", [device])
        node.sendmsg([b"+"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, fds)])
        os.close(device)
    os.execv(argv[0], argv)


def enter(libc: ctypes.CDLL) -> None:
    """Namespaces of its own, in which the user keeps the number that it has."""
    user, group = os.geteuid(), os.getegid()
    if libc.unshare(CLONE_NEWUSER | CLONE_NEWNET | CLONE_NEWNS):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), "namespaces")
    for name, text in (
        ("setgroups", "deny"),
        ("uid_map", f"{user} {user} 1"),
        ("gid_map", f"{group} {group} 1"),
    ):
        with open(f"/proc/self/{name}", "w") as file:
            file.write(text)


def opened(address: str, prefix_bits: int, mtu_bytes: int) -> int:
    """The TUN device, up, and the loopback interface too."""
    device = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    mask = socket.inet_ntoa(struct.pack("!I", (1 << 32) - (1 << 32 - prefix_bits)))
    try:
        fcntl.ioctl(device, TUNSETIFF, struct.pack("16sH22x", DEVICE, IFF_TUN | IFF_NO_PI))
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
            for request, packed in (
                (SIOCSIFMTU, struct.pack("16si20x", DEVICE, mtu_bytes)),
                (SIOCSIFADDR, internet(address)),
                (SIOCSIFNETMASK, internet(mask)),
            ):
                fcntl.ioctl(any_socket, request, packed)
            for name in (b"lo", DEVICE):
                asked = struct.pack("16sH22x", name, 0)
                flags = struct.unpack_from("16xH", fcntl.ioctl(any_socket, SIOCGIFFLAGS, asked))[0]
                fcntl.ioctl(any_socket, SIOCSIFFLAGS, struct.pack("16sH22x", name, flags | IFF_UP))
    except OSError as problem:
        problem.filename = "a TUN device"
        raise
    return device


def internet(address: str) -> bytes:
    """ifreq with a sockaddr_in."""
    return struct.pack("16sHH4s16x", DEVICE, socket.AF_INET, 0, socket.inet_aton(address))


def show_own_interfaces(libc: ctypes.CDLL) -> None:
    """Programs that look into /sys/class/net find this network's. Where the kernel forbids the
    mount (a container that hides parts of /sys), they find none of it; most do not look there."""
    libc.mount(None, b"/", None, MS_REC | MS_PRIVATE, None)
    flags = MS_RDONLY | MS_NOSUID | MS_NODEV | MS_NOEXEC
    libc.mount(b"sysfs", b"/sys", b"sysfs", flags, None)


if __name__ == "__main__":
    main()

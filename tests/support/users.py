"""What the kernel allows to users other than root, also where the tests run as root."""

import ctypes
from typing import Final

# linux/capability.h: version 3 has two words of each of the three sets.
_VERSION: Final = 0x20080522
_WORDS: Final = 6


def be_ordinary() -> None:
    """From now on this thread, and those that it starts, may no more than the owner of their files:
    root's capabilities are gone for good. For a process that ends soon."""
    libc = ctypes.CDLL(None, use_errno=True)
    header = (ctypes.c_uint32 * 2)(_VERSION, 0)
    if libc.capset(header, (ctypes.c_uint32 * _WORDS)()) != 0:
        raise OSError(ctypes.get_errno(), "capset")

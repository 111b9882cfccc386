"""Memory that is mapped without a descriptor, for as long as anything refers to it.

`mmap` of the standard library keeps a descriptor for each, of 1,024 that a process has; of results
a program may have more.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import weakref
from typing import Final

_LIBC: Final = ctypes.CDLL(None, use_errno=True)
_LIBC.mmap.restype = ctypes.c_void_p
_LIBC.mmap.argtypes = (
    *(ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long),
)
_LIBC.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
_FAILED: Final = ctypes.c_void_p(-1).value


def mapped(size_bytes: int, file: int = -1, *, shared: bool = False) -> memoryview:
    """At least one byte, of an open file, or zeros. What is written is its own, or goes to the file
    where it is `shared`. Raises OSError."""
    flags = mmap.MAP_SHARED if shared else mmap.MAP_PRIVATE
    if file < 0:
        flags |= mmap.MAP_ANONYMOUS
    access = mmap.PROT_READ | mmap.PROT_WRITE
    address = _LIBC.mmap(None, size_bytes, access, flags, file, 0)
    if address == _FAILED:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))
    array = (ctypes.c_ubyte * size_bytes).from_address(address)
    # The array is what all views of it keep.
    weakref.finalize(array, _LIBC.munmap, address, size_bytes).atexit = False
    return memoryview(array).cast("B")

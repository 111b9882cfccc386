"""Memory that is mapped without a descriptor, for as long as anything refers to it; and copies
that let other threads run meanwhile.

`mmap` of the standard library keeps a descriptor for each, of 1,024 that a process has; of results
a program may have more.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import sys
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from formation_p2p.core.units import KIB, MIB

_LIBC: Final = ctypes.CDLL(None, use_errno=True)
_LIBC.mmap.restype = ctypes.c_void_p
_LIBC.mmap.argtypes = (
    *(ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long),
)
_LIBC.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
_LIBC.madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
_LIBC.memmove.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)
_FAILED: Final = ctypes.c_void_p(-1).value
# Zeros of at least this size come in pages of 2 MiB where the kernel has any: as with numpy.
_HUGE_BYTES: Final = 4 * MIB
# A copy of less is over before another thread would have its turn.
_LONG_BYTES: Final = 256 * KIB


class _Buffer(ctypes.Structure):
    """Py_buffer (Include/cpython/object.h, since 3.3)."""

    _fields_ = (
        ("address", ctypes.c_void_p),
        ("owner", ctypes.py_object),
        ("size_bytes", ctypes.c_ssize_t),
        ("item_bytes", ctypes.c_ssize_t),
        ("is_readonly", ctypes.c_int),
        ("dimensions", ctypes.c_int),
        ("format", ctypes.c_char_p),
        ("shape", ctypes.c_void_p),
        ("strides", ctypes.c_void_p),
        ("suboffsets", ctypes.c_void_p),
        ("internal", ctypes.c_void_p),
    )


_PYTHON: Final = ctypes.pythonapi
_PYTHON.PyObject_GetBuffer.argtypes = (*(ctypes.py_object, ctypes.POINTER(_Buffer), ctypes.c_int),)
_PYTHON.PyBuffer_Release.argtypes = (ctypes.POINTER(_Buffer),)
_PYTHON.PyBuffer_Release.restype = None
_SIMPLE, _WRITABLE = 0, 1


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
    if sys.platform == "linux" and file < 0 and size_bytes >= _HUGE_BYTES:
        # Zeros in small pages cost four times as much. A kernel without large ones refuses.
        _LIBC.madvise(address, size_bytes, mmap.MADV_HUGEPAGE)
    array = (ctypes.c_ubyte * size_bytes).from_address(address)
    # The array is what all views of it keep.
    weakref.finalize(array, _LIBC.munmap, address, size_bytes).atexit = False
    return memoryview(array).cast("B")


def copy(into: memoryview, piece: memoryview) -> None:
    """`piece` into as many bytes, both contiguous. An assignment of memoryviews would keep all
    threads of Python waiting, for 10 ms with an array of 50 MB, and for far longer where its pages
    have to be made."""
    if into.nbytes != piece.nbytes:
        raise ValueError(f"{piece.nbytes} bytes for {into.nbytes}")
    if piece.nbytes < _LONG_BYTES:
        into.cast("B")[:] = piece.cast("B")
        return
    with _address(into, _WRITABLE) as target, _address(piece, _SIMPLE) as source:
        _LIBC.memmove(target, source, piece.nbytes)


@contextmanager
def _address(view: memoryview, kind: int) -> Iterator[int]:
    buffer = _Buffer()
    _PYTHON.PyObject_GetBuffer(view, buffer, kind)  # raises BufferError
    try:
        yield buffer.address
    finally:
        _PYTHON.PyBuffer_Release(buffer)

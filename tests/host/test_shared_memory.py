"""Memory that is shared with other processes: what is copied into it, and who can write to it."""

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from formation_p2p.content.mapping import copy, mapped
from formation_p2p.content.segment import Segment
from formation_p2p.core.units import KIB, MIB
from formation_p2p.machine.pythons import interpreters
from tests.support.pythons import other_pythons

# Nothing here takes as long, unless a thread never has its turn.
DEADLINE_S = 60.0


@pytest.fixture
def no_switches() -> Iterator[None]:
    """A thread of Python keeps the others waiting until it waits for something itself."""
    before_s = sys.getswitchinterval()
    sys.setswitchinterval(2 * DEADLINE_S)
    yield
    sys.setswitchinterval(before_s)


@pytest.mark.parametrize("size", [0, 1, 100 * KIB, 5 * MIB + 1])
def test_a_copy_has_every_byte(size: int) -> None:
    piece = memoryview(os.urandom(size))
    into = mapped(size + 2)
    copy(into[1 : size + 1], piece)
    assert into[1 : size + 1] == piece
    assert (into[0], into[size + 1]) == (0, 0), "the bytes around it stay as they were"


def test_a_copy_is_of_one_size_and_into_what_can_be_written_to() -> None:
    piece = memoryview(bytes(MIB))
    with pytest.raises(ValueError, match="1048576 bytes for 1048575"):
        copy(mapped(MIB - 1), piece)
    with pytest.raises(BufferError):
        copy(mapped(MIB).toreadonly(), piece)


@pytest.mark.usefixtures("no_switches")
def test_other_threads_run_while_a_large_copy_is_made() -> None:
    began, ran = threading.Event(), threading.Event()

    def other() -> None:
        began.wait()
        ran.set()

    thread = threading.Thread(target=other)
    thread.start()
    piece, into = memoryview(bytes(32 * MIB)), mapped(32 * MIB)
    began.set()
    until_s = time.monotonic() + DEADLINE_S
    while not ran.is_set() and time.monotonic() < until_s:
        copy(into, piece)
    assert ran.is_set()
    thread.join()


def test_a_segment_begins_with_its_pieces_and_no_descriptor_of_it_writes() -> None:
    pieces = [memoryview(os.urandom(size)) for size in (70, 300 * KIB)]
    segment = Segment(MIB, pieces)
    try:
        with segment.view as view:
            assert view[:70] == pieces[0]
            assert view[128 : 128 + 300 * KIB] == pieces[1]
        with pytest.raises(PermissionError):
            os.pwrite(segment.file, b"x", 0)
        segment.fill(pieces[1:])
        assert os.pread(segment.file, 300 * KIB, 0) == pieces[1]
    finally:
        segment.close()


COPIES = """
import array
import os
from formation_p2p.content.mapping import copy, mapped
data = os.urandom(1 << 20)
into = mapped(len(data))
copy(into, memoryview(data))
assert bytes(into) == data
numbers, held = array.array("d", range(1 << 16)), bytearray(8 << 16)
copy(memoryview(held), memoryview(numbers))
assert held == numbers.tobytes()
held.append(1)  # which raises while any view of it is left
try:
    copy(memoryview(bytes(1 << 20)), memoryview(data))
except BufferError:
    print("good")
"""


def test_every_python_of_this_machine_has_the_buffers_that_a_copy_reads() -> None:
    root = Path(__file__).parents[2]
    for python in interpreters(other_pythons()).values():
        done = subprocess.run(
            [python.path, "-c", COPIES], cwd=root, capture_output=True, text=True, check=False
        )
        assert done.stdout == "good\n", done.stderr

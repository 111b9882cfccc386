"""The bytecode of a program that is started as a file."""

import os
import py_compile
from importlib.util import cache_from_source
from pathlib import Path

from formation_p2p.drivers.bytecode import compiled


def test_bytecode_is_used_where_it_is_of_the_source_as_it_is(tmp_path: Path) -> None:
    source, other, none = (tmp_path / name for name in ("fresh.py", "old.py", "none.py"))
    for each in (source, other, none):
        each.write_text("print('hello')")
    for each in (source, other):
        py_compile.compile(str(each))
    os.utime(other, (1, 1))
    assert compiled(source) == Path(cache_from_source(str(source)))
    assert compiled(other) == other
    assert compiled(none) == none

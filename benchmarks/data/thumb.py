"""One thumbnail: the same work on every side.

    python thumb.py FOLDER FILE...      writes FOLDER/FILE.thumb.jpg of each

Pillow and the standard library alone: it is also the file that process tasks get.
"""

from __future__ import annotations

import io
import sys
from pathlib import Path

from PIL import Image

SIZE = (160, 160)


def thumbnail(content: bytes) -> bytes:
    """A JPEG of a JPEG."""
    with Image.open(io.BytesIO(content)) as image:
        image.thumbnail(SIZE)
        into = io.BytesIO()
        image.save(into, "JPEG")
    return into.getvalue()


def thumbnail_name(name: str) -> str:
    return f"{name}.thumb.jpg"


if __name__ == "__main__":
    folder, *files = map(Path, sys.argv[1:])
    for file in files:
        (folder / thumbnail_name(file.name)).write_bytes(thumbnail(file.read_bytes()))

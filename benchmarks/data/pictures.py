"""The pictures of which thumbnails are made, the same at every run, and the check of what came of
them. Pillow and the standard library alone."""

from __future__ import annotations

import argparse
import random
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

from PIL import Image

from benchmarks.cpu import spent
from benchmarks.data.thumb import SIZE, thumbnail_name

# Some 500 kB as a JPEG: noise that was made larger has the spectrum of a soft photograph.
PICTURE: Final = (1600, 1200)
NOISE: Final = (400, 300)
QUALITY: Final = 70
# The others are copies of these, each with a comment of its own: every file differs.
DISTINCT: Final = 8
_START: Final = b"\xff\xd8"
_COMMENT: Final = b"\xff\xfe"


def draw(folder: Path, count: int) -> list[Path]:
    """So many pictures below a folder."""
    drawn: list[bytes] = []
    randomness = random.Random(7)
    for number in range(min(DISTINCT, count)):
        path = folder / f"distinct-{number}.jpg"
        noise = randomness.randbytes(NOISE[0] * NOISE[1] * 3)
        picture = Image.frombytes("RGB", NOISE, noise).resize(PICTURE)
        picture.save(path, "JPEG", quality=QUALITY)
        drawn.append(path.read_bytes())
        path.unlink()
    paths = [folder / f"{number:04}.jpg" for number in range(count)]
    for number, path in enumerate(paths):
        words = f"picture {number}".encode()
        comment = _COMMENT + (len(words) + 2).to_bytes(2, "big") + words
        path.write_bytes(_START + comment + drawn[number % DISTINCT][len(_START) :])
    return paths


@contextmanager
def pictures(count: int) -> Iterator[tuple[list[Path], Path]]:
    """Their paths, and a folder for the thumbnails."""
    with TemporaryDirectory() as folder:
        into = Path(folder, "into")
        into.mkdir()
        yield draw(Path(folder), count), into


def check(paths: list[Path], into: Path) -> None:
    for path in paths:
        with Image.open(into / thumbnail_name(path.name)) as image:
            image.load()
            if max(image.size) != max(SIZE):
                raise RuntimeError(f"the thumbnail of {path} has {image.size}")


async def timed(count: int, work: Callable[[list[Path], Path], Awaitable[None]]) -> dict[str, Any]:
    """Of the second time: in the first, of a few, what starts late has started."""
    with pictures(min(count, 4)) as (paths, into):
        await work(paths, into)
    with pictures(count) as (paths, into):
        with spent() as took:
            await work(paths, into)
        check(paths, into)
    return {"wall_s": round(took.wall_s, 2), "cpu_s": round(took.cpu_s, 2), "pictures": count}


def arguments_of(description: str | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--pictures", type=int, default=500)
    parser.add_argument("--python", help="the interpreter of processes")
    return parser.parse_args()

"""vision-ocr: the text in a picture of letters of five by seven dots, and such a picture of a text.

It reads binary PBM (P4) and grey PNG without compression filters, dark on light, in any whole
multiple of the size in which `/render` draws.
"""

from __future__ import annotations

import struct
import zlib
from typing import Any

from serving import Answer, Refused, Request, serve

WIDE, HIGH = 6, 8  # of a letter with the space after it
MAX_DOTS = 4_000_000
# Each letter's columns, the lowest bit on top.
FONT = {
    "A": "7e1111117e", "B": "7f49494936", "C": "3e41414122", "D": "7f4141221c",
    "E": "7f49494941", "F": "7f09090901", "G": "3e4149497a", "H": "7f0808087f",
    "I": "00417f4100", "J": "2040413f01", "K": "7f08142241", "L": "7f40404040",
    "M": "7f020c027f", "N": "7f0408107f", "O": "3e4141413e", "P": "7f09090906",
    "Q": "3e4151215e", "R": "7f09192946", "S": "4649494931", "T": "01017f0101",
    "U": "3f4040403f", "V": "1f2040201f", "W": "3f4038403f", "X": "6314081463",
    "Y": "0708700807", "Z": "6151494543", "0": "3e5149453e", "1": "00427f4000",
    "2": "4261514946", "3": "2141454b31", "4": "1814127f10", "5": "2745454539",
    "6": "3c4a494930", "7": "0171090503", "8": "3649494936", "9": "064949291e",
    ".": "0060600000", ",": "0050300000", "-": "0808080808", ":": "0036360000",
    "/": "2010080402", "!": "00005f0000", "?": "0201510906", " ": "0000000000",
}  # fmt: skip
LETTERS = {bytes.fromhex(columns): letter for letter, columns in FONT.items()}
Dots = list[list[int]]


def draw(text: str) -> bytes:
    """As PBM."""
    lines = [[FONT.get(x.upper(), FONT["?"]) for x in line] for line in text.splitlines() or [""]]
    width = max(1, max(map(len, lines))) * WIDE
    rows = []
    for line in lines:
        columns = b"".join(bytes.fromhex(each) + b"\0" for each in line).ljust(width, b"\0")
        rows += [[column >> y & 1 for column in columns] for y in range(HIGH)]
    packed = b"".join(
        bytes(int("".join(map(str, row[x : x + 8])).ljust(8, "0"), 2) for x in range(0, width, 8))
        for row in rows
    )
    return f"P4\n{width} {len(rows)}\n".encode() + packed


def dots_of(picture: bytes) -> Dots:
    try:
        if picture.startswith(b"P4"):
            return _pbm(picture)
        if picture.startswith(b"\x89PNG"):
            return _png(picture)
    except (ValueError, IndexError, struct.error, zlib.error):
        raise Refused(422, "the picture is damaged") from None
    raise Refused(415, "send a PBM (P4) or a grey PNG")


def _pbm(picture: bytes) -> Dots:
    _, size, packed = picture.split(b"\n", 2)
    width, height = map(int, size.split())
    _check(width, height)
    stride = (width + 7) // 8
    return [
        [packed[y * stride + x // 8] >> (7 - x % 8) & 1 for x in range(width)]
        for y in range(height)
    ]


def _png(picture: bytes) -> Dots:
    at, data, width, height = 8, b"", 0, 0
    while at < len(picture):
        (size,) = struct.unpack(">I", picture[at : at + 4])
        kind, content = picture[at + 4 : at + 8], picture[at + 8 : at + 8 + size]
        if kind == b"IHDR":
            width, height, depth, colour = struct.unpack(">IIBB", content[:10])
            if (depth, colour) != (8, 0):
                raise Refused(415, "the PNG is not of 8 bits of grey")
            _check(width, height)
        elif kind == b"IDAT":
            data += content
        at += 12 + size
    raw = zlib.decompressobj().decompress(data, (width + 1) * height)
    rows = [raw[y * (width + 1) : (y + 1) * (width + 1)] for y in range(height)]
    if any(row[0] for row in rows):
        raise Refused(415, "the PNG has filters; save it without")
    return [[int(x < 128) for x in row[1:]] for row in rows]


def _check(width: int, height: int) -> None:
    if not 0 < width * height <= MAX_DOTS:
        raise Refused(413, f"a picture has at most {MAX_DOTS} dots")


def read(dots: Dots) -> str:
    """The size that reads most letters is the right one."""
    found = [_read(dots, scale) for scale in range(1, max(1, len(dots) // HIGH) + 1)]
    return min(found, key=lambda text: (text.count("\N{REPLACEMENT CHARACTER}"), -len(text)))


def _read(dots: Dots, scale: int) -> str:
    lines = []
    for top in range(0, len(dots) - HIGH * scale + 1, HIGH * scale):
        line = ""
        for left in range(0, len(dots[0]) - WIDE * scale + 1, WIDE * scale):
            columns = bytes(
                sum(dots[top + y * scale][left + x * scale] << y for y in range(7))
                for x in range(WIDE - 1)
            )
            line += LETTERS.get(columns, "\N{REPLACEMENT CHARACTER}")
        lines.append(line.rstrip())
    return "\n".join(lines)


def recognise(request: Request) -> Any:
    text = read(dots_of(request.body))
    known = sum(x != "\N{REPLACEMENT CHARACTER}" for x in text)
    return {"text": text, "confidence": known / max(len(text), 1)}


if __name__ == "__main__":
    serve(
        {
            ("POST", "/ocr"): recognise,
            ("POST", "/render"): lambda request: Answer(
                draw(request.text("text")), "image/x-portable-bitmap"
            ),
        }
    )

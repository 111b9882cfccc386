"""Plain messages of HTTP/1.1: most requests, and most answers, read and written without the states
that h11 keeps of a connection.

What is plain is a part of what h11 takes, and is read as h11 reads it: `tests/unit/
test_gateway_plain.py` compares the two. All else is h11's: bodies that come in pieces, framing by
anything but a length, switches of protocols, connections that end, and what is malformed.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from formation_p2p.core.units import KIB

Headers = list[tuple[bytes, bytes]]

# A head with the cookies of a large site has 8 KiB.
MAX_HEAD_BYTES: Final = 16 * KIB
CLOSE: Final = b"close"
# None of these gives back what it has taken: else a line of spaces would take a second to refuse.
_NAME: Final = rb"[-!#$%&'*+.^_`|~0-9A-Za-z]++"
_VALUE: Final = rb"(?:[\x21-\x7e]++(?:[ \t]++[\x21-\x7e]++|(?!))*+)?"
_LINES: Final = rb"((?:" + _NAME + rb":[ \t]*+" + _VALUE + rb"[ \t]*+\r\n|(?!))++)\r\n"
_LINE: Final = re.compile(rb"(" + _NAME + rb"):[ \t]*+(" + _VALUE + rb")[ \t]*+\r\n")
_REQUEST: Final = re.compile(rb"GET (/[\x21-\x7e]*) HTTP/1\.1\r\n" + _LINES)
_ANSWER: Final = re.compile(rb"HTTP/1\.1 ([2-5][0-9][0-9]) ([\x20-\x7e]*)\r\n" + _LINES)
_LENGTH: Final = re.compile(rb"[0-9]{1,9}")
# Of a request: it has a body, or is more than one.
_NO_PLAIN_REQUEST: Final = frozenset(b"content-length transfer-encoding expect upgrade".split())
# Of an answer: its end, the connection's end, or what is written anew by parts.
_NO_PLAIN_ANSWER: Final = frozenset(
    b"transfer-encoding connection upgrade location set-cookie".split()
)
_BODILESS: Final = (b"204", b"304")


class PlainAnswer(NamedTuple):
    status: int
    reason: bytes
    headers: Headers
    body: bytes


def request_of(data: bytes) -> tuple[bytes, Headers] | None:
    """The target and the headers of a GET that this is, and nothing else; None where it is not
    plain."""
    if len(data) > MAX_HEAD_BYTES or (match := _REQUEST.fullmatch(data)) is None:
        return None
    headers = _headers(match[2])
    hosts = 0
    for name, value in headers:
        hosts += name == b"host"
        is_other = name == b"connection" and value.lower() not in (b"keep-alive", CLOSE)
        if name in _NO_PLAIN_REQUEST or is_other:
            return None
    return (match[1], headers) if hosts == 1 else None


def answer_of(data: bytes) -> PlainAnswer | None:
    """A whole answer to a GET that this is, and nothing else; None where it is not plain."""
    match = _ANSWER.match(data, 0, MAX_HEAD_BYTES)
    if match is None or match[1] in _BODILESS:
        return None
    headers, length = _headers(match[3]), b""
    for name, value in headers:
        if name in _NO_PLAIN_ANSWER or (name == b"content-length" and length):
            return None
        if name == b"content-length":
            length = value
    body = data[match.end() :]
    if _LENGTH.fullmatch(length) is None or int(length) != len(body):
        return None
    return PlainAnswer(int(match[1]), match[2], headers, body)


def closes(headers: Headers) -> bool:
    """Whether the request of these is the last one of its connection."""
    return any(name == b"connection" and value.lower() == CLOSE for name, value in headers)


def written(first_line: bytes, headers: Headers, body: bytes = b"") -> bytes:
    lines = b"".join([b"%b: %b\r\n" % each for each in headers])
    return b"%b\r\n%b\r\n%b" % (first_line, lines, body)


def _headers(lines: bytes) -> Headers:
    return [(name.lower(), value) for name, value in _LINE.findall(lines)]

"""What is plain is read as h11 reads it, and what h11 refuses is not plain."""

import h11
import pytest
from hypothesis import given
from hypothesis import strategies as st

from formation_p2p.features.gateway.plain import (
    MAX_HEAD_BYTES,
    Headers,
    answer_of,
    closes,
    request_of,
    written,
)

HEAD = b"GET /service/echo/?q=1 HTTP/1.1\r\nHost: a\r\n"
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n"

# Each is refused, or means something else than one GET without a body.
NO_PLAIN_REQUESTS = {
    "half a head": HEAD,
    "two at once": (HEAD + b"\r\n") * 2,
    "a body": HEAD + b"Content-Length: 2\r\n\r\nok",
    "an empty body": HEAD + b"Content-Length: 0\r\n\r\n",
    "chunks": HEAD + b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "chunks in another case": HEAD + b"TRANSFER-ENCODING: Chunked\r\n\r\n",
    "chunks and a length": HEAD + b"Content-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n",
    "a space before the colon": HEAD + b"Transfer-Encoding : chunked\r\n\r\n",
    "a line that goes on": HEAD + b"X: a\r\n b\r\n\r\n",
    "a first line that goes on": HEAD + b" X: a\r\n\r\n",
    "bare line feeds": HEAD.replace(b"\r\n", b"\n") + b"\n",
    "one bare line feed": HEAD + b"X: a\n\r\n",
    "a bare carriage return": HEAD + b"X: a\rb\r\n\r\n",
    "a null": HEAD + b"X: a\0b\r\n\r\n",
    "a control character": HEAD + b"X: a\x0bb\r\n\r\n",
    "a delete": HEAD + b"X: a\x7fb\r\n\r\n",
    "bytes beyond ASCII": HEAD + b"X: \xe9\r\n\r\n",
    "no name": HEAD + b": a\r\n\r\n",
    "no colon": HEAD + b"X\r\n\r\n",
    "a name with a space": HEAD + b"X Y: a\r\n\r\n",
    "no host": b"GET / HTTP/1.1\r\nX: a\r\n\r\n",
    "two hosts": HEAD + b"HOST: b\r\n\r\n",
    "no header": b"GET / HTTP/1.1\r\n\r\n",
    "a list of options": HEAD + b"Connection: keep-alive, x-secret\r\n\r\n",
    "an upgrade": HEAD + b"Connection: upgrade\r\nUpgrade: websocket\r\n\r\n",
    "an offer to upgrade": HEAD + b"Upgrade: h2c\r\n\r\n",
    "it waits for a word": HEAD + b"Expect: 100-continue\r\n\r\n",
    "another method": b"POST" + HEAD[3:] + b"\r\n",
    "a method in another case": b"get" + HEAD[3:] + b"\r\n",
    "a tunnel": b"CONNECT a:1 HTTP/1.1\r\nHost: a\r\n\r\n",
    "a whole URL": b"GET http://b/ HTTP/1.1\r\nHost: a\r\n\r\n",
    "no path": b"GET * HTTP/1.1\r\nHost: a\r\n\r\n",
    "a space in the path": b"GET /a b HTTP/1.1\r\nHost: a\r\n\r\n",
    "two spaces": b"GET  / HTTP/1.1\r\nHost: a\r\n\r\n",
    "a path beyond ASCII": b"GET /\xe9 HTTP/1.1\r\nHost: a\r\n\r\n",
    "an older version": b"GET / HTTP/1.0\r\nHost: a\r\n\r\n",
    "another version": b"GET / HTTP/1.2\r\nHost: a\r\n\r\n",
    "another protocol": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "an empty line first": b"\r\n" + HEAD + b"\r\n",
    "too long": HEAD + b"X: " + b"a" * MAX_HEAD_BYTES + b"\r\n\r\n",
}

NO_PLAIN_ANSWERS = {
    "half a head": OK,
    "half a body": OK + b"\r\no",
    "more than its body": OK + b"\r\nokHTTP/1.1 200 OK\r\n",
    "two lengths": OK + b"Content-Length: 2\r\n\r\nok",
    "no length": b"HTTP/1.1 200 OK\r\nX: a\r\n\r\nok",
    "no number": b"HTTP/1.1 200 OK\r\nContent-Length: +2\r\n\r\nok",
    "a list of lengths": b"HTTP/1.1 200 OK\r\nContent-Length: 2, 2\r\n\r\nok",
    "an empty length": b"HTTP/1.1 200 OK\r\nContent-Length:\r\n\r\n",
    "chunks": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "chunks and a length": OK + b"Transfer-Encoding: chunked\r\n\r\nok",
    "its end is the connection's": OK + b"Connection: close\r\n\r\nok",
    "a redirect": OK + b"Location: /elsewhere\r\n\r\nok",
    "a cookie": OK + b"Set-Cookie: a=b\r\n\r\nok",
    "a body to 204": b"HTTP/1.1 204 No Content\r\nContent-Length: 2\r\n\r\nok",
    "a body to 304": b"HTTP/1.1 304 Not Modified\r\nContent-Length: 2\r\n\r\nok",
    "not the last word": b"HTTP/1.1 103 Early Hints\r\nContent-Length: 2\r\n\r\nok",
    "an older version": OK.replace(b"1.1", b"1.0") + b"\r\nok",
    "a line that goes on": OK + b"X: a\r\n b\r\n\r\nok",
    "a bare carriage return": OK + b"X: a\rSet-Cookie: b=c\r\n\r\nok",
    "a reason of two lines": b"HTTP/1.1 200 O\rK\r\nContent-Length: 2\r\n\r\nok",
    "bare line feeds": OK.replace(b"\r\n", b"\n") + b"\nok",
}


@pytest.mark.parametrize("case", NO_PLAIN_REQUESTS)
def test_no_request_is_plain_that_h11_is_to_judge(case: str) -> None:
    assert request_of(NO_PLAIN_REQUESTS[case]) is None


@pytest.mark.parametrize("case", NO_PLAIN_ANSWERS)
def test_no_answer_is_plain_that_h11_is_to_judge(case: str) -> None:
    assert answer_of(NO_PLAIN_ANSWERS[case]) is None


def as_h11_reads(data: bytes) -> tuple[bytes, Headers]:
    """A request and no more. Raises h11.RemoteProtocolError."""
    http = h11.Connection(h11.SERVER)
    http.receive_data(data)
    request = http.next_event()
    assert isinstance(request, h11.Request)
    assert isinstance(http.next_event(), h11.EndOfMessage)
    assert (request.method, request.http_version) == (b"GET", b"1.1")
    assert http.trailing_data == (b"", False)
    http.send(h11.Response(status_code=200, headers=[(b"content-length", b"0")]))
    http.send(h11.EndOfMessage())
    assert http.our_state is (h11.MUST_CLOSE if closes(list(request.headers)) else h11.DONE)
    return request.target, list(request.headers)


# Of what heads are made of, and of what they are not.
PIECES = st.sampled_from(
    [
        *(
            b"\r",
            b"\n",
            b"\r\n",
            b" ",
            b"\t",
            b":",
            b"\0",
            b"\xff",
            b"\x0b",
            b",",
            b";",
            b"a",
            b"X",
        ),
        *(b"Host", b"Content-Length", b"Transfer-Encoding", b"Connection", b"Upgrade", b"Expect"),
        *(b"chunked", b"close", b"keep-alive", b"0", b"2", b"\r\nHost: b", b"\r\n\r\n", b"\x85"),
    ]
)
LINES = st.lists(PIECES, max_size=8).map(b"".join)


@given(st.lists(LINES, max_size=4), st.booleans())
def test_a_plain_request_is_read_as_h11_reads_it(lines: list[bytes], ends: bool) -> None:
    data = HEAD + b"".join(each + b"\r\n" for each in lines) + b"\r\n" * ends
    if (found := request_of(data)) is not None:
        assert found == as_h11_reads(data)


@given(
    st.lists(st.tuples(st.text("aX-9!~", min_size=1), st.text("ab \t:,;=\"'", max_size=6))),
    st.sampled_from([b"", b" ", b"\t "]),
)
def test_headers_that_mean_nothing_to_http_are_plain(
    said: list[tuple[str, str]], space: bytes
) -> None:
    lines = [name.encode() + b":" + space + value.encode() + space for name, value in said]
    data = HEAD + b"".join(each + b"\r\n" for each in lines) + b"\r\n"
    assert request_of(data) == as_h11_reads(data)


@given(st.lists(LINES, max_size=4), st.sampled_from([200, 404, 500]), st.binary(max_size=4))
def test_a_plain_answer_is_read_as_h11_reads_it(
    lines: list[bytes], status: int, body: bytes
) -> None:
    head = b"HTTP/1.1 %d Fine\r\nContent-Length: %d\r\n" % (status, len(body))
    data = head + b"".join(each + b"\r\n" for each in lines) + b"\r\n" + body
    found = answer_of(data)
    if found is None:
        return
    http = h11.Connection(h11.CLIENT)
    http.send(h11.Request(method="GET", target="/", headers=[("host", "a")]))
    http.send(h11.EndOfMessage())
    http.receive_data(data)
    answer = http.next_event()
    assert isinstance(answer, h11.Response)
    assert found[:3] == (answer.status_code, answer.reason, list(answer.headers))
    heard = b""
    while isinstance(event := http.next_event(), h11.Data):
        heard += event.data
    assert isinstance(event, h11.EndOfMessage)
    assert found.body == heard == body
    assert http.trailing_data == (b"", False)
    assert http.their_state is h11.DONE, "another answer may follow"


@pytest.mark.parametrize("option", [b"close", b"Close", b"keep-alive", b"Keep-Alive"])
def test_which_request_is_the_last_of_its_connection(option: bytes) -> None:
    data = HEAD + b"Connection: " + option + b"\r\n\r\n"
    found = request_of(data)
    assert found == as_h11_reads(data)
    assert found is not None
    assert closes(found[1]) == (option.lower() == b"close")


def test_what_is_written_is_plain() -> None:
    headers = [(b"host", b"a"), (b"x-empty", b""), (b"accept", b"*/*; q=1")]
    assert request_of(written(b"GET /a?b HTTP/1.1", headers)) == (b"/a?b", headers)
    told = [(b"content-length", b"2")]
    assert answer_of(written(b"HTTP/1.1 200 OK", told, b"ok")) == (200, b"OK", told, b"ok")


@pytest.mark.parametrize("line", [b"X:%b\0", b"X: x%b\0", b"X: %bx \0", b"%b\0"])
def test_a_line_of_spaces_is_refused_as_fast_as_any(line: bytes) -> None:
    """Read in quadratic time, these take minutes."""
    for piece in (b" ", b"\t", b"x ", b"x: \r\n"):
        head = HEAD + line % (piece * ((MAX_HEAD_BYTES - 100) // len(piece))) + b"\r\n\r\n"
        for _ in range(20):
            assert request_of(head) is None
            assert answer_of(OK + head.removeprefix(HEAD)) is None

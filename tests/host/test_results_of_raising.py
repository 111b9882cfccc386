"""What a call raises is caught by its class, whatever the exception holds."""

import io
import socket
import threading
import urllib.error
from collections import Counter
from dataclasses import dataclass
from http.client import HTTPResponse
from pathlib import PurePosixPath
from typing import Any

import pytest

from formation_p2p.core.errors import NotPlain
from formation_p2p.drivers import python_error, result_pickler
from formation_p2p.drivers.python_child import pickled
from formation_p2p.results.load import load_result

LOCK = threading.Lock()


class Held(Exception):
    def __init__(self, *, lock: object) -> None:
        super().__init__("held")
        self.lock = lock
        self.since = 3


@dataclass
class Own:
    number: int


class NoData:
    """It says itself what it has, and has no text of its own."""

    def __getstate__(self) -> dict[str, int]:
        return {"a": 1}

    def __repr__(self) -> str:
        raise ValueError


def raised(error: BaseException) -> Any:
    return load_result(python_error.dumps(error, result_pickler))


def test_texts_stand_for_arguments_that_cannot_be_pickled() -> None:
    plain = (1, PurePosixPath("a"), Own(2), Counter("a"), 1j, None)
    read = raised(ValueError({"a": [LOCK, plain]}, LOCK))
    assert type(read) is ValueError
    assert read.args == ({"a": [repr(LOCK), plain]}, repr(LOCK))


def test_texts_stand_for_attributes_that_cannot_be_pickled() -> None:
    read = raised(Held(lock=LOCK))
    assert (type(read), str(read), read.lock, read.since) == (Held, "held", repr(LOCK), 3)


def test_of_a_group_each_exception_is_seen_to() -> None:
    group = raised(ExceptionGroup("several", [ValueError(LOCK), Held(lock=3)]))
    assert [type(each) for each in group.exceptions] == [ValueError, Held]
    assert group.exceptions[0].args == (repr(LOCK),)


def test_what_is_no_data_beside_what_cannot_be_pickled_is_a_text_too() -> None:
    read = raised(ValueError(LOCK, NoData(), open, "x" * 5000, b"".join))
    assert read.args[1:4] == ("<NoData>", "<built-in function open>", "x" * 5000)
    assert all(type(each) is str for each in read.args)


def test_an_exception_that_can_be_pickled_keeps_what_it_holds_for_who_trusts() -> None:
    with pytest.raises(NotPlain) as refused:
        raised(ValueError(NoData()))
    assert type(refused.value.load_trusted().args[0]) is NoData


def an_answer() -> HTTPResponse:
    near, far = socket.socketpair()
    with far:
        far.sendall(b"HTTP/1.1 404 none\r\nServer: x\r\n\r\n")
    with near:
        answer = HTTPResponse(near)
        answer.begin()
    return answer


@pytest.mark.parametrize(
    "stream", [None, io.BytesIO(b"x"), an_answer()], ids=["none", "bytes", "answer"]
)
def test_an_error_of_http_is_caught_as_one(stream: Any) -> None:
    headers: Any = {} if stream is None else getattr(stream, "headers", {})
    read = raised(urllib.error.HTTPError("http://a", 404, "not found", headers, stream))
    assert type(read) is urllib.error.HTTPError
    assert (read.code, read.reason, read.url) == (404, "not found", "http://a")
    assert str(read) == "HTTP Error 404: not found"


def test_an_error_that_is_the_reason_of_another_comes_along() -> None:
    reason = socket.gaierror(-3, "Temporary failure in name resolution")
    for error in (urllib.error.URLError(reason), ConnectionError(TimeoutError("late"))):
        read = raised(error)
        assert type(read) is type(error)
        assert repr(read.args[0]) == repr(error.args[0])


def test_one_that_cannot_be_pickled_in_any_way_is_told_as_text_alone() -> None:
    class MadeHere(Exception):
        pass

    ring: list[object] = [LOCK]
    ring.append(ring)
    for error in (MadeHere(LOCK), ValueError(ring)):
        assert pickled(error) == b""

"""What the owner of a Dask cluster reads of its members: data, and nothing that runs."""

import datetime
import os
import threading
import zlib
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import dask
import numpy as np
import pytest
from distributed.client import _handle_warn
from distributed.comm.core import connect
from distributed.core import clean_exception, error_message
from distributed.objects import HasWhat, SchedulerInfo, WhoHas
from distributed.protocol import (
    Serialized,
    dumps,
    register_serialization_family,
    to_serialize,
)
from distributed.protocol import loads as dask_loads
from distributed.protocol import pickle as dask_pickle
from distributed.protocol.serialize import Pickled, ToPickle
from IPython.core.formatters import HTMLFormatter

from formation_p2p.core.errors import InvalidInput, NotPlain, RemoteError, StateError
from formation_p2p.drivers import result_pickler
from formation_p2p.features.dask.cluster import ClusterSpec, StreamsOnly
from formation_p2p.features.dask.comm import MARKED
from formation_p2p.features.dask.member import differing, marked, versions
from formation_p2p.features.dask.plain import loads
from formation_p2p.features.dask.survival import Kept
from formation_p2p.machine.core.requirements import Requirements

# As members have it.
register_serialization_family(MARKED, partial(marked, result_pickler, threading.Lock()), None)


def sent(message: Any, serializers: tuple[str, ...] = ("dask", "pickle")) -> list[Any]:
    return [bytes(frame) for frame in dumps(message, serializers=serializers)]


def result(value: Any, *serializers: str) -> Any:
    message = {"status": "OK", "data": {"key": to_serialize(value)}}
    return loads(sent(message, serializers or (MARKED,)))["data"]["key"]


class Runs:
    """Its pickle makes a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return os.mkdir, (str(self.folder),)


@pytest.mark.parametrize(
    "value",
    [
        *(1, "text", b"bytes", [1, {2: (3.5, None)}], {"a": {1, 2}}, np.float64(2.5), np.int32(-7)),
        *(("a", np.int8(1)), datetime.datetime(2026, 1, 1), {(1, 2): [3]}),
    ],
    ids=repr,
)
def test_plain_values_and_scalars_come_as_they_are(value: Any) -> None:
    back = result(value)
    assert back == value
    assert type(back) is type(value)


@pytest.mark.parametrize(
    "array",
    [
        np.arange(12).reshape(3, 4),
        np.asfortranarray(np.arange(12.0).reshape(3, 4)),
        np.broadcast_to(np.float32(3), (4, 5)),
        np.array(7),
        np.array(["2026-11-23"], "M8[D]"),
    ],
    ids=lambda array: str(array.dtype),
)
def test_arrays_come_as_they_are(array: Any) -> None:
    back = result(array)
    np.testing.assert_array_equal(back, array)
    assert back.dtype == array.dtype


def test_what_a_result_would_run_is_not_run(tmp_path: Path) -> None:
    made = tmp_path / "made"
    for value in (Runs(made), [Runs(made)], np.array([Runs(made)], object)):
        for serializers in ((), ("dask", "pickle"), ("pickle",)):
            with pytest.raises(NotPlain):
                result(value, *serializers)
    with pytest.raises(NotPlain, match="cannot pickle"):
        result(threading.Lock())
    with pytest.raises(NotPlain):
        loads(sent({"op": "x", "value": ToPickle(Runs(made))}))
    pickled = dask_pickle.dumps(Runs(made))
    told = loads(sent({"op": "key-in-memory", "key": "k", "type": pickled}))
    assert told["type"] is None
    failed = loads(sent({"op": "task-erred", "exception": pickled, "traceback": pickled}))
    assert isinstance(failed["exception"], RemoteError)
    assert failed["traceback"] is None
    assert not made.exists()


class OfThisFile(Exception):
    """An owner does not look for the class of a member's error."""


def told(error: Exception) -> Any:
    try:
        raise error
    except type(error) as raised:
        said = dict(error_message(raised))
    del said["exception_text"]  # Dask leaves it out of what it says of tasks
    return loads(sent(said))["exception"]


@pytest.mark.parametrize(
    "error",
    [ValueError("bad", 3), KeyError(("x", 0)), FileNotFoundError(2, "not there", "file")],
    ids=repr,
)
def test_an_error_of_the_language_is_raised_as_itself(error: Exception) -> None:
    assert type(told(error)) is type(error)
    assert str(told(error)) == str(error)


def test_an_error_of_another_module_is_told_by_its_name() -> None:
    assert type(told(OfThisFile("why", 3))) is RemoteError
    assert str(told(OfThisFile("why", 3))) == "OfThisFile: why, 3"
    many: list[Any] = []
    for _ in range(50):  # to print it would take for ever
        many = [many, many]
    printed = loads(sent({"exception": dask_pickle.dumps(ValueError("deep", many))}))["exception"]
    assert str(printed) == "ValueError: deep, …"


# What a member may send, and where it wants it unpickled.
Message = Callable[[bytes], Any]
UNPICKLED_BY_DASK: dict[str, Message] = {
    "the type of a result": lambda x: {"op": "key-in-memory", "key": "k", "type": x},
    "that type as another kind of bytes": lambda x: {"type": to_serialize(bytearray(x))},
    "an exception": lambda x: {"op": "task-erred", "key": "k", "exception": x},
    "a traceback without one": lambda x: {"op": "task-erred", "key": "k", "traceback": x},
    "the answer of a worker": lambda x: {"formation://m1.g:1": x},
    "a message in a value": lambda x: to_serialize({"op": "task-erred", "exception": x}),
    "messages in a value": lambda x: (to_serialize({"op": "x", "type": x}),),
    "an answer in a value": lambda x: {"m1": to_serialize({"status": "error", "exception": x})},
    "an answer in a pickle": lambda x: {"m1": ToPickle({"status": "error", "traceback": x})},
    "answers as the values of a value": lambda x: {"x": {"data": to_serialize({"type": x})}},
    "a warning": lambda x: {
        "op": "event", "topic": "warn", "event": (1.0, {"message": x, "category": x})
    },
    "a warning in a value": lambda x: {
        "op": "event", "topic": "warn", "event": to_serialize((1.0, {"message": x}))
    },
}  # fmt: skip


# What Dask itself would refuse to read.
OF_OURS: dict[str, Message] = {"an enum": lambda x: {"m1": {"__Enum__": 1, "name": x}}}


def as_a_client_reads_it(part: Any) -> None:
    """All that Dask's client could take for a message: see plain.py."""
    if isinstance(part, tuple | list):
        for each in part:
            as_a_client_reads_it(each)
    elif isinstance(part, bytes):
        dask_pickle.loads(part)
    elif isinstance(part, dict):
        if "exception" in part or "traceback" in part:
            clean_exception(part.get("exception"), part.get("traceback"))
        if part.get("op") == "event":
            dask_pickle.loads(part["event"][1]["message"])
            dask_pickle.loads(part["event"][1]["category"])
        if part.get("type"):
            with suppress(TypeError):
                dask_pickle.loads(part["type"])
        for name, each in part.items():
            if name not in ("data", "result", "event"):
                as_a_client_reads_it(each)


@pytest.mark.parametrize("message", (UNPICKLED_BY_DASK | OF_OURS).values())
def test_a_client_finds_nothing_to_unpickle(message: Message, tmp_path: Path) -> None:
    made = tmp_path / "made"
    frames = sent(message(dask_pickle.dumps(Runs(made))))
    try:
        read = loads(frames)
    except NotPlain:
        return
    as_a_client_reads_it(read)
    assert not made.exists()


@pytest.mark.parametrize("message", UNPICKLED_BY_DASK.values(), ids=UNPICKLED_BY_DASK)
def test_these_messages_run_what_they_say_where_dask_reads_them(
    message: Message, tmp_path: Path
) -> None:
    made = tmp_path / "made"
    read = dask_loads(sent(message(dask_pickle.dumps(Runs(made)))))
    with suppress(Exception):
        as_a_client_reads_it(read)
        as_a_client_reads_it(read["x"]["data"])
    assert made.exists()


def test_values_are_where_a_client_hands_them_on() -> None:
    value = {"type": b"type", "exception": b"bytes", "status": "error"}
    ran = loads(sent({"m1": {"status": "OK", "result": to_serialize(value)}}))
    assert ran["m1"]["result"] == value
    gathered = loads(sent({"status": "OK", "data": {"result": to_serialize(value), "x": 1}}))
    assert gathered["data"]["result"] == value
    named = loads(sent({"type": "msgpack", "value": b"of a variable"}))
    assert named["value"] == b"of a variable"


def test_an_error_in_the_place_of_an_answer_is_an_error_still() -> None:
    answers = loads(sent({"m1": dask_pickle.dumps(OSError("gone")), "m2": b"\x80\x05N."}))
    assert isinstance(answers["m1"], bytes)
    assert repr(dask_pickle.loads(answers["m1"])) == "OSError('gone')"
    assert isinstance(answers["m2"], memoryview)


def test_a_warning_of_a_member_is_shown() -> None:
    said = {"message": dask_pickle.dumps("hot"), "category": dask_pickle.dumps(RuntimeWarning)}
    event = loads(sent({"op": "event", "topic": "warn", "event": (1.0, said)}))["event"]
    with pytest.warns(RuntimeWarning, match="hot"):
        _handle_warn(event)


@pytest.mark.parametrize(
    "opcodes", [b"Nr\xff\xff\xff\x7f.", b"\x80\x05N."], ids=["a memo of 16 GiB", "no exception"]
)
def test_the_pickle_of_an_error_takes_no_more_than_it_has(opcodes: bytes) -> None:
    assert isinstance(loads(sent({"exception": opcodes}))["exception"], RemoteError)
    with pytest.raises(NotPlain):
        loads(
            sent({"x": ToPickle(None), "result": Serialized(*as_pickle(b"multiarray" + opcodes))})
        )


def as_pickle(pickled: bytes) -> tuple[dict[str, Any], list[bytes]]:
    return {"serializer": "pickle", "writeable": ()}, [pickled]


def test_what_is_compressed_is_read_where_that_was_agreed() -> None:
    header = {"serializer": "pickle", "writeable": (), "compression": ("zlib",)}
    bomb = {"result": Serialized(header, [zlib.compress(dask_pickle.dumps("a" * 1000))])}
    with pytest.raises(NotPlain, match="agreed"):
        loads(sent(bomb))
    with dask.config.set({"distributed.comm.compression": "zlib"}):
        assert loads(sent(bomb))["result"] == "a" * 1000


def test_no_state_is_unpickled_when_it_is_read_again(tmp_path: Path) -> None:
    made = tmp_path / "made"
    runs = {"pickled-obj": dask_pickle.dumps(Runs(made)), "serializer": "x"}
    graph = {"number": "1", "expr_ser": Serialized(runs, []), "keys": ToPickle(Runs(made))}
    # Dask takes such a dict for a pickle that lies in the frame after it.
    graph["options"] = ToPickle({"__Pickled__": 1})
    came = loads(sent(graph), False)
    place = Kept(tmp_path / "state")
    place.keep_graph(came)
    (record,) = Kept(tmp_path / "state").graphs()
    assert isinstance(record["keys"], Pickled)
    assert isinstance(record["options"], Pickled)
    assert not made.exists()


async def test_a_client_connects_to_no_address_of_another_kind() -> None:
    options = StreamsOnly().get_connection_args("client")
    for scheme, refusal in (("tcp", RuntimeError), ("tls", TypeError), ("ws", TypeError)):
        with pytest.raises(refusal):
            await connect(f"{scheme}://127.0.0.1:9", timeout=1, **options)


def test_what_is_not_read_stays_as_it_came() -> None:
    message = loads(sent({"data": {"key": to_serialize(Runs(Path("/nowhere")))}}), False)
    assert isinstance(message["data"]["key"], Serialized)


@pytest.mark.parametrize("garbage", [b"", b"\xc1", b"\x81\xae__Serialized__\x05"])
def test_garbage_is_refused(garbage: bytes) -> None:
    with pytest.raises(NotPlain):
        loads([garbage])


def test_graphs_and_results_are_kept_as_they_came(tmp_path: Path) -> None:
    place = Kept(tmp_path / "state")
    graph = Serialized({"serializer": "pickle"}, [b"graph"])
    place.keep_graph({"op": "graph", "number": "1", "expr_ser": graph, "keys": [("x", 0)]})
    place.keep_result(("x", 0), graph)
    again = Kept(tmp_path / "state")
    (record,) = again.graphs()
    assert record["expr_ser"].frames[0] == b"graph"
    assert again.has_result(("x", 0))
    assert [each["key"] for each in again.results()] == [("x", 0)]
    again.forget_graph("1")
    assert not list(again.graphs())
    with pytest.raises(StateError, match="release"):
        Kept(tmp_path / "state", max_results=1).keep_result("another", graph)


def test_a_member_with_other_packages_is_told_both_versions() -> None:
    own = versions()
    assert differing(own, own, "member 1") is None
    said = differing({**own, "distributed": "2025.1.0"}, own, "member 1")
    assert said is not None
    assert f"distributed 2025.1.0 instead of {own['distributed']}" in said
    assert f"install distributed=={own['distributed']} there" in said


def test_a_cluster_has_at_least_one_worker() -> None:
    with pytest.raises(InvalidInput, match="workers"):
        ClusterSpec(0, 2, Requirements())
    with pytest.raises(InvalidInput, match="threads"):
        ClusterSpec(1, 2, Requirements(), threads=0)


IMG = "<img src=x onerror=alert(1)>"


def test_a_notebook_shows_the_text_of_members_as_text() -> None:
    """A hostile scheduler says anything of itself, of workers and of keys."""
    worker = {
        "type": IMG,
        "name": IMG,
        "nthreads": IMG,
        "host": f'"{IMG}',
        "services": {"dashboard": IMG},
        "memory_limit": 1,
        "nanny": IMG,
        "local_directory": IMG,
    }
    scheduler = {"type": IMG, "id": IMG, "address": IMG, "workers": {IMG: worker}}
    counts = {"started": 0, "n_workers": 1, "total_threads": IMG, "total_memory": 1}
    for shown in (
        SchedulerInfo({**scheduler, "services": {}, **counts}),
        HasWhat({IMG: [IMG]}),
        WhoHas({IMG: [IMG]}),
    ):
        html = HTMLFormatter()(shown)
        assert "<img" not in html
        assert "&lt;img" in html

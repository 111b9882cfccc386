"""Results as a worker pickles them, honest and hostile."""

from __future__ import annotations

import pickle
from typing import Any

import cloudpickle

from formation_p2p.drivers.result_pickler import MARKED, dumps
from formation_p2p.results.load import load_result


class Call:
    """What a hostile worker would have its caller call: a marker, with any arguments."""

    def __init__(self, marker: str, *arguments: object) -> None:
        self._reduced = (getattr(MARKED, marker), arguments)

    def __reduce__(self) -> tuple[Any, ...]:
        return self._reduced


def hostile(value: object) -> bytes:
    return pickle.dumps(value, 5)


def travelled(value: object, *, trust: bool = False) -> Any:
    """As it comes back in the pickle alone."""
    return load_result(dumps(value), trust=trust)


def travelled_beside(value: object) -> Any:
    """As it comes back with its buffers beside the pickle, in memory that can be written."""
    beside: list[pickle.PickleBuffer] = []
    pickled = dumps(value, beside.append)
    return load_result(pickled, buffers=[memoryview(bytearray(each.raw())) for each in beside])


def sent(*classes: type) -> None:
    """As a caller sends a function that uses them: by value."""
    cloudpickle.dumps(classes)

"""The answers of drivers as values, to compare those of several workers."""

from __future__ import annotations

from formation_p2p.workload.core.blob import Content
from formation_p2p.workload.core.comparers import read_plain
from formation_p2p.workload.core.parcel import Parcel, places_of
from formation_p2p.workload.core.work import PythonCall


def read(driver: str, result: bytes, content: Content | None) -> object:
    """What a call returned is read as plain data alone: several strangers have sent it. Raises
    NotPlain, ValueError."""
    if driver != PythonCall.driver:
        return read_plain(driver, result, content)
    return loaded(result, content, trust=False)


def loaded(result: bytes, content: Content | None, *, trust: bool) -> object:
    """What a call returned. Arrays are used where the content lies. Raises NotPlain."""
    from formation_p2p.results.load import load_result  # which few nodes need

    if content is None:
        return load_result(result, trust=trust)
    pickled, buffers = parts_of(Parcel.decode(result), content.take())
    return load_result(pickled, buffers=buffers, trust=trust)


def parts_of(parcel: Parcel, content: memoryview) -> tuple[bytes, list[memoryview]]:
    """The pickle and its buffers."""
    sizes = parcel.sizes
    pieces = [content[at : at + size] for at, size in zip(places_of(sizes), sizes, strict=False)]
    return parcel.pickled or bytes(pieces[0]), pieces[1:]

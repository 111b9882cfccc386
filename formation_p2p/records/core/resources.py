"""Requirements, capability and capacity as CBOR: lists with the fields in order.

`pack_*` gives what `codec.encode` takes, `unpack_*` reads what `codec.decode` gave and raises
Malformed. Types, ranges and counts are checked by the nouns themselves (`resources/`), where
they are made; here it is only the shape.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from operator import attrgetter
from typing import Any, Final, ParamSpec, TypeVar

from formation_p2p.core.errors import InvalidInput
from formation_p2p.core.identity import PeerId, peer_id_from_bytes
from formation_p2p.machine.core.bounds import MAX_GPUS, MAX_LABELS
from formation_p2p.machine.core.capability import Capability, Capacity, GpuFree
from formation_p2p.machine.core.gpu import Gpu
from formation_p2p.machine.core.python import MAX_PYTHONS, Python
from formation_p2p.machine.core.requirements import MAX_MODELS_ASKED, Requirements
from formation_p2p.records.core.codec import (
    Malformed,
    decode,
    encode,
    take_bytes,
    take_int,
    take_list,
)

_MAX_PEER_ID_BYTES: Final = 64

_P = ParamSpec("_P")
_T = TypeVar("_T")

# What a query in the DHT has room for. Real requirements take 60 bytes; eight labels and
# sixteen models of the greatest length would take 2,700, which do not occur.
MAX_REQUIREMENTS_BYTES: Final = 2048

# The order of the fields is their order on the wire.
_REQUIREMENTS: Final = tuple(each.name for each in fields(Requirements))
_needs: Final = attrgetter(*_REQUIREMENTS)
_device: Final = attrgetter(*(each.name for each in fields(Gpu)))
_python: Final = attrgetter(*(each.name for each in fields(Python)))
_amounts: Final = attrgetter("cpu_milli", "memory_bytes", "storage_bytes", "network_mbps")


def encode_requirements(needs: Requirements) -> bytes:
    """Raises InvalidInput for what takes more than MAX_REQUIREMENTS_BYTES."""
    raw = encode(pack_requirements(needs))
    if len(raw) > MAX_REQUIREMENTS_BYTES:
        problem = f"{len(raw)} bytes, and a query has room for {MAX_REQUIREMENTS_BYTES}"
        raise InvalidInput("requirements", f"{problem}; ask for fewer labels or models")
    return raw


def decode_requirements(raw: bytes) -> Requirements:
    """Raises Malformed."""
    return unpack_requirements(decode(raw, MAX_REQUIREMENTS_BYTES))


def pack_requirements(needs: Requirements) -> list[object]:
    *amounts, models, share, labels, driver, python, pickle, environment, vendor = _needs(needs)
    pairs, of_call = list(map(list, labels)), (driver, python, pickle)
    return [*amounts, list(models), share, pairs, *of_call, environment, vendor]


def unpack_requirements(value: object) -> Requirements:
    row = take_row(value, len(_REQUIREMENTS), "requirements", "are not a list of fifteen fields")
    needs = dict(zip(_REQUIREMENTS, row, strict=True))
    needs["gpu_models"] = tuple(take_list(needs["gpu_models"], "gpu.model", MAX_MODELS_ASKED))
    needs["labels"] = unpack_labels(needs["labels"])
    return checked(Requirements, **needs)


def pack_capability(capability: Capability) -> list[object]:
    gpus = [list(_device(gpu)) for gpu in capability.gpus]
    pythons = [list(_python(python)) for python in capability.pythons]
    machine = capability.arch, capability.os, gpus, pythons, int(capability.installs)
    return [*_amounts(capability), *machine]


def unpack_capability(value: object) -> Capability:
    row = take_row(value, 9, "capability", "is not a list of nine fields")
    cpu, memory, storage, network, arch, os, gpus, offered, installs = row
    devices = tuple(map(_unpack_gpu, take_list(gpus, "gpu", MAX_GPUS)))
    pythons = tuple(map(_unpack_python, take_list(offered, "python", MAX_PYTHONS)))
    can = take_int(installs, "packages", 0, 1) == 1
    return checked(Capability, cpu, memory, storage, network, devices, arch, os, pythons, can)


def pack_capacity(capacity: Capacity, capability: Capability) -> list[object]:
    """A device is named by its place in the capability: its id alone takes 40 bytes.

    Raises InvalidInput where the capacity lists a device that the capability does not.
    """
    places = {gpu.device_id: place for place, gpu in enumerate(capability.gpus)}
    for gpu in capacity.gpus:
        if gpu.device_id not in places:
            raise InvalidInput("gpu.id", f"{gpu.device_id} is free, but not in the capability")
    free = [[places[gpu.device_id], gpu.share_milli, gpu.memory_bytes] for gpu in capacity.gpus]
    return [*_amounts(capacity), free]


def unpack_capacity(value: object, capability: Capability) -> Capacity:
    row = take_row(value, 5, "capacity", "is not a list of five fields")
    cpu, memory, storage, network, gpus = row
    devices = take_list(gpus, "gpu", len(capability.gpus))
    free = tuple(_unpack_free(device, capability) for device in devices)
    return checked(Capacity, cpu, memory, storage, network, free)


def unpack_labels(value: object) -> tuple[tuple[str, str], ...]:
    """Pairs of whatever there is, at most MAX_LABELS; the noun that takes them checks them."""
    pairs = take_list(value, "label", MAX_LABELS)
    if not all(isinstance(pair, list) and len(pair) == 2 for pair in pairs):
        raise Malformed("label", "is not [key, value]")
    return tuple((key, value) for key, value in pairs)


def checked(noun: Callable[_P, _T], *args: _P.args, **fields: _P.kwargs) -> _T:
    """Make a noun that checks itself; what it refuses is Malformed, for the bytes said so."""
    try:
        return noun(*args, **fields)
    except InvalidInput as error:
        raise Malformed(error.field, error.problem) from error


def take_row(value: object, items: int, field: str, problem: str) -> list[Any]:
    if type(value) is not list or len(value) != items:
        raise Malformed(field, problem)
    return value


def take_peer_id(value: object, field: str) -> PeerId:
    try:
        return peer_id_from_bytes(take_bytes(value, field, _MAX_PEER_ID_BYTES))
    except ValueError as error:
        raise Malformed(field, "is not a peer id") from error


def _unpack_gpu(value: object) -> Gpu:
    return checked(Gpu, *take_row(value, 5, "gpu", "is not a list of five fields"))


def _unpack_python(value: object) -> Python:
    return checked(Python, *take_row(value, 3, "python", "is not a list of three fields"))


def _unpack_free(value: object, capability: Capability) -> GpuFree:
    place, share, memory = take_row(value, 3, "gpu", "is not a list of three fields")
    gpu = capability.gpus[take_int(place, "gpu.place", 0, len(capability.gpus) - 1)]
    return checked(GpuFree, gpu.device_id, share, memory)

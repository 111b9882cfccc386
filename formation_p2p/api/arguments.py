"""Pickles of the arguments of calls, one after the other."""

from __future__ import annotations

import io
import pickle
import traceback
from collections.abc import Mapping
from functools import partial
from typing import Any, Final

from formation_p2p.api.code import CodePickler, note_part, pickler_for
from formation_p2p.api.reference import OnlyInCalls, Packer, Reference, Referred, good_for
from formation_p2p.core.errors import LocalError
from formation_p2p.workload.core.code_bundle import ModuleNames
from formation_p2p.workload.core.parcel import LARGE_BYTES, MAX_BUFFERS, Parcel

# What any pickler writes alike, with nothing in it to look up.
_SCALARS: Final = frozenset({int, float, bool, str, bytes, type(None)})


class _TooLarge(Exception):
    """A pickle is larger than it may be."""


class _Bounded(io.BytesIO):
    """Takes so much that a pickler goes on until then, and no further."""

    most: int | None = None

    def write(self, data: Any) -> int:
        if self.most is not None and self.tell() + memoryview(data).nbytes > self.most:
            raise _TooLarge
        return super().write(data)


class ArgumentPickler:
    """Pickles the arguments of one call after the other, at a tenth of the price of a pickler
    each, for this version of Python or another. What is large goes into a private blob. For one
    thread."""

    def __init__(self, packer: Packer, python: str = "") -> None:
        self._packer = packer
        self._buffer = _Bounded()
        self._buffers: list[pickle.PickleBuffer] = []
        self._python = python
        self._takes = partial(is_small, kept=self._buffers)
        self._pickler = pickler_for(self._buffer, python, self._takes)
        self._referring: CodePickler | None = None  # once there was a reference
        self._referred = Referred()

    @property
    def modules(self) -> ModuleNames:
        """What all of them refer to."""
        if self._referring is None:
            return self._pickler.modules
        return self._pickler.modules | self._referring.modules | self._referred.modules

    def dumps(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bytes | Parcel:
        """Raises whatever an argument that cannot be pickled raises; LocalError where a large one
        cannot be kept; InvalidInput for a reference that is not good any more."""
        if not kwargs and all(type(each) in _SCALARS for each in args):
            pickled = pickle.dumps((args, {}), 5)
            return pickled if len(pickled) <= LARGE_BYTES else self._packer.pack(pickled)
        if self._referring is None:
            try:
                return self._dumped(self._pickler, args, kwargs)
            except OnlyInCalls:
                number_of = self._referred.number_of
                self._referring = pickler_for(self._buffer, self._python, self._takes, number_of)
        return self._dumped(self._referring, args, kwargs)

    def small(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bytes | Parcel | None:
        """As `dumps`, of what may change and is small; None for the rest."""
        if all(type(each) in _SCALARS for each in (*args, *kwargs.values())):
            return None
        self._buffer.most = LARGE_BYTES
        try:
            return self.dumps(args, kwargs)
        except Exception:  # noqa: BLE001 - `dumps` raises it again, where it can be told
            return None
        finally:
            self._buffer.most = None

    def _dumped(
        self, pickler: CodePickler, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> bytes | Parcel:
        references: tuple[Reference[object], ...] = ()
        try:
            try:
                pickler.dump((args, dict(kwargs)))
            except Exception as error:
                if self._buffer.most is None:
                    note_part(error, (args, dict(kwargs)))
                raise
            finally:
                references = self._referred.take()
            if self._buffer.most is not None and self._buffers:
                raise _TooLarge
            if not self._buffers and not references and self._buffer.tell() <= LARGE_BYTES:
                return self._buffer.getvalue()
            parcels = good_for(self._packer, references)
            with self._buffer.getbuffer() as written:
                try:
                    return self._packer.pack(written, self._buffers, parcels)
                except LocalError as error:
                    traceback.clear_frames(error.__traceback__)  # they have views of the buffer
                    raise
        finally:
            self._buffers.clear()
            pickler.clear_memo()
            self._buffer.seek(0)
            self._buffer.truncate()


def is_small(buffer: pickle.PickleBuffer, kept: list[pickle.PickleBuffer]) -> bool:
    """Whether it goes into the pickle. Else it is `kept`, as it is, for what comes of that."""
    if buffer.raw().nbytes <= LARGE_BYTES or len(kept) >= MAX_BUFFERS:
        return True
    kept.append(buffer)
    return False

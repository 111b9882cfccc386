"""What a call has in private blobs, on its way to the interpreter: fetched while others run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

import trio

from formation_p2p.content.lent_blob import Lent
from formation_p2p.core.errors import FormationError, InvalidInput, RemoteError
from formation_p2p.core.identity import PeerId
from formation_p2p.drivers import python_parcels
from formation_p2p.drivers.driver import BlobAccess, Execution
from formation_p2p.workload.core.call_context import CallContext
from formation_p2p.workload.core.outcome import Failed, FailureKind
from formation_p2p.workload.core.parcel import Parcel, is_parcel

_NOT_HANDED_OVER: Final = (
    "the caller did not hand over the data of the call; its node is to stay until calls have ended"
)


@dataclass(slots=True)
class Handed:
    """The parcels of one pickle, ready to be handed to an interpreter. `done` once it has done with
    them. What they refer to, it keeps for other calls."""

    body: bytes
    lent: list[Lent] = field(default_factory=list)
    referred: list[Lent] = field(default_factory=list)

    @property
    def files(self) -> list[int]:
        return [each.file for each in (*self.lent, *self.referred)]

    def done(self, *, clean: bool) -> None:
        for each in self.lent:
            each.done(clean=clean)
        for each in self.referred:
            each.done(clean=False)


@dataclass(slots=True)
class CallData:
    """Of one call: its arguments, and its function where the interpreter does not have it. None for
    those that it has in the message."""

    arguments: Handed | None = None
    function: Handed | None = None

    @property
    def is_own(self) -> bool:
        """Whether there is any that is not shared with other calls."""
        return bool(self.function or (self.arguments and self.arguments.lent))

    @property
    def files(self) -> int:
        return sum(len(each.files) for each in (self.arguments, self.function) if each)

    def done(self, *, clean: bool) -> None:
        """`clean` says it of the arguments; parts of a function are used for as long as it is."""
        if self.arguments is not None:
            self.arguments.done(clean=clean)
        if self.function is not None:
            self.function.done(clean=False)


def is_large(execution: Execution, context: CallContext, *, new: bool) -> bool:
    """Whether a call has data of which the message only has the names; `new` says whether the
    interpreter needs the function."""
    return is_parcel(execution.payload) or (new and is_parcel(context.function))


class Contexts:
    """Those of a lease, each read once for as long as calls with it come one after the other."""

    def __init__(self) -> None:
        self._shared: bytes | None = None
        self._context: CallContext | None = None

    def of(self, execution: Execution) -> CallContext:
        """Raises InvalidInput."""
        if self._context is None or execution.shared is not self._shared:
            self._context = CallContext.decode(execution.shared)
            self._shared = execution.shared
        return self._context


class Prefetch:
    """Fetches the data of one call at a time: of the next one. `arrived` is called when that has
    come."""

    def __init__(
        self, blobs: BlobAccess | None, nursery: trio.Nursery, arrived: Callable[[], None]
    ) -> None:
        self._blobs = blobs
        self._nursery = nursery
        self._arrived = arrived
        self._of = ""
        self._scope = trio.CancelScope()
        self._event = trio.Event()
        self._found: CallData | Failed | None = None

    async def wait(self) -> None:
        """Until that which was asked for last has come."""
        await self._event.wait()

    @property
    def is_waiting(self) -> bool:
        return bool(self._of) and self._found is None

    def begin(self, execution: Execution, context: CallContext, *, new: bool) -> None:
        """It is the next call, and a large one; it is fetched, unless that has begun."""
        if self._of != execution.execution_id:
            self.drop()
            self._of = execution.execution_id
            self._event, self._scope = trio.Event(), trio.CancelScope()
            payload = execution.payload if is_parcel(execution.payload) else b""
            function = context.function if new and is_parcel(context.function) else b""
            fetch = _Fetch(self._blobs, execution.owner)
            handed = fetch.kept(payload) if payload and not function else None
            if handed is not None:
                self._found = CallData(handed)
                return
            self._nursery.start_soon(
                self._fetch, fetch, payload, function, self._scope, self._event
            )

    def take(self, *, idle: bool) -> CallData | Failed | None:
        """What was fetched, once it is there. Where it cannot be had, the outcome of the call: once
        the interpreter is `idle`, in its turn."""
        if self._found is None or (isinstance(self._found, Failed) and not idle):
            return None
        found, self._found, self._of = self._found, None, ""
        return found

    def drop(self) -> None:
        """What was asked for is not needed after all."""
        self._scope.cancel()
        if isinstance(self._found, CallData):
            self._found.done(clean=True)
        self._found, self._of = None, ""

    async def _fetch(
        self,
        fetch: _Fetch,
        payload: bytes,
        function: bytes,
        scope: trio.CancelScope,
        event: trio.Event,
    ) -> None:
        data = CallData()
        found: CallData | Failed = data
        with scope:
            try:
                data.function = await fetch.handed(function, again=True)
                data.arguments = await fetch.handed(payload, again=False)
            except InvalidInput as error:
                found = Failed(FailureKind.INVALID, str(error))
            except RemoteError as error:
                found = Failed(FailureKind.CALLER, f"{_NOT_HANDED_OVER}: {error}")
            except (FormationError, OSError) as error:
                found = Failed(FailureKind.DRIVER, f"the data of the call cannot be had: {error}")
        if found is not data or scope.cancelled_caught:
            data.done(clean=True)
        if not scope.cancelled_caught:
            self._found = found
            event.set()
            self._arrived()


@dataclass(frozen=True, slots=True)
class _Fetch:
    """Of one call, whose lease `owner` has."""

    blobs: BlobAccess | None
    owner: PeerId

    async def handed(self, record: bytes, *, again: bool) -> Handed | None:
        """`again` where other calls take it too. Raises InvalidInput, LocalError, RemoteError."""
        if not record:
            return None
        parcel, blobs = self._checked(record)
        handed = Handed(_bodies(parcel))
        try:
            for blob in parcel.blobs:
                own = blob is parcel.blob
                lent = await blobs.lend(blob, again=again or not own)
                (handed.lent if own else handed.referred).append(lent)
        except BaseException:
            handed.done(clean=True)
            raise
        return handed

    def kept(self, record: bytes) -> Handed | None:
        """Arguments that need no waiting: what they refer to is here, and nothing else is large in
        them. None for others, and where they cannot be had at all."""
        try:
            parcel, blobs = self._checked(record)
        except InvalidInput:
            return None
        if parcel.blob is not None:
            return None
        handed = Handed(_bodies(parcel))
        for blob in parcel.blobs:
            lent = blobs.lend_kept(blob)
            if lent is None:
                handed.done(clean=True)
                return None
            handed.referred.append(lent)
        return handed

    def _checked(self, record: bytes) -> tuple[Parcel, BlobAccess]:
        """Raises InvalidInput."""
        parcel = Parcel.decode(record)
        if self.blobs is None:
            raise InvalidInput("driver", "has no access to private blobs")
        if any(blob.owner.peer_id != self.owner for blob in parcel.blobs):
            raise InvalidInput("parcel", "names data that is not the caller's own")
        return parcel, self.blobs


def _bodies(parcel: Parcel) -> bytes:
    others = (_body(each, kept=True) for each in parcel.references)
    return b"".join((_body(parcel, kept=False), *others))


def _body(parcel: Parcel, *, kept: bool) -> bytes:
    """As python_parcels.py reads it."""
    name = parcel.blob.name if kept and parcel.blob is not None else python_parcels.OWN
    header = python_parcels.PARCEL.pack(
        parcel.pickle_bytes, len(parcel.pickled), len(parcel.buffers)
    )
    return b"".join((name, header, *map(python_parcels.SIZE.pack, parcel.buffers), parcel.pickled))

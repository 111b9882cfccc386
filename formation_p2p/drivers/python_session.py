"""The calls of one interpreter of the `python` driver: given to it, answered, ended."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

import trio

from formation_p2p.core.errors import InvalidInput, LocalError
from formation_p2p.core.units import KIB, format_bytes
from formation_p2p.drivers.call_data import CallData, Contexts, Prefetch, is_large
from formation_p2p.drivers.driver import BlobAccess, Execution, Output, Turns, refuse
from formation_p2p.drivers.program import failure, with_hint
from formation_p2p.drivers.python_process import Reply, WarmInterpreter
from formation_p2p.drivers.saves import POLL_S, Saves, holder_of, name_of
from formation_p2p.workload.core.call_context import CallContext
from formation_p2p.workload.core.outcome import Failed, FailureKind, Outcome

# A result waits so long for others that are told with it.
FLUSH_S: Final = 0.002
FLUSH_BYTES: Final = 1024 * KIB
# ...and so long while there are few of them, and more calls than the next one wait for their turn:
# an owner has calls of 100 ms wait at a worker, and sends more when half of them have ended
# (jobs/core/parameters.py).
GATHER_S: Final = 0.05
GATHERED: Final = 8


class Unreported:
    """The results of calls that their owner has not been told of yet: how many there are, and when
    they are to be told. Together, for a message costs both ends as much as a short call."""

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        self._since_s = math.inf
        self._count = self._bytes = 0

    def add(self, size_bytes: int, now_s: float) -> None:
        self._since_s = min(self._since_s, now_s)
        self._count += 1
        self._bytes += size_bytes

    @property
    def is_full(self) -> bool:
        return self._bytes >= FLUSH_BYTES

    def due_s(self, *, calls_wait: bool) -> float:
        """Infinite where there are none."""
        gathers = calls_wait and self._count < GATHERED
        return self._since_s + (GATHER_S if gathers else FLUSH_S)


# It takes 60 ms; a machine busy with everything else, reading the imports from a cold disk, must
# not be taken for a broken one.
_START_S: Final = 60.0
# Calls on their way, so that the interpreter never waits. They fit into the socket's buffer: a
# larger one is sent once all others are answered, so that the two ends never both wait to write.
_MAX_IN_FLIGHT: Final = 64
_MAX_IN_FLIGHT_BYTES: Final = 64 * KIB
# Calls that are handed data: one runs, one is the next, and the data of a third is fetched.
_MAX_LARGE: Final = 2
# Descriptors on their way, beside those of one call: they count against what the user may have.
_MAX_FILES: Final = 16
# What a call prints is read once it has run for so long, and then as it comes.
_LONG_S: Final = 0.05

_MEDDLED: Final = Failed(
    FailureKind.EXIT, "wrote to the socket that the driver calls it over; leave that alone"
)
CANCELLED: Final = Failed(FailureKind.CANCELLED, "it was killed, as its owner asked")


class _Call(NamedTuple):
    """One on its way: `which` is how many came before it, and itself."""

    which: int
    execution: Execution
    weight: int
    data: CallData


class CallSession:
    """The calls of one interpreter, until that has ended. In the `nursery` data is fetched, and
    what calls save in `home` is kept."""

    def __init__(
        self,
        turns: Turns,
        warm: WarmInterpreter,
        contexts: Contexts,
        blobs: BlobAccess | None,
        nursery: trio.Nursery,
        home: Path,
    ) -> None:
        self._turns = turns
        self._warm = warm
        self._contexts = contexts
        self._is_last = False  # whether the next call needs another interpreter
        self._calls: deque[_Call] = deque()  # on their way, the first of them runs
        self._weight = 0
        self._count = 0
        self._unwanted: set[int] = set()  # on their way, not to be run after all
        self._began_s = 0.0
        self._unreported = Unreported()
        self._output: Output | None = None  # of the call that runs, once it has printed
        self._watching: trio.CancelScope | None = None
        self._blobs = blobs
        self._data = Prefetch(blobs, nursery, self._wake)
        self._home = home
        self._told = 0  # the last call that was given notice
        self._clock = trio.lowlevel.current_clock()  # trio.current_time takes longer
        nursery.start_soon(self._keep_saves)

    async def run(self) -> None:
        try:
            if await self._start():
                await self._run()
        finally:
            self._data.drop()
            for call in self._calls:
                call.data.done(clean=False)

    def _saves(self, execution: Execution) -> Saves:
        execution_id = execution.execution_id
        saved = partial(self._turns.saved, execution_id)
        holder = holder_of(execution.lease_id)
        output = partial(self._turns.output, execution_id)
        return Saves(self._blobs, holder, saved, output, execution.owner)

    async def _keep_saves(self) -> None:
        """Of the call that runs. Until cancelled."""
        due_s = 0.0
        while True:
            await trio.sleep(POLL_S)
            if self._calls and self._calls[0].execution.notice.given.is_set():
                self._notify(self._calls[0])
            if self._calls and trio.current_time() >= max(due_s, self._began_s + POLL_S):
                which, execution, *_ = self._calls[0]
                pause_s = await self._saves(execution).take(self._home, name_of(which))
                due_s = trio.current_time() + pause_s

    def _notify(self, call: _Call) -> None:
        """The call that runs, once."""
        if self._told != call.which:
            self._told = call.which
            call.execution.notice.leave(self._home, name_of(call.which))

    async def _run(self) -> None:
        while True:
            await self._give()
            if not self._calls:
                self._flush()
                if self._is_last:
                    return
                if self._data.is_waiting:
                    await self._until(math.inf, self._data.wait)
                await self._turns.wait()
                if self._warm.task.over:
                    return
                continue
            await self._wait()
            alive = self._turns.is_paused or self._warm.receive()
            await self._take(self._warm.replies())
            if self._warm.broken:
                if self._calls:
                    self._end(_MEDDLED)
                self._flush()
                return
            if not self._calls:
                continue
            if not alive:
                ending = await self._warm.task.settled()
                self._end(failure(ending, self._drained(), self._calls[0].execution))
                return
            killed = self._turns.is_killed
            if killed or trio.current_time() >= self._due_s:
                ending = replace(await self._warm.task.stop(), late=True)
                output, execution = self._drained(), self._calls[0].execution
                self._end(CANCELLED if killed else failure(ending, output, execution))
                return
            if trio.current_time() >= self._began_s + _LONG_S:
                self._take_back()

    async def _start(self) -> bool:
        """Its start counts as the first call's: the owner of that may kill it."""
        first = self._turns.take()
        self._calls.append(_Call(0, first, 0, CallData()))
        self._begin()
        deadline = trio.current_time() + _START_S
        alive = True
        while alive and not self._warm.is_ready and trio.current_time() < deadline:
            await self._listen(deadline)
            if self._turns.is_killed:
                self._end(CANCELLED)
                return False
            alive = self._warm.receive()
        if not self._warm.is_ready:
            ending = await self._warm.task.settled()
            failed = failure(ending, self._drained(), first)
            if failed.kind is FailureKind.EXIT:
                problem = f"the interpreter did not start: {failed.message}"
                failed = Failed(FailureKind.DRIVER, problem)
            self._end(failed)
            return False
        self._calls.clear()
        self._turns.put_back(first)
        return True

    async def _give(self) -> None:
        """Send as many calls as may be on their way, all at once."""
        data: list[bytes] = []
        while self._turns.next_bytes is not None and len(self._calls) < _MAX_IN_FLIGHT:
            execution = self._turns.take()
            try:
                context = self._contexts.of(execution)
                self._is_last = not self._warm.suits(context)
            except InvalidInput:
                self._is_last = True  # the driver refuses it, in its turn
            if self._is_last:
                self._turns.put_back(execution)
                break
            weight = self._warm.weight(execution)
            if self._calls and self._weight + weight > _MAX_IN_FLIGHT_BYTES:
                self._turns.put_back(execution)
                break
            found = self._data_of(execution, context)
            if found is None:
                self._turns.put_back(execution)
                break
            if isinstance(found, Failed):
                refuse(self._turns, execution, found)
                continue
            try:
                written = self._warm.written(execution, context, found)
            except LocalError as problem:
                found.done(clean=True)
                self._is_last = True
                if self._calls:
                    self._turns.put_back(execution)  # the next interpreter may have more luck
                else:
                    refuse(self._turns, execution, Failed(FailureKind.DRIVER, str(problem)))
                break
            self._count += 1
            if execution.restored is not None:
                saves, name = self._saves(execution), name_of(self._count)
                restored, content = execution.restored, execution.content
                await saves.restore(restored, content, self._home, name)
            self._weight += weight
            self._calls.append(_Call(self._count, execution, weight, found))
            if len(self._calls) == 1:
                self._begin()
            data.append(written)
        if data:
            await self._send(b"".join(data))

    def _data_of(self, execution: Execution, context: CallContext) -> CallData | Failed | None:
        """None where it is on its way, or has to wait."""
        new = self._warm.needs_function(execution)
        if not is_large(execution, context, new=new):
            return CallData()
        self._data.begin(execution, context, new=new)
        return self._data.take(idle=not self._calls) if self._has_room_for_data else None

    @property
    def _has_room_for_data(self) -> bool:
        if sum(call.data.is_own for call in self._calls) >= _MAX_LARGE:
            return False
        return sum(call.data.files for call in self._calls) < _MAX_FILES

    async def _send(self, data: bytes) -> None:
        """What is on its way fits into the socket's buffer; what is larger, the interpreter waits
        for. Ends early where that is to be killed."""
        rest = memoryview(data)
        while rest and not self._turns.is_killed and trio.current_time() < self._due_s:
            rest = self._warm.send(rest)
            if rest:
                await self._until(self._due_s, self._warm.wait_for_room)

    def _take_back(self) -> None:
        """What waits behind a call that takes long, where its owner wants it back."""
        first, *behind = self._calls
        self._calls = deque([first])
        for call in behind:
            if self._turns.is_unwanted(call.execution):
                self._unwanted.add(call.which)
                self._weight -= call.weight
                self._done(call, clean=False)
                self._turns.put_back(call.execution)
            else:
                self._calls.append(call)
        self._turns.flush()

    def _begin(self) -> None:
        self._output = None
        self._began_s = self._clock.current_time()
        self._turns.begin(self._calls[0].execution.execution_id)

    @property
    def _due_s(self) -> float:
        timeout_s = self._calls[0].execution.timeout_s
        return math.inf if timeout_s is None else self._began_s + timeout_s

    async def _wait(self) -> None:
        """Until there may be something to do."""
        if self._turns.is_paused:
            # What it has to say stays in the socket, and it waits when that is full.
            self._flush()
            await self._until(self._due_s, trio.sleep_forever)
        elif trio.current_time() >= (long_s := self._began_s + _LONG_S):
            self._flush()
            await self._listen(self._due_s)
        else:
            waits = len(self._calls) > 2 or self._turns.next_bytes is not None
            flush_s = self._unreported.due_s(calls_wait=waits)
            await self._until(min(self._due_s, long_s, flush_s), self._warm.wait)
            if trio.current_time() >= flush_s:
                self._flush()

    async def _listen(self, deadline: float) -> None:
        """As `_wait`, for a call that takes long: its output is passed on as it comes."""
        async with self._warm.task.passing_on(self._output_now(), when_over=self._warm.hang_up):
            await self._until(deadline, self._warm.wait)

    async def _until(self, deadline: float, wait: Callable[[], Awaitable[None]]) -> None:
        with trio.CancelScope(deadline=deadline) as scope:
            self._turns.watch(scope)
            self._watching = scope
            await wait()
        self._watching = None
        self._turns.watch(None)

    def _wake(self) -> None:
        """The data of the next call is here. Where it has no room yet, a reply makes that."""
        if self._watching is not None and self._has_room_for_data:
            self._watching.cancel()

    async def _take(self, replies: list[Reply]) -> None:
        waiting = deque(replies)
        try:
            while waiting:
                await self._reply(waiting.popleft())
        finally:
            for reply in waiting:
                if reply.gave is not None:
                    reply.gave.close()

    async def _reply(self, reply: Reply) -> None:
        which, outcome, used, waits, keeps, gave = reply
        if which in self._unwanted:
            # It ran all the same, since the interpreter had not taken the one before for long; it
            # was reported as one that did not.
            if gave is not None:
                gave.close()
            self._unwanted.discard(which)
            if waits:
                self._warm.task.drain(Output(lambda stream, data: None))
                await self._let_go_on()
            return
        if not self._calls or which != self._calls[0].which:
            self._warm.broken = True  # the task has written it
            if gave is not None:
                gave.close()
            return
        if waits:
            self._drained()
        if gave is not None:
            execution, counted = self._calls[0].execution, self._warm.task.holds_memory
            outcome = await gave.kept(outcome, execution, self._blobs, counted=counted)
        call = self._calls.popleft()
        if isinstance(outcome, Failed):  # the last, from which it is tried again
            await self._saves(call.execution).take(self._home, name_of(which))
        if isinstance(outcome, Failed) and outcome.kind is FailureKind.EXCEPTION:
            outcome = with_hint(outcome, call.execution)
        if isinstance(outcome, Failed) and outcome.kind is FailureKind.MEMORY:
            had = format_bytes(call.execution.limits.enforced_memory_bytes)
            why = f"{outcome.message}the call has {had}; ask for more memory"
            outcome = replace(outcome, message=why)
        self._weight -= call.weight
        self._done(call, clean=not keeps)
        self._turns.ended(call.execution.execution_id, outcome, used)
        self._unreported.add(len(outcome.result), self._clock.current_time())
        # A large one takes memory here that is counted once its owner is told of it.
        if gave is not None or self._unreported.is_full:
            self._flush()
        if self._calls:
            self._begin()
        if waits:
            await self._let_go_on()

    async def _let_go_on(self) -> None:
        unwanted, self._unwanted = self._unwanted, set()
        data = self._warm.go_on(unwanted)
        await self._send(data) if self._calls else self._warm.send(memoryview(data))

    def _end(self, outcome: Outcome) -> None:
        """The call that runs is over, and its interpreter with it: the others have not begun."""
        call = self._calls.popleft()
        self._done(call, clean=False)
        self._turns.ended(call.execution.execution_id, outcome)
        while self._calls:
            behind = self._calls.pop()
            self._done(behind, clean=False)
            self._turns.put_back(behind.execution)
        self._flush()

    def _done(self, call: _Call, *, clean: bool) -> None:
        """`clean`: the interpreter does not use any more of what it was handed for it. Of what the
        function has it may do so to its end."""
        call.data.done(clean=clean)

    def _flush(self) -> None:
        self._unreported.clear()
        self._turns.flush()

    def _output_now(self) -> Output:
        """That of the call that runs."""
        if self._output is None:
            execution_id = self._calls[0].execution.execution_id
            self._output = Output(partial(self._turns.output, execution_id))
        return self._output

    def _drained(self) -> Output:
        """All that the call that runs has printed so far."""
        output = self._output_now()
        self._warm.task.drain(output)
        return output

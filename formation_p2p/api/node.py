"""Public asyncio API: this machine as a node of a network.

async with Node.join() as node:
    print(await node.map(abs, [-1, -2, -3]))
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from typing import Any, Unpack

from formation_p2p.api.asking import AskingNode
from formation_p2p.api.calling import CallingNode
from formation_p2p.api.job import JobHandle
from formation_p2p.api.lending import LendingNode
from formation_p2p.api.output import is_shown
from formation_p2p.api.submission import Submission, steps_call, with_code
from formation_p2p.core.errors import InvalidInput
from formation_p2p.features.dask.node import DaskNode
from formation_p2p.features.gangs.api.node import GangNode
from formation_p2p.features.gateway.api.node import GatewayNode
from formation_p2p.features.libp2p.node import Libp2pNode
from formation_p2p.features.services.api.node import ServiceNode
from formation_p2p.peer.feature import FEATURES
from formation_p2p.placement.core.task_options import (
    DEFAULT_OPTIONS,
    TaskOptionKwargs,
    TaskOptions,
    listing,
)
from formation_p2p.placement.policies import options_of
from formation_p2p.state.rows import JobSummary
from formation_p2p.workload.core.blob import Blob
from formation_p2p.workload.core.plan import Plan, plan_of
from formation_p2p.workload.core.process import ProcessResult, ProcessSpec, one_text
from formation_p2p.workload.core.work import Work


class Node(
    GatewayNode,
    ServiceNode,
    DaskNode,
    GangNode,
    Libp2pNode,
    CallingNode,
    LendingNode,
    AskingNode,
):
    """A peer of a network, in a thread of its own. Use `async with Node.join(...) as node`, or
    `node = await Node.join(...)` and `await node.close()`.

    All methods are for the asyncio loop and the process that entered it: elsewhere, and before
    and after, they raise NodeClosed, or InvalidInput on another loop. `SyncNode` has the same
    methods for programs without `await`.
    """

    @property
    def name(self) -> str:
        """What people see this node as, beside the end of its id (docs/how-to/names.md)."""
        return self._services.name

    @property
    def addresses(self) -> tuple[str, ...]:
        """Multiaddrs where others reach this node, with its peer id; empty for a mere client."""
        me = self._services.contact
        return tuple(f"{address}/p2p/{me.peer_id}" for address in me.addresses)

    @property
    def metrics_address(self) -> tuple[str, int]:
        """Host and port of where metrics are served. Raises LocalError where they are not."""
        self._lifecycle.check()
        return self._services.observability.metrics_address

    @listing(TaskOptionKwargs)
    async def submit(
        self,
        work: Plan | Work | Iterable[Work],
        *,
        name: str = "",
        labels: Sequence[str] = (),
        show_output: bool | None = None,
        options: TaskOptions = DEFAULT_OPTIONS,
        **kwargs: Unpack[TaskOptionKwargs],
    ) -> JobHandle:
        """Have each piece of work run once, wherever the needs are met: pieces of a plan (see
        `derive`) after those for which they wait.

        `labels` name the tasks for people. With `show_output` this program prints what the tasks
        print, after the worker that it is from; None is for True in interactive sessions, such as
        notebooks, and False elsewhere. The keyword arguments are those of `TaskOptionKwargs`,
        which says what each means; they change `options`. Raises InvalidInput.
        """
        self._lifecycle.check_loop()
        chosen = options_of(kwargs, options)
        plan, code = await asyncio.to_thread(with_code, plan_of(work, labels), self._code, chosen)
        submission = Submission(self._services, self._bridge, self._durable)
        return await submission.begin(plan, code, name, chosen, shown=is_shown(show_output))

    @listing(TaskOptionKwargs)
    async def submit_steps(
        self,
        function: Callable[..., Generator[Any, None, Any]],
        /,
        *args: Any,
        name: str = "",
        show_output: bool | None = None,
        options: TaskOptions = DEFAULT_OPTIONS,
        **kwargs: Unpack[TaskOptionKwargs],
    ) -> JobHandle:
        """Have a generator function run once, as `function(last, *args)`, wherever the needs are
        met. What it yields is saved: where it is started again, `last` is what it yielded last,
        else None. What it returns is the result, which `value_of` reads.

            def train(last, epochs):
                model, first = last or (new_model(), 0)
                for epoch in range(first, epochs):
                    model.step()
                    yield model, epoch + 1
                return model.loss

        A step that is saved is pickled: at most 128 MiB. The keyword arguments are as for `submit`.
        Raises InvalidInput.
        """
        call = steps_call(function, *args)
        label = name or call.kind
        return await self.submit(
            call, name=label, show_output=show_output, options=options, **kwargs
        )

    def jobs(self) -> tuple[JobHandle, ...]:
        """The jobs of the node's state that have not ended, of this incarnation or an earlier
        one, with the results so far. Without a state there are none."""
        self._lifecycle.check()
        return () if self._durable is None else tuple(self._durable.in_flight.values())

    async def job(self, job_id: str) -> JobHandle:
        """A job of the node's state, in flight or ended. Raises InvalidInput for a job that the
        state does not keep, StateError."""
        self._lifecycle.check_loop()
        if self._durable is None:
            raise InvalidInput("state", "this node keeps no jobs; join with state=…")
        return await self._durable.job(job_id)

    async def kept(self) -> tuple[JobSummary, ...]:
        """What the node's state keeps, the oldest first. Raises StateError."""
        self._lifecycle.check_loop()
        return () if self._durable is None else await self._durable.summaries()

    @listing(TaskOptionKwargs)
    async def run(
        self,
        argv: Sequence[str],
        *,
        inputs: Mapping[str, Blob] | None = None,
        outputs: Sequence[str] = (),
        options: TaskOptions = DEFAULT_OPTIONS,
        **kwargs: Unpack[TaskOptionKwargs],
    ) -> ProcessResult:
        """Run one command somewhere, and wait for it. Raises TaskFailed, Unplaceable.

        It finds `inputs`, made by `put`, in its folder under their names; the files `outputs` are
        in the result's `outputs`, for `get`. The keyword arguments are as for `submit`.
        """
        chosen = options_of(kwargs, options, call="run")
        for name, given in (("argv", argv), ("outputs", outputs)):
            if isinstance(given, str):
                raise one_text(name, given)
        spec = ProcessSpec(tuple(argv), inputs=inputs or {}, outputs=tuple(outputs))
        (result,) = await (await self.submit(spec, name=argv[0], options=chosen))
        error = result.error()
        if error is not None:
            raise error
        return ProcessResult.decode(result.result)

    def feature(self, name: str) -> Any:
        """What a package that is installed beside this one, and offers the feature `name`, has for
        programs (peer/feature.py). Raises InvalidInput where no package does."""
        self._lifecycle.check_loop()
        found = FEATURES.get(name)
        if found is None or found.api is None:
            raise InvalidInput("feature", f"no package offers programs {name!r}; install one")
        return found.api(self._bridge)

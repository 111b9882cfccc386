"""The node for scripts: the same methods, without `await`.

with SyncNode.join() as node:
    print(node.map(abs, [-1, -2, -3]))
"""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Self, TypeVar, cast, overload

from formation_p2p.api.config import NodeBase, NodeConfig
from formation_p2p.api.node import Node
from formation_p2p.api.reference import Reference
from formation_p2p.api.sync_loop import (
    Synchronous,
    SyncJob,
    SyncLoop,
    calls,
    job_of,
    made,
    waited,
    waits,
)
from formation_p2p.core.identity import PeerId
from formation_p2p.features.dask.node import SyncDask
from formation_p2p.features.gangs.api.sync import SyncGangs
from formation_p2p.features.gateway.api.node import SyncGateway
from formation_p2p.features.libp2p.node import SyncLibp2p
from formation_p2p.features.services.api.sync import SyncServices
from formation_p2p.reach.core.own_addresses import Reached
from formation_p2p.workload.core.blob import Blob
from formation_p2p.workload.core.scope import Scope

T = TypeVar("T")


class SyncNode(
    SyncGateway, SyncServices, SyncDask, SyncGangs, SyncLibp2p, Synchronous[Node], NodeBase
):
    """A `Node` on an asyncio loop in a thread of its own. Every call blocks until it is done;
    Ctrl-C cancels it. `Node` says what each does and raises; `map` returns the list, and
    `executor` brings one result after the other, also of what has no end (`NodeExecutor.map`).

    `SyncNode.join(...)` enters the network at once. Use it in a `with` block, or `close` it. Any
    thread may call it, until it is closed, in the process that made it.
    """

    def __init__(self, config: NodeConfig) -> None:
        node = Node(config)
        super().__init__(node, SyncLoop(node._lifecycle))
        self._closing = threading.Lock()
        try:
            self._loop.run(node.__aenter__)
        except BaseException:
            # Ctrl-C too: `with` calls no `__exit__` of what was not entered.
            self._loop.close()
            raise

    def __enter__(self) -> Self:
        self._loop.check()
        return self

    def __exit__(self, *raised: object) -> None:
        if not self._wrapped._lifecycle.is_foreign:  # else its own process closes it
            self.close()

    def __del__(self) -> None:
        """The node that is dropped with it warns, and closes itself."""
        if hasattr(self, "_loop"):
            self._loop.stop()

    def close(self) -> None:
        """Leave the network. See `Node.close`."""
        self._wrapped._lifecycle.check_process()
        with self._closing:
            if self._loop.is_closed:
                return
            try:
                self._loop.run(self._wrapped.close)
            finally:
                self._loop.close()

    @property
    def peer_id(self) -> PeerId:
        return self._wrapped.peer_id

    @property
    def name(self) -> str:
        return self._wrapped.name

    @property
    def addresses(self) -> tuple[str, ...]:
        return self._wrapped.addresses

    @property
    def reached(self) -> Reached:
        return self._wrapped.reached

    @property
    def metrics_address(self) -> tuple[str, int]:
        return self._wrapped.metrics_address

    worker = waits(Node.worker)
    submit = made(Node.submit, job_of)
    submit_steps = made(Node.submit_steps, job_of)
    vacate = waits(Node.vacate)
    reopen = waits(Node.reopen)
    job = made(Node.job, job_of)
    kept = waits(Node.kept)
    map = waits(Node.map)
    map.__doc__ = """`[function(item) for item in items]`, each on whichever machine can: the list,
        once all are there. `executor` brings one result after the other.

        With several iterables, `function` takes one item of each, as with the built-in `map`: the
        shortest ends it. At most `buffersize` items are ahead of what has ended.

        `show_output` is as for `submit`. With `progress` a bar on stderr shows how many calls have
        ended and failed, or a line now and then where it is not a terminal; or a function of your
        own is called with how many brought a result, how many failed, and how many there are: None
        for items without a length.

        The keyword arguments are those of `CallKwargs`; they change `options`. Results are data
        unless `trust_results` (docs/explanation/data.md says which). Raises the first failure
        known, in the order of the items: what the function raised, TaskRaised, TaskFailed,
        ResultTooLarge, NotPlain or Unplaceable, as `value_of` does; the rest is cancelled then.
        """
    executor = calls(Node.executor)
    run = waits(Node.run)
    get = waits(Node.get)
    fetch_result = waits(Node.fetch_result)
    workers = waits(Node.workers)
    explain = waits(Node.explain)
    discover = waits(Node.discover)
    feature = made(Node.feature, waited)
    neighbours = waits(Node.neighbours)
    incompatible = waits(Node.incompatible)
    troubles = waits(Node.troubles)
    renew = waits(Node.renew)
    offer_charter = waits(Node.offer_charter)
    ping = waits(Node.ping)
    measure_rate = waits(Node.measure_rate)
    story = waits(Node.story)
    trust = waits(Node.trust)
    report_wrong = waits(Node.report_wrong)

    @overload
    def put(  # type: ignore[overload-overlap]
        self, obj: Path | str, *, scope: Scope | str | None = ..., region: str = ...
    ) -> Blob: ...

    @overload
    def put(self, obj: T) -> Reference[T]: ...

    def put(
        self, obj: object, *, scope: Scope | str | None = None, region: str = ""
    ) -> Blob | Reference[object]:
        """See `Node.put`."""
        if scope is None and not region:
            return self._loop.run(lambda: self._wrapped.put(obj))
        path = cast(Path, obj)  # for what has no rule `put` says so
        return self._loop.run(lambda: self._wrapped.put(path, scope=scope, region=region))

    def jobs(self) -> tuple[SyncJob, ...]:
        """The jobs of the node's state that have not ended. See `Node.jobs`."""
        jobs = self._loop.call(self._wrapped.jobs)
        return tuple(SyncJob(job, self._loop) for job in jobs)

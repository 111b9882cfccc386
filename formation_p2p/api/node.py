"""Public asyncio API: this machine as a node of a network.

async with Node.join() as node:
    print(await node.map(abs, [-1, -2, -3]))
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, Unpack

from formation_p2p.api.calling import CallingNode
from formation_p2p.api.calls import of_calls, referring
from formation_p2p.api.chartering import offer_charter
from formation_p2p.api.job import MAX_GRACE_S, JobHandle
from formation_p2p.api.keywords import listing
from formation_p2p.api.opened import Makers
from formation_p2p.api.output import is_shown
from formation_p2p.api.probing import contact_of
from formation_p2p.api.renewal import renew_grant
from formation_p2p.api.submission import Submission, steps_call, with_code
from formation_p2p.api.task_result import TaskResult
from formation_p2p.core.errors import InvalidInput
from formation_p2p.core.identity import PeerId
from formation_p2p.drivers.machine import Sandboxing
from formation_p2p.environments.prepare import resolved
from formation_p2p.environments.settings import EnvironmentSettings
from formation_p2p.features.dask.node import DaskNode
from formation_p2p.features.gangs.api.node import GangNode
from formation_p2p.features.gateway.api.node import GatewayNode
from formation_p2p.features.services.api.node import ServiceNode
from formation_p2p.machine.clock import moment
from formation_p2p.machine.core.capability import Limits
from formation_p2p.machine.hardware import Hardware
from formation_p2p.machine.names import peer_meant
from formation_p2p.peer.core.story import StoryEntry
from formation_p2p.peer.feature import FEATURES
from formation_p2p.placement.core.decision import Decision, Discovery
from formation_p2p.placement.core.task_options import (
    DEFAULT_OPTIONS,
    Needs,
    PlacementKwargs,
    TaskOptionKwargs,
    TaskOptions,
    needs_of,
)
from formation_p2p.placement.policies import options_of
from formation_p2p.reach.core.own_addresses import Reached
from formation_p2p.reach.core.paths import Rate, RoundTrip
from formation_p2p.records.core.profile import Profile
from formation_p2p.state.rows import JobSummary
from formation_p2p.trust.core.experience import Experience
from formation_p2p.trust.core.reputation import Standing
from formation_p2p.workload.core.blob import Blob
from formation_p2p.workload.core.plan import Plan, plan_of
from formation_p2p.workload.core.process import ProcessResult, ProcessSpec, one_text
from formation_p2p.workload.core.scope import EVERYTHING, ScopeShares
from formation_p2p.workload.core.work import Work

# What runs gets so long to save what it has: minutes of computing are written in less.
GRACE_S: Final = 30.0


class Node(GatewayNode, ServiceNode, DaskNode, GangNode, CallingNode):
    """A peer of a network, in a thread of its own. Use `async with Node.join(...) as node`, or
    `node = await Node.join(...)` and `await node.close()`.

    All methods are for the asyncio loop and the process that entered it: elsewhere, and before
    and after, they raise NodeClosed, or InvalidInput on another loop. `SyncNode` has the same
    methods for programs without `await`.
    """

    @property
    def peer_id(self) -> PeerId:
        return self._services.contact.peer_id

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
    def reached(self) -> Reached:
        """By which ways others reach this node, as it knows by now: `UNKNOWN` until one of them
        has tried, which takes a second or two."""
        self._lifecycle.check()
        return self._services.reached

    @property
    def metrics_address(self) -> tuple[str, int]:
        """Host and port of where metrics are served. Raises LocalError where they are not."""
        self._lifecycle.check()
        return self._services.observability.metrics_address

    async def worker(
        self,
        *,
        drivers: Iterable[str] | Makers = ("process", "python"),
        sandbox: Sandboxing = "auto",
        limits: Limits | None = None,
        labels: Mapping[str, str] | None = None,
        price_micro: int = 0,
        permissive: bool = False,
        shares: ScopeShares = EVERYTHING,
        pythons: Iterable[str] = (),
        environments: EnvironmentSettings | None = None,
        bind: Iterable[str] = (),
    ) -> Hardware:
        """Lease this machine to the network, with these drivers and no others.

        `drivers` are names of those built in, or a mapping from names to factories. Those built in
        run tasks in a `sandbox` where there is one; `required` refuses to work without.
        `price_micro` is what a core-hour costs, in millionths of the network's currency unit. A
        `permissive` worker logs what the quotas, hours and labels of grants forbid, and allows it
        (docs/explanation/charter.md). `shares` is what each circle may have of the cores
        (docs/explanation/placement.md). `bind` are folders that tasks of the drivers process and
        python see at the same path: `/data` read-only, `/scratch:rw` to write to. They need a
        sandbox, and are labels of the worker (docs/explanation/data.md).

        `pythons` are the versions that calls may use, such as `3.12`, or paths of interpreters:
        this process's own if none is named. `environments` says what the packages of tasks may
        take, and where they come from (docs/explanation/environments.md).

        Can be called once. Raises InvalidInput; LocalError where this machine lacks what a driver
        needs, StateError where the home's record of usage is damaged.
        """
        self._lifecycle.check_loop()
        return await self._services.serve(
            drivers,
            sandbox,
            limits,
            labels,
            price_micro,
            permissive,
            shares,
            pythons,
            environments,
            bind,
        )

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

    async def vacate(self, grace_s: float = GRACE_S) -> None:
        """Take no more work, and have what runs here for others go on elsewhere: it is given
        notice, and so long to save what it has. Returns once nothing runs. To `close` the node
        comes next, as a rule; `reopen` has it take work again."""
        if not 0 < grace_s <= MAX_GRACE_S:
            raise InvalidInput("grace_s", f"{grace_s:g} s is not up to {MAX_GRACE_S:g} s")
        await self._bridge.perform(lambda shell: shell.vacate(grace_s))

    async def reopen(self) -> None:
        """Take work again, after `vacate`."""
        self._lifecycle.check_loop()
        self._services.call(lambda shell: shell.reopen())

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

    async def workers(self) -> tuple[Profile, ...]:
        """The workers that the network knows of; of very many, some hundreds."""
        found = await self._bridge.explain(None, "any worker")
        return tuple(ranked.profile for ranked in found.decision.ranked)

    @listing(PlacementKwargs)
    async def explain(
        self,
        needs: Needs,
        *,
        name: str = "a task",
        function: Callable[..., object] | None = None,
        options: TaskOptions = DEFAULT_OPTIONS,
        **kwargs: Unpack[PlacementKwargs],
    ) -> Decision:
        """Which workers could run a task of this name with these needs, best first, which of them
        have the packages of its `env`, and why not others. Where the task is a call of `function`,
        what this needs as well, and what code goes along. The keyword arguments are those of
        `PlacementKwargs`; they change `options`. With `wheels="ship"` wheels are downloaded. Raises
        InvalidInput, also where the function cannot be sent to the version of Python asked for."""
        chosen = _placement_options(needs, options, kwargs)
        if function is None:
            return (await self._discovered(await self._resolved(chosen), name)).decision
        chosen = await self._resolved(replace(chosen, needs=of_calls(chosen.needs)))
        modules = referring(function, chosen.needs.python)[1]
        decision = (await self._discovered(chosen, name)).decision
        return replace(decision, code=await asyncio.to_thread(self._code.of, modules))

    @listing(PlacementKwargs)
    async def discover(
        self,
        needs: Needs,
        *,
        name: str = "a task",
        options: TaskOptions = DEFAULT_OPTIONS,
        **kwargs: Unpack[PlacementKwargs],
    ) -> Discovery:
        """As `explain`, and how the candidates were found."""
        chosen = await self._resolved(_placement_options(needs, options, kwargs))
        return await self._discovered(chosen, name)

    async def _resolved(self, options: TaskOptions) -> TaskOptions:
        self._lifecycle.check_loop()
        return await resolved(options, self._services.with_environment)

    async def _discovered(self, options: TaskOptions, name: str) -> Discovery:
        return await self._bridge.explain(options.scheduling_key(options.needs), name)

    async def story(self, task_id: str) -> tuple[StoryEntry, ...]:
        """The way of a task that was submitted here: which workers were found, asked and refused,
        where it ran, and when. Of the last tasks, some thousands; empty for any other."""
        return await self._bridge.look(lambda shell: shell.peer.story(task_id))

    def feature(self, name: str) -> Any:
        """What a package that is installed beside this one, and offers the feature `name`, has for
        programs (peer/feature.py). Raises InvalidInput where no package does."""
        self._lifecycle.check_loop()
        found = FEATURES.get(name)
        if found is None or found.api is None:
            raise InvalidInput("feature", f"no package offers programs {name!r}; install one")
        return found.api(self._bridge)

    async def neighbours(self) -> int:
        """How many peers this node knows to be there; 0 until the first, such as a gate, has
        answered."""
        return await self._bridge.look(lambda shell: shell.neighbours)

    async def ping(self, peer: PeerId | str) -> RoundTrip:
        """One round trip to a peer, named as for people: by its id, the end of that, or its name;
        over the best connection there is, or one that is made for it. Raises InvalidInput,
        AmbiguousPeer, Unreachable."""
        self._lifecycle.check_loop()
        to = await contact_of(self._bridge, peer, self.peer_id, self._services.home)
        return await self._bridge.perform(lambda shell: shell.ping(to))

    async def measure_rate(self, peer: PeerId | str) -> Rate:
        """How fast bytes come from a peer: 16 MiB, or what comes in 3 s. Both must be members of
        the network, and a node does that for one peer at a time, once in 4 s. Raises InvalidInput,
        AmbiguousPeer, Unreachable; RemoteError where the peer refuses, with its reason."""
        self._lifecycle.check_loop()
        to = await contact_of(self._bridge, peer, self.peer_id, self._services.home)
        return await self._bridge.perform(lambda shell: shell.measure_rate(to))

    async def troubles(self) -> tuple[str, ...]:
        """What peers show to be wrong with this machine, and what to do: a clock that is off, or
        another node with this one's identity."""
        return await self._bridge.look(lambda shell: shell.stack.witness.troubles)

    async def incompatible(self) -> Mapping[PeerId, str]:
        """The peers that this node refused lately since their version of the protocols is another
        than its own, and which side is to be upgraded. Of the latest, some."""
        return await self._bridge.look(lambda shell: shell.incompatible)

    async def renew(self) -> int:
        """Have this node's grant renewed now, by a node that has the network's root key or by an
        inviter of the charter. Returns when it ends, in Unix time. Raises Unauthorized with the
        reason where none renews it, or none answers within a minute."""
        self._lifecycle.check_loop()
        return await renew_grant(self._bridge)

    async def offer_charter(self, raw: bytes) -> int:
        """Go by a charter that its signers have made, and hand it to others. Returns how many have
        taken it at once; the rest hear of it from them. Raises InvalidInput where it does not
        count, and says why. See docs/explanation/charter.md."""
        self._lifecycle.check_loop()
        return await offer_charter(self._bridge, raw)

    async def trust(self) -> tuple[Standing, ...]:
        """What this node has learnt of each peer, by itself and from others; the most trusted
        first. See docs/explanation/trust.md."""
        look = self._bridge.look
        return await look(lambda shell: shell.peer.reputation.standings(moment()))

    async def report_wrong(self, worker: PeerId | TaskResult) -> None:
        """Report a worker, or that of a result, for a false result: as a caller who can tell
        should.

        It weighs as much as half of all that is remembered of a peer. Raises InvalidInput for a
        result without a worker, and for what is neither a peer id nor the name of one that is
        known; AmbiguousPeer where several have the name.
        """
        self._lifecycle.check_loop()
        accused = worker.worker if isinstance(worker, TaskResult) else worker
        if accused is None:
            raise InvalidInput("worker", "no worker brought this result; there is none to blame")
        try:
            peer_id = peer_meant(accused, field="worker")
        except (TypeError, AttributeError) as error:
            raise InvalidInput("worker", f"{accused!r} is not a text") from error
        if peer_id is None:
            raise InvalidInput("worker", f"{accused!r} is neither a peer id nor a name known here")
        self._services.call(
            lambda shell: shell.peer.reputation.note(peer_id, Experience.WRONG, moment())
        )


def _placement_options(needs: Needs, options: TaskOptions, kwargs: PlacementKwargs) -> TaskOptions:
    options = replace(options, needs=needs_of(needs)[0])
    return options_of(kwargs, options, takes=PlacementKwargs, call="explain")

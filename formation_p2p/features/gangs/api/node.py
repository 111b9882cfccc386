"""What a node offers its program of gangs."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator, Sequence
from dataclasses import replace
from enum import StrEnum
from functools import partial
from typing import Any, Final, TypeVar, Unpack

from formation_p2p.api.calling import Enterable
from formation_p2p.api.calls import of_calls
from formation_p2p.core.errors import InvalidInput
from formation_p2p.environments.prepare import resolved
from formation_p2p.features.gangs.api.gang import Gang, GangMeans
from formation_p2p.features.gangs.api.pool import pool_of_workers
from formation_p2p.features.gangs.core.choice import Arrangement
from formation_p2p.features.gangs.core.network import NETWORK_LABEL
from formation_p2p.features.gangs.core.pool import Pool
from formation_p2p.features.gangs.core.spec import DEFAULT_SIZE, GangSpec, OnLoss
from formation_p2p.machine.core.requirements import Requirements
from formation_p2p.placement.core.task_options import (
    DEFAULT_OPTIONS,
    GangKwargs,
    Needs,
    TaskOptions,
    listing,
    needs_of,
)
from formation_p2p.placement.policies import options_of
from formation_p2p.workload.core.environment import Environment
from formation_p2p.workload.core.work import PythonCall


class Forming(Awaitable[Gang]):
    """`await` it for the gang, or enter it by `async with`, which closes the gang again."""

    def __init__(self, form: Callable[[], Awaitable[Gang]]) -> None:
        self._form = form
        self._gang: Gang | None = None

    def __await__(self) -> Generator[Any, Any, Gang]:
        return self._form().__await__()

    async def __aenter__(self) -> Gang:
        self._gang = await self._form()
        return self._gang

    async def __aexit__(self, *raised: object) -> None:
        if self._gang is not None:
            await self._gang.close()


async def formed(means: GangMeans, spec: GangSpec) -> Gang:
    """Raises Unplaceable, InvalidInput, NodeClosed."""
    options = spec.options
    if options.env is not None:
        options = await resolved(options, means.services.with_environment)
        needs = tuple(_in_environment(each, options) for each in spec.needs)
        spec = replace(spec, needs=needs, options=options)
    return await Gang(means, spec).form()


def driven(needs: Requirements, driver: str) -> Requirements:
    """Of a rank whose tasks this driver runs, unless the needs name one. Raises InvalidInput."""
    needs = replace(needs, driver=needs.driver or driver)
    return of_calls(needs) if needs.driver == PythonCall.driver else needs


def _in_environment(needs: Requirements, options: TaskOptions) -> Requirements:
    assert isinstance(options.env, Environment)
    python = needs.python or options.needs.python
    return replace(needs, python=python, environment=options.env.name(python))


# The drivers that start their tasks in a sandbox.
_WITH_NETWORK: Final = ("python", "process")

_E = TypeVar("_E", bound=StrEnum)


class GangNode(Enterable):
    """The part of `Node` that is about gangs."""

    @listing(GangKwargs)
    def gang(
        self,
        members: int | Sequence[Needs] | None = None,
        *,
        driver: str = "python",
        arrange: Arrangement | str = Arrangement.STRICT_SPREAD,
        on_loss: OnLoss | str = OnLoss.REPLACE,
        network: str = "",
        options: TaskOptions = DEFAULT_OPTIONS,
        **kwargs: Unpack[GangKwargs],
    ) -> Forming:
        """Lease workers together, all or none: `async with node.gang(3, needs="gpu=1") as gang`,
        or `gang = await node.gang(…)` and `await gang.close()`.

        `members` is how many, each with the same `needs`; or the needs of each rank, such as
        `["gpu=1", "cpu=16", "cpu=16"]`. Without it there are three, or all workers where there are
        fewer. Nothing runs before all are leased. Where no more is said, they are the workers whose
        keys are nearest to the gang's.

        `driver` runs the tasks of all members: `python` for `run` and `call`, `process` for
        programs. `arrange` is how they lie, `on_loss` whether a member that is lost is replaced, or
        the gang ends (docs/explanation/clusters.md). With `network="gang"` the tasks are in a
        network of their own, in which each is a host: m0, m1 and so on. The keyword arguments are
        those of `GangKwargs`; they change `options`. Raises InvalidInput; where it is awaited,
        Unplaceable, NodeClosed.
        """
        self._lifecycle.check_loop()
        chosen = options_of(kwargs, options, takes=GangKwargs, call="gang")
        needs, fewer = _needs_of(members, chosen.needs)
        spec = GangSpec(
            tuple(_in_network(network, driven(each, driver)) for each in needs),
            replace(chosen, memory_given=True, learn=False, attempts=1),
            _one_of(Arrangement, "arrange", arrange),
            _one_of(OnLoss, "on_loss", on_loss),
            fewer,
        )
        means = GangMeans(self._services, self._bridge, self._code)
        return Forming(partial(formed, means, spec))

    async def pool(self) -> Pool:
        """What the workers that the network knows of have together, and whose it is. `divided` says
        what a gang of them must ask for so that it has more than any one machine."""
        self._lifecycle.check_loop()
        found = await self._bridge.explain(None, "any worker")
        return pool_of_workers(ranked.profile for ranked in found.decision.ranked)


def _needs_of(
    members: int | Sequence[Needs] | None, needs: Requirements
) -> tuple[tuple[Requirements, ...], bool]:
    """Of each rank, and whether fewer will do. Raises InvalidInput."""
    if members is None:
        return (needs,) * DEFAULT_SIZE, True
    if isinstance(members, int):
        return (needs,) * members, False
    if isinstance(members, str):
        raise InvalidInput("members", f"{members!r} is not a list; write needs={members!r}")
    return tuple(needs_of(each)[0] for each in members), False


def _in_network(network: str, needs: Requirements) -> Requirements:
    """Raises InvalidInput."""
    if network == "":
        return needs
    if network != "gang":
        raise InvalidInput("network", f"{network!r} is not known; write 'gang', or leave it out")
    if needs.driver not in _WITH_NETWORK:
        known = " or ".join(_WITH_NETWORK)
        raise InvalidInput("network", f"tasks of {needs.driver} can have none; form one of {known}")
    if needs.network_mbps:
        problem = "a task in the gang's network reaches no other; leave network= out of the needs"
        raise InvalidInput("network", problem)
    return replace(needs, labels=(*needs.labels, NETWORK_LABEL))


def _one_of(kind: type[_E], field: str, given: str) -> _E:
    try:
        return kind(given)
    except ValueError:
        known = ", ".join(each.value for each in kind)
        raise InvalidInput(field, f"{given!r} is not known; write one of {known}") from None

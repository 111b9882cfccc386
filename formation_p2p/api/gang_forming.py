"""How a gang comes to be: formed once it is awaited or entered, of needs that fit its tasks."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator
from dataclasses import replace
from typing import Any

from formation_p2p.api.calls import of_calls
from formation_p2p.api.environments import resolved
from formation_p2p.api.gang import Gang, GangMeans
from formation_p2p.core.gang.spec import GangSpec
from formation_p2p.core.placement.task_options import TaskOptions
from formation_p2p.core.resources.requirements import Requirements
from formation_p2p.core.workload.environment import Environment
from formation_p2p.core.workload.work import PythonCall


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

"""The options that a method takes as keywords, where `help` and editors look for them."""

from __future__ import annotations

from collections.abc import Callable
from inspect import Parameter, signature
from typing import Any, TypeVar

from formation_p2p.placement.core.task_options import TaskOptions

F = TypeVar("F", bound=Callable[..., Any])


def listing(kind: type) -> Callable[[F], F]:
    """The method, whose signature has the options of `kind` one by one."""

    def listed(method: F) -> F:
        found = signature(method)
        given = {name: each for name, each in found.parameters.items() if name != "kwargs"}
        defaults: TaskOptions = given["options"].default
        options = [
            Parameter(
                name,
                Parameter.KEYWORD_ONLY,
                default=getattr(defaults, name, ""),
                annotation=getattr(annotation, "__forward_arg__", annotation),
            )
            for name, annotation in kind.__annotations__.items()
            if name not in given
        ]
        method.__signature__ = found.replace(  # type: ignore[attr-defined]
            parameters=[*given.values(), *options]
        )
        return method

    return listed

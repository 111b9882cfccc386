"""Calls of Python functions, as a driver gets them."""

from collections.abc import Callable
from typing import Any

from formation_p2p.api.calls import context_of, told_name
from formation_p2p.api.code import pickled


def pickled_function(function: Callable[..., Any], python: str = "") -> bytes:
    """As an encoded CallContext, without code. Raises as `pickled` does."""
    return context_of(pickled(function, python)[0], told_name(function))

"""The libraries whose values a result may hold; this package needs none of them."""

from __future__ import annotations

from functools import cache
from importlib import import_module
from typing import Any, Literal

from formation_p2p.core.errors import NotPlain


@cache
def library(name: Literal["numpy", "pandas", "polars", "pyarrow"]) -> Any:
    """Raises NotPlain where it is not installed."""
    try:
        return import_module(name)
    except ImportError as problem:
        raise NotPlain(
            f"a result holds a value of {name}, which is not installed here ({problem}); install"
            f" it: pip install {name}"
        ) from problem

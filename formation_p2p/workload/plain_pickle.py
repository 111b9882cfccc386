"""Reading a result that another machine pickled, without running what it says.

A pickle is a program. What comes back from a worker is read with nothing but plain data
allowed: numbers, text, bytes, lists, tuples, dicts, sets, dates, decimals, UUIDs, paths, and the
exceptions of the language itself. A caller that trusts its workers with its own machine says so
and gets whatever they pickled.
"""

from __future__ import annotations

import builtins
import io
import pickle
from typing import Any, Final

from formation_p2p.errors import RemoteError

# Each builds a value from plain arguments and does nothing else.
_PLAIN: Final = frozenset(
    {
        ("builtins", "bytearray"),
        ("builtins", "complex"),
        ("builtins", "frozenset"),
        ("builtins", "range"),
        ("builtins", "set"),
        ("builtins", "slice"),
        ("collections", "Counter"),
        ("collections", "OrderedDict"),
        ("collections", "deque"),
        ("datetime", "date"),
        ("datetime", "datetime"),
        ("datetime", "time"),
        ("datetime", "timedelta"),
        ("datetime", "timezone"),
        ("decimal", "Decimal"),
        ("fractions", "Fraction"),
        ("pathlib", "PosixPath"),
        ("pathlib", "PurePosixPath"),
        ("uuid", "UUID"),
    }
)


class NotPlain(RemoteError):
    """A result holds more than plain data, or is no pickle."""


class _PlainUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) in _PLAIN:
            return super().find_class(module, name)
        if module == "builtins":
            found = getattr(builtins, name, None)
            if isinstance(found, type) and issubclass(found, Exception):
                return found
        raise NotPlain(
            f"a result holds a {module}.{name}, which is not plain data; return plain data, or "
            "pass trust_results=True where the workers may run code on this machine"
        )


def load_result(pickled: bytes, *, trust: bool) -> Any:
    """The value that a worker pickled. Raises NotPlain.

    With `trust` the worker may run any code here: unpickling is running.
    """
    try:
        return pickle.loads(pickled) if trust else _PlainUnpickler(io.BytesIO(pickled)).load()
    except NotPlain:
        raise
    except Exception as error:
        # A pickle raises what it likes while it is read.
        raise NotPlain(f"a result could not be read: {type(error).__name__}: {error}") from error

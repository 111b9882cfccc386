"""Pickles what a call has raised, for `python_child.py`: as data as far as it can be.

An exception may hold what no pickle can, such as a lock or the stream that failed. Its caller is to
catch it by its class all the same: so a text stands for what is no data in such a one.

It is not imported but loaded beside `python_child.py`, which names the module that pickles results.
"""

from __future__ import annotations

import io
from pickle import PicklingError

TYPE_CHECKING = False  # as in supervisor.py
if TYPE_CHECKING:
    from typing import Any

# What stands for a part is for people to read.
MAX_TEXT_CHARS = 1000


def dumps(error: BaseException, results: Any) -> bytes:
    """Raises whatever an exception raises that cannot be pickled in any way."""
    # A stream that can be pickled, as one of bytes, is no data either.
    if not any(isinstance(each, io.IOBase) for each in vars(error).values()):
        try:
            return results.dumps(error)  # type: ignore[no-any-return]  # it is a module of any kind
        except BaseException:  # noqa: BLE001, S110 - it raises what it likes
            pass
    return results.dumps(described(error, results))  # type: ignore[no-any-return]  # as above


class Described:
    """Pickles as an instance of an exception's class with other parts."""

    def __init__(self, reduced: tuple[Any, ...]) -> None:
        self.reduced = reduced

    def __reduce__(self) -> tuple[Any, ...]:
        return self.reduced


def described(error: BaseException, results: Any) -> Described:
    reduce = results.reducer_of(type(error))
    reduced = None if reduce is None else reduce(error)
    if reduced is None:
        raise PicklingError(f"{type(error).__qualname__} is not of the caller")
    make, (name, *parts), *filling = reduced
    if filling:
        names, values = filling[0]
        filling[0] = names, tuple(data_of(each, results) for each in values)
    return Described((make, (name, *(data_of(each, results) for each in parts)), *filling))


def data_of(value: Any, results: Any) -> Any:
    """Itself where it is data, what there is of it in a container, else a text."""
    kind = type(value)
    if kind in (list, tuple):
        return kind(data_of(each, results) for each in value)
    if kind is dict:
        return {data_of(key, results): data_of(value[key], results) for key in value}
    try:
        if isinstance(value, BaseException):
            return described(value, results)
    except BaseException:  # noqa: BLE001 - as above
        return text_of(value)
    return value if results.is_data([value]) else text_of(value)


def text_of(value: object) -> str:
    try:
        return repr(value)[:MAX_TEXT_CHARS]
    except BaseException:  # noqa: BLE001 - as above
        return f"<{type(value).__qualname__}>"

"""Why a peer said no. Refusals are nouns that travel and print; `str()` is for people."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Infeasible:
    """The machine cannot, or cannot now: `resource` is a field of the requirements.

    `needed` and `free` are in the resource's own unit (bytes, thousandths, a count, a name).
    """

    resource: str
    needed: int | str
    free: int | str

    def __str__(self) -> str:
        return f"{self.resource}: needs {self.needed}, has {self.free}"


@dataclass(frozen=True, slots=True)
class Denied:
    """The grant shown, if any, does not allow this."""

    right: str
    why: str

    def __str__(self) -> str:
        return f"not allowed to {self.right}: {self.why}"


@dataclass(frozen=True, slots=True)
class Gone:
    """The offer or lease named is not (or no longer) this peer's to use."""

    what: str
    why: str

    def __str__(self) -> str:
        return f"{self.what} is gone: {self.why}"


@dataclass(frozen=True, slots=True)
class Busy:
    """A table of the worker is full. Another worker, or later, will do."""

    what: str
    limit: int

    def __str__(self) -> str:
        return f"{self.what} is full at {self.limit}; try again later"


@dataclass(frozen=True, slots=True)
class Leaving:
    """The peer is shutting down, or does not work for others at all."""

    def __str__(self) -> str:
        return "takes no work: it is leaving, or was not started as a worker"


Refusal = Infeasible | Denied | Gone | Busy | Leaving

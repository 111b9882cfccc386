"""Why a peer said no, or why this one will not have it. Nouns that print; `str()` is for people.

A `PeerRefusal` travels. The others are this node's own view of a worker, which it keeps to itself:
a worker is not told that its price was too high, let alone by how much.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from formation_p2p.core.units import format_bytes, format_micro, format_milli

# How people write what is counted in small units.
_AMOUNTS: Final[Mapping[str, Callable[[int], str]]] = {
    **dict.fromkeys(("cpu", "gpu.share"), format_milli),
    **dict.fromkeys(("memory", "storage", "gpu.memory"), format_bytes),
    # What a worker gives to one circle of those that it knows (workload/core/scope.py).
    **dict.fromkeys(("share.local", "share.cell", "share.org"), format_milli),
    **dict.fromkeys(("share.federation", "share.commons"), format_milli),
}


# What to do where a machine has not what a call is for.
_ADVICE: Final[Mapping[str, str]] = {
    "python": "start a worker there with --python",
    "packages": "install it there: pip install 'formation_p2p[environments]'",
    "cloudpickle": "install the same major version of cloudpickle on both",
    "label.gang.network": "a worker has it where bubblewrap, /dev/net/tun and user namespaces "
    "are; `formation worker -v` says what is missing",
}


@dataclass(frozen=True, slots=True)
class Infeasible:
    """The machine cannot, or cannot now: `resource` is a field of the requirements.

    `needed` and `free` are in the resource's own unit (bytes, thousandths, a count, a name).
    """

    resource: str
    needed: int | str
    free: int | str

    def __str__(self) -> str:
        shown = _AMOUNTS.get(self.resource, str)
        amounts = (self.needed, self.free)
        needed, free = (shown(each) if isinstance(each, int) else each for each in amounts)
        if self.resource.startswith("label."):
            key = self.resource.removeprefix("label.")
            has = "no such label" if free == "none" else f"{key}={free}"
            needed, free = f"the label {key}={needed}", has
        advice = f"; {_ADVICE[self.resource]}" if self.resource in _ADVICE else ""
        return f"{self.resource}: needs {needed}, has {free}{advice}"


@dataclass(frozen=True, slots=True)
class Denied:
    """The grant shown, if any, does not allow this; or not now, where there is a `retry_ms`."""

    right: str
    why: str
    retry_ms: int | None = None

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


@dataclass(frozen=True, slots=True)
class GrantEnded:
    """The worker's own grant has ended. It takes work again once it has a new one."""

    def __str__(self) -> str:
        return "the worker's grant has ended; it takes work again once it has a new one"


@dataclass(frozen=True, slots=True)
class Unbuildable:
    """The machine could not have the packages that the task needs, a moment ago."""

    environment: str
    why: str

    def __str__(self) -> str:
        return f"it cannot have the packages: {self.why}"


@dataclass(frozen=True, slots=True)
class GivingWay:
    """It is taken, by work that ends or gives way to this; ask again in `retry_ms`. Among equals it
    is after the `turn` of another, named, which is over in so many milliseconds."""

    resource: str
    retry_ms: int
    turn: tuple[str, int] | None = None

    def __str__(self) -> str:
        if self.turn is not None:
            name, left_ms = self.turn
            return f"{self.resource}: taken; after {name}'s slice, in {-(-left_ms // 1000)} s"
        return f"{self.resource}: taken, but expected back in {self.retry_ms / 1000:.1f} s"


@dataclass(frozen=True, slots=True)
class Preempted:
    """The lease ends for work of this priority, which is higher than its own; or as high, where it
    is that of one further below its share, who is named."""

    priority: int
    below: str | None = None

    def __str__(self) -> str:
        if self.below is not None:
            return f"its slice was over: it gave way to {self.below}, further below its share"
        return f"it gave way to work of priority {self.priority}"


@dataclass(frozen=True, slots=True)
class TooDear:
    """The worker asks more than the job may cost, both in millionths for a core-hour."""

    price_micro: int
    max_price_micro: int

    def __str__(self) -> str:
        price, limit = format_micro(self.price_micro), format_micro(self.max_price_micro)
        return f"too dear: asks {price} for a core-hour, of at most {limit}"


@dataclass(frozen=True, slots=True)
class OutOfScope:
    """The worker is farther from home than the job may go. Circles are as grants have them."""

    scope: str
    widest: str

    def __str__(self) -> str:
        shared = f"the smallest circle that it shares with this node is {self.scope}"
        return f"out of scope: {shared}, and the job stays within {self.widest}"


@dataclass(frozen=True, slots=True)
class Distrusted:
    """This node has had bad experience with the worker, or too little good. In thousandths."""

    trust_milli: int
    least_milli: int

    def __str__(self) -> str:
        trust, least = format_milli(self.trust_milli), format_milli(self.least_milli)
        return f"trusted {trust}, which is less than {least}"


@dataclass(frozen=True, slots=True)
class Unwanted:
    """A hint that was said to be required speaks against it."""

    hint: str
    why: str

    def __str__(self) -> str:
        return f"{self.hint}: {self.why}"


@dataclass(frozen=True, slots=True)
class Silent:
    """The worker could not be reached, or did not answer in time."""

    why: str

    def __str__(self) -> str:
        return f"the worker is gone: {self.why}"


@dataclass(frozen=True, slots=True)
class Faulty:
    """The worker takes tasks and then cannot run them, through no fault of theirs."""

    why: str

    def __str__(self) -> str:
        return f"the machine could not run a task: {self.why}"


@dataclass(frozen=True, slots=True)
class TooClose:
    """Another worker has answered the task, and both may be one operator's."""

    mark: str
    other: str

    def __str__(self) -> str:
        if not self.mark:
            return "has answered already"
        kind, _, value = self.mark.partition(":")
        named = "invitation" if kind == "grant" else f"{kind} {value}"
        return f"shares the {named} with {self.other}, which has answered already"


@dataclass(frozen=True, slots=True)
class Unalike:
    """All copies of the task are to run on machines that are alike in this."""

    wanted: str

    def __str__(self) -> str:
        return f"is not {self.wanted.replace(':', ' ', 1)}, as the worker that answered first"


PeerRefusal = (
    Infeasible | Denied | Gone | Busy | Leaving | GrantEnded | Unbuildable | GivingWay | Preempted
)
Refusal = (
    PeerRefusal
    | TooDear
    | OutOfScope
    | Distrusted
    | Unwanted
    | Silent
    | Faulty
    | TooClose
    | Unalike
)

"""What a person can ask of a job, declared once for Node, SyncNode, executor, job file, command
line and scheduler.

To add an option: declare it here (the field of `TaskOptions` with its check, the keyword argument
of the calls that take it), act on it in `core`, and give it a flag in command/task_flags.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from inspect import Parameter, signature
from os import PathLike
from types import UnionType
from typing import Any, Final, NamedTuple, Self, TypedDict, TypeVar

from formation_p2p.core.errors import InvalidInput
from formation_p2p.core.keyspace import Key
from formation_p2p.core.units import parse_bytes
from formation_p2p.machine.core.bounds import brief, check_amount, shown
from formation_p2p.machine.core.python import parse_python, python_name
from formation_p2p.machine.core.requirements import (
    Requirements,
    needs_and_memory,
    requirements_from_mapping,
)
from formation_p2p.placement.core.candidate import TaskView
from formation_p2p.placement.core.guarded import sound
from formation_p2p.placement.core.names import BUILT_IN, parse_policy
from formation_p2p.placement.core.policies import Trusted
from formation_p2p.placement.core.policy import Gated, PlacementPolicy, PolicyFactory
from formation_p2p.placement.core.xor import Xor
from formation_p2p.records.core.codec import Malformed
from formation_p2p.records.core.resources import pack_requirements, unpack_requirements
from formation_p2p.workload.core.blob import MAX_BLOB_BYTES
from formation_p2p.workload.core.call_context import DEFAULT_MAX_RESULT_BYTES
from formation_p2p.workload.core.data_rule import combined
from formation_p2p.workload.core.environment import Env, Environment, env_of
from formation_p2p.workload.core.hints import NO_HINTS, Hints, Kind, parse_hints
from formation_p2p.workload.core.inputs_from import process_in
from formation_p2p.workload.core.plan import Plan
from formation_p2p.workload.core.quorum import Quorum, quorum_of
from formation_p2p.workload.core.scope import Find, Scope, parse_find, parse_scope
from formation_p2p.workload.core.work import MAX_PRIORITY

# A task that failed on this many machines will fail on the next.
MAX_ATTEMPTS: Final = 20
MAX_TIMEOUT_S: Final = 24 * 3600
# A year: longer than any scheduler's process lives.
MAX_DEADLINE_S: Final = 365 * 24 * 3600
# Between two steps of a person at a prompt; a worker that is leased for longer is held for nothing.
MAX_LINGER_S: Final = 60.0
# A signed 64-bit integer, as a profile holds.
MAX_PRICE_MICRO: Final = 2**63 - 1

# What calls of a node take by themselves, beside the options of their tasks; for errors.
OF_CALLS: Final[Mapping[str, tuple[str, ...]]] = {
    "map": ("buffersize", "options", "ordered", "progress", "show_output", "trust_results"),
    "executor": ("max_workers", "options", "show_output", "trust_results"),
    "submit": ("labels", "name", "options", "show_output"),
    "run": ("inputs", "options", "outputs"),
    "explain": ("function", "name", "options"),
}

# Of a task's outputs: two may be lost at once. They are named in its result.
MAX_HOLDERS: Final = 3

NEAREST: Final = Xor()
_GATE: Final = Trusted()


class SchedulingKey(NamedTuple):
    """Tasks with equal ones share leases. It is hashable, with custom policies too: two policies
    are the same where they are equal.

    The maximum price, the hints that prefer workers and the policy are not sent to workers; `find`
    says how these are looked for. `member` is a gang's id and a rank: only the lease of that member
    runs such tasks. Workers that are to agree on them are drawn as `quorum` says. They are for the
    holder of the grant `on_behalf`, where there is one.
    """

    needs: Requirements
    priority: int = 0
    max_price_micro: int | None = None
    policy: PlacementPolicy = NEAREST
    hints: Hints = NO_HINTS
    scope: Scope = Scope.COMMONS
    linger_s: float | None = None
    member: tuple[str, int] | None = None
    find: Find = Find.DHT
    quorum: Quorum | None = None
    on_behalf: bytes = b""

    def view(self, name: str, key: Key) -> TaskView:
        """A task with this scheduling key."""
        return TaskView(
            name=name,
            key=key,
            needs=self.needs,
            hints=self.hints,
            scope=self.scope,
            max_price_micro=self.max_price_micro,
        )


Needs = Requirements | str | Mapping[str, object]


class PlacementKwargs(TypedDict, total=False):
    """Which workers may run a task, and which of them is preferred."""

    max_price_micro: int | None
    """Take no worker that asks more for a core-hour, in millionths of the network's currency unit.
    Workers do not learn it."""
    policy: str | PlacementPolicy
    """Ranks the workers: by name, as docs/reference/options.md lists them, or a policy of your
    own."""
    hints: Hints | str | Iterable[str]
    """Where the tasks should run: Hints, or texts such as `region=eu`
    (docs/reference/options.md)."""
    scope: Scope | str
    """The widest circle around this node that tasks may go to (docs/reference/options.md)."""
    env: Env | Environment | str | PathLike[str] | Iterable[str] | Mapping[str, Any] | None
    """The packages that tasks find installed: an Env, a list of requirements, or the path of a
    requirements.txt, pyproject.toml, uv.lock or pylock.toml (docs/how-to/packages.md)."""


class GangKwargs(PlacementKwargs, total=False):
    """The options of a gang."""

    needs: Needs
    """What each member needs, as for `map`."""
    python: str
    """The Python that runs the calls of its members, as for `map`."""
    priority: int
    """From 0 to what the grant allows; work of a higher priority comes first
    (docs/explanation/jobs.md)."""


class CallKwargs(PlacementKwargs, total=False):
    """The options of `map` and `executor`."""

    needs: Needs
    """What each task needs: Requirements, a text such as `cpu=2,memory=4GiB`, or a mapping. By
    default one core and 512 MiB."""
    python: str
    """The Python that runs calls, such as `3.12`, or `any`: the version of this process by default.
    It is one of the needs. Another version takes functions of modules, whose code it has itself."""
    priority: int
    """From 0 to what the grant allows; work of a higher priority comes first
    (docs/explanation/jobs.md)."""
    attempts: int
    """How often a task that fails is tried in all, elsewhere first. An attempt whose worker is
    lost does not count."""
    timeout_s: float | None
    """The limit of one attempt."""
    max_result: int | str
    """The most that one call returns, with all that it holds: bytes, or a text such as `4GiB`. A
    larger result stays with its worker for an hour (docs/explanation/data.md). 1 GiB by default."""
    speculate: bool
    """Whether a task that takes much longer than the others gets a second attempt on another
    worker meanwhile; the first result counts."""
    quorum: Quorum | str | Mapping[str, object] | None
    """How many workers are to agree on the result of each task: a Quorum, or a text such as
    `2 of 3` (docs/reference/options.md)."""
    rebalance: bool
    """Whether a task that has saved moves while it runs, where another worker suits it much better:
    one that has its data, has less to do, or is cheaper (docs/how-to/checkpoints.md)."""
    linger_s: float | None
    """How long workers stay leased after the last task, so that later ones find them warm: 1.5 s
    for `map` and executors by default, a quarter of a second for tasks, a minute at most. Others
    who ask for the room get it at once."""
    find: Find | str
    """How workers are looked for: `dht`, `notice`, `dht+notice` or `announce`
    (docs/reference/options.md)."""


class TaskOptionKwargs(CallKwargs, total=False):
    """The options of `submit` and `run`, as keyword arguments."""

    deadline_s: float | None
    """From the submission: what has not ended by then is given up."""
    copies: int
    """How many workers are to hold the outputs of each task, from 1 to 3, before it has succeeded:
    its own, and others that may (docs/explanation/data.md)."""
    on_behalf: bytes
    """The grant of another member whom the tasks are for, as those of a gateway are: workers judge
    them by what that and this node's own grant both allow."""
    learn: bool
    """Whether memory that `needs` do not give is estimated from earlier runs of the same kind, and
    recorded for later ones (docs/explanation/jobs.md)."""


def _check_kind(name: str, value: object, kind: type | UnionType, wanted: str) -> None:
    if not isinstance(value, kind):
        raise InvalidInput(name, f"{shown(value)} is not valid; write {wanted}")


def _check_time(name: str, value: object, most_s: float) -> None:
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InvalidInput(name, f"{shown(value)} is not a number of seconds; write 90 or 0.5")
    if not 0 < value <= most_s:
        raise InvalidInput(name, f"{shown(value)} s is not above 0 and up to {most_s} s")


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class TaskOptions:
    """The options of a job, checked. `TaskOptionKwargs` says what each means.

    `memory_given` is whether `needs` give the memory. Raises InvalidInput.
    """

    needs: Requirements = Requirements()  # noqa: RUF009 - it is frozen
    memory_given: bool = field(default=True, repr=False)
    priority: int = 0
    attempts: int = 3
    timeout_s: float | None = None
    deadline_s: float | None = None
    speculate: bool = False
    max_price_micro: int | None = None
    policy: PlacementPolicy = NEAREST
    hints: Hints = NO_HINTS
    scope: Scope = Scope.COMMONS
    learn: bool = True
    env: Env | Environment | None = None
    max_result: int = DEFAULT_MAX_RESULT_BYTES
    linger_s: float | None = None
    find: Find = Find.DHT
    quorum: Quorum | None = None
    rebalance: bool = False
    copies: int = 1
    on_behalf: bytes = b""

    __repr__ = brief

    def __post_init__(self) -> None:
        _check_kind("needs", self.needs, Requirements, "Requirements, or a text such as 'cpu=2'")
        check_amount("priority", self.priority, 0, MAX_PRIORITY)
        check_amount("attempts", self.attempts, 1, MAX_ATTEMPTS)
        _check_time("timeout", self.timeout_s, MAX_TIMEOUT_S)
        _check_time("deadline", self.deadline_s, MAX_DEADLINE_S)
        _check_time("linger", self.linger_s, MAX_LINGER_S)
        if self.max_price_micro is not None:
            check_amount("price", self.max_price_micro, 0, MAX_PRICE_MICRO)
        sound(self.policy)
        _check_kind("hints", self.hints, Hints, "Hints, or a text such as 'region=eu'")
        _check_kind("scope", self.scope, Scope, "a Scope, or a text such as 'org'")
        _check_kind("find", self.find, Find, "a Find, or a text such as 'announce'")
        check_amount("max_result", self.max_result, 1, MAX_BLOB_BYTES)
        check_amount("copies", self.copies, 1, MAX_HOLDERS)
        if self.copies > 1 and self.quorum is not None:
            problem = "is for one answer of each task, and a quorum has several"
            raise InvalidInput("copies", f"{problem}; leave one of them out")
        _check_kind("on_behalf", self.on_behalf, bytes, "a grant")
        if self.env is not None:
            _check_kind("env", self.env, Env | Environment, "an Env, or a list of requirements")
        if self.quorum is not None:
            _check_kind("quorum", self.quorum, Quorum, "Quorum(2, of=3), or '2 of 3'")
        for name in ("memory_given", "speculate", "learn", "rebalance"):
            _check_kind(name, getattr(self, name), bool, "True or False")

    def scheduling_key(
        self, needs: Requirements, member: tuple[str, int] | None = None
    ) -> SchedulingKey:
        """By which tasks with these needs, of a gang's member where one is given, share leases."""
        policy = self.policy
        if self.quorum is not None:
            policy = Gated(_GATE, policy)  # a worker that was found wrong has no vote
        return SchedulingKey(
            needs,
            self.priority,
            self.max_price_micro,
            policy,
            self.hints,
            self.scope,
            self.linger_s,
            member,
            self.find,
            self.quorum,
            self.on_behalf,
        )

    def pack(self) -> list[list[object]]:
        """For a record of this node's own. A policy is packed as its text, and the environment is
        left out: the tasks have it."""
        values = {each.name: getattr(self, each.name) for each in fields(self)}
        del values["env"]
        values["policy"] = str(self.policy)
        return [[name, _CODECS[name][0](v) if name in _CODECS else v] for name, v in values.items()]

    @classmethod
    def unpack(cls, packed: object, policies: Mapping[str, PolicyFactory] = BUILT_IN) -> Self:
        """Options that are missing have their defaults. Raises Malformed, InvalidInput."""
        known = {each.name for each in fields(cls)}
        values: dict[str, Any] = {}
        for pair in packed if isinstance(packed, list) else [None]:
            match pair:
                case ["policy", str(text)]:
                    values["policy"] = parse_policy(text, policies)
                case [str(name), value] if name in known:
                    values[name] = _CODECS[name][1](value) if name in _CODECS else value
                case _:
                    raise Malformed("options", "are not pairs of a known option and its value")
        return cls(**values)


# What is not said has these. The memory is not given, and so may be learned.
DEFAULT_OPTIONS: Final = TaskOptions(memory_given=False)

_CODECS: Final[Mapping[str, tuple[Callable[[Any], object], Callable[[Any], object]]]] = {
    "needs": (pack_requirements, unpack_requirements),
    "hints": (Hints.pack, Hints.unpack),
    "scope": (int, Scope),
    "find": (str, Find),
    "quorum": (
        lambda quorum: quorum and quorum.pack(),
        lambda packed: packed and Quorum.unpack(packed),
    ),
}


def options_of(
    kwargs: Mapping[str, Any],
    options: TaskOptions = DEFAULT_OPTIONS,
    *,
    takes: type[PlacementKwargs] = TaskOptionKwargs,
    call: str = "submit",
    policies: Mapping[str, PolicyFactory] = BUILT_IN,
) -> TaskOptions:
    """`options`, changed by what a person wrote. `call` takes no other arguments than `takes` has.
    `policies` are those that a text may name.

    Raises InvalidInput, which names the option.
    """
    taken = takes.__annotations__
    unknown = [name for name in kwargs if name not in taken]
    unknown += [
        each.name
        for each in fields(options)
        if each.name not in {*taken, "needs", "memory_given"}
        and getattr(options, each.name) != getattr(DEFAULT_OPTIONS, each.name)
    ]
    if unknown:
        listed = ", ".join(sorted({*taken, *OF_CALLS.get(call, ())}))
        problem = f"{call} does not take this option; it takes {listed}"
        if call == "map":
            problem += "; arguments for the function go along by functools.partial"
        raise InvalidInput(unknown[0], problem)
    changed = {name: given for name, given in kwargs.items() if name != "python"}
    for name, given in kwargs.items():
        match name, given:
            case "needs", _:
                changed["needs"], changed["memory_given"] = needs_of(given)
            case "env", _ if given is not None and not isinstance(given, Environment):
                changed["env"] = env_of(given)
            case "max_result", str():
                changed["max_result"] = _bytes_of(given)
            case "policy", str():
                changed["policy"] = parse_policy(given, policies)
            case "quorum", _:
                changed["quorum"] = quorum_of(given)
            case "hints", str() | Iterable():
                changed["hints"] = parse_hints((given,) if isinstance(given, str) else given)
            case "scope", _ if not isinstance(given, Scope):
                changed["scope"] = parse_scope(given)
            case "find", _ if not isinstance(given, Find):
                changed["find"] = parse_find(given)
    options = replace(options, **changed) if changed else options
    if "python" in kwargs:
        needs = replace(options.needs, python=parse_python(kwargs["python"]))
        options = replace(options, needs=needs)
    if isinstance(options.env, Env) and options.env.python:
        python = python_name(options.env.python)
        if options.needs.python not in ("", python):
            problem = f"is for {python}, and the needs ask for {options.needs.python}"
            raise InvalidInput("env.python", f"{problem}; leave one of them out")
        options = replace(options, needs=replace(options.needs, python=python))
    return options


def within_rules(options: TaskOptions, plan: Plan) -> TaskOptions:
    """The options of a job with these tasks: in the region, and the scope, of all data that they
    read. Raises InvalidInput for an unknown place."""
    processes = (process_in(task.work) for task in plan.tasks)
    inputs = (blob for each in processes if each is not None for blob in each.inputs.values())
    rules = [blob.rule for blob in inputs if blob.rule is not None]
    rule = combined(rules)
    if rule is None:
        return options
    # What is for the parties of a job may go to its workers, which are parties.
    circles = (each.scope for each in rules if each.scope != Scope.LOCAL)
    scope = min(options.scope, *circles, Scope.COMMONS)
    hints = options.hints
    if rule.region:
        if hints.region not in ("", rule.region):
            problem = f"the job asks for {hints.region}, and its inputs stay in {rule.region}"
            raise InvalidInput("region", f"{problem}; leave the hint out")
        required = frozenset(hints.required) | {Kind.REGION}
        hints = replace(hints, region=rule.region, required=required)
    return replace(options, scope=scope, hints=hints)


def _bytes_of(text: str) -> int:
    try:
        return parse_bytes(text)
    except ValueError as problem:
        raise InvalidInput("max_result", str(problem)) from problem


def needs_of(needs: Needs) -> tuple[Requirements, bool]:
    """And whether they give the memory. Raises InvalidInput."""
    if isinstance(needs, str):
        return needs_and_memory(needs)
    if isinstance(needs, Mapping):
        return requirements_from_mapping(needs), "memory" in needs
    return needs, True


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

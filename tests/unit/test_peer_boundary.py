"""The boundary of a peer is closed: each effect is in its union, and each driver performs all."""

import ast
import importlib
import inspect
import typing
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from unittest.mock import MagicMock

import pytest

import formation_p2p
from formation_p2p.api import bridge
from formation_p2p.assembly import PeerEffect, PeerEvent, PeerMessage, UserEffect
from formation_p2p.core.effects import Effect, OwnedEvent
from formation_p2p.leases.core.messages import WORK
from formation_p2p.leases.core.session import Disconnected, Received, Undelivered
from formation_p2p.peer import performer as host_performer
from formation_p2p.peer.core.effects import KernelEffect
from formation_p2p.reach.core.reservations import ReservationEffect
from simulations.simulator import performer
from tests.support.stories import peer_of, town

# What effects of features derive from: no effect itself, whichever features there are.
BASES = {OwnedEvent.__name__}


def names_of(union: object) -> set[str]:
    members: tuple[type, ...] = typing.get_args(union)
    return {member.__name__ for member in members}


def subclasses_of(kind: type) -> Iterator[type]:
    subclasses: list[type] = kind.__subclasses__()
    for each in subclasses:
        yield each
        yield from subclasses_of(each)


def cases_of(module: ModuleType, name: str, subject: str) -> set[str]:
    """The classes that a function's `match` on a variable names, where it ends in assert_never."""
    tree = ast.parse(inspect.getsource(module))
    [function] = [
        node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and node.name == name
    ]
    [match] = [
        node
        for node in ast.walk(function)
        if isinstance(node, ast.Match) and ast.unparse(node.subject) == subject
    ]
    *cases, last = match.cases
    assert ast.unparse(last.pattern) == "_"
    assert [ast.unparse(line) for line in last.body] == [f"assert_never({subject})"]
    found: set[str] = set()
    for case in cases:
        pattern = case.pattern
        for option in pattern.patterns if isinstance(pattern, ast.MatchOr) else [pattern]:
            assert isinstance(option, ast.MatchClass), ast.unparse(option)
            assert case.guard is None, "a guard leaves some of them to the last case"
            named = eval(ast.unparse(option.cls), vars(module))
            # A base class stands for all that derive from it.
            found |= {each.__name__ for each in subclasses_of(named)} or {named.__name__}
    return found - BASES


def test_the_union_has_every_effect_of_what_is_pure() -> None:
    root = Path(formation_p2p.__path__[0])
    for path in root.glob("**/core/**/*.py"):
        importlib.import_module(".".join(path.relative_to(root.parent).with_suffix("").parts))
    # The machines of `nat` stand beside the peer: the network performs what they want done.
    beside = names_of(ReservationEffect)
    found = [x for x in subclasses_of(Effect) if ".core." in x.__module__]
    bases = {each.__name__ for each in found if each.__subclasses__()} | BASES
    effects = {each.__name__ for each in found}
    assert effects - bases - beside == names_of(PeerEffect)


@pytest.mark.parametrize(
    ("module", "function", "union"),
    [
        (host_performer, "_perform", KernelEffect),
        (host_performer, "_perform_of_member", host_performer.OfMember),
        (performer, "perform", PeerEffect),
        (bridge, "_answered", UserEffect),
    ],
)
def test_each_driver_performs_every_effect(
    module: ModuleType, function: str, union: object
) -> None:
    assert cases_of(module, function, "effect") == names_of(union)


def test_each_effect_is_performed_by_the_kernel_of_a_node_or_by_one_feature() -> None:
    made = host_performer.Performer(*[MagicMock() for _ in range(6)])
    assert made.performs.keys() == set(typing.get_args(PeerEffect))


def test_exactly_one_part_handles_each_event_and_reads_each_message() -> None:
    table = peer_of(town(alice=1).nodes["alice"]).table  # which no two parts can claim one of
    told_to_all = {Received, Undelivered, Disconnected}
    assert table.handles.keys() | told_to_all == set(typing.get_args(PeerEvent))
    assert table.reads.keys() == set(typing.get_args(PeerMessage))
    assert WORK.messages == table.reads.keys()


def test_what_is_for_the_person_is_part_of_what_a_peer_asks_for() -> None:
    assert names_of(UserEffect) < names_of(PeerEffect)

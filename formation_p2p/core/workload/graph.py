"""The order of tasks: names become indexes, and cycles are refused."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from typing import Final

from formation_p2p.core.errors import InvalidInput
from formation_p2p.core.resources.bounds import shown

# Of one job. The scheduler follows each twice, in half a second altogether. One task in between
# replaces the million edges of a thousand tasks that wait for a thousand others.
MAX_EDGES: Final = 500_000
# Of a cycle, in a message.
_MAX_NAMED: Final = 8

Edges = Sequence[Sequence[int]]


def linked(
    labels: Sequence[str], after: Sequence[Sequence[str]], groups: Mapping[str, Sequence[int]]
) -> list[tuple[int, ...]]:
    """For each task, the indexes of those that it waits for, each once.

    A name in `after` is that of a group, for all of its tasks, or the label of a task. Raises
    InvalidInput for other names, and for a cycle, which the message shows.
    """
    by_name = {label: (index,) for index, label in enumerate(labels)} | dict(groups)
    edges: list[tuple[int, ...]] = []
    count = 0
    known: dict[tuple[str, ...], tuple[int, ...]] = {}
    for label, names in zip(labels, after, strict=True):
        key = tuple(names)
        if key not in known:
            for name in key:
                if name not in by_name:
                    problem = f"{label} waits for {shown(name)}, and no task is called that"
                    raise InvalidInput("after", problem)
            known[key] = tuple(dict.fromkeys(i for name in key for i in by_name[name]))
        edges.append(known[key])
        count += len(known[key])
        refuse_many(count)
    refuse_cycles(labels, edges)
    return edges


def refuse_many(edges: int) -> None:
    if edges > MAX_EDGES:
        many = f"there are more than {MAX_EDGES} pairs of tasks that wait for one another"
        hint = "put one task between the many, for which the later ones wait"
        raise InvalidInput("after", f"{many}; {hint}")


def refuse_cycles(labels: Sequence[str], edges: Edges) -> None:
    """Raises InvalidInput, which shows one, where tasks wait for each other in a circle.

    Source: Kahn, "Topological sorting of large networks", 1962.
    """
    left = [len(set(before)) for before in edges]
    followers: list[list[int]] = [[] for _ in edges]
    for index, before in enumerate(edges):
        for each in set(before):
            followers[each].append(index)
    free = deque(index for index, count in enumerate(left) if count == 0)
    done = 0
    while free:
        done += 1
        for follower in followers[free.popleft()]:
            left[follower] -= 1
            if left[follower] == 0:
                free.append(follower)
    if done < len(left):
        circle = " for ".join(shown(labels[index]) for index in _cycle(edges, left))
        raise InvalidInput("after", f"tasks wait for each other in a circle: {circle}")


def _cycle(edges: Edges, left: Sequence[int]) -> list[int]:
    """Back along the tasks that are left, which ends in a circle."""
    at = next(index for index, count in enumerate(left) if count)
    seen: dict[int, int] = {}
    while at not in seen:
        seen[at] = len(seen)
        at = min(each for each in edges[at] if left[each])
    return [*list(seen)[seen[at] :][:_MAX_NAMED], at]

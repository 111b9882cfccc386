"""Features of other packages: a package that is installed beside this one adds to every node what
its entry points name.

    [options.entry_points]
    formation_p2p.features =
        greetings = greetings:FEATURE
    formation_p2p.commands =
        greet = greetings.command:greet

A feature brings to a node what the features of this package bring: a row of the peer's table, and,
for its effects, a row of the node's (a kind of OwnedEvent goes on to programs by `Means.tell`). Its
messages are declared with the work protocol (`WORK.message`), with numbers from FIRST_NUMBER on;
its records stand on a shelf (`Kernel.records.shelve`). A peer that does not know a message drops
the connection: a feature sends its messages to peers that have the feature, as it knows by a record
or a label.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from formation_p2p.machine.entry_points import Offered
from formation_p2p.peer.core.part import Part
from formation_p2p.peer.core.peer import Kernel
from formation_p2p.peer.node_part import Means, NodePart

# Of messages: the numbers below belong to this package.
FIRST_NUMBER: Final = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Feature:
    """`part` is called with the kernel of each peer, before it is told anything. `beside` is
    called with the means of each node. `api` makes what `Node.feature` returns, from the bridge of
    the node (api/bridge.py)."""

    part: Callable[[Kernel[Any, Any]], Part]
    beside: Callable[[Means], NodePart] | None = None
    api: Callable[[Any], object] | None = None


FEATURES: Final[Mapping[str, Feature]] = Offered("formation_p2p.features", {}, Feature)

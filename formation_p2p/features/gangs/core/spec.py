"""What a gang is asked to be: what each rank needs, how members lie, and what a loss means."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final, Self

from formation_p2p.core.errors import InvalidInput
from formation_p2p.features.gangs.core.choice import Arrangement
from formation_p2p.features.gangs.core.network import NETWORK_LABEL
from formation_p2p.features.gangs.core.roster import MAX_MEMBERS
from formation_p2p.machine.core.requirements import Requirements
from formation_p2p.placement.core.task_options import DEFAULT_OPTIONS, SchedulingKey, TaskOptions
from formation_p2p.placement.core.xor import CLUSTER_SIZE

# Members where a caller does not say how many.
DEFAULT_SIZE: Final = CLUSTER_SIZE


class OnLoss(StrEnum):
    """What follows when a member is lost."""

    REPLACE = "replace"  # another worker takes its rank; tasks of the rank wait meanwhile
    END = "end"  # the gang ends, and its tasks fail


@dataclass(frozen=True, slots=True)
class GangSpec:
    """`needs` are those of each rank. `options` say which workers may be members; their own needs
    count for nothing. Where `fewer` is set and fewer workers than ranks are there, each of them is
    a member. Raises InvalidInput."""

    needs: tuple[Requirements, ...]
    options: TaskOptions = DEFAULT_OPTIONS
    arrange: Arrangement = Arrangement.STRICT_SPREAD
    on_loss: OnLoss = OnLoss.REPLACE
    fewer: bool = False

    def __post_init__(self) -> None:
        if not 1 <= len(self.needs) <= MAX_MEMBERS:
            problem = f"a gang has 1 to {MAX_MEMBERS} members, not {len(self.needs)}"
            raise InvalidInput("gang", f"{problem}; split the work over several gangs")
        if any(needs.driver == "" for needs in self.needs):
            raise InvalidInput("driver", "a gang names the driver of its tasks, such as python")

    @property
    def size(self) -> int:
        return len(self.needs)

    @property
    def has_network(self) -> bool:
        """Whether its tasks are in a network of their own (network.py)."""
        return all(NETWORK_LABEL in needs.labels for needs in self.needs)

    def key(self, gang_id: str, rank: int) -> SchedulingKey:
        """Under which the lease of this rank is held, and its tasks wait."""
        return self.options.scheduling_key(self.needs[rank], (gang_id, rank))

    def of_size(self, size: int) -> Self:
        """With so many ranks; new ones need what the last one does. Raises InvalidInput."""
        more = (self.needs[-1],) * max(0, size - self.size)
        return type(self)(
            (self.needs + more)[:size], self.options, self.arrange, self.on_loss, fewer=False
        )

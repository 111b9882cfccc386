"""The tasks that the network has been seeing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Mix:
    """A placeholder of its owner's."""


EMPTY_MIX: Final = Mix()
